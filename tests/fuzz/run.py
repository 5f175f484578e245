"""Fuzz attach and the engine: python tests/fuzz/run.py --long 20000 --seed 1

Every finding is one line that ends in the command that repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

KINDS = ("same", "tie", "refused", "finding", "no model")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--long", type=int, default=300, help="number of cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", type=int, default=0, dest="first", help="number of the first case")
    parser.add_argument("--only", type=int, help="one case, shown in full")
    parser.add_argument("--family", help="only cases of this model_type")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between lines of progress")
    asked = parser.parse_args(argv)

    import torch

    torch.set_num_threads(1)
    from fuzzing.cases import case
    from fuzzing.quiet import quiet
    from fuzzing.tally import Tally
    from fuzzing.verdict import judge

    quiet()
    if asked.only is not None:
        one = case(asked.seed, asked.only)
        print(one)
        outcomes = judge(one)
        for role, outcome in outcomes.items():
            print(f"{role}: {outcome.kind} {outcome.why}")
        return int(any(o.kind == "finding" for o in outcomes.values()))
    tally, start = Tally(), time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):  # a long run may be ended at any time
        said = start
        for number in range(asked.first, asked.first + asked.long):
            one = case(asked.seed, number)
            if asked.family and one.family != asked.family:
                continue
            for line in tally.add(one, judge(one)):
                print(line, flush=True)
            if time.monotonic() - said > asked.every:
                said = time.monotonic()
                done = number + 1 - asked.first
                print(f"{done} cases, {said - start:.0f} s: {tally.line()}", flush=True)
    print(tally.table())
    print(f"seed {asked.seed}, {tally.cases} cases in {time.monotonic() - start:.0f} s: {tally.line()}")
    healthy = tally.healthy() or asked.family or tally.cases < 300
    if not healthy:
        print("too few cases were served and right for the fuzzer to say much; see what was refused above")
    return int(tally.findings > 0 or not healthy)


if __name__ == "__main__":
    raise SystemExit(main())

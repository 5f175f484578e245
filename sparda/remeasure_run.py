"""Run measured steps, one process each: limited in time, kept row by row, and told in one line.

A step writes into a staging folder; only at its end, or when it is stopped, its rows go to data/measured/.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from sparda import remeasure
from sparda.remeasure import Place, Step

_PR_SET_PDEATHSIG = 1
GRACE_S = 20  # from a polite stop to a hard one


@dataclass(frozen=True)
class Outcome:
    """seconds it took; rows that are new; problem: why it counts as not done, empty if it is."""

    seconds: float
    rows: int
    problem: str = ""


def run(step: Step, place: Place, *, limit_s: float) -> Outcome:
    """Run one step; what it measured is kept even if it fails or is stopped. Ctrl-C goes through."""
    key, start = remeasure.digest(step, place), time.monotonic()
    place.state.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f"staging-{os.getpid()}-", dir=place.state))
    out = place.folder if step.in_place else stage
    log = place.state / f"measured-{step.name}.log"
    proof: dict = {}
    rows = 0
    try:
        try:
            problem = _execute(command(step, out), place.root, log, limit_s)
        finally:
            if not step.in_place:
                proof = remeasure.proof(step, stage)
                rows = remeasure.keep(stage, place.folder, step)
        if step.in_place and not problem:
            proof, rows = remeasure.proof(step, place.folder), len(step.writes)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    if not problem and not rows:
        problem = f"nothing came to its end: {last_line(log)}"
    seconds = time.monotonic() - start
    if problem:
        return Outcome(seconds, rows, problem)
    note = {"digest": key, "seconds": round(seconds, 1), "proof": proof}
    place.note(step).write_text(json.dumps(note, indent=1), encoding="utf-8")
    return Outcome(seconds, rows)


def command(step: Step, out: Path) -> list[str]:
    """The process's arguments: this Python, so that the packages are those of the build."""
    staged = [] if step.in_place else ["--out", str(out)]
    return [sys.executable, "-m", *step.words, *staged]


def _execute(arguments: list[str], cwd: Path, log: Path, limit_s: float) -> str:
    """What went wrong, in a sentence; empty if nothing did."""
    with open(log, "w", encoding="utf-8") as said:
        # a group of its own: whatever the step starts ends with it
        child = subprocess.Popen(
            arguments, cwd=cwd, stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )  # fmt: skip
        try:
            status = child.wait(timeout=max(1.0, limit_s))
        except subprocess.TimeoutExpired:
            _stop(child)
            return f"it was stopped after {limit_s:.0f} s"
        except BaseException:
            _stop(child)
            raise
    return f"it ended with status {status}: {last_line(log)}" if status else ""


def _end_with_parent() -> None:
    """Ask the kernel to end this process with the build: one left over would disturb the next measurement."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _stop(child: subprocess.Popen) -> None:
    """Ctrl-C first, so that it can give back what it holds."""
    for sign in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(child.pid, sign)
            child.wait(timeout=GRACE_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        else:
            return


def last_line(log: Path) -> str:
    """The last line that a step printed, cut to bearable length."""
    try:
        lines = [
            line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
        ]
    except OSError:
        lines = []
    return " ".join(lines[-1].split())[:200] if lines else "it printed nothing"

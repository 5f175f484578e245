"""Speed of prompts, and latency as a caller sees it: time to the first token, time per token.

Wall-clock times with a wait for the GPU at each end. Prompts are random tokens; a first one of the same
length is not counted: it compiles, loads kernels and makes the allocator ask for memory. ``ttft`` is from
handing over the prompt to knowing the first token; a batch's are read one after the other, and the last one's
first token counts. ``tpot`` is from one token, delivered to the host, to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch

from sparda.engine.prefill import CHUNK, Prefill
from sparda.measure import setup as running
from sparda.measure.decode import WARM_UP, name, stamp
from sparda.measure.readers import reader
from sparda.measure.setup import Setup
from sparda.measure.systems import Case
from sparda.measure.tables import Table

SHORT = 4096  # tokens of the first prompt
OURS, DENSE = "sparse_prefill", ("flash", "cudnn")
_PREFILL = ("device", "model", "selector", "budget_blocks", "block_size", "attention", "context", "chunk")
PREFILL = Table(
    "prefill",
    (*_PREFILL, "tokens_per_s", "ttft_s", "peak_gpu_gib", "pinned_gib", "status", "date", "commit"),
    _PREFILL,
)
_LATENCY = ("device", "model", "selector", "transport", "cache_slots", "context", "batch", "hit_rate")
LATENCY = Table(
    "latency",
    (*_LATENCY, "ttft_ms", "tpot_ms_median", "tpot_ms_p99", "steps", "status", "date", "commit"),
    _LATENCY,
)
Done = Callable[[dict[str, str]], None]


def prefill(setup: Setup, cases: Sequence[Case], *, repeats: int, done: Done) -> list[dict[str, str]]:
    """One row for each case, and for a dense one one a backend; ``done`` is called with each as it comes."""
    rows = []
    for case, attention in with_attention(setup, cases):
        numbers, status = running.attempt(setup, partial(_prefill, setup, case, attention, repeats))
        about = {c: v for c, v in name(setup, case).items() if c in _PREFILL}
        about |= {"attention": attention, "chunk": CHUNK[setup.device.type]}
        row = PREFILL.row(**about, status=status, **numbers, **stamp())
        rows.append(row)
        done(row)
    return rows


def with_attention(setup: Setup, cases: Sequence[Case]) -> Iterator[tuple[Case, str]]:
    for case in cases:
        if case.system.selector != "all":
            yield case, OURS
        else:
            yield from ((case, through) for through in (DENSE if setup.on_gpu else ("math",)))


def _prefill(setup: Setup, case: Case, attention: str, repeats: int) -> dict[str, float]:
    through = None if attention == OURS else attention
    with running.session(setup, case, past=case.context) as session:
        read_seconds(setup, session, case.context, through=through)  # the first one loads and allocates
        times = [
            read_seconds(setup, session, case.context, seed=1 + i, through=through) for i in range(repeats)
        ]
        held = running.memory(setup, session)
    seconds = sorted(times)[len(times) // 2]
    return {"tokens_per_s": case.context / seconds, "ttft_s": seconds, **held}


def latency(setup: Setup, cases: Sequence[Case], *, steps: int, done: Done) -> list[dict[str, str]]:
    """One row for each case."""
    rows = []
    for case in cases:
        numbers, status = running.attempt(setup, lambda case=case: _latency(setup, case, steps))
        about = {c: v for c, v in name(setup, case).items() if c in _LATENCY}
        row = LATENCY.row(**about, steps=steps, status=status, **numbers, **stamp())
        rows.append(row)
        done(row)
    return rows


def _latency(setup: Setup, case: Case, steps: int) -> dict[str, float]:
    past = case.context - WARM_UP - steps
    if past < setup.sparsity.block_size:
        raise running.Skipped(f"a context of {case.context} tokens has no room for {steps} steps")
    with running.session(setup, case, past=past) as session:
        read_seconds(setup, session, past)  # not counted: it loads and allocates
        ttft = sum(read_seconds(setup, session, past, sequence=i, seed=1 + i) for i in range(case.batch))
        for _ in range(WARM_UP):
            session.step()
        session.tokens.tolist()
        times = []
        for _ in range(steps):
            start = perf_counter()
            session.step()
            session.tokens.tolist()
            times.append(1e3 * (perf_counter() - start))
    spread = torch.tensor(times, dtype=torch.float64).quantile(torch.tensor([0.5, 0.99], dtype=torch.float64))
    median, p99 = spread.tolist()
    return {"ttft_ms": 1e3 * ttft, "tpot_ms_median": median, "tpot_ms_p99": p99}


def read_seconds(
    setup: Setup, session: Any, n_tokens: int, *, sequence: int = 0, seed: int = 0,
    through: str | None = None,
) -> float:  # fmt: skip
    """Seconds from handing over a prompt to its first token on the host."""
    tokens = random_tokens(setup, n_tokens, seed)
    if setup.on_gpu:
        torch.cuda.synchronize()
    start = perf_counter()
    with torch.inference_mode():
        prompt(session, sequence, tokens, through).run().argmax().item()
    return perf_counter() - start


def prompt(session: Any, sequence: int, tokens: torch.Tensor, through: str | None = None) -> Prefill:
    """A prompt that is about to be read, with the engine's attention or a dense backend."""
    step = session._step
    return reader(through)(step.decoder, session.store, step.selector, sequence, tokens)


def random_tokens(setup: Setup, n_tokens: int, seed: int) -> torch.Tensor:
    """Random token ids [n_tokens] on the device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(setup.shape.vocab, (n_tokens,), generator=generator).to(setup.device)

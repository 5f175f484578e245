"""Traces of decode steps: files for the timeline, and how a layer's time divides (``breakdown``).

A traced step runs the same kernels with marks between them, so it is a little slower (``sparda.trace`` says
by how much): shares are read off it, speeds are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from sparda.measure import decode
from sparda.measure import setup as running
from sparda.measure.decode import name, stamp
from sparda.measure.prompts import OURS, SHORT, prompt, random_tokens, with_attention
from sparda.measure.readers import Clock, put_on_clock
from sparda.measure.setup import Setup
from sparda.measure.systems import Case
from sparda.measure.tables import Table
from sparda.timeline import Event, Step

TRACED = 9  # steps whose traces are read
_KEY = (
    "device", "model", "selector", "cache_slots", "transport", "context", "batch", "hit_rate", "phase",
    "attention", "part",
)  # fmt: skip
BREAKDOWN = Table("breakdown", (*_KEY, "us_per_layer", "share", "status", "date", "commit"), _KEY)
BESIDE = "selection_beside"  # selection that ran beside other parts of a layer: no share of its time


def steps(setup: Setup, case: Case, count: int = TRACED) -> list[Step]:
    """Trace some decode steps of a case."""
    from sparda.trace import Trace

    past = case.context - decode.WARM_UP - count - 1
    if past < setup.sparsity.block_size:
        raise running.Skipped(f"a context of {case.context} tokens has no room for {count} steps")
    with running.session(setup, case, past=past) as session:
        session.fill(past)
        for _ in range(decode.WARM_UP):
            session.step()
        trace = Trace(setup.shape.n_layers, setup.device)
        session.step(trace=trace)  # captures the graph with the marks
        found = []
        for _ in range(count):
            session.step(trace=trace)
            found.append(trace.step())
    return found


def save(
    setup: Setup, cases: Sequence[Case], *, folder: Path | None, done: Callable[[dict], None]
) -> list[dict[str, str]]:
    """Write a typical step of each case to ``folder/trace_<system>_b<batch>.json``; report its sums, us."""
    rows = []
    for case in cases:
        found: list[Step] = []
        _, status = running.attempt(setup, partial(_collect, setup, case, found))
        row = {c: str(v) for c, v in name(setup, case).items()} | {"status": status}
        if found:
            step = sorted(found, key=lambda one: one.summary()["step_us"])[len(found) // 2]
            row |= {key: f"{us:.4g}" for key, us in step.summary().items()}
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
                known = {c: v for c, v in name(setup, case).items() if v == v}  # without NaN
                about = step.about | known | stamp()
                _write(Step(step.events, about), folder / f"trace_{case.system.name}_b{case.batch}.json")
        rows.append(row)
        done(row)
    return rows


def _collect(setup: Setup, case: Case, found: list[Step]) -> dict:
    found += steps(setup, case)
    return {}


def _write(step: Step, path: Path) -> None:
    import json

    path.write_text(json.dumps(step.chrome(), indent=1) + "\n", encoding="utf-8")


def breakdown(setup: Setup, cases: Sequence[Case], *, done: Callable[[dict], None]) -> list[dict[str, str]]:
    """How a layer's time divides in decode, and for batch 1 in prefill: a row for each part of each case."""
    rows = []
    for case in cases:
        ways = [("decode", "sparse_decode", partial(_decode_parts, setup, case))]
        if case.batch == 1:
            for _, how in with_attention(setup, [case]):
                ways.append(("prefill", how, partial(prompt_parts, setup, case, how)))
        for phase, how, run in ways:
            numbers, status = running.attempt(setup, run)
            about = {c: v for c, v in name(setup, case).items() if c in _KEY} | stamp()
            about |= {"phase": phase, "attention": how, "status": status}
            layer = sum(us for part, us in numbers.items() if part != BESIDE)
            for part, us in numbers.items() or [("layer", float("nan"))]:
                share = us / layer if numbers and part != BESIDE else float("nan")
                rows.append(BREAKDOWN.row(**about, part=part, us_per_layer=us, share=share))
                done(rows[-1])
    return rows


def prompt_parts(setup: Setup, case: Case, attention: str) -> dict[str, float]:
    """us a layer of a whole prompt by part, means over the layers; "other" is rotation, storing, indexing."""
    through = None if attention == OURS else attention
    with running.session(setup, case, past=case.context) as session, torch.inference_mode():
        for n_tokens in (min(SHORT, case.context), case.context):  # the first one compiles
            clock = Clock(setup.device)
            reading = prompt(session, 0, random_tokens(setup, n_tokens, seed=0), through)
            put_on_clock(reading, clock)
            reading.run()
            times = clock.totals_us()
    times["attention"] = times.pop("attend") - times.get("selection", 0.0)
    inside = ("projection", "selection", "attention", "ffn")
    times["other"] = times.pop("layer") - sum(times.get(part, 0.0) for part in inside)
    return {part: us / setup.shape.n_layers for part, us in times.items()}


def _decode_parts(setup: Setup, case: Case) -> dict[str, float]:
    return parts(steps(setup, case))


def parts(traced: Iterable[Step]) -> dict[str, float]:
    """us of a layer by part, medians over steps and offloaded layers.

    A moment counts once: for attention, wait or ffn if one of them runs, else for selection, else for
    "projection" (the first product, rotation, appending, gaps). What of a selection runs beside the others is
    ``selection_beside``.
    """
    found: dict[str, list[float]] = {}
    for step in traced:
        marked = {(e.kind, e.layer): e for e in step.events}
        preps = step.of("prep")
        for layer in step.of("layer")[1:]:  # layer 0 is not like the others
            for part, us in _divide(layer, marked, preps).items():
                found.setdefault(part, []).append(us)
    return {part: median(times) for part, times in found.items()}


def _divide(layer: Event, marked: dict[tuple[str, int], Event], preps: Sequence[Event]) -> dict[str, float]:
    inside: list[Any] = [marked.get((kind, layer.layer)) for kind in ("attention", "wait", "ffn")]
    times = {e.kind: e.end_us - e.start_us for e in inside if e}
    taken = [(e.start_us, e.end_us) for e in inside if e]
    copy = marked.get(("transfer", layer.layer))
    if copy and not copy.beside:  # compute makes the copy itself, and does nothing else meanwhile
        times["wait"] = times.get("wait", 0.0) + copy.end_us - copy.start_us
        taken.append((copy.start_us, copy.end_us))
    selecting = [(max(e.start_us, layer.start_us), min(e.end_us, layer.end_us)) for e in preps]
    selecting = [(a, b) for a, b in selecting if a < b]
    beside = sum(max(0.0, min(b, d) - max(a, c)) for a, b in selecting for c, d in taken)
    alone = sum(b - a for a, b in selecting) - beside
    rest = layer.end_us - layer.start_us - sum(times.values()) - alone
    return {"projection": rest, "selection": alone, **times, BESIDE: beside}

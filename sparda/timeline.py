"""A measured decode step: its events, what of its transfers was exposed, and the file that keeps it.

    step = load("trace_b16.json")
    step.table(), step.summary(), step.spans()

Exposed is the time that compute stood still for a transfer: all of a copy that the stream of compute makes
itself, else what is left of the copy when its layer begins to wait; of a copy without marks (the resident
worker's), the whole wait. The rest of a copy is hidden. Files are Chrome trace events (ph, ts, dur, pid, tid,
name; us), with where they come from under "otherData".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparda import provenance
from sparda.simulate import COMPUTE, LINK, Span, Task

KINDS = ("layer", "prep", "transfer", "wait", "attention", "ffn")
NAMES = {"prep": "prep", "attention": "attention", "ffn": "rest", "transfer": "copy"}  # as simulate has them
DATA = provenance.ROOT / "data" / "measured"
AHEAD = "ahead"  # the lane of a selection that runs beside the layer before
LANES = {COMPUTE: 1, AHEAD: 2, LINK: 3}  # threads of the file


@dataclass(frozen=True)
class Event:
    """One span of a step, us from its first mark. beside: on another stream than attention."""

    kind: str
    layer: int
    start_us: float
    end_us: float
    beside: bool = False

    @property
    def lane(self) -> str:
        return LINK if self.kind == "transfer" else AHEAD if self.beside else COMPUTE

    @property
    def duration_us(self) -> float:
        return round(self.end_us - self.start_us, 3)


@dataclass(frozen=True)
class Step:
    """Events in order of their start, and what is known of the run: device, date, commit, batch ..."""

    events: tuple[Event, ...]
    about: dict[str, Any] = field(default_factory=dict)

    def rows(self) -> list[dict]:
        """One dict an event: layer, lane, kind, start_us, end_us, duration_us."""
        names = ("layer", "lane", "kind", "start_us", "end_us", "duration_us")
        return [{name: getattr(event, name) for name in names} for event in self.events]

    def table(self):
        """``rows()`` as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def of(self, kind: str) -> list[Event]:
        """Events of one kind, by start."""
        return [event for event in self.events if event.kind == kind]

    def stalls(self) -> dict[int, tuple[float, float]]:
        """By layer, from when to when (us) compute stood still for the layer's transfer."""
        found = {wait.layer: (wait.start_us, wait.end_us) for wait in self.of("wait")}
        for copy in self.of("transfer"):
            start, end = found.pop(copy.layer, (copy.end_us, copy.end_us))
            if self._alone(copy):
                found[copy.layer] = (copy.start_us, copy.end_us)
            elif start < copy.end_us:
                found[copy.layer] = (start, min(copy.end_us, end))
        return found

    def _alone(self, copy: Event) -> bool:
        """Whether the stream of compute made this copy, and did nothing else meanwhile."""
        starts = (e.start_us for e in self.events if e.lane == COMPUTE)
        return not copy.beside and not any(copy.start_us < start < copy.end_us for start in starts)

    def summary(self) -> dict[str, float]:
        """Sums over the layers, us: exposed_us, hidden_us, a sum for each kind, and step_us.

        step_us : from the first mark to the last: all layers, without embedding and head
        """
        exposed = {layer: end - start for layer, (start, end) in self.stalls().items()}
        hidden = [max(0.0, e.duration_us - exposed.get(e.layer, 0.0)) for e in self.of("transfer")]
        first, last = min(e.start_us for e in self.events), max(e.end_us for e in self.events)
        sums = {f"{kind}_us": math.fsum(e.duration_us for e in self.of(kind)) for kind in KINDS}
        sums |= {"exposed_us": math.fsum(exposed.values()), "hidden_us": math.fsum(hidden)}
        return {"step_us": round(last - first, 3)} | {name: round(us, 3) for name, us in sums.items()}

    def spans(self) -> list[Span]:
        """The step in the words of ``sparda.simulate``; a stall is what a compute span ``waited``.

        What a layer does outside its marks (projections, appending, gaps, stamps) is "other".
        """
        stalls = list(self.stalls().values())
        pieces = [_piece(e) for e in self.events if e.lane == COMPUTE and e.kind in NAMES]
        taken = sorted([(start, end) for _, start, end in pieces] + stalls)
        for layer in self.of("layer"):
            gaps = _gaps(layer.start_us, layer.end_us, taken)
            pieces += [(f"other {layer.layer}", start, end) for start, end in gaps]
        pieces.sort(key=lambda piece: piece[1:])
        waited = dict.fromkeys(range(len(pieces)), 0.0)
        for start, end in stalls:
            after = next((i for i, piece in enumerate(pieces) if piece[1] >= end), None)
            if after is not None:
                waited[after] += end - start
        spans = [_span(piece, COMPUTE, waited[i]) for i, piece in enumerate(pieces)]
        for lane in (AHEAD, LINK):
            idle_since = 0.0
            for event in (e for e in self.events if e.lane == lane):
                spans.append(_span(_piece(event), lane, max(0.0, event.start_us - idle_since)))
                idle_since = event.end_us
        return sorted(spans, key=lambda span: span.start)

    def chrome(self) -> dict:
        """The step as Chrome trace events: lanes are threads, times are us."""
        process = str(self.about.get("device", "decode step"))
        names = [("process_name", 0, process), *(("thread_name", tid, lane) for lane, tid in LANES.items())]
        events: list[dict] = [
            {"ph": "M", "name": name, "pid": 1, "tid": tid, "ts": 0, "args": {"name": text}}
            for name, tid, text in names
        ]
        events += [
            {
                "ph": "X", "name": f"{e.kind} {e.layer}", "cat": e.kind, "pid": 1, "tid": LANES[e.lane],
                "ts": e.start_us, "dur": e.duration_us, "args": {"layer": e.layer, "beside": e.beside},
            }
            for e in self.events
        ]  # fmt: skip
        return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": self.about}

    @property
    def where(self) -> str:
        """Device, date and commit: the text of a stamp."""
        about = {name: self.about.get(name, "unknown") for name in ("device", "date", "commit")}
        return f"{about['device']} · {about['date']} · commit {about['commit']}"

    def note(self) -> str:
        """What a reader must know besides: shapes, method, hit rate, and what the marks cost."""
        about = self.about
        hit_rate = about.get("hit_rate")
        parts = [
            about.get("model"),
            f"{about['context']} tokens" if "context" in about else None,
            f"batch {about['batch']}" if "batch" in about else None,
            about.get("selector"),
            about.get("transport"),
            "hit rate not stated" if hit_rate is None else f"hit rate {hit_rate:g}",
            f"its {about['stamps']} marks of about {about['stamp_ns'] / 1e3:.1f} us included"
            if "stamps" in about
            else None,
        ]
        return ", ".join(str(part) for part in parts if part)


def _piece(event: Event) -> tuple[str, float, float]:
    return f"{NAMES[event.kind]} {event.layer}", event.start_us, event.end_us


def _span(piece: tuple[str, float, float], stream: str, waited: float) -> Span:
    name, start, end = piece
    return Span(Task(name, stream, end - start), start, end, waited)


def _gaps(start: float, end: float, taken: Iterable[tuple[float, float]]):
    """What of start..end no interval of ``taken`` (ascending) covers.

    >>> list(_gaps(0, 9, [(1, 2), (2, 4), (8, 12)])), list(_gaps(0, 9, [(1, 2), (20, 30)]))
    ([(0, 1), (4, 8)], [(0, 1), (2, 9)])
    """
    for left, right in taken:
        if left >= end:
            break
        if left > start:
            yield start, left
        start = max(start, right)
    if start < end:
        yield start, end


def load(path: str | Path) -> Step:
    """Read a step back from the file that ``Trace.save_chrome`` wrote. ValueError: another kind of file."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        events = [
            Event(
                kind=e["cat"], layer=e["args"]["layer"], start_us=e["ts"],
                end_us=round(e["ts"] + e["dur"], 3), beside=e["args"]["beside"],
            )
            for e in content["traceEvents"] if e["ph"] == "X"
        ]  # fmt: skip
        about = dict(content["otherData"])
        if not events:
            raise KeyError("X")
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{Path(path).name} is no trace of a decode step; write one with Trace.save_chrome"
        ) from error
    return Step(tuple(events), about)


def nearest(
    batch: int, transport: str = "lookahead", device: str = "nvidia-h200", folder: Path = DATA
) -> Step | None:
    """The committed step (trace_*.json) of this transport, else of any, at the nearest batch; None: none."""
    steps = [load(path) for path in sorted((folder / device).glob("trace_*.json"))]
    steps = [step for step in steps if step.about.get("transport") == transport] or steps
    return min(steps, key=lambda step: abs(math.log(step.about.get("batch", 1) / batch)), default=None)

"""A measured decode step: its events, what of its transfers was exposed, and the file that keeps it.

    step = load("trace_b16.json")
    step.table(), step.summary(), step.spans()

Exposed is the time that compute stood still for a transfer: all of a copy that runs on the stream of compute,
else what is left of the copy when its layer begins to wait. The rest of the copy is hidden. Files are Chrome
trace events (ph, ts, dur, pid, tid, name; us), with where they come from under "otherData".
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
LANES = {COMPUTE: 1, LINK: 2}  # threads of the file


@dataclass(frozen=True)
class Event:
    """One span of a step, us from its first mark. blocking: a copy on the stream of compute."""

    kind: str
    layer: int
    start_us: float
    end_us: float
    blocking: bool = False

    @property
    def lane(self) -> str:
        return LINK if self.kind == "transfer" else COMPUTE

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
        waits, found = {event.layer: event for event in self.of("wait")}, {}
        for copy in self.of("transfer"):
            wait = waits.get(copy.layer)
            if copy.blocking:
                found[copy.layer] = (copy.start_us, copy.end_us)
            elif wait and copy.end_us > wait.start_us:
                found[copy.layer] = (wait.start_us, min(copy.end_us, wait.end_us))
        return found

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
        pieces = [(f"{NAMES[e.kind]} {e.layer}", e.start_us, e.end_us)
                  for e in self.events if e.lane == COMPUTE and e.kind in NAMES]  # fmt: skip
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
        idle_since = 0.0
        for copy in self.of("transfer"):
            piece = (f"{NAMES['transfer']} {copy.layer}", copy.start_us, copy.end_us)
            spans.append(_span(piece, LINK, max(0.0, copy.start_us - idle_since)))
            idle_since = copy.end_us
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
                "ts": e.start_us, "dur": e.duration_us, "args": {"layer": e.layer, "blocking": e.blocking},
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


def _span(piece: tuple[str, float, float], stream: str, waited: float) -> Span:
    name, start, end = piece
    return Span(Task(name, stream, end - start), start, end, waited)


def _gaps(start: float, end: float, taken: Iterable[tuple[float, float]]):
    """What of start..end no interval of ``taken`` (ascending) covers.

    >>> list(_gaps(0, 9, [(1, 2), (2, 4), (8, 12)]))
    [(0, 1), (4, 8)]
    """
    for left, right in taken:
        if left > start and left < end:
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
                end_us=round(e["ts"] + e["dur"], 3), blocking=e["args"]["blocking"],
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

"""One decode step on the clock: when each layer chose, fetched, waited and computed (measured).

    trace = Trace(n_layers, device)
    session.step(trace=trace)            # calls trace.mark(kind, layer, edge) where the thing runs
    trace.table(), trace.summary(), trace.save_chrome("trace_b16.json")

A mark is a kernel of one thread that stores the GPU's clock (``sparda.kernels.stamp``), so it works inside a
CUDA graph, and every replay writes anew. It is not free: a full trace has 12 marks a layer, at least 8 of
them on the stream of compute, the others where selection and copy run, and each takes ``stamp_ns`` of its
stream: measured when a Trace is made, 0.8 us on an H200, whose timer ticks every 32 ns. So a traced step is
slower than others: read shares off it, take rates from an untraced one, or trace fewer kinds. On a CPU a mark
reads the processor's clock.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from sparda import provenance
from sparda.kernels.stamp import stamp, tick_ns
from sparda.timeline import KINDS, Event, Step

EDGES = ("start", "end")
EVERY_LAYER = ("layer", "prep", "attention", "ffn")  # what one layer does, all do; layer 0 fetches nothing
COMPUTE_KINDS = ("layer", "wait", "attention", "ffn")  # these tell which stream computes


class Trace:
    """Collects the marks of one step; the next step, or the next replay of its graph, overwrites them.

    n_layers : of the decoder
    device   : of the step
    kinds    : what to record of ``KINDS``; marks of other kinds cost nothing

    On a GPU, making one measures its own cost: it captures a small graph and waits for it.
    """

    def __init__(self, n_layers: int, device: torch.device | str = "cpu", *, kinds: Collection[str] = KINDS):
        unknown = sorted(set(kinds) - set(KINDS))
        if unknown:
            raise ValueError(f"no such kind: {', '.join(unknown)}; a trace knows {', '.join(KINDS)}")
        self.n_layers, self.device, self.kinds = n_layers, torch.device(device), frozenset(kinds)
        self._slots = {
            (kind, layer, edge): (layer * len(KINDS) + k) * 2 + e
            for layer in range(n_layers)
            for k, kind in enumerate(KINDS)
            for e, edge in enumerate(EDGES)
        }
        with torch.inference_mode(False):  # a step runs in it, a reader may not
            self._buffer = torch.zeros(len(self._slots), dtype=torch.int64, device=self.device)
        self._streams: dict[tuple, int] = {}  # of each mark
        self.tick_ns, self.stamp_ns = tick_ns(self.device), stamp_cost_ns(self.device)

    def mark(self, kind: str, layer: int, edge: str) -> None:
        """Note that ``kind`` of ``layer`` starts or ends here, in the order of the current stream.

        Raises ValueError for another kind, edge or layer.
        """
        mark = (kind, layer, edge)
        if mark not in self._slots:
            raise ValueError(
                f"cannot mark {mark}: kind is one of {', '.join(KINDS)}, "
                f"layer one of 0..{self.n_layers - 1}, edge start or end"
            )
        if kind not in self.kinds:
            return
        stream = torch.cuda.current_stream(self.device).stream_id if self.device.type == "cuda" else 0
        self._streams[mark] = stream
        stamp(self._buffer, self._slots[mark])

    def reset(self) -> None:
        """Forget the times, not what is marked: a replay that fails to stamp then shows as missing."""
        self._buffer.zero_()

    def missing(self) -> str:
        """A sentence about marks that do not pair up or never ran; empty when all is there."""
        return self._complaint(self._buffer.tolist())

    def _complaint(self, times: list[int]) -> str:
        if not self._streams:
            return "nothing was marked: hand the trace to a step, as in session.step(trace=trace)"
        spans = {mark[:2] for mark in self._streams}
        for kind in EVERY_LAYER:
            if any(k == kind for k, _ in spans):
                spans |= {(kind, layer) for layer in range(self.n_layers)}
        wanted = [(kind, layer, edge) for kind, layer in sorted(spans) for edge in EDGES]
        lost = [mark for mark in wanted if mark not in self._streams or not times[self._slots[mark]]]
        if not lost:
            return ""
        names = ", ".join(f"{edge} of {kind} {layer}" for kind, layer, edge in lost[:4])
        more = f" and {len(lost) - 4} more" if len(lost) > 4 else ""
        return f"the trace misses the {names}{more}: mark both edges in every layer, and run the step once"

    def step(self) -> Step:
        """What the last step left, once the GPU has done it; times in us from its first mark.

        Raises ValueError with ``missing()``, or when something ends before it starts.
        """
        times = self._buffer.tolist()  # waits for the current stream
        complaint = self._complaint(times)
        if complaint:
            raise ValueError(complaint)
        zero = min(times[self._slots[mark]] for mark in self._streams)
        compute = {stream for mark, stream in self._streams.items() if mark[0] in COMPUTE_KINDS}
        events = []
        for (kind, layer, edge), stream in self._streams.items():
            if edge == "start":
                start, end = (times[self._slots[kind, layer, edge]] - zero for edge in EDGES)
                if end < start - self.tick_ns:
                    raise ValueError(f"{kind} {layer} ends before it starts: read a trace after its step")
                beside = bool(compute) and stream not in compute
                events.append(Event(kind, layer, start / 1e3, max(start, end) / 1e3, beside))
        about = {"tick_ns": self.tick_ns, "stamp_ns": self.stamp_ns, "stamps": len(self._streams)}
        return Step(tuple(sorted(events, key=lambda e: (e.start_us, -e.end_us))), about)

    def spans(self):
        """The step as ``sparda.simulate`` spans: what the timeline of chapter 04 draws."""
        return self.step().spans()

    def table(self):
        """Columns layer, lane, kind, start_us, end_us, duration_us: one row a span."""
        return self.step().table()

    def summary(self) -> dict[str, float]:
        """us of the step and of each kind; of the transfers also what was exposed and what was hidden."""
        return self.step().summary()

    def save_chrome(self, path: str | Path, about: dict[str, Any] | None = None) -> Path:
        """Write the step as Chrome trace-event JSON (ui.perfetto.dev opens it), ``about`` in "otherData".

        about : model, selector, transport, context, batch, hit_rate ...; device, date and commit are those
                of now unless it names them
        """
        now = {"device": provenance.device(), "date": provenance.today(), "commit": provenance.commit()}
        if self.device.type == "cpu" and torch.cuda.is_available():
            now["device"] = "CPU"
        step = self.step()
        text = json.dumps(Step(step.events, now | step.about | (about or {})).chrome(), indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")
        return Path(path)


def stamp_cost_ns(device: torch.device | str, n: int = 64) -> float:
    """Measured ns from one stamp to the next with nothing between: what a mark costs its stream.

    It also loads all variants of the kernel, which must not happen first inside a capture.
    """
    buffer = torch.zeros(n, dtype=torch.int64, device=device)

    def chain():
        for slot in range(n):
            stamp(buffer, slot)

    chain()
    if buffer.is_cuda:
        from sparda.measure.bench import capture

        capture([chain], warm_up=1)
    return float(buffer.diff().double().median())

"""Two more ways to read a prompt: dense attention as one call of torch, and a clock at every part."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from sparda.engine.prefill import Prefill
from sparda.kernels.dense import dense
from sparda.selectors import All


class DensePrefill(Prefill):
    """Attention of the whole prompt at once, as flash and cuDNN want it; all else in chunks, as ever.

    through : "flash", "cudnn" or "math", see ``sparda.kernels.dense``
    """

    through = "flash"

    def _layer(self, layer: int) -> None:
        d, heads, kv_heads = self.decoder.head_dim, self.decoder.n_heads, self.decoder.n_kv_heads
        q = self.hidden.new_empty(1, heads, self.n_tokens, d)
        k, v = (self.hidden.new_empty(1, kv_heads, self.n_tokens, d) for _ in range(2))
        for part in self.chunks:
            new_q, new_k, new_v, *_ = self.decoder.project(layer, self.normed[part])
            q[:, :, part], k[:, :, part] = self._turned(new_q, part), self._turned(new_k, part)
            v[:, :, part] = new_v.transpose(0, 1)
        attended = self._attend(layer, q, k, v, slice(0, self.n_tokens))
        for part in self.chunks:
            rows = attended[0, :, part].transpose(0, 1).flatten(1)
            self.hidden[part], self.normed[part] = self.decoder.after_attention(
                layer, self.hidden[part], rows
            )
        self.store.load_prompt(layer, self.sequence, k[0], v[0])

    def _attend(self, layer: int, q: Tensor, keys: Tensor, values: Tensor, part: slice) -> Tensor:
        return dense(q, keys, values, through=self.through, scale=self.decoder.attention_scale)


def reader(through: str | None) -> type[Prefill]:
    """The engine's own way for None, else dense attention through this backend."""
    if through is None:
        return Prefill
    return type("DensePrefill", (DensePrefill,), {"through": through})


class Clock:
    """Adds up the time of named parts: device events on a GPU, read at the end."""

    def __init__(self, device: torch.device):
        self._on_gpu = device.type == "cuda"
        self._spans: list[tuple[str, Any, Any]] = []

    def _now(self) -> Any:
        if not self._on_gpu:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextmanager
    def part(self, name: str):
        start = self._now()
        yield
        self._spans.append((name, start, self._now()))

    def totals_us(self) -> dict[str, float]:
        """us by part, summed; waits for the GPU."""
        if self._on_gpu:
            torch.cuda.synchronize()
        total: dict[str, float] = {}
        for name, start, end in self._spans:
            us = 1e3 * start.elapsed_time(end) if self._on_gpu else 1e6 * (end - start)
            total[name] = total.get(name, 0.0) + us
        return total


class Timed:
    """An object some of whose methods are on the clock: ``methods`` maps their names to parts."""

    def __init__(self, inner: Any, clock: Clock, methods: dict[str, str]):
        self._inner, self._clock, self._methods = inner, clock, methods

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return self._on_clock(value, self._methods[name]) if name in self._methods else value

    def _on_clock(self, method: Callable, part: str) -> Callable:
        def call(*arguments, **options):
            with self._clock.part(part):
                return method(*arguments, **options)

        return call


def put_on_clock(prompt: Prefill, clock: Clock) -> None:
    """Time a prompt's parts: projection, attend (selection and attention), selection, ffn, head and layer."""
    methods = {"project": "projection", "after_attention": "ffn", "logits": "head"}
    prompt.decoder = Timed(prompt.decoder, clock, methods)  # type: ignore[assignment]
    if not isinstance(prompt.selector, All):
        prompt.selector = Timed(prompt.selector, clock, {"select": "selection"})  # type: ignore[assignment]
    ours = Timed(prompt, clock, {"_layer": "layer", "_attend": "attend"})
    prompt._layer, prompt._attend = ours._layer, ours._attend  # the bound methods, now on the clock

"""What one layer has to do for attention: bytes and FLOPs of its parts, in decode and in prefill.

Parts: "selection" (score the compressed keys), "attention" (over what was chosen), "rest" (projections and
FFN). Divided by rates they give a floor: modelled, perfect kernels, nothing in between.

Selectors: "all" is dense and selects nothing; "query" scores with every query head, "forecast" with one head
per KV head, so it needs G times fewer FLOPs, but both read the same compressed keys.

>>> from sparda.spec import model, sparsity
>>> of = dict(shape=model("minicpm4.1-8b"), sparsity=sparsity("minicpm4.1-8b"), n_tokens=131_072)
>>> [round(decode_work(selector=s, batch=4, **of)["attention"].floor_us(), 1) for s in ("all", "query")]
[128.1, 6.0]
"""

from __future__ import annotations

from dataclasses import dataclass

from sparda import costs
from sparda.blocks import count_windows
from sparda.bounds import H200_RATES, Rates
from sparda.spec import ModelShape, Sparsity

PARTS = ("selection", "attention", "rest")
SELECTORS = ("all", "query", "forecast")


@dataclass(frozen=True)
class Work:
    """Bytes of keys and values, bytes of weights, and FLOPs of one part of one layer."""

    kv_bytes: float = 0.0
    weight_bytes: float = 0.0
    flops: float = 0.0

    def floor_us(self, rates: Rates = H200_RATES) -> float:
        """Least time in us: reading or arithmetic, whichever takes longer."""
        memory = self.kv_bytes / rates.kv_gb_per_s + self.weight_bytes / rates.weights_gb_per_s
        return max(memory / 1e3, self.flops / (rates.tflop_per_s * 1e6))

    def limit(self, rates: Rates = H200_RATES) -> str:
        """What the floor waits for: "memory" or "compute"; "" where there is no work."""
        if not self.floor_us(rates):
            return ""
        return "compute" if self.flops / (rates.tflop_per_s * 1e6) == self.floor_us(rates) else "memory"


def _check(selector: str) -> None:
    if selector not in SELECTORS:
        raise ValueError(f"selector is one of {', '.join(SELECTORS)} here, got {selector!r}")


def _rest(shape: ModelShape, selector: str, tokens: float, dtype_bytes: int) -> Work:
    """Projections and FFN of one layer: weights read once, two FLOPs a weight and token."""
    weights = 2 * shape.hidden * shape.head_dim * (shape.n_heads + shape.n_kv_heads)
    weights += 3 * shape.hidden * shape.ffn
    if selector == "forecast":
        weights += costs.forecast_parameters(shape=shape) // shape.n_layers
    return Work(weight_bytes=weights * dtype_bytes, flops=2 * weights * tokens)


def decode_work(
    *, shape: ModelShape, sparsity: Sparsity, n_tokens: int, batch: int, selector: str, dtype_bytes: int = 2
) -> dict[str, Work]:
    """Work of one layer for one token of each of ``batch`` sequences with ``n_tokens`` of context."""
    _check(selector)
    sizes = {"shape": shape, "batch": batch, "n_tokens": n_tokens, "dtype_bytes": dtype_bytes}
    rest, layers = _rest(shape, selector, batch, dtype_bytes), shape.n_layers
    if selector == "all":
        flops = batch * costs.attention_flops(shape=shape, n_attended=n_tokens) / layers
        return {
            "selection": Work(),
            "attention": Work(costs.kv_bytes(**sizes) / layers, 0, flops),
            "rest": rest,
        }
    dots = costs.selection_dots(shape=shape, sparsity=sparsity, n_tokens=n_tokens, selector=selector)  # type: ignore[arg-type]
    attended = min(n_tokens, sparsity.budget_blocks * sparsity.block_size)
    return {
        "selection": Work(
            costs.compressed_key_bytes(sparsity=sparsity, **sizes) / layers,
            flops=2 * shape.head_dim * batch * dots / layers,
        ),
        "attention": Work(
            costs.selected_kv_bytes(sparsity=sparsity, **sizes) / layers,
            flops=batch * costs.attention_flops(shape=shape, n_attended=attended) / layers,
        ),
        "rest": rest,
    }


def prefill_work(
    *, shape: ModelShape, sparsity: Sparsity, n_tokens: int, selector: str, dtype_bytes: int = 2
) -> dict[str, Work]:
    """Work of one layer for a whole prompt of ``n_tokens``, one sequence."""
    _check(selector)
    sizes = {"shape": shape, "n_tokens": n_tokens, "dtype_bytes": dtype_bytes}
    kv, rest = costs.kv_bytes(**sizes) / shape.n_layers, _rest(shape, selector, n_tokens, dtype_bytes)
    per_key = costs.attention_flops(shape=shape, n_attended=1) / shape.n_layers
    if selector == "all":
        return {
            "selection": Work(),
            "attention": Work(kv, 0, per_key * attended_keys(n_tokens)),
            "rest": rest,
        }
    keys = costs.compressed_key_bytes(sparsity=sparsity, **sizes) / shape.n_layers
    heads = shape.n_heads if selector == "query" else shape.n_kv_heads
    return {
        "selection": Work(keys, flops=2 * shape.head_dim * heads * scored_windows(n_tokens, sparsity)),
        "attention": Work(kv, flops=per_key * attended_keys(n_tokens, sparsity)),
        "rest": rest,
    }


def attended_keys(n_tokens: int, sparsity: Sparsity | None = None) -> int:
    """Keys that all queries of a prompt attend to, summed, for one head; without ``sparsity`` all of them.

    >>> attended_keys(4), attended_keys(6, Sparsity(1, 2, init_blocks=0, local_blocks=0, window=2, stride=2))
    (10, 9)
    """
    if sparsity is None:
        return n_tokens * (n_tokens + 1) // 2
    size, k = sparsity.block_size, sparsity.budget_blocks
    dense = min(n_tokens, k * size)  # up to there every block fits into the budget
    whole, part = divmod(n_tokens - dense, size)
    own = whole * size * (size + 1) // 2 + part * (part + 1) // 2  # the query's own block, causally
    return dense * (dense + 1) // 2 + (n_tokens - dense) * (k - 1) * size + own


def scored_windows(n_tokens: int, sparsity: Sparsity) -> int:
    """Compressed keys that all queries of a prompt see, summed, for one head.

    >>> scored_windows(64, Sparsity(2, local_blocks=0))
    51
    """
    n = count_windows(n_tokens, sparsity)  # window j is seen by the tokens from its last one on
    return n * (n_tokens - sparsity.window + 1) - sparsity.stride * n * (n - 1) // 2

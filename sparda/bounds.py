"""From bytes to times: links, rooflines and the floor of one decode step.

Bandwidths are GB/s (10**9 bytes a second), times seconds. Every time here is *modelled*: it assumes full
rates and perfect overlap, so a real step takes longer.

>>> from sparda.spec import model, sparsity
>>> bound = decode_bound(shape=model("minicpm4.1-8b"), sparsity=sparsity("minicpm4.1-8b"),
...                      n_tokens=131_072, batch=16, misses=11)
>>> round(bound.seconds * 1e3, 2), bound.limit
(7.04, 'link')
"""

from __future__ import annotations

from dataclasses import dataclass

from sparda.costs import compressed_key_bytes, miss_bytes, selected_kv_bytes, step_weight_bytes
from sparda.spec import MEASURED_H200, Hardware, ModelShape, Sparsity


@dataclass(frozen=True)
class Rates:
    """Speeds that a modelled time assumes; GB/s are 10**9 bytes a second."""

    name: str
    weights_gb_per_s: float
    kv_gb_per_s: float
    link_gb_per_s: float
    tflop_per_s: float

    @classmethod
    def of(cls, hw: Hardware) -> Rates:
        """Datasheet peaks of a preset: no kernel reaches them."""
        memory = hw.memory_gb_per_s
        return cls(f"{hw.name} datasheet", memory, memory, hw.link_gb_per_s, hw.bf16_tflop_per_s)


H200_RATES = Rates(
    "H200 measured rates",
    MEASURED_H200["weights_gb_per_s"],
    MEASURED_H200["copy_gb_per_s"],
    MEASURED_H200["uva_gb_per_s"],
    MEASURED_H200["bf16_tflop_per_s"],
)


def transfer_seconds(*, n_bytes: float, gb_per_s: float) -> float:
    """Seconds to move bytes at a bandwidth in GB/s.

    >>> transfer_seconds(n_bytes=64_000_000_000, gb_per_s=64)
    1.0
    """
    if gb_per_s <= 0:
        raise ValueError(f"gb_per_s must be above 0, got {gb_per_s}; give GB/s, 64 for PCIe 5.0 x16")
    return n_bytes / (gb_per_s * 1e9)


def ridge_flop_per_byte(*, tflop_per_s: float, gb_per_s: float) -> float:
    """FLOPs per byte from which compute, not bandwidth, is the limit.

    >>> round(ridge_flop_per_byte(tflop_per_s=989, gb_per_s=3350))
    295
    """
    return tflop_per_s * 1e3 / gb_per_s


def roofline_tflop_per_s(*, flop_per_byte: float, tflop_per_s: float, gb_per_s: float) -> float:
    """Most TFLOP/s at an arithmetic intensity: min(peak, intensity * bandwidth).

    >>> roofline_tflop_per_s(flop_per_byte=10, tflop_per_s=989, gb_per_s=3350)
    33.5
    """
    return min(tflop_per_s, flop_per_byte * gb_per_s / 1e3)


def misses_at(*, hit_rate: float, budget_blocks: int) -> int:
    """Blocks missed per KV head and layer at a temporal hit rate (0 to 1), rounded to whole blocks.

    >>> misses_at(hit_rate=0.89, budget_blocks=96), misses_at(hit_rate=0.95, budget_blocks=96)
    (11, 5)
    """
    if not 0 <= hit_rate <= 1:
        raise ValueError(f"hit_rate is a share between 0 and 1, got {hit_rate}; write 89 % as 0.89")
    return round((1 - hit_rate) * budget_blocks)


@dataclass(frozen=True)
class DecodeBound:
    """Floor of one decode step: memory reads and the link run at once, the longer one decides."""

    batch: int
    memory_s: float
    link_s: float

    @property
    def seconds(self) -> float:
        return max(self.memory_s, self.link_s)

    @property
    def limit(self) -> str:
        return "link" if self.link_s > self.memory_s else "memory"

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.seconds


def decode_bound(
    *,
    shape: ModelShape,
    sparsity: Sparsity,
    n_tokens: int,
    batch: int,
    misses: float,
    rates: Rates = H200_RATES,
    dtype_bytes: int = 2,
) -> DecodeBound:
    """Modelled floor of one offloaded decode step, perfect overlap assumed; one dtype for everything.

    memory = step weights / weight rate + (compressed keys + selected K and V) / copy rate
    link   = (L - 1) * B * H * misses blocks / link rate
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    sizes = {"shape": shape, "sparsity": sparsity, "batch": batch, "dtype_bytes": dtype_bytes}
    kv = compressed_key_bytes(n_tokens=n_tokens, **sizes) + selected_kv_bytes(n_tokens=n_tokens, **sizes)
    weights = step_weight_bytes(shape=shape, dtype_bytes=dtype_bytes)
    memory_s = transfer_seconds(n_bytes=weights, gb_per_s=rates.weights_gb_per_s)
    memory_s += transfer_seconds(n_bytes=kv, gb_per_s=rates.kv_gb_per_s)
    moved = miss_bytes(misses=misses, **sizes)
    link_s = transfer_seconds(n_bytes=moved, gb_per_s=rates.link_gb_per_s)
    return DecodeBound(batch, memory_s, link_s)

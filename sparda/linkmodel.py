"""How many CTAs should fetch? Curves fitted to measurements, and the count that they pick.

    bandwidth(c)  = saturate(peak, c * per_cta)              GB/s beside compute
    idle(c)       = saturate(idle_peak, c * idle_per_cta)    GB/s on a GPU that does nothing else
    saturate(a,b) = (a**-p + b**-p)**(-1/p)                  CTAs add up until the link is full; idle: p = 8
    slowdown(c)   = 1 + base + per_cta_slowdown * c          of compute beside the transfer, at least 1

The time of a layer follows: while its blocks travel, compute runs slowdown(c) times slower; when compute has
ended, the rest travels at idle(c), and that is stall. More CTAs shorten the transfer and slow the compute.

>>> link = LinkModel(peak=45.0, per_cta=7.0, idle_peak=51.0, idle_per_cta=16.0, sharpness=4.0, base=0.05,
...                  per_cta_slowdown=0.005)
>>> round(link.bandwidth(1)), round(link.idle(16)), round(link.slowdown(16), 2)
(7, 51, 1.13)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparda.provenance import ROOT

IDLE_SHARPNESS = 8.0  # an idle link fills all at once
DATA = ROOT / "data" / "measured"
CTA_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # from 64 on, compute loses its place on the GPU


@dataclass(frozen=True)
class LayerTime:
    """One layer of a step, us: all of it, its transfer, and the part of it that waits."""

    total: float
    transfer: float
    stall: float


@dataclass(frozen=True)
class LinkModel:
    """Bandwidth and interference of a transfer against its CTA count; GB/s are 10**9 bytes a second."""

    peak: float  # GB/s of the full link beside compute
    per_cta: float  # GB/s of one CTA beside compute
    idle_peak: float  # the same two on an idle GPU
    idle_per_cta: float
    sharpness: float  # p: how sudden the knee is beside compute
    base: float  # slow-down of compute that even one CTA causes, 0.05 is 5 %
    per_cta_slowdown: float

    @classmethod
    def fit(cls, points: Iterable[tuple[int, float, float, float]]) -> LinkModel:
        """Fit to (CTAs, GB/s beside compute, GB/s idle, slow-down) of at least three counts.

        A peak is the mean of the rates above 90 % of the best, a CTA's share is the rate of the smallest
        count over it, sharpness the best of a few by squared relative error; the slow-down is a
        least-squares line.
        """
        rows = sorted(points)
        if len({row[0] for row in rows}) < 3:
            raise ValueError(f"need at least 3 CTA counts to fit a curve, got {len(rows)} points")
        (peak, share), (idle_peak, idle_share) = _limits(rows, 1), _limits(rows, 2)
        base, slope = _line([row[0] for row in rows], [row[3] - 1 for row in rows])
        models = [
            cls(peak, share, idle_peak, idle_share, p, base, slope)
            for p in (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
        ]
        return min(models, key=lambda m: sum((m.bandwidth(c) / rate - 1) ** 2 for c, rate, _, _ in rows))

    def bandwidth(self, n_ctas: int) -> float:
        """GB/s that this many CTAs reach on long lists beside compute."""
        return _saturate(self.peak, n_ctas * self.per_cta, self.sharpness)

    def idle(self, n_ctas: int) -> float:
        """GB/s that this many CTAs reach while nothing else runs."""
        return _saturate(self.idle_peak, n_ctas * self.idle_per_cta, IDLE_SHARPNESS)

    def slowdown(self, n_ctas: int) -> float:
        """How many times longer compute takes beside the transfer."""
        return max(1.0, 1 + self.base + self.per_cta_slowdown * n_ctas)

    def link_slowdown(self, n_ctas: int) -> float:
        """How many times longer a transfer takes beside compute than on an idle GPU."""
        return self.idle(n_ctas) / self.bandwidth(n_ctas)

    def layer(self, *, n_ctas: int, n_bytes: float, compute_us: float) -> LayerTime:
        """Time of a layer whose transfer starts with its compute (lookahead), us; no fixed costs."""
        slow, beside = self.slowdown(n_ctas), self.bandwidth(n_ctas) * 1e3  # bytes per us
        window = compute_us * slow
        if n_bytes <= window * beside:
            transfer = n_bytes / beside
            return LayerTime(compute_us + transfer * (1 - 1 / slow), transfer, 0.0)
        stall = (n_bytes - window * beside) / (self.idle(n_ctas) * 1e3)
        return LayerTime(window + stall, window + stall, stall)

    def best_ctas(
        self, *, n_bytes: float, compute_us: float, counts: Sequence[int] = CTA_COUNTS, slack: float = 0.002
    ) -> int:
        """The smallest count whose layer time is within ``slack`` of the best."""
        times = {c: self.layer(n_ctas=c, n_bytes=n_bytes, compute_us=compute_us).total for c in counts}
        limit = (1 + slack) * min(times.values())
        return min(c for c, total in times.items() if total <= limit)


def _saturate(peak: float, demand: float, sharpness: float) -> float:
    if demand <= 0:
        raise ValueError(f"n_ctas must be at least 1; they would fetch {demand:g} GB/s")
    return (peak**-sharpness + demand**-sharpness) ** (-1 / sharpness)


def _limits(rows: Sequence[tuple], column: int) -> tuple[float, float]:
    """The rate of the full link, and the share of one CTA."""
    rates = [row[column] for row in rows]
    full = [rate for rate in rates if rate >= 0.9 * max(rates)]
    return sum(full) / len(full), rates[0] / rows[0][0]


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Intercept and slope of the least-squares line."""
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    return mean_y - slope * mean_x, slope


@dataclass(frozen=True)
class Measured:
    """Committed measurements of one device: its table, fitted models by shape, and its stamp."""

    table: Path
    models: dict[str, LinkModel]
    where: str


SHAPE = "w4_32KiB"  # the default shape of a CTA: warps, bytes in flight


def measured(device: str = "nvidia-h200", folder: Path = DATA) -> Measured | None:
    """The committed curves of a device and the models fitted to them; None where nothing was measured."""
    about, points = folder / device / "transfer.json", folder / device / "transfer.csv"
    if not (about.is_file() and points.is_file()):
        return None
    run = json.loads(about.read_text(encoding="utf-8"))
    models = {shape: LinkModel(**values) for shape, values in run["models"].items()}
    where = f"{run['device']} · {run['date']} · commit {run['commit']}"
    return Measured(points, models, where)

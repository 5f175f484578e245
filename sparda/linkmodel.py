"""How many CTAs should fetch? Two curves, fitted to measurements, and the count that they pick.

    bandwidth(c)  = (peak**-p + (c * per_cta)**-p)**(-1/p)   GB/s: CTAs add up until the link is full
    slowdown(c)   = 1 + base + per_cta_slowdown * c            of compute beside the transfer, at least 1

The time of a layer follows: while its blocks travel, compute runs slowdown(c) times slower; what is left of
the transfer when compute has ended is stall. More CTAs shorten the transfer and slow the compute beside it.

>>> link = LinkModel(peak=50.0, per_cta=7.0, sharpness=4.0, base=0.05, per_cta_slowdown=0.005)
>>> round(link.bandwidth(1)), round(link.bandwidth(16)), round(link.slowdown(16), 2)
(7, 50, 1.13)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparda.provenance import ROOT

DATA = ROOT / "data" / "measured"
CTA_COUNTS = (1, 2, 4, 8, 12, 16, 24, 32, 64, 132)


@dataclass(frozen=True)
class LayerTime:
    """One layer of a step, us: all of it, its transfer, and the part of it that waits."""

    total: float
    transfer: float
    stall: float


@dataclass(frozen=True)
class LinkModel:
    """Bandwidth and interference of a transfer against its CTA count; GB/s are 10**9 bytes a second."""

    peak: float  # GB/s of the full link
    per_cta: float  # GB/s of one CTA on an idle link
    sharpness: float  # p: how sudden the knee is
    base: float  # slow-down of compute that even one CTA causes, 0.05 is 5 %
    per_cta_slowdown: float

    @classmethod
    def fit(cls, points: Iterable[tuple[int, float, float]]) -> LinkModel:
        """Fit to (CTAs, GB/s, slow-down of compute) triples; needs at least three counts.

        peak is the best rate seen, per_cta the rate of the smallest count divided by it, sharpness the best
        of a few by squared relative error; the slow-down is a least-squares line.
        """
        rows = sorted(points)
        if len({row[0] for row in rows}) < 3:
            raise ValueError(f"need at least 3 CTA counts to fit a curve, got {len(rows)} points")
        peak = max(rate for _, rate, _ in rows)
        per_cta = rows[0][1] / rows[0][0]
        base, slope = _line([c for c, _, _ in rows], [slow - 1 for _, _, slow in rows])
        models = [cls(peak, per_cta, p, base, slope) for p in (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)]
        return min(models, key=lambda m: sum((m.bandwidth(c) / rate - 1) ** 2 for c, rate, _ in rows))

    def bandwidth(self, n_ctas: int) -> float:
        """GB/s that this many CTAs reach on long lists."""
        if n_ctas < 1:
            raise ValueError(f"n_ctas must be at least 1, got {n_ctas}")
        p = self.sharpness
        return (self.peak**-p + (n_ctas * self.per_cta) ** -p) ** (-1 / p)

    def slowdown(self, n_ctas: int) -> float:
        """How many times longer compute takes beside the transfer."""
        return max(1.0, 1 + self.base + self.per_cta_slowdown * n_ctas)

    def layer(self, *, n_ctas: int, n_bytes: float, compute_us: float) -> LayerTime:
        """Time of a layer whose transfer starts with its compute (lookahead), us; no fixed costs."""
        transfer = n_bytes / self.bandwidth(n_ctas) / 1e3
        slow = self.slowdown(n_ctas)
        if transfer >= compute_us * slow:
            return LayerTime(transfer, transfer, transfer - compute_us * slow)
        return LayerTime(compute_us + transfer * (1 - 1 / slow), transfer, 0.0)

    def best_ctas(
        self, *, n_bytes: float, compute_us: float, counts: Sequence[int] = CTA_COUNTS, slack: float = 0.002
    ) -> int:
        """The smallest count whose layer time is within ``slack`` of the best."""
        times = {c: self.layer(n_ctas=c, n_bytes=n_bytes, compute_us=compute_us).total for c in counts}
        limit = (1 + slack) * min(times.values())
        return min(c for c, total in times.items() if total <= limit)


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Intercept and slope of the least-squares line."""
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    return mean_y - slope * mean_x, slope


@dataclass(frozen=True)
class Measured:
    """Committed measurements of one device: its table, a fitted model per warp count, and its stamp."""

    table: Path
    models: dict[int, LinkModel]
    where: str


def measured(device: str = "nvidia-h200", folder: Path = DATA) -> Measured | None:
    """The committed curves of a device and the model fitted to them; None where nothing was measured."""
    about, points = folder / device / "transfer.json", folder / device / "transfer.csv"
    if not (about.is_file() and points.is_file()):
        return None
    run = json.loads(about.read_text(encoding="utf-8"))
    models = {int(warps): LinkModel(**values) for warps, values in run["models"].items()}
    where = f"{run['device']} · {run['date']} · commit {run['commit']}"
    return Measured(points, models, where)

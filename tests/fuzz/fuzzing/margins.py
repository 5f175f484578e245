"""How near a choice was to another one: what differs by less than rounding is a tie, not a finding."""

from __future__ import annotations

import numpy as np


def margins(scores, by_window, chosen, forced, future, linear: bool) -> np.ndarray:
    """Smallest relative gap between a learned block and one left out, for each query: [T].

    scores [H, T, N]; by_window [H, T, N, w] or None; the masks [H, T, N]. Linear scores are compared with
    their row's largest, probabilities with each other. Blocks that share their best window are equal by
    construction, and so is what has no score at all: no tie.
    """
    heads, n, _ = scores.shape
    least = np.full(n, np.inf)
    for h in range(heads):
        for t in range(n):
            taken = np.flatnonzero(chosen[h, t] & ~forced[h, t])
            left = np.flatnonzero(~chosen[h, t] & ~future[h, t])
            if len(taken) and len(left):
                row = None if by_window is None else by_window[h, t]
                least[t] = min(least[t], _gap(scores[h, t], row, taken, left, linear))
    return least


def _gap(scores: np.ndarray, windows: np.ndarray | None, taken, left, linear: bool) -> float:
    seen = scores[np.isfinite(scores)].astype(np.float64)
    scale = np.abs(seen).max() if len(seen) else 1.0
    least = np.inf
    for i in taken:
        for j in left:
            a, b = float(scores[i]), float(scores[j])
            if not np.isfinite(b) or max(a, b) < 1e-44:  # no score, or nothing left of it
                continue
            if not linear:
                if max(a, b) < 1e-37:  # too small for a float32 of full precision
                    return 0.0
                scale = a
            gap = abs(a - b)
            if windows is not None and windows[i].argmax() == windows[j].argmax():
                gap = min(_lead(windows[i]), _lead(windows[j]))
            least = min(least, gap / max(scale, 1e-37))
    return least


def _lead(windows: np.ndarray) -> float:
    """By how much the best of a block's windows leads its second."""
    best = np.sort(windows)[::-1]
    return float(best[0] - best[1]) if len(best) > 1 and np.isfinite(best[1]) else np.inf

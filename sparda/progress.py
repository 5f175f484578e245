"""What a long command says while it works: a bar with the time left, and rows that are printed above it."""

from __future__ import annotations

from typing import Any


def bar(total: int, unit: str, *, shown: bool = True, **options: Any) -> Any:
    """A bar on the error stream that goes when its ``with`` block ends; it says how much time is left."""
    from tqdm import tqdm

    return tqdm(total=total, unit=unit, mininterval=0.5, leave=False, disable=not shown, **options)


def say(*words: object) -> None:
    """Print a line at once, above a bar if there is one."""
    from tqdm import tqdm

    with tqdm.external_write_mode():
        print(*words, flush=True)


def duration(seconds: float) -> str:
    """About how long, in words.

    >>> duration(0.2), duration(42.3), duration(200), duration(9000)
    ('1 s', '42 s', '3 min', '2 h 30 min')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"

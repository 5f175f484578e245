"""How far a run is, and how long it will take: looking at a sequence and taking a step differ in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from sparda.progress import bar, duration, say


@dataclass
class Work:
    """Sequences to look at and steps to take, of one process."""

    sequences: int
    steps: int

    def seconds(self, per_sequence: float, per_step: float) -> float:
        return self.sequences * per_sequence + self.steps * per_step


@dataclass
class Progress:
    """A bar of steps. Looking at sequences is no step; the time left counts both, each at its own rate.

    left  : what is still to be done
    total : steps of the whole run
    """

    left: Work
    total: int
    shown: bool = True
    _spent: dict[str, float] = field(default_factory=lambda: {"sequences": 0.0, "steps": 0.0}, repr=False)
    _done: dict[str, int] = field(default_factory=lambda: {"sequences": 0, "steps": 0}, repr=False)
    _bar: Any = field(default=None, repr=False)
    _since: float = field(default_factory=perf_counter, repr=False)

    def __enter__(self) -> Progress:
        form = "{desc}{n_fmt}/{total_fmt} steps [{elapsed}{postfix}]"
        done = self.total - self.left.steps
        self._bar = bar(self.total, "step", shown=self.shown, initial=done, bar_format=form)
        self.resume()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        self._bar = None

    def resume(self) -> None:
        """What went by since the last call was neither: it does not count."""
        self._since = perf_counter()

    def stage(self, text: str) -> None:
        """Say what is being done."""
        if self._bar is not None:
            self._bar.set_description(text)

    def say(self, text: str) -> None:
        """A line that stays, above the bar."""
        if self.shown:
            say(text)

    def looked(self, count: int) -> None:
        """Some sequences were looked at."""
        self._count("sequences", count)
        if self._bar is not None:
            self._bar.set_postfix_str(self._time_left())

    def stepped(self) -> None:
        """A step was taken."""
        self._count("steps", 1)
        if self._bar is not None:
            self._bar.set_postfix_str(self._time_left(), refresh=False)
            self._bar.update()

    def _count(self, kind: str, count: int) -> None:
        now = perf_counter()
        self._spent[kind] += now - self._since
        self._done[kind] += count
        self._since = now
        setattr(self.left, kind, getattr(self.left, kind) - count)

    def _time_left(self) -> str:
        """Empty until both rates are known."""
        if not all(self._done.values()):
            return ""
        rates = [self._spent[kind] / self._done[kind] for kind in ("sequences", "steps")]
        return f"about {duration(self.left.seconds(*rates))} left"

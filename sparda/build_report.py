"""What the gallery must say about builds: what still waits, what failed last, and since when.

A small JSON file beside the results, written before anything runs and after every chapter and step. So the
page of a build that was killed half-way still says what is missing from it, and how to go on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sparda import provenance

NAME = "report.json"


@dataclass(frozen=True)
class Note:
    """Why a chapter or a measured step has no new result; ``files`` are those that it would have written."""

    text: str
    date: str
    files: tuple[str, ...] = ()


@dataclass
class Report:
    """command : what goes on with an unfinished build;  waiting : chapters and steps that are not done yet

    notes : chapter or step -> Note of its last attempt, until one succeeds
    """

    path: Path
    command: str = ""
    started: str = ""
    waiting: list[str] = field(default_factory=list)
    notes: dict[str, Note] = field(default_factory=dict)

    def begin(self, command: str, names: Iterable[str]) -> None:
        """A build starts on these chapters and steps."""
        self.command, self.started, self.waiting = command, provenance.today(), list(names)
        self._write()

    def done(self, name: str) -> None:
        """This one has new results, or its old ones are current."""
        self.notes.pop(name, None)
        self._leave(name)

    def kept(self, name: str, text: str, files: Iterable[str] = ()) -> None:
        """This one has no new result, and why; what it had before stays."""
        self.notes[name] = Note(text, provenance.today(), tuple(files))
        self._leave(name)

    def about(self, files: Iterable[str]) -> dict[str, Note]:
        """Notes of the steps that would have written one of these files (by their last names)."""
        names = {Path(file).name for file in files}
        return {n: note for n, note in self.notes.items() if names & {Path(f).name for f in note.files}}

    def _leave(self, name: str) -> None:
        self.waiting = [other for other in self.waiting if other != name]
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        data = {key: value for key, value in asdict(self).items() if key != "path"}
        try:
            fresh.write_text(json.dumps(data, indent=1, ensure_ascii=False), encoding="utf-8")
            os.replace(fresh, self.path)
        finally:
            fresh.unlink(missing_ok=True)


def read(state: Path) -> Report:
    """The report in the folder ``state``; an empty one where there is none, or where it is damaged."""
    path = state / NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        notes = {n: Note(v["text"], v["date"], tuple(v["files"])) for n, v in data["notes"].items()}
        return Report(path, data["command"], data["started"], list(data["waiting"]), notes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Report(path)

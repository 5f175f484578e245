"""Change the code in one place after another and ask the tests of its room whether they notice (mutmut).

    python tools/mutants.py [--jobs N] [ROOM ...]

Each room is copied to build/mutants/ROOM, the kernels as sparda/kernels, so that `import sparda` is the copy
with the changes. mutmut forks one process per change and runs there the tests that reach the changed code.
Not asked are doctests and tests that need the real model; not changed are the text of errors and decorated
functions, such as properties. What no test noticed is listed in build/mutants/ROOM.txt; `mutmut show NAME`,
run in the room's folder, prints the change.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "mutants"
MUTMUT = (sys.executable, "-c", "from mutmut.__main__ import cli; cli()")  # its script may lie elsewhere


@dataclass(frozen=True)
class Room:
    """Files to change, below sparda/, and the tests that shall notice, below tests/."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


ROOMS = {
    "rules": Room(
        ("blocks.py", "attention.py", "metrics.py", "spec.py"),
        ("test_blocks.py", "test_attention.py", "test_metrics.py", "test_spec.py"),
    ),
    "cache": Room(
        ("cache.py", "store.py", "plan.py"),
        ("test_cache.py", "test_store.py", "test_plan.py"),
    ),
    "engine": Room(("engine/*.py",), ("engine",)),
    "evaluation": Room(
        ("evaluation/statistics.py", "evaluation/accuracy.py", "evaluation/recall.py"),
        ("evaluation/test_statistics.py", "evaluation/test_accuracy.py", "evaluation/test_recall.py"),
    ),
}
OPTIONS = [
    *("-p", "no:doctest", "-p", "no:cacheprovider", "-m", "not model"),
    *("-o", "addopts=--import-mode=importlib --strict-markers"),
]
SETTINGS = """
[tool.mutmut]
source_paths = ["sparda"]
only_mutate = {files}
do_not_mutate_patterns = ['^\\s*raise\\b']
also_copy = ["data/text"]
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = {options}
timeout_multiplier = 8.0
timeout_constant = 3.0
use_git_change_detection = false
"""


def prepare(name: str) -> Path:
    """A fresh copy of what the room's tests need; returns its folder."""
    folder, room = BUILD / name, ROOMS[name]
    shutil.rmtree(folder, ignore_errors=True)
    leave = shutil.ignore_patterns("__pycache__")
    for source in ("sparda", "kernels", "tests", "data/text"):
        target = "sparda/kernels" if source == "kernels" else source
        shutil.copytree(ROOT / source, folder / target, ignore=leave)
    engine = folder / "sparda/engine/engine.py"  # lets go of its own frames after a fault: of mutmut's too
    text = engine.read_text(encoding="utf-8").replace('OURS = ("sparda", ', 'OURS = ("sparda", "mutmut", ')
    engine.write_text(text, encoding="utf-8")
    settings = SETTINGS.format(
        files=json.dumps([f"sparda/{file}" for file in room.files]),
        tests=json.dumps([f"tests/{test}" for test in room.tests]),
        options=json.dumps(OPTIONS),
    )
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8") + settings
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def run(name: str, jobs: int) -> str:
    """Make and try the room's changes, ``jobs`` at once; returns a line with its score."""
    folder = prepare(name)
    same = os.environ | {"OMP_NUM_THREADS": "1", "CI": "1"}  # CI: hypothesis draws alike every time
    subprocess.run([*MUTMUT, "run", "--max-children", str(jobs)], cwd=folder, env=same, check=True)
    subprocess.run([*MUTMUT, "export-cicd-stats"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    left = subprocess.run([*MUTMUT, "results"], cwd=folder, check=True, capture_output=True, text=True).stdout
    (BUILD / f"{name}.txt").write_text(left, encoding="utf-8")
    found = json.loads((folder / "mutants" / "mutmut-cicd-stats.json").read_text(encoding="utf-8"))
    noticed, total = found["killed"] + found["timeout"], found["total"]
    return f"{name}: {noticed} of {total} changes noticed, {100 * noticed / total:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description="Change the code; do the tests of its room notice?")
    parser.add_argument(
        "rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(ROOMS)}; default: all of them"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="changes tried at once")
    asked = parser.parse_args()
    if unknown := [name for name in asked.rooms if name not in ROOMS]:
        parser.error(f"unknown room {unknown[0]!r}; choose from {', '.join(ROOMS)}")
    scores = [run(name, asked.jobs) for name in asked.rooms or ROOMS]
    print(*scores, f"what was not noticed: {BUILD.relative_to(ROOT)}/ROOM.txt", sep="\n")


if __name__ == "__main__":
    main()

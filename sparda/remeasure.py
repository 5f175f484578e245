"""Measured steps of the GPU build, as figures/measurements.yml declares them, and which of them are current.

How one runs stands in ``sparda.remeasure_run``.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparda import provenance
from sparda.figures.catalogue import BuildError, closest, load_yaml
from sparda.measure import tables
from sparda.measure.tables import Table
from sparda.units import format_bytes

NAME = "measurements.yml"
MEASURE = "measure"  # stands for all steps that are not by_name
FIELDS = {
    "run": str, "writes": list, "reads": list, "seconds": int, "gpu_gib": int, "host_gib": int,
    "by_name": bool, "in_place": bool,
}  # fmt: skip
NEEDED = ("run", "writes", "reads", "seconds", "gpu_gib", "host_gib")


@dataclass(frozen=True)
class Step:
    """One measurement; fields as in measurements.yml."""

    name: str
    run: str
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    seconds: int
    gpu_gib: int
    host_gib: int
    by_name: bool = False
    in_place: bool = False

    @property
    def limit(self) -> int:
        """Seconds after which it is stopped."""
        return 2 * self.seconds + 60

    @property
    def words(self) -> list[str]:
        """The command's words, after ``python -m``."""
        return shlex.split(self.run)


@dataclass(frozen=True)
class Plan:
    """All steps, in order, and the seconds that those of one build may take together."""

    steps: dict[str, Step]
    budget_s: int


@dataclass(frozen=True)
class Place:
    """Where steps run: the checkout, this device's folder of measurements, and the notes of what is done."""

    root: Path
    folder: Path
    state: Path
    device: str

    def note(self, step: Step) -> Path:
        return self.state / f"measured-{step.name}.json"


def known_tables() -> dict[str, Table]:
    """The tables that steps may write, by file name; their keys say which rows replace which."""
    from sparda.evaluation import accuracy, exchange, needle, recall
    from sparda.measure import decode, prompts, traced
    from sparda.training import ablation, throughput

    found = (
        decode.DECODE, prompts.PREFILL, prompts.LATENCY, traced.BREAKDOWN, accuracy.ACCURACY,
        accuracy.SAMPLES, accuracy.PAIRS, recall.RECALL, needle.NEEDLE, exchange.EXCHANGE, ablation.TABLE,
        throughput.TABLE,
    )  # fmt: skip
    return {f"{table.name}.csv": table for table in found}


def _step(name: str, entry: Any, root: Path) -> Step:
    def refuse(what: str) -> BuildError:
        return BuildError(f"{NAME}: step {name}: {what}")

    if not isinstance(entry, dict):
        raise refuse(f"expected a mapping with {', '.join(NEEDED)}")
    for key, value in entry.items():
        if key not in FIELDS:
            raise refuse(f"unknown key {key!r}; {closest(str(key), FIELDS)}")
        if type(value) is not FIELDS[key]:
            raise refuse(f"{key} must be of type {FIELDS[key].__name__}, got {value!r}")
    for key in NEEDED:
        if key not in entry:
            raise refuse(f"{key} is missing")
    for path in entry["reads"]:
        if not (root / path).exists():
            raise refuse(f"it reads {path}, which does not exist; paths start at the repository's root")
    fields: dict[str, Any] = entry | {key: tuple(entry[key]) for key in ("writes", "reads")}
    return Step(name, **fields)


def read(root: Path) -> Plan:
    """Read ``root/figures/measurements.yml``; no steps without such a file. BuildError if it is wrong."""
    path = root / "figures" / NAME
    if not path.is_file():
        return Plan({}, 0)
    data = load_yaml(path)
    for key in sorted(set(data) - {"budget_s", "steps"}):
        raise BuildError(f"{NAME}: unknown key {key!r}; {closest(str(key), ('budget_s', 'steps'))}")
    if not isinstance(data.get("steps"), dict) or not isinstance(data.get("budget_s"), int):
        raise BuildError(f"{NAME}: it must hold budget_s, a number, and steps; see the file's header")
    steps = {str(name): _step(str(name), entry, root) for name, entry in data["steps"].items()}
    return Plan(steps, data["budget_s"])


def choose(plan: Plan, wanted: list[str]) -> tuple[list[Step], list[str]]:
    """Steps that are asked for (if none is, all that are not by_name), and names that are no step's."""
    usual = [step.name for step in plan.steps.values() if not step.by_name]
    named = set(wanted) & set(plan.steps) | (set(usual) if MEASURE in wanted or not wanted else set())
    rest = [name for name in wanted if name not in plan.steps and name != MEASURE]
    return [step for step in plan.steps.values() if step.name in named], rest


def digest(step: Step, place: Place) -> str:
    """Hash of what decides a measurement: the command, what it reads, the device and the versions."""
    total = hashlib.sha256()
    about = [step.run, step.writes, place.device, provenance.versions(("torch", "triton", "numpy"))]
    total.update(json.dumps(about, sort_keys=True).encode())
    for name in step.reads:
        path = place.root / name
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        for file in files:
            total.update(f"{file.relative_to(place.root)} {provenance.sha256(file)}\n".encode())
    return total.hexdigest()


def proof(step: Step, folder: Path) -> dict[str, Any]:
    """What shows that results stand: of a table the runs that its sidecar names, of another file its hash."""
    shown: dict[str, Any] = {}
    for name in step.writes:
        path = folder / name
        if name in known_tables():
            shown[name] = runs(path)
        else:
            shown[name] = provenance.sha256(path) if path.is_file() else None
    return shown


def runs(table: Path) -> list[dict]:
    """The runs that a table's sidecar names; none where there is no sidecar."""
    try:
        return json.loads(table.with_suffix(".json").read_text(encoding="utf-8"))["runs"]
    except (OSError, ValueError, KeyError):
        return []


def is_current(step: Step, place: Place) -> bool:
    """Whether nothing that it reads has changed since it finished, and what it wrote is still there."""
    try:
        note = json.loads(place.note(step).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if note.get("digest") != digest(step, place):
        return False
    now = proof(step, place.folder)
    return all(
        all(run in now[name] for run in was) if isinstance(was, list) else now[name] == was
        for name, was in note["proof"].items()
    )


def too_small(step: Step) -> str:
    """What this machine lacks for a step, in a sentence; empty if nothing."""
    import torch

    from sparda.kernels.host_memory import machine_memory

    gpu = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    free = machine_memory()[1]
    needs = (("GPU memory", step.gpu_gib, gpu), ("free host memory", step.host_gib, free))
    lacks = [
        f"{gib} GiB of {what}, and here are {format_bytes(have)}"
        for what, gib, have in needs
        if have and have < gib * 2**30
    ]
    return f"it needs {' and '.join(lacks)}" if lacks else ""


def keep(stage: Path, folder: Path, step: Step) -> int:
    """Move what a step wrote to its place; return the rows that came to their end (of another file: 1).

    A row that did not come to its end never replaces one that did. Each file is replaced in one rename.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for name in step.writes:
        if not (stage / name).is_file():
            continue
        if name in known_tables():
            count += _keep_table(known_tables()[name], stage, folder)
        else:
            (stage / name).replace(folder / name)
            count += 1
    return count


def _keep_table(table: Table, stage: Path, folder: Path) -> int:
    csv, sidecar = f"{table.name}.csv", f"{table.name}.json"
    before = {_key(row, table) for row in tables.read(folder / csv) if _ended(row)}
    rows = [row for row in tables.read(stage / csv) if _ended(row) or _key(row, table) not in before]
    merged = stage / "merged"
    merged.mkdir(exist_ok=True)
    for name in (csv, sidecar):
        if (folder / name).is_file():
            (merged / name).write_bytes((folder / name).read_bytes())
    for run in runs(stage / csv) if rows else []:
        tables.keep(table, rows, merged, run)
    for name in (csv, sidecar) if rows else ():
        (merged / name).replace(folder / name)
    return sum(_ended(row) for row in rows)


def _ended(row: dict[str, str]) -> bool:
    return row.get("status", "ok") == "ok"


def _key(row: dict[str, str], table: Table) -> tuple[str, ...]:
    return tuple(row.get(column, "") for column in table.key)

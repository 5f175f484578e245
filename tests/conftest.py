"""Shared fixtures, and skips that are counted: a test that cannot run here says why."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

# before any test imports a library that reads them
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("SPARDA_STATIC", "1")


def _missing(marker: str) -> str | None:
    """Why a test with this marker cannot run here; None if it can."""
    if marker == "gpu":
        import torch

        return None if torch.cuda.is_available() else "no CUDA device"
    from sparda.doctor import weights_problem
    from sparda.figures.gallery import find_browser

    if marker == "model":
        return weights_problem()
    return None if find_browser() else "no Chromium"


def pytest_collection_modifyitems(items):
    reasons = {}
    for item in items:
        for marker in ("gpu", "model", "browser"):
            if item.get_closest_marker(marker) is None:
                continue
            if marker not in reasons:
                reasons[marker] = _missing(marker)
            if reasons[marker]:
                item.add_marker(pytest.mark.skip(reason=reasons[marker]))


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    line = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common())
    terminalreporter.write_line(f"skipped tests: {line or 'none'}")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def smollm2():
    """(model, tokenizer) of SmolLM2-135M-Instruct, loaded once a process; mark its tests `model`."""
    import sparda

    return sparda.load("smollm2-135m")

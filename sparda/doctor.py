"""What this machine can run, in a dozen lines."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec

from sparda import provenance
from sparda.figures.gallery import find_browser

NEEDS = {
    "real models": ("transformers", "tokenizers", "gguf", "accelerate"),
    "notebooks and figures": ("jupyterlab", "ipywidgets", "anywidget", "plotly", "pandas", "papermill"),
    "Triton kernels": ("triton",),
    "tests": ("pytest", "xdist", "hypothesis", "nbval", "ruff", "pyright"),
}


def weights_problem() -> str | None:
    """What is wrong with the SmolLM2 weights and what to do about it; None if they are there and intact."""
    from sparda.models.load import packaged_file

    try:
        packaged_file("smollm2-135m")
    except (FileNotFoundError, ValueError) as error:
        return str(error)
    return None


def _line(subject: str, ok: bool, good: str, bad: str) -> str:
    return f"{'ok  ' if ok else 'no  '} {subject}: {good if ok else bad}"


def report() -> str:
    """A line for each thing that chapters, figures or tests may need, and what to do where it is absent."""
    import torch

    version = platform.python_version()
    lines = [
        _line("Python", sys.version_info >= (3, 11), version, f"{version}; 3.11 or later is needed"),
        f"ok   torch: {torch.__version__} on {provenance.device()}",
        _line(
            "CUDA", torch.cuda.is_available(), "profile gpu can run", "no device: profiles smoke and cpu only"
        ),
    ]
    for what, packages in NEEDS.items():
        missing = [name for name in packages if find_spec(name) is None]
        lines.append(
            _line(what, not missing, "installed", f"{', '.join(missing)} missing; run `make -B install`")
        )
    problem = weights_problem()
    lines.append(_line("SmolLM2 weights", problem is None, "found and intact", str(problem)))
    browser = find_browser()
    lines.append(
        _line("PNG pictures", browser is not None, str(browser), "no Chromium; the committed PNGs stay")
    )
    return "\n".join(lines)

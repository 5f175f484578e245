"""Whether a widget should be live: in a person's notebook yes; in builds, tests and plain Python no."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any


def is_live() -> bool:
    """True in a Jupyter kernel that a person looks at and that has the widget packages.

    SPARDA_STATIC=1 asks for static figures in any case, SPARDA_STATIC=0 for live ones in every kernel.
    A person's kernel without the packages is told which is missing.
    """
    asked = os.environ.get("SPARDA_STATIC", "")
    if asked not in ("", "0"):
        return False
    # a kernel has imported IPython already; asking must not import it
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython.get_ipython(), "kernel", None) if ipython else None
    if kernel is None or not (asked == "0" or _is_attended(kernel)):
        return False
    missing = [name for name in ("ipywidgets", "anywidget") if find_spec(name) is None]
    if missing:
        print(f"figures instead of widgets: {' and '.join(missing)} is missing; run `make install`")
    return not missing


def _is_attended(kernel: Any) -> bool:
    """Whether who runs this cell could be asked something.

    JupyterLab and its like say so with each cell; papermill, nbconvert and nbclient say that nobody is there,
    and would write the scripts of a live figure, 5 MB, into the notebook.
    """
    request = kernel.get_parent("shell") if hasattr(kernel, "get_parent") else {}
    return bool(request.get("content", {}).get("allow_stdin", True))

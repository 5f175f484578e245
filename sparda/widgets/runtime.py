"""Whether a widget should be live: in a person's notebook yes; in builds, tests and plain Python no."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec


def is_live() -> bool:
    """True in a Jupyter kernel with the widget packages, unless SPARDA_STATIC=1 asks for static figures.

    A person's kernel without them is told which is missing.
    """
    if os.environ.get("SPARDA_STATIC", "") not in ("", "0"):
        return False
    # a kernel has imported IPython already; asking must not import it
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if not hasattr(shell, "kernel"):
        return False
    missing = [name for name in ("ipywidgets", "anywidget") if find_spec(name) is None]
    if missing:
        print(f"figures instead of widgets: {' and '.join(missing)} is missing; run `make install`")
    return not missing

"""Whether a widget should be live: in a person's notebook yes; in builds, tests and plain Python no."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec


def is_live() -> bool:
    """True inside a Jupyter kernel with ipywidgets, unless SPARDA_STATIC=1 asks for static figures."""
    if os.environ.get("SPARDA_STATIC", "") not in ("", "0"):
        return False
    # a kernel has imported IPython already; asking must not import it
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel") and find_spec("ipywidgets") is not None

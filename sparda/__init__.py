"""SparDA Workbench: block selection, Forecast, offloaded decode, and the course that explains them.

    model, tokenizer = sparda.load("smollm2-135m")
    with sparda.attach(model, selector="query", sparsity=sparda.Sparsity(budget_blocks=4, local_blocks=1)):
        model.generate(...)

Names are imported when they are first used, so that ``import sparda`` is fast and needs no extra package.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparda.engine import Engine
    from sparda.models.attach import Probe, attach
    from sparda.models.load import load
    from sparda.spec import Sparsity

__version__ = "0.1.0"
__all__ = ["Engine", "Probe", "Sparsity", "attach", "load"]

# read as torch is imported: idle threads sleep, since spinning ones take the cores from all other work
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_HOME = {
    "Engine": "sparda.engine",
    "Probe": "sparda.models.attach",
    "attach": "sparda.models.attach",
    "load": "sparda.models.load",
    "Sparsity": "sparda.spec",
}


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'sparda' has no attribute {name!r}; it offers {', '.join(__all__)}")


def __dir__():
    return sorted([*globals(), *__all__])

"""Every operation of SparDA on a GPU: one file each, a Triton kernel and a checked wrapper.

The reference of each is a function of ``sparda.blocks``, ``sparda.attention`` or ``sparda.cache``. A wrapper
picks its backend by the tensors that it gets: see ``sparda.kernels.backend``. Names are imported when they
are first used; importing this package does not import Triton. ``sparda.kernels.score_blocks`` is always the
function; what else its file holds comes by ``from sparda.kernels.score_blocks import ...``.

Layouts (all contiguous): host store of one layer [B, H, N, 2 (K, V), S, d], pinned; resident slots
[B, H, C, 2, S, d]; compressed keys [B, H, N_c, d]; slot_block [B, H, C] and its inverse block_slot [B, H, N],
int32, -1 where empty.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparda.kernels.add_norm import add_norm
    from sparda.kernels.block_mass import block_mass
    from sparda.kernels.compress_keys import compress_keys
    from sparda.kernels.gather_misses import gather_misses
    from sparda.kernels.replay_scores import replay_scores
    from sparda.kernels.rope_append import rope_append
    from sparda.kernels.rotate_prompt import rotate_prompt
    from sparda.kernels.score_blocks import score_blocks
    from sparda.kernels.score_blocks_query import score_blocks_query
    from sparda.kernels.select_topk import select_topk
    from sparda.kernels.silu_mul import silu_mul
    from sparda.kernels.sparse_decode import sparse_decode
    from sparda.kernels.sparse_prefill import sparse_prefill
    from sparda.kernels.store_token import store_token
    from sparda.kernels.topk_difference import topk_difference

__all__ = [
    "add_norm",
    "block_mass",
    "compress_keys",
    "gather_misses",
    "replay_scores",
    "rope_append",
    "rotate_prompt",
    "score_blocks",
    "score_blocks_query",
    "select_topk",
    "silu_mul",
    "sparse_decode",
    "sparse_prefill",
    "store_token",
    "topk_difference",
]


class _Package(ModuleType):
    def __setattr__(self, name: str, value):
        # importing a submodule binds it here, under the name of the function that it defines
        if name in __all__ and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str):
    if name in __all__:
        return getattr(import_module(f"sparda.kernels.{name}"), name)
    raise AttributeError(f"'sparda.kernels' has no attribute {name!r}; it offers {', '.join(__all__)}")


def __dir__():
    return sorted([*globals(), *__all__])

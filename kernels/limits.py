"""Which sizes each kernel can take on a GPU: told before anything is computed, and by ``sparda doctor``."""

from __future__ import annotations

from sparda.spec import Sparsity

LEAST_HEAD_DIM = 16
# sizes that must be powers of two, as each wrapper says to ``backend.expect_power_of_two``
POWERS_OF_TWO = {
    "add_norm": (),
    "block_mass": ("block_size",),
    "compress_keys": ("head_dim",),
    "gather_misses": ("block_size", "head_dim"),
    "rope_append": ("head_dim", "block_size", "window"),
    "rotate_prompt": ("head_dim",),
    "score_blocks": ("windows_per_block", "head_dim"),
    "score_blocks_query": ("windows_per_block", "head_dim"),
    "select_topk": (),
    "silu_mul": (),
    "sparse_decode": ("block_size", "head_dim"),
    "sparse_prefill": ("block_size", "head_dim"),
    "store_token": (),
    "topk_difference": (),
}


def problems(head_dim: int, sparsity: Sparsity) -> dict[str, str]:
    """Kernel -> why it cannot run these sizes on a GPU; empty where all can.

    >>> problems(64, Sparsity(96))
    {}
    >>> problems(80, Sparsity(96))["rotate_prompt"]
    'head_dim 80 is no power of two'
    """
    sizes = {
        "head_dim": head_dim, "block_size": sparsity.block_size, "window": sparsity.window,
        "windows_per_block": sparsity.block_size // sparsity.stride,
    }  # fmt: skip
    found = {}
    for kernel, names in POWERS_OF_TWO.items():
        wrong = [
            f"{name} {sizes[name]} is no power of two" for name in names if sizes[name] & (sizes[name] - 1)
        ]
        if not wrong and kernel.startswith("score_blocks") and head_dim < LEAST_HEAD_DIM:
            wrong = [f"head_dim {head_dim} is less than {LEAST_HEAD_DIM}"]
        if wrong:
            found[kernel] = wrong[0]
    return found


def check(head_dim: int, sparsity: Sparsity) -> None:
    """ValueError, with one sentence, where a kernel cannot run these sizes on a GPU."""
    for kernel, why in problems(head_dim, sparsity).items():
        mend = "run this model on the CPU" if "head_dim" in why else "choose another Sparsity, or use the CPU"
        raise ValueError(f"on a GPU the kernel {kernel} cannot serve this: {why}; {mend}")

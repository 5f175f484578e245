"""Where a kernel runs, and the checks that every wrapper makes at its door.

    CUDA tensors                          -> "cuda"         the Triton kernel
    CPU tensors under TRITON_INTERPRET=1  -> "interpreter"  the same kernel, slowly, without a GPU
    CPU tensors otherwise                 -> "torch"        the reference

Kernel files take ``triton`` and ``tl`` from here, so that they can be read and imported on a machine that has
no Triton: there the reference serves. Nothing here waits for the GPU: every wrapper can be captured in a
CUDA graph. Checks that must read values (ids in range) run on CPU tensors always, on CUDA tensors with
SPARDA_CHECK=1 only.
"""

from __future__ import annotations

import os
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor

triton: Any
tl: Any
try:
    import triton
    import triton.language as tl
except ImportError:  # macOS, Windows, a small install
    triton = SimpleNamespace(jit=lambda function: function)
    tl = SimpleNamespace(constexpr=int)
    HAS_TRITON = False
else:
    HAS_TRITON = True

Backend = Literal["cuda", "interpreter", "torch"]
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_ON = ("1", "true", "on", "yes")


def interpreter_wanted() -> bool:
    """Whether TRITON_INTERPRET asks for the interpreter now."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in _ON


@lru_cache(maxsize=1)
def interpreter_loaded() -> bool:
    """Whether Triton was imported as an interpreter: fixed at its first import in a process."""
    if not HAS_TRITON:
        return False
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(tl.standard.sigmoid, InterpretedFunction)


def choose(*tensors: Tensor | None) -> Backend:
    """Pick the backend for these tensors; they must share one device (None is skipped).

    ValueError: several devices, a GPU that is not the current one, or a device of another kind.
    RuntimeError: Triton missing, or the interpreter chosen after Triton was imported.
    TypeError: bfloat16 under the interpreter, which computes it wrongly without saying so.
    """
    given = [t for t in tensors if t is not None]
    device = given[0].device
    if any(t.device != device for t in given):
        found = ", ".join(sorted({str(t.device) for t in given}))
        raise ValueError(f"the tensors are on {found}; move them to one device")
    if device.type == "cuda":
        return _choose_cuda(device)
    if device.type == "meta":
        raise ValueError("kernels need tensors with data, got meta ones; load the weights first")
    if device.type != "cpu":
        raise ValueError(f"kernels run on CUDA or CPU tensors, got {device}; call .cuda() or .cpu()")
    if interpreter_wanted() != interpreter_loaded() and HAS_TRITON:
        raise RuntimeError(
            "TRITON_INTERPRET was changed after Triton was imported, so it has no effect; "
            "set it before Python starts (TRITON_INTERPRET=1 python ...), or unset it"
        )
    if not interpreter_loaded():
        return "torch"
    if any(t.dtype is torch.bfloat16 for t in given):
        raise TypeError(
            "the Triton interpreter computes wrong bfloat16 values; use float16 or float32 tensors, "
            "or unset TRITON_INTERPRET to run the torch reference"
        )
    return "interpreter"


def _choose_cuda(device: torch.device) -> Backend:
    if not HAS_TRITON:
        raise RuntimeError("CUDA tensors need Triton: run `pip install triton`, or pass CPU tensors")
    if interpreter_loaded():
        raise RuntimeError(
            "CUDA tensors cannot run under the Triton interpreter; start Python without TRITON_INTERPRET"
        )
    if device.index != torch.cuda.current_device():
        raise ValueError(
            f"the tensors are on {device}, but the current device is cuda:{torch.cuda.current_device()}; "
            f"call torch.cuda.set_device({device.index})"
        )
    return "cuda"


def expect(
    name: str, tensor: Tensor, shape: tuple[int | None, ...], dtypes: torch.dtype | tuple[torch.dtype, ...],
    *, contiguous: bool | None = None,
) -> None:  # fmt: skip
    """Check rank, sizes (None: any), dtype and contiguity of one argument.

    The torch reference takes float64 where FLOATS are wanted, and any strides unless ``contiguous`` is True;
    a kernel wants contiguous tensors unless it is False.

    >>> expect("q", torch.zeros(2, 3), (2, None, 4), torch.float32)
    Traceback (most recent call last):
    ValueError: q must have shape [2, *, 4], got [2, 3]
    """
    wanted = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    reference = tensor.device.type == "cpu" and not interpreter_loaded()
    if reference and dtypes is FLOATS:
        wanted += (torch.float64,)
    if tensor.dtype not in wanted:
        names = " or ".join(str(d).removeprefix("torch.") for d in wanted)
        raise TypeError(f"{name} must be {names}, got {str(tensor.dtype).removeprefix('torch.')}; convert it")
    sizes = tuple(tensor.shape)
    if len(sizes) != len(shape) or any(w is not None and w != s for w, s in zip(shape, sizes, strict=True)):
        raise ValueError(
            f"{name} must have shape [{', '.join('*' if w is None else str(w) for w in shape)}], "
            f"got {list(sizes)}"
        )
    needed = not reference if contiguous is None else contiguous
    if needed and not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous (strides {tensor.stride()}); call .contiguous() on it")


def expect_power_of_two(**values: int) -> None:
    """Check sizes that a kernel unrolls into tiles."""
    for name, value in values.items():
        if value < 1 or value & (value - 1):
            raise ValueError(f"{name} must be a power of two for the Triton kernels, got {value}")


def check_values(tensor: Tensor) -> bool:
    """Whether a check may read this tensor's values: on the CPU always, on a GPU with SPARDA_CHECK=1."""
    return tensor.device.type == "cpu" or os.environ.get("SPARDA_CHECK", "").lower() in _ON


def next_power_of_two(n: int) -> int:
    """Smallest power of two that is at least n.

    >>> [next_power_of_two(n) for n in (1, 2, 3, 96)]
    [1, 2, 4, 128]
    """
    return 1 << max(0, n - 1).bit_length()


@lru_cache(maxsize=8)
def can_chain(device: torch.device) -> bool:
    """Whether a kernel may start while the one before it drains: programmatic dependent launch, Hopper on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def launch_early(chained: bool) -> dict[str, bool]:
    """Launch option of a kernel that waits itself (``gdc_wait``) before it touches what others write or read.

    In a chain of small kernels it saves about 1 us a kernel.
    """
    return {"launch_pdl": True} if chained else {}


@lru_cache(maxsize=8)
def multiprocessors(device: torch.device) -> int:
    """SMs of a GPU; 1 on the CPU, where each program costs milliseconds."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count

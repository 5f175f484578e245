"""Pinned host memory: what the GPU can read over the link while the processor does nothing.

Pinning locks the pages, so that their physical addresses stay true, and maps them into the GPU's address
space (unified virtual addressing): a kernel can then load from them as from its own memory, at the speed of
the link. torch's ``pin_memory=True`` rounds a request up to a power of two, 9 GiB to 16; here a request is
rounded up to whole pages only. Pinning touches every page, which takes longest: so huge pages are asked for,
and threads touch them first (0.20 s a GiB on the machine of an H200, against 0.47 s).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparda.units import format_bytes

PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 * 2**20
MAX_THREADS = 16
_HUGE, _POPULATE = 14, 23  # Linux's MADV_HUGEPAGE and MADV_POPULATE_WRITE; where unknown, they do nothing


def pinned_empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Allocate page-locked host memory that kernels on the present GPU can read.

    shape, dtype : of the tensor; its bytes are rounded up to whole pages, not to a power of two
    returns      : CPU tensor, page-aligned, zeros until written; unpinned when its last view is gone

    Raises RuntimeError without a CUDA device, and MemoryError saying how much was asked for, how much this
    machine has, and what to lower.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("pinning needs a CUDA device; on a CPU use torch.empty: the kernels accept it")
    n_bytes = math.prod(shape) * dtype.itemsize
    if n_bytes < 1:
        raise ValueError(f"nothing to pin: shape {list(shape)} is empty")
    expect_free(n_bytes)
    room = HUGE_PAGE if n_bytes >= HUGE_PAGE else 0  # to begin at a multiple of it
    try:
        pages = mmap.mmap(-1, -(-n_bytes // PAGE) * PAGE + room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, MemoryError) as error:
        raise MemoryError(explain(n_bytes, str(error))) from error
    return _pin(pages, n_bytes).view(dtype).view(shape)


def _pin(pages: mmap.mmap, n_bytes: int) -> Tensor:
    """Page-lock the mapping and wrap it: a uint8 tensor that unpins it when it dies."""
    import numpy as np

    array = np.frombuffer(pages, dtype=np.uint8)
    skipped = -array.ctypes.data % HUGE_PAGE if n_bytes >= HUGE_PAGE else 0
    array = array[skipped : skipped + -(-n_bytes // PAGE) * PAGE]
    _touch(array.ctypes.data, array.nbytes)
    cudart: Any = torch.cuda.cudart()
    status = cudart.cudaHostRegister(array.ctypes.data, array.nbytes, 0)
    if int(status) != 0:
        _forget_error()
        raise MemoryError(explain(n_bytes, f"the driver answered {status}"))
    # numpy's array, not torch's tensor, dies with the last view; at exit the system unpins
    finalizer = weakref.finalize(array, _unpin, array.ctypes.data, pages)
    finalizer.atexit = False
    return torch.from_numpy(array)[:n_bytes]


def _touch(address: int, n_bytes: int) -> None:
    """Have the system back the pages now, huge ones where it can, by several threads."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    madvise(address, n_bytes, _HUGE)
    n_threads = min(MAX_THREADS, os.cpu_count() or 1)
    share = -(-n_bytes // n_threads // HUGE_PAGE) * HUGE_PAGE
    parts = [(address + at, min(share, n_bytes - at), _POPULATE) for at in range(0, n_bytes, share)]
    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(lambda part: madvise(*part), parts))


def _forget_error() -> None:
    """CUDA reports a failed call once more, at the next one that torch checks: let that be this one."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")


def _unpin(address: int, pages: mmap.mmap) -> None:
    torch.cuda.synchronize()  # a kernel may still be reading
    cudart: Any = torch.cuda.cudart()
    cudart.cudaHostUnregister(address)
    del pages  # unmapped only now


def expect_free(n_bytes: int) -> None:
    """MemoryError where so much is not free: else the system would kill the process half-way."""
    total, free = machine_memory()
    if total and n_bytes > free:
        raise MemoryError(
            f"{format_bytes(n_bytes)} of host memory are needed, and of this machine's "
            f"{format_bytes(total)} only "
            f"{format_bytes(free)} are free; lower the batch or the context"
        )


def explain(n_bytes: int, reason: str) -> str:
    """The message of a failed pinning."""
    total, free = machine_memory()
    return (
        f"cannot pin {format_bytes(n_bytes)} of host memory ({reason}); this machine has "
        f"{format_bytes(total)}, {format_bytes(free)} of it free. Lower the batch or the context, "
        "or raise the limit on locked memory (ulimit -l)"
    )


def machine_memory(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> tuple[int, int]:
    """Bytes of host memory: all of it, and what new allocations may take. (0, 0) where it cannot be read.

    A container's limit counts too, where it is smaller: past it the system kills the process.
    """
    try:
        kib = _table(meminfo, ":")
        total, free = kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024
    except (OSError, KeyError, ValueError):
        return 0, 0
    with contextlib.suppress(OSError, KeyError, ValueError):
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))  # "max": no limit
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        used -= _table(cgroup / "memory.stat", " ")["inactive_file"]  # given up when needed
        total, free = min(total, limit), min(free, max(0, limit - used))
    return total, free


def _table(file: Path, separator: str) -> dict[str, int]:
    """First number of each line, by what stands before the separator."""
    lines = [line.split(separator, 1) for line in file.read_text(encoding="ascii").splitlines()]
    return {name: int(rest.split()[0]) for name, rest in lines if rest.split()}


def expect_reachable(name: str, store: Tensor, device: torch.device) -> None:
    """Check that kernels on ``device`` can read ``store``: ValueError says what to do instead."""
    if device.type == "cpu":
        if store.device.type != "cpu":
            raise ValueError(
                f"{name} is on {store.device}, the slots are on the CPU; move both to one device"
            )
        return
    if store.device.type != "cpu":
        raise ValueError(
            f"{name} is on {store.device}; it must be pinned host memory: "
            "allocate it with sparda.kernels.host_memory.pinned_empty"
        )
    if not store.is_pinned():
        raise ValueError(
            f"{name} is ordinary host memory, which the GPU cannot read; "
            "allocate it with sparda.kernels.host_memory.pinned_empty, or call .pin_memory() on it"
        )

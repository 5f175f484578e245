"""Write a file so that the one that is there is replaced only once the new one is whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place to write to; it becomes ``path`` at the end, and is removed after an error."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a text file."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8", newline="")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Replace a safetensors file; OSError: the disk is full, or what else the system says."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        part.touch()
        mode = part.stat().st_mode  # the usual one; safetensors would let only the owner read
        try:
            save_file(dict(tensors), part, dict(about))
        except SafetensorError as error:  # its own word for what the system said
            full = "No space left" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error), str(path)) from None
        part.chmod(mode)

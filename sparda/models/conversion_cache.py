"""Keep converted models in the user's cache folder, as ordinary Hugging Face directories.

A conversion is trusted only if every file has the hash that was written down beside it. It appears whole or
not at all: files are written into a temporary folder, which is renamed at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

_MANIFEST = "sha256.json"


def cache_dir() -> Path:
    """Return ``SPARDA_CACHE``, else ``sparda`` in ``XDG_CACHE_HOME`` or in the platform's cache folder."""
    if own := os.environ.get("SPARDA_CACHE"):
        return Path(own).expanduser()
    if sys.platform == "win32":
        default = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        default = Path.home() / "Library" / "Caches"
    else:
        default = Path.home() / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or default) / "sparda"


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find(key: str) -> Path | None:
    """Return the folder of an intact conversion; None if it is absent, altered or unreadable."""
    folder = cache_dir() / key
    try:
        written = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        intact = "config.json" in written and all(sha256(folder / n) == h for n, h in written.items())
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return folder if intact else None


def store(key: str, write: Callable[[Path], object]) -> None:
    """Put what ``write(folder)`` writes into the cache; a cache that cannot be written only warns."""
    root = cache_dir()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".part-", ignore_cleanup_errors=True) as partial:
            folder = Path(partial) / "model"
            folder.mkdir()
            write(folder)
            hashes = {path.name: sha256(path) for path in sorted(folder.iterdir())}
            (folder / _MANIFEST).write_text(json.dumps(hashes, indent=1), encoding="utf-8")
            shutil.rmtree(root / key, ignore_errors=True)  # an altered one; os.replace needs the place empty
            os.replace(folder, root / key)
    except (OSError, SafetensorError) as error:
        if find(key):  # another process was quicker
            return
        warnings.warn(
            f"the converted model could not be kept in {root} ({error}); it works, but each load converts "
            "again: make room or set SPARDA_CACHE to a folder that can be written",
            stacklevel=4,
        )

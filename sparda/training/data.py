"""Where a run's sequences come from: text files, a Hugging Face data set, or packed tokens."""

from __future__ import annotations

import filecmp
import hashlib
import importlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sparda.training.packing import pack

SUFFIXES = (".txt", ".md", ".rst")
HASHED = 2**24  # tokens of a mapped file that are hashed, in rows


@dataclass(frozen=True)
class Sequences:
    """Packed tokens [n, length or more], and where they came from."""

    tokens: np.ndarray
    length: int
    source: str

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, indices: Sequence[int]) -> np.ndarray:
        """Some of them, [len(indices), length] int64."""
        return np.stack([self.tokens[i, : self.length] for i in indices]).astype(np.int64)

    def digest(self) -> str:
        """Hash of the tokens: of all, or of a large mapped file its sum and evenly spaced rows of it."""
        used = self.tokens[:, : self.length]
        some = max(2, HASHED // self.length) if isinstance(used, np.memmap) else len(used)
        found = hashlib.sha256(f"{used.shape} {used.sum(dtype=np.int64)}".encode())
        for row in np.unique(np.linspace(0, len(used) - 1, min(some, len(used))).astype(int)):
            found.update(used[row].astype("<i8").tobytes())
        return found.hexdigest()[:32]


def read(
    sources: Sequence[str], tokenizer: Any, vocab: int, length: int, most: int | None = None
) -> Sequences:
    """Sequences of ``length`` tokens from all sources together; no more is read than gives ``most``.

    A source is a text file, a folder of them, a ``.npy`` of packed tokens (``python -m sparda.corpus``), or
    ``hf:owner/name[:split[:column]]``, which needs the package datasets.

    FileNotFoundError: no such file. ValueError: an empty file, too little text for one sequence, or a
    tokenizer that does not fit the model.
    """
    if wrong := list(problems(sources, length)):
        raise wrong[0]
    if sources[0].endswith(".npy"):
        return _packed(Path(sources[0]), vocab, length)
    check_fits(tokenizer, vocab)
    found = (text for source in sources for text in documents(source))
    end = tokenizer.eos_token_id
    if end is None:
        raise ValueError("the tokenizer has no end token, which marks where a document ends; set eos_token")
    count = Counter()
    sequences = list(islice(pack(_tokens(found, tokenizer, count), length, end), most))
    what = ", ".join(sources)
    if not sequences:
        raise ValueError(
            f"{what}: {count['tokens']} tokens do not fill one sequence of {length}; give more text, or a "
            "smaller --length"
        )
    return Sequences(np.stack(sequences), length, what)


def problems(sources: Sequence[str], length: int) -> Iterator[FileNotFoundError | ValueError]:
    """What is wrong with sources, as far as it shows without reading them."""
    for source in sources:
        path = Path(source)
        if source.startswith("hf:"):
            try:
                importlib.import_module("datasets")
            except ImportError:
                yield ValueError(f"{source} needs the package datasets; run `pip install datasets`")
        elif source.endswith(".npy"):
            yield from _packed_problems(path, length, len(sources))
        elif not path.exists():
            yield FileNotFoundError(
                f"no file or folder {source}; check the path (a data set is hf:owner/name)"
            )
        elif not (files := _files(source)):
            yield ValueError(f"the folder {source} holds no text ({', '.join(SUFFIXES)})")
        else:
            for file in (f for f in files if not f.stat().st_size):
                yield ValueError(f"{file} is empty; remove it, or check what wrote it")


def _packed_problems(path: Path, length: int, n_sources: int) -> Iterator[FileNotFoundError | ValueError]:
    if not path.is_file():
        yield FileNotFoundError(f"no file {path}; make it with `python -m sparda.corpus {path.parent}`")
        return
    if n_sources > 1:
        yield ValueError(f"{path} holds packed tokens and is not joined to other text; give it alone")
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        yield ValueError(f"{path} is no file of numpy's ({error}); make it again, or give text")
        return
    if tokens.ndim != 2 or tokens.dtype.kind not in "ui" or not len(tokens):
        yield ValueError(
            f"{path} is no table of tokens [n, length]; it is {tokens.dtype} {list(tokens.shape)}"
        )
    elif tokens.shape[1] < length:
        yield ValueError(
            f"{path} holds sequences of {tokens.shape[1]} tokens; use --length {tokens.shape[1]}"
        )


def check_fits(tokenizer: Any, vocab: int) -> None:
    """ValueError: the tokenizer knows tokens that the model does not."""
    if len(tokenizer) > vocab:
        raise ValueError(
            f"the tokenizer knows {len(tokenizer)} tokens, but the model only {vocab}: they do not belong "
            "together; use the tokenizer that came with the model"
        )


def check_apart(text: Sequence[str], held_out: Sequence[str]) -> None:
    """ValueError: a file, or a data set with its split, is trained on and held out too."""
    one, other = (
        {file.resolve() for source in sources for file in _files(source)} for sources in (text, held_out)
    )
    both = sorted(one & other) + [b for a in one for b in other if _alike(a, b)]
    if both:
        raise ValueError(
            f"{both[0].name} is in both --text and --held-out, but recall must be measured on text that was "
            "not trained on; take it out of one of them"
        )


def _alike(one: Path, other: Path) -> bool:
    """Whether one file is a copy of the other."""
    both = one.is_file() and other.is_file()
    return both and one.stat().st_size == other.stat().st_size and filecmp.cmp(one, other, shallow=False)


def _files(source: str) -> list[Path]:
    """The files of a source, ascending; what is no folder stands for itself."""
    path = Path(source)
    return sorted(f for f in path.rglob("*") if f.suffix in SUFFIXES) if path.is_dir() else [path]


def _packed(path: Path, vocab: int, length: int) -> Sequences:
    tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    if (largest := int(tokens.max())) >= vocab:
        raise ValueError(
            f"{path} holds token {largest}, but the model knows only {vocab}: it was made with another "
            "tokenizer; make it again with --model"
        )
    return Sequences(tokens, length, path.name)


def documents(source: str) -> Iterator[str]:
    """The texts of a source, each file or row for itself; ValueError: an empty one, or what is no text."""
    if source.startswith("hf:"):
        yield from _data_set(source)
        return
    for file in _files(source):
        text = file.read_text(encoding="utf-8", errors="replace")
        if not text.strip():
            raise ValueError(f"{file} is empty; remove it, or check what wrote it")
        if "\0" in text:
            raise ValueError(f"{file} is not text; give text in UTF-8, or a .npy of packed tokens")
        yield text


def _data_set(source: str) -> Iterator[str]:
    name, split, column = [*source.removeprefix("hf:").split(":"), "", ""][:3]
    from datasets import load_dataset

    rows: Iterable[Any] = load_dataset(name, split=split or "train", streaming=True)
    for row in rows:
        if (column or "text") not in row:
            raise ValueError(f"{source} has no column {column or 'text'!r}; it has {', '.join(row)}")
        yield row[column or "text"]


def _tokens(documents: Iterable[str], tokenizer: Any, count: Counter) -> Iterator[list[int]]:
    for text in documents:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        count["tokens"] += len(ids)
        yield ids

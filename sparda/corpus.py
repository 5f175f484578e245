"""Training text without a download of a data set: the manuals of a Debian system, tokenised and packed.

    python -m sparda.corpus build/corpus              # needs apt-get and dpkg (Debian, Ubuntu)

The packages are free to use and to train on (GPL, PSF, MIT and such), but the text is not ours to ship: the
recipe is committed, its output is not. One package, git-doc, is held out whole for validation. One sequence
in ten is synthetic retrieval, see ``sparda.training.retrieval``; with --retrieval a third file is written, in
which every other one is. A train.npy that is there already stays.
"""

from __future__ import annotations

import argparse
import gzip
import html
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from sparda.measure.command import count
from sparda.training import retrieval
from sparda.training.packing import pack

MIB = 2**20


@dataclass(frozen=True)
class Source:
    """A Debian package (or one that depends on it) and which of its files are read."""

    package: str
    pattern: str
    most_mib: float = 100.0
    held_out: bool = False


SOURCES = (
    Source("anarchism", "**/*.html"),
    Source("linux-doc", "**/html/**/*.html", most_mib=14),
    Source("rust-doc", "**/html/*book/**/*.html"),
    Source("rust-doc", "**/html/r*/**/*.html"),
    Source("rust-doc", "**/html/nomicon/**/*.html"),
    Source("python3-doc", "**/html/**/*.html", most_mib=12),
    Source("postgresql-doc", "**/*.html"),
    Source("sqlite3-doc", "**/*.html"),
    Source("openjdk-17-doc", "**/*.html", most_mib=9),
    Source("dict-gcide", "**/*.dict.dz", most_mib=5),
    Source("git-doc", "**/*.html", held_out=True),
)
_DROP = re.compile(r"<(script|style|head|nav|svg|footer)\b.*?</\1\s*>|<!--.*?-->", re.S | re.I)
_BREAK = re.compile(r"</?(p|div|br|li|ul|ol|h\d|tr|table|pre|dt|dd|dl|section|blockquote)\b[^>]*>", re.I)
_TAG = re.compile(r"<[^>]+>")
_SKIP = {"print.html", "toc.html", "genindex-all.html"}  # a whole book again, or an index
_LEAST_CHARACTERS, _LINE = 800, 40  # of a page; of a line that counts as prose


def fetch(folder: Path) -> None:
    """Download and unpack the packages below ``folder``; what is there already stays.

    RuntimeError: no apt-get and dpkg, or a package that cannot be had.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise RuntimeError(
            "the recipe needs apt-get and dpkg (Debian, Ubuntu); elsewhere give `sparda train` your own text"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for package in sorted({source.package for source in SOURCES}):
        if (folder / package).is_dir():
            continue
        names = [package, *_documentation_it_needs(package)]
        _run(["apt-get", "download", *names], folder)
        for name in names:
            (file,) = folder.glob(f"{name}_*.deb")
            _run(["dpkg", "-x", file.name, package], folder)


def _documentation_it_needs(package: str) -> list[str]:
    """Real packages behind an empty one: python3-doc needs python3.11-doc, or whatever is current."""
    listed = _run(["apt-cache", "depends", package], Path.cwd())
    needed = re.findall(r"^\s*Depends: (\S+)$", listed, re.M)
    return [name for name in needed if re.search(r"-doc\b", name)]


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise RuntimeError(f"`{' '.join(command)}` failed: {reason}; try `apt-get update` first")
    return done.stdout


def plain_text(page: str) -> str:
    """Readable text of an HTML page; "" for an index or a stub, where little is prose.

    >>> plain_text("<p>Short</p>")
    ''
    """
    page = _TAG.sub("", _BREAK.sub("\n", _DROP.sub(" ", page)))
    lines = [line.rstrip() for line in html.unescape(page).replace("¶", "").splitlines()]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    prose = sum(len(line) for line in lines if len(line) >= _LINE)
    return text if len(text) >= _LEAST_CHARACTERS and prose >= len(text) / 2 else ""


def documents(folder: Path, source: Source) -> Iterator[str]:
    """Texts of one source: the pages of a folder are chapters of one document."""
    files = sorted((folder / source.package).glob(source.pattern))
    left = source.most_mib * MIB
    groups = [
        list(pages) for _, pages in groupby((f for f in files if f.name not in _SKIP), key=lambda f: f.parent)
    ]
    random.Random(0).shuffle(groups)
    for pages in groups:
        texts = filter(None, map(_read, pages))
        if text := "\n\n\n".join(texts):
            text = text[: int(left)]
            yield text
            left -= len(text)
        if left <= 0:
            return


def _read(file: Path) -> str:
    if file.suffix == ".dz":  # a dictionary in one piece; gzip reads it
        return gzip.decompress(file.read_bytes()).decode(errors="ignore")
    return plain_text(file.read_text(encoding="utf-8", errors="ignore"))


def tokens(tokenizer: Any, texts: Iterable[str], piece: int = 200_000) -> Iterator[list[int]]:
    """Tokens of each text; long ones in pieces cut at a line's end."""
    for text in texts:
        lines, pieces, size = text.splitlines(keepends=True), [[]], 0
        for line in lines:
            if size > piece:
                pieces.append([])
                size = 0
            pieces[-1].append(line)
            size += len(line)
        encoded = tokenizer(["".join(p) for p in pieces], add_special_tokens=False, verbose=False)
        yield [token for ids in encoded["input_ids"] for token in ids]


def build(folder: Path, tokenizer: Any, length: int, synthetic: float = 0.1, seed: int = 0) -> dict[str, int]:
    """Write ``train.npy`` and ``held_out.npy``, [n, length] uint16 in random order; sequences of each.

    ValueError: a vocabulary that does not fit into 16 bits.
    """
    if len(tokenizer) > 2**16:
        raise ValueError(f"tokens are kept in 16 bits; a vocabulary of {len(tokenizer)} does not fit")
    counts, rng = {}, np.random.default_rng(seed)
    for name, held_out in (("held_out", True), ("train", False)):
        texts = [t for s in SOURCES if s.held_out == held_out for t in documents(folder / "packages", s)]
        packed = [s.astype(np.uint16) for s in pack(tokens(tokenizer, texts), length, tokenizer.eos_token_id)]
        if not held_out and synthetic:
            n = round(len(packed) * synthetic / (1 - synthetic))
            hidden = retrieval.sequences(tokenizer, texts, n, length, seed, hays=("text",))
            packed += [s.astype(np.uint16) for s in hidden]
        order = rng.permutation(len(packed))
        np.save(folder / f"{name}.npy", np.stack([packed[i] for i in order]))
        counts[name] = len(packed)
    return counts


def build_retrieval(folder: Path, tokenizer: Any, n: int, seed: int = 1) -> int:
    """Write ``retrieval.npy``, [n, length] uint16: by turns facts in a haystack, and text alone.

    ValueError: ``train.npy`` has fewer than n / 2 sequences without questions.
    """
    packed, turn = np.load(folder / "train.npy"), tokenizer.convert_tokens_to_ids("<|im_start|>")
    plain = packed[~(packed == turn).any(1)]
    if len(plain) < n // 2:
        raise ValueError(f"{n} sequences need {n // 2} without questions, and train.npy has {len(plain)}")
    texts = tokenizer.batch_decode(plain, skip_special_tokens=True)
    hidden = retrieval.sequences(tokenizer, texts, n - n // 2, packed.shape[1], seed)
    made = np.empty((n, packed.shape[1]), np.uint16)
    made[0::2], made[1::2] = np.stack(list(hidden)), plain[len(plain) - n // 2 :]
    np.save(folder / "retrieval.npy", made)
    return n


def main() -> None:
    """Fetch, strip, tokenise, pack."""
    from sparda.models import load

    options = argparse.ArgumentParser(prog="python -m sparda.corpus", description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--model", default="smollm2-135m", help="whose tokenizer [smollm2-135m]")
    options.add_argument("--length", type=int, default=8192, help="tokens of a sequence [8192]")
    options.add_argument(
        "--retrieval", type=count, metavar="N", help="write N sequences of retrieval.npy too"
    )
    chosen = options.parse_args()
    tokenizer = load.load(chosen.model).tokenizer
    try:
        if (chosen.folder / "train.npy").exists():
            print(f"{chosen.folder / 'train.npy'} is there and stays")
        else:
            fetch(chosen.folder / "packages")
            print(build(chosen.folder, tokenizer, chosen.length))
        if chosen.retrieval:
            print({"retrieval": build_retrieval(chosen.folder, tokenizer, chosen.retrieval)})
    except (RuntimeError, ValueError) as error:
        sys.exit(f"sparda.corpus: {error}")


if __name__ == "__main__":
    main()

"""Synthetic retrieval for training: facts hidden in a text, asked for at its end.

Words, wording and numbers are not those of ``sparda.tasks``, which measures: places, things and haystacks
come from the training text itself.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

FACTS = (
    "Note: the {key} entry was filed under {value}.",
    "For {key}, remember the figure {value}.",
    "({key} belongs to drawer {value}.)",
    "In the ledger, {key} has the index {value}.",
)
QUESTIONS = (
    "Which number goes with {key}?",
    "What was recorded for {key}?",
    "Give the number noted for {key}.",
)


def sequences(tokenizer: Any, texts: Sequence[str], n: int, length: int, seed: int) -> Iterator[np.ndarray]:
    """``n`` sequences [length] int64; each ends with its last answer, and begins inside a text."""
    rng = random.Random(seed)
    words = _words(texts)
    for _ in range(n):
        yield _one(tokenizer, _excerpt(rng, texts, 8 * length), words, length, rng)


def _words(texts: Sequence[str]) -> list[str]:
    """Words that may serve as keys: neither the commonest nor the rarest, so that each names one fact."""
    sample = " ".join(text[:20_000] for text in texts[:400])
    counted = Counter(re.findall(r"\b[a-z]{5,10}\b", sample))
    return sorted(word for word, count in counted.items() if 2 <= count <= 200) or ["harbour", "lantern"]


def _excerpt(rng: random.Random, texts: Sequence[str], size: int) -> str:
    text = rng.choices(texts, weights=[len(t) for t in texts])[0]
    start = rng.randrange(max(1, len(text) - size))
    return text[start : start + size]


def _one(tokenizer: Any, hay: str, words: Sequence[str], length: int, rng: random.Random) -> np.ndarray:
    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    facts = [(f"{rng.choice(words)} {rng.choice(words)}", str(rng.randrange(10**5, 10**7))) for _ in range(6)]
    turns = "".join(_turn(rng.choice(QUESTIONS).format(key=key), value) for key, value in facts[:3])
    tail, head = encode(f"<|im_end|>\n{turns}"), encode("<|im_start|>user\nRead this.\n\n")
    room = length - len(head) - len(tail)
    marks = [encode(f" {rng.choice(FACTS).format(key=key, value=value)} ") for key, value in facts]
    text = encode(hay)[: room - sum(map(len, marks))]
    for at, mark in sorted(zip(_places(rng, len(text), len(marks)), marks, strict=True), reverse=True):
        text[at:at] = mark
    made = [*head, *text, *tail]
    while len(made) < length:  # the text was short: tell it twice
        made = [*made, *made]
    return np.asarray(made[-length:], dtype=np.int64)


def _places(rng: random.Random, n_tokens: int, n: int) -> list[int]:
    return [rng.randrange(n_tokens + 1) for _ in range(n)]


def _turn(question: str, answer: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"

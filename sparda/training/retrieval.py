"""Synthetic retrieval for training: facts hidden in a haystack, asked for at its end.

Words, wording and numbers are not those of ``sparda.tasks``, which measures: places, things and haystacks
come from the training text itself. A haystack is one of three: a text; a few of its sentences again and
again, so that many blocks look alike; or lines that look like the facts.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
ANSWERS = ("{value}", "{value}", "For {key} that is {value}.", "It says {value}.")
HAYS = ("text", "sentences", "facts")
_ASKED, _HIDDEN = 8, 12
_SENTENCE = range(15, 120)  # characters of a sentence that may be repeated


def sequences(
    tokenizer: Any, texts: Sequence[str], n: int, length: int, seed: int, hays: Sequence[str] = HAYS
) -> Iterator[np.ndarray]:
    """``n`` sequences [length] int64; each ends with its last answer. ValueError: too short for its facts."""
    rng = random.Random(seed)
    words = _words(texts)
    for i in range(n):
        yield _one(tokenizer, _hay(rng, hays[i % len(hays)], texts, words, 8 * length), words, length, rng)


def _words(texts: Sequence[str]) -> list[str]:
    """Words that may serve as keys: neither the commonest nor the rarest, so that each names one fact."""
    sample = " ".join(text[:20_000] for text in texts[:400])
    counted = Counter(re.findall(r"\b[a-z]{5,10}\b", sample))
    return sorted(word for word, count in counted.items() if 2 <= count <= 200) or ["harbour", "lantern"]


def _hay(rng: random.Random, kind: str, texts: Sequence[str], words: Sequence[str], size: int) -> str:
    """A haystack of ``size`` characters, or fewer if the text is short."""
    if kind == "facts":
        form = rng.choice(FACTS)
        return _repeat(lambda: form.format(**_fact(rng, words)), size)
    text = _excerpt(rng, texts, size)
    found = [s for s in re.split(r"(?<=[.!?])\s+", text) if len(s) in _SENTENCE and "\n" not in s]
    if kind == "text" or not found:
        return text
    few = rng.sample(found, min(len(found), rng.randint(4, 8)))
    return _repeat(lambda: rng.choice(few), size)


def _repeat(line: Callable[[], str], size: int) -> str:
    """``size`` characters of lines, or a few more."""
    made: list[str] = []
    while size > 0:
        made.append(line())
        size -= len(made[-1]) + 1
    return " ".join(made)


def _fact(rng: random.Random, words: Sequence[str]) -> dict[str, str]:
    return {"key": f"{rng.choice(words)} {rng.choice(words)}", "value": str(rng.randrange(10**5, 10**7))}


def _excerpt(rng: random.Random, texts: Sequence[str], size: int) -> str:
    text = rng.choices(texts, weights=[len(t) for t in texts])[0]
    start = rng.randrange(max(1, len(text) - size))
    return text[start : start + size]


def _one(tokenizer: Any, hay: str, words: Sequence[str], length: int, rng: random.Random) -> np.ndarray:
    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    facts = [_fact(rng, words) for _ in range(_HIDDEN)]
    turns = "".join(_turn(rng, fact) for fact in facts[:_ASKED])
    tail, head = encode(f"<|im_end|>\n{turns}"), encode("<|im_start|>user\nRead this.\n\n")
    room = length - len(head) - len(tail)
    marks = [encode(f" {rng.choice(FACTS).format(**fact)} ") for fact in facts]
    if room < 2 * sum(map(len, marks)):
        raise ValueError(
            f"{length} tokens are too few for {_HIDDEN} facts and {_ASKED} questions; take longer sequences"
        )
    text = encode(hay)[: room - sum(map(len, marks))]
    for at, mark in sorted(zip(_places(rng, len(text), len(marks)), marks, strict=True), reverse=True):
        text[at:at] = mark
    made = [*head, *text, *tail]
    while len(made) < length:  # the text was short: tell it twice
        made = [*made, *made]
    return np.asarray(made[-length:], dtype=np.int64)


def _places(rng: random.Random, n_tokens: int, n: int) -> list[int]:
    return [rng.randrange(n_tokens + 1) for _ in range(n)]


def _turn(rng: random.Random, fact: dict[str, str]) -> str:
    question, answer = (rng.choice(forms).format(**fact) for forms in (QUESTIONS, ANSWERS))
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"

"""What all tasks share: the text that hides the facts, and how much of it fits."""

from __future__ import annotations

import math
import random
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any

from sparda import text

NOISE = (
    "The river runs past the mill.",
    "The sky is pale in the morning.",
    "Two boats lie at the shore.",
    "The road leads over the hill and back again.",
    "Somebody has left the garden gate open.",
)
_AT_ONCE = 64  # sentences whose tokens are counted at once


@dataclass(frozen=True, eq=False)
class Haystack:
    """A text as sentences, with the tokens of each behind a blank: counted once, when first used."""

    tokenizer: Any
    pool: tuple[str, ...]
    _sizes: dict[int, int] = field(default_factory=dict, repr=False)

    def take(self, rng: random.Random, n_tokens: int) -> tuple[list[str], list[int]]:
        """Sentences from a random one on, again from the front after the last, and the tokens of each.

        Together they have at least ``n_tokens`` tokens, should they stand side by side.
        """
        start, total = rng.randrange(len(self.pool)), 0
        places: list[int] = []
        while total < n_tokens:
            more = [(start + len(places) + i) % len(self.pool) for i in range(_AT_ONCE)]
            self._count(more)
            places += more
            total += sum(self._sizes[place] for place in more)
        return [self.pool[place] for place in places], [self._sizes[place] for place in places]

    def _count(self, places: Sequence[int]) -> None:
        new = sorted({place for place in places if place not in self._sizes})
        if new:
            self._sizes.update(zip(new, sizes(self.tokenizer, [self.pool[i] for i in new]), strict=True))


@lru_cache(maxsize=8)
def haystack(tokenizer: Any, name: str) -> Haystack:
    """ "noise" (five dull sentences, repeated) or a text of ``sparda.text``; KeyError: unknown text."""
    return Haystack(tokenizer, NOISE if name == "noise" else text.sentences(name))


def sizes(tokenizer: Any, pieces: Sequence[str]) -> list[int]:
    """Tokens of each piece where it follows a blank."""
    return [
        len(t) for t in tokenizer([f" {piece}" for piece in pieces], add_special_tokens=False)["input_ids"]
    ]


def hide(facts: Sequence[tuple[float, str]], sentences: Sequence[str]) -> Callable[[int], str]:
    """The text of the first n sentences with every fact at its depth, 0 (front) to 1 (end)."""

    def body(n: int) -> str:
        parts = list(sentences[:n])
        for depth, fact in sorted(facts, reverse=True):
            parts.insert(round(depth * n), fact)
        return " ".join(parts)

    return body


def longest(length: Callable[[int], int], piece_sizes: Sequence[float], n_tokens: int) -> int:
    """How many pieces fit: ``length(count)`` tokens must not pass ``n_tokens``.

    The sizes of the pieces give a first guess, which is lowered as long as the whole turns out longer.

    ValueError: there is no room even without any piece.
    """
    least = length(0)
    if least > n_tokens:
        raise ValueError(
            f"n_tokens = {n_tokens} cannot hold the question and its facts; use at least {least}"
        )
    count = bisect_right(list(accumulate(piece_sizes, initial=least)), n_tokens) - 1
    mean = sum(piece_sizes) / max(1, len(piece_sizes))
    while count and (excess := length(count) - n_tokens) > 0:
        count -= min(count, max(1, math.floor(excess / mean)))
    return count


def as_chat(tokenizer: Any, question: str, start: str) -> str:
    """The question in the model's chat template, with the first words of its reply.

    A base model has no template and continues plain text.
    """
    if tokenizer.chat_template is None:
        return f"{question}\n{start}"
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) + start


def number_not_in(hay: str, digits: int, rng: random.Random, taken: Collection[str] = ()) -> str:
    """A random number that the text does not hold, and that was not taken; ValueError: none found."""
    for _ in range(1000):
        number = str(rng.randrange(10 ** (digits - 1), 10**digits))
        if number not in hay and number not in taken:
            return number
    raise ValueError(f"every number of {digits} digits may stand in the haystack already; use more digits")


@cache
def plain_words() -> tuple[str, ...]:
    """Plain English words of 4 to 8 letters: those that both texts in ``data/text`` use.

    >>> len(plain_words()) > 1500, "lamp" in plain_words(), "unix" in plain_words()
    (True, True, False)
    """
    in_all = [set(re.findall(r"(?<![\w'-])[a-z]{4,8}(?![\w'-])", text.read_text(t))) for t in text.texts()]
    return tuple(sorted(set.intersection(*in_all)))


@lru_cache(maxsize=8)
def word_sizes(tokenizer: Any) -> dict[str, int]:
    """Tokens of each plain word behind a blank."""
    return dict(zip(plain_words(), sizes(tokenizer, plain_words()), strict=True))

"""Long-context tasks whose answer is known: so far one needle in a haystack (``niah_single``).

The shape of the task follows RULER (arXiv 2404.06654, section 3): one fact is hidden in a long text and
asked for at the end. The wording is ours.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, cycle, islice, takewhile
from typing import Any

from torch import Tensor, tensor

from sparda import text

NOISE = (
    "The river runs past the mill.",
    "The sky is pale in the morning.",
    "Two boats lie at the shore.",
    "The road leads over the hill and back again.",
    "Somebody has left the garden gate open.",
)
_PROMPT = (
    "Read the text below. A secret number is hidden in it; keep it in mind.\n\n{hay}\n\n"
    "What is the secret number in the text? Answer with the number."
)
_MOST_CHARACTERS_PER_TOKEN = 8  # on average over a text; English has about 4


@dataclass(frozen=True, eq=False)
class Needle:
    """One prompt with one hidden fact.

    input_ids: [1, T]   the prompt in tokens, chat template included
    needle   : (first, end) tokens of the hidden sentence, end exclusive
    number   : (first, end) tokens of the secret number inside it
    """

    prompt: str
    input_ids: Tensor
    answer: str
    needle: tuple[int, int]
    number: tuple[int, int]

    def answered_by(self, reply: str) -> bool:
        """True if the reply contains the secret number, and not merely as a part of a longer one."""
        return self.answer in "".join(c if c.isdigit() else " " for c in reply).split()


def niah_single(
    tokenizer: Any,
    n_tokens: int,
    *,
    depth: float = 0.5,
    haystack: str = "noise",
    digits: int = 4,
    seed: int = 0,
) -> Needle:
    """Hide one number in a haystack: the longest prompt of whole sentences within ``n_tokens`` tokens.

    ``depth`` 0 puts the needle first, 1 last. ``haystack`` is "noise" (five dull sentences, repeated) or a
    text of ``sparda.text``. ``seed`` draws the number and the place in the text where the haystack begins.

    ValueError: n_tokens too small for question and needle, depth outside 0..1, digits below 1, or a
    tokenizer that cannot tell where a token stands in the text. KeyError: unknown haystack.
    """
    if not 0 <= depth <= 1:
        raise ValueError(f"depth must lie between 0 (first) and 1 (last), got {depth}")
    if digits < 1:
        raise ValueError(f"digits must be at least 1, got {digits}")
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError("niah_single needs a fast tokenizer (token offsets); load it with use_fast=True")
    rng = random.Random(seed)
    pool = NOISE if haystack == "noise" else text.sentences(haystack)
    hay = _take(pool, rng.randrange(len(pool)), n_characters=n_tokens * _MOST_CHARACTERS_PER_TOKEN)
    answer = _number_not_in(" ".join(hay), digits, rng)
    build = partial(_build, tokenizer, hay, depth, answer)
    least = build(0).input_ids.shape[1]
    if least > n_tokens:
        raise ValueError(f"n_tokens = {n_tokens} cannot hold question and needle; use at least {least}")
    alone = tokenizer([f" {sentence}" for sentence in hay], add_special_tokens=False)["input_ids"]
    count = bisect_right(list(accumulate(map(len, alone), initial=least)), n_tokens) - 1
    while (made := build(count)).input_ids.shape[1] > n_tokens:  # sentences side by side may need more
        count -= 1
    return made


def _take(pool: Sequence[str], start: int, n_characters: int) -> list[str]:
    """Sentences from ``start`` on, again from the front after the last, until they are long enough."""
    ends = accumulate(len(sentence) for sentence in islice(cycle(pool), start, None))
    count = 1 + sum(1 for _ in takewhile(lambda end: end < n_characters, ends))
    return list(islice(cycle(pool), start, start + count))


def _number_not_in(hay: str, digits: int, rng: random.Random) -> str:
    for _ in range(1000):
        number = str(rng.randrange(10 ** (digits - 1), 10**digits))
        if number not in hay:
            return number
    raise ValueError(f"every number of {digits} digits may stand in the haystack already; use more digits")


def _build(tokenizer: Any, hay: list[str], depth: float, answer: str, n_sentences: int) -> Needle:
    needle = f"The secret number is {answer}."
    at = round(depth * n_sentences)
    parts = [*hay[:at], needle, *hay[at:n_sentences]]
    prompt = _as_chat(tokenizer, _PROMPT.format(hay=" ".join(parts)))
    encoded = tokenizer(prompt, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    first = prompt.index(needle)
    digits = first + needle.index(answer)
    span = partial(_tokens_of, encoded["offset_mapping"])
    return Needle(
        prompt,
        tensor([encoded["input_ids"]]),
        answer,
        needle=span(first, first + len(needle)),
        number=span(digits, digits + len(answer)),
    )


def _as_chat(tokenizer: Any, question: str) -> str:
    if tokenizer.chat_template is None:  # a base model continues plain text
        return question + "\nThe secret number is"
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def _tokens_of(offsets: list[tuple[int, int]], first: int, end: int) -> tuple[int, int]:
    """Characters first..end to the tokens that overlap them."""
    inside = [i for i, (a, b) in enumerate(offsets) if a < end and b > first]
    return inside[0], inside[-1] + 1

"""One needle in a haystack at a chosen depth, with the tokens where it stands: what the chapters look at.

The shape of the task follows RULER (arXiv 2404.06654, section 3): one fact is hidden in a long text and
asked for at the end. The wording is ours.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, tensor

from sparda.tasks.haystack import as_chat, hide, longest, number_not_in
from sparda.tasks.haystack import haystack as hay_of

_PROMPT = (
    "Read the text below. A secret number is hidden in it; keep it in mind.\n\n{hay}\n\n"
    "What is the secret number in the text? Answer with the number."
)


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
    sentences, sizes = hay_of(tokenizer, haystack).take(rng, n_tokens)
    answer = number_not_in(" ".join(sentences), digits, rng)
    build = partial(_build, tokenizer, sentences, depth, answer)
    return build(longest(lambda n: build(n).input_ids.shape[1], sizes, n_tokens))


def _build(tokenizer: Any, sentences: list[str], depth: float, answer: str, n_sentences: int) -> Needle:
    needle = f"The secret number is {answer}."
    hay = hide([(depth, needle)], sentences)(n_sentences)
    start = "The secret number is" if tokenizer.chat_template is None else ""
    prompt = as_chat(tokenizer, _PROMPT.format(hay=hay), start)
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


def _tokens_of(offsets: list[tuple[int, int]], first: int, end: int) -> tuple[int, int]:
    """Characters first..end to the tokens that overlap them."""
    inside = [i for i, (a, b) in enumerate(offsets) if a < end and b > first]
    return inside[0], inside[-1] + 1

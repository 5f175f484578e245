"""RULER's synthetic tasks (arXiv 2404.06654, section 3 and appendix B), from their published description.

    niah_*             facts "The secret number for lamp is 4821." hidden in a text; some are asked for
    variable_tracking  VAR A = 12345, VAR B = VAR A ... hidden in a text; which variables hold the number?
    common_words       a list in which ten words come often and all others seldom
    frequent_words     made-up words whose frequencies fall as rank^-2; the first rank is filled with dots

The wording is ours, and so are the lengths of numbers and names, chosen for a small model. As in RULER the
reply's first words are given, tracking and common words come with a solved example, and a reply is scored by
the share of the answers that it contains; an answer inside a longer word does not count here.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from sparda.tasks.haystack import (
    NOISE,
    as_chat,
    haystack,
    hide,
    longest,
    number_not_in,
    plain_words,
    sizes,
    word_sizes,
)  # fmt: skip

PROSE = "king_james"
DIGITS = 4
_PI_SQUARE_OVER_6 = 1.6449340668482264  # sum of rank^-2


@dataclass(frozen=True)
class Sample:
    """One prompt: its text, its tokens, what a right reply contains, and how long a reply may be."""

    task: str
    prompt: str
    input_ids: tuple[int, ...]
    answers: tuple[str, ...]
    max_new_tokens: int

    def right(self, reply: str) -> int:
        """How many of the answers the reply contains, each as a whole word."""
        said = set(re.findall(r"\w+", reply.lower()))
        return sum(answer.lower() in said for answer in self.answers)

    def share(self, reply: str) -> float:
        """Share of the answers that the reply contains, 0 to 1."""
        return self.right(reply) / len(self.answers)


@dataclass(frozen=True)
class Draft:
    """A sample before its length is known.

    body   : text of the first n pieces
    sizes  : tokens of each piece, about
    ask    : the prompt with {text} where the body goes
    start  : the first words of the reply
    """

    body: Callable[[int], str]
    sizes: Sequence[float]
    ask: str
    start: str
    answers: tuple[str, ...]
    max_new_tokens: int


def _niah(
    tokenizer: Any, n_tokens: int, rng: random.Random, *, hay: str,
    keys: int = 1, values: int = 1, asked: int = 1,
) -> Draft:  # fmt: skip
    """``keys`` words with ``values`` numbers each; the numbers of ``asked`` words are wanted."""
    sentences, tokens = haystack(tokenizer, hay).take(rng, n_tokens)
    words, text = rng.sample(plain_words(), keys), " ".join(sentences)
    facts, numbers = [], []
    for word in words:
        for _ in range(values):
            numbers.append(number_not_in(text, DIGITS, rng, numbers))
            facts.append((rng.random(), f"The secret number for {word} is {numbers[-1]}."))
    things = " and ".join(words[:asked])
    what, verb, all_ = ("number", "is", "") if asked * values == 1 else ("numbers", "are", "all ")
    ask = (
        "Read the text below. Secret numbers are hidden in it; keep them in mind.\n\n{text}\n\n"
        f"What {verb} {all_}the secret {what} for {things} in the text?"
    )
    start = f"In the text, the secret {what} for {things} {verb}"
    wanted = tuple(numbers[: asked * values])
    return Draft(hide(facts, sentences), tokens, ask, start, wanted, 20 * len(wanted))


def _variable_tracking(
    tokenizer: Any, n_tokens: int, rng: random.Random, *, hay: str, hops: int = 4
) -> Draft:
    """One chain: a number is assigned to a variable, and each further variable to the one before."""
    sentences, tokens = haystack(tokenizer, hay).take(rng, n_tokens)
    text = " ".join(sentences)
    numbers = [number_not_in(text, 5, rng)]
    numbers.append(number_not_in(text, 5, rng, numbers))
    names = _names(text, 2 * (hops + 1), rng)
    chain, other = (_chain(names[i::2], numbers[i]) for i in range(2))
    depths = sorted(rng.random() for _ in chain)
    question = (
        "Read the text below; chains of variable assignments are hidden in it.\n\n{text}\n\n"
        "Which variables hold the value {number}, directly or through other variables?"
    )
    reply = f"By the assignments in the text, {hops + 1} variables hold the value {{number}}:"
    example = question.format(text=" ".join([NOISE[1], *other, NOISE[2]]), number=numbers[1])
    solved = f"{example}\n{reply.format(number=numbers[1])} {' '.join(names[1::2])}\n\n"
    ask = solved + question.replace("{number}", numbers[0])
    facts = list(zip(depths, chain, strict=True))
    start = reply.format(number=numbers[0])
    return Draft(hide(facts, sentences), tokens, ask, start, tuple(names[::2]), 12 * (hops + 1))


def _names(text: str, count: int, rng: random.Random) -> list[str]:
    """Different names of five capital letters that do not stand in the text."""
    names: list[str] = []
    while len(names) < count:
        name = "".join(rng.choices(string.ascii_uppercase, k=5))
        if name not in text and name not in names:
            names.append(name)
    return names


def _chain(names: Sequence[str], number: str) -> list[str]:
    sources = [number, *(f"VAR {name}" for name in names)]
    return [f"VAR {name} = {source}." for name, source in zip(names, sources, strict=False)]


def _common_words(tokenizer: Any, n_tokens: int, rng: random.Random) -> Draft:
    """Ten words come 30 times and others 3 times (RULER's counts; fewer or more where the length asks)."""
    often = max(3, min(30, n_tokens // 160), n_tokens // 1200)
    seldom = max(1, often // 10)
    words = rng.sample(plain_words(), len(plain_words()))
    shown, common, others = words[:14], words[14:24], words[24:]
    example = _numbered([w for w in shown[:10] for _ in range(3)] + shown[10:], rng.random())
    rare = [w for w in others for _ in range(seldom)]
    places, each = sizes(tokenizer, [f"{10**i}." for i in range(7)]), word_sizes(tokenizer)
    tokens = [places[len(str(10 * often + i)) - 1] + each[word] for i, word in enumerate(rare)]
    question = "Below is a list of words; ten of them come often.\n\n{text}\n\nWhich ten words come often?"
    reply, seed = "The ten words that come often in the list:", rng.random()
    answer = " ".join(f"{i}. {word}" for i, word in enumerate(shown[:10], 1))
    solved = f"{question.format(text=example)}\n{reply} {answer}\n\n"
    repeated = [word for word in common for _ in range(often)]
    body = lambda n: _numbered(repeated + rare[:n], seed)  # noqa: E731
    return Draft(body, tokens, solved + question, f"{reply} 1.", tuple(common), 100)


def _numbered(words: list[str], seed: float) -> str:
    mixed = random.Random(seed).sample(words, len(words))
    return " ".join(f"{i}. {word}" for i, word in enumerate(mixed, 1))


def _frequent_words(tokenizer: Any, n_tokens: int, rng: random.Random) -> Draft:
    """n words in all, of which the word of rank r makes up the share r^-2 / zeta(2)."""
    words: list[str] = []
    while len(words) < 1 + n_tokens**0.5:
        word = "".join(rng.choices(string.ascii_lowercase, k=6))
        if word not in words:
            words.append(word)
    seed = rng.random()

    def counts(n: int) -> list[int]:
        return [round(n / _PI_SQUARE_OVER_6 / rank**2) for rank in range(1, len(words) + 2)]

    def body(n: int) -> str:
        ranked = [w for w, c in zip(["...", *words], counts(n), strict=True) for _ in range(c)]
        return " ".join(random.Random(seed).sample(ranked, len(ranked)))

    each = sizes(tokenizer, ["...", *words])
    mean = sum(c * s for c, s in zip(counts(n_tokens), each, strict=True)) / max(1, sum(counts(n_tokens)))
    ask = (
        "Below is a text in code; the dots mean nothing.\n\n{text}\n\n"
        "Which three words of the code come most often?"
    )
    start = "The three words that come most often are"
    return Draft(body, [mean] * n_tokens, ask, start, tuple(words[:3]), 32)


def _registry() -> dict[str, Callable[[Any, int, random.Random], Draft]]:
    found: dict[str, Callable[[Any, int, random.Random], Draft]] = {}
    for hay in ("noise", "prose"):
        source = {"hay": PROSE if hay == "prose" else "noise"}
        found[f"niah_single_{hay}"] = partial(_niah, **source)
        found[f"niah_multikey_{hay}"] = partial(_niah, keys=4, **source)
        found[f"niah_multivalue_{hay}"] = partial(_niah, values=4, **source)
        found[f"niah_multiquery_{hay}"] = partial(_niah, keys=4, asked=4, **source)
        found[f"variable_tracking_{hay}"] = partial(_variable_tracking, **source)
    return found | {"common_words": _common_words, "frequent_words": _frequent_words}


TASKS = _registry()


def make(task: str, tokenizer: Any, context: int, *, seed: int = 0) -> Sample:
    """Draw a sample that fits ``context`` tokens: chat template, question, text and the whole reply.

    KeyError: unknown task. ValueError: so short a context cannot even hold the question.
    """
    if task not in TASKS:
        raise KeyError(f"unknown task {task!r}; choose from {', '.join(TASKS)}")
    draft = TASKS[task](tokenizer, context, random.Random(f"{task} {seed}"))

    @cache
    def encode(n: int) -> tuple[str, tuple[int, ...]]:
        prompt = as_chat(tokenizer, draft.ask.format(text=draft.body(n)), draft.start)
        special = tokenizer.chat_template is None  # a template has them already
        return prompt, tuple(tokenizer(prompt, add_special_tokens=special, verbose=False)["input_ids"])

    room = context - draft.max_new_tokens
    count = longest(lambda n: len(encode(n)[1]), draft.sizes, room)
    return Sample(task, *encode(count), draft.answers, draft.max_new_tokens)

"""Prompt or reply? That follows from the place in the text, not from how many tokens a pass reads.

Decode is the reading of the first generated token and of all that follow. In ``model.generate`` the prompt is
what generate was given, so a prompt in chunks, a pass that reads the whole text again (``use_cache=False``)
and one that verifies several guessed tokens (prompt lookup, an assistant) all change phase at the same place.
Where the model is called directly, a text begins with an empty cache; passes of several tokens go on with the
prompt until a pass reads a single one, which begins the reply.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from sparda.models import interface
from sparda.models.layers import sliding_window

PHASES = ("prefill", "decode")


@dataclass
class _Text:
    """A text that is read through a cache: columns of its prompt, and whether its reply has begun."""

    prompt: int
    replying: bool = False


@dataclass
class _Call:
    """One call of generate: columns of its prompt, and of each text that it reads through a cache of its own.

    A text may be longer than the prompt (virtual tokens in front of it) or another one (guidance by a
    negative prompt): its first pass tells, unless that reads a chunk of the prompt, or guessed tokens too.
    """

    columns: int
    partial: bool
    texts: WeakKeyDictionary[Any, int] = field(default_factory=WeakKeyDictionary)

    def prompt(self, cache: Any, first: int, stop: int) -> int:
        if cache is None:
            return self.columns
        if cache not in self.texts:
            self.texts[cache] = self.columns if self.partial or first > 0 else stop
        return self.texts[cache]


@dataclass
class Places:
    """Where the replies of one attached model begin."""

    _texts: WeakKeyDictionary[Any, _Text] = field(default_factory=WeakKeyDictionary)
    _asked: threading.local = field(default_factory=threading.local)  # calls of generate, innermost last
    _left: bool = False

    def reply(self, cache: Any, first: int, stop: int) -> int:
        """Column of the first generated token, for a pass that reads columns ``first`` to ``stop``."""
        if calls := getattr(self._asked, "calls", None):
            return calls[-1].prompt(cache, first, stop)
        if cache is None:
            return stop
        text = self._texts.get(cache)
        if text is None or first == 0:
            text = self._texts[cache] = _Text(stop if first == 0 or stop > first + 1 else first)
        if first == text.prompt and not text.replying:
            if stop > first + 1:
                text.prompt = stop  # the next chunk of the prompt
            else:
                text.replying = True
        return text.prompt

    @contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Learn from ``generate`` how long its prompt is, while the context is open."""
        from transformers import GenerationMixin

        with ExitStack() as stack:
            stack.callback(setattr, self, "_left", True)
            for module in model.modules():
                if issubclass(type(module), GenerationMixin):
                    before = vars(module).get("generate")
                    vars(module)["generate"] = self._learning(module)
                    stack.callback(_restore, module, before)
            yield

    def _learning(self, module: Any) -> Any:
        generate = module.generate

        @functools.wraps(generate)
        def learning(*args, **kwargs):
            if not hasattr(self._asked, "calls"):
                self._asked.calls = []
            columns = _columns(args, kwargs)
            _check_length(module, columns, kwargs)
            given = kwargs.get("generation_config") or module.generation_config
            guessing = ("prefill_chunk_size", "prompt_lookup_num_tokens", "assistant_early_exit")
            other = any(kwargs.get(name, getattr(given, name, None)) is not None for name in guessing)
            self._asked.calls.append(_Call(columns, other or kwargs.get("assistant_model") is not None))
            try:
                said = generate(*args, **kwargs)
            finally:
                self._asked.calls.pop()
            if self._left:
                raise RuntimeError(
                    "`with sparda.attach(...)` was left while generate still ran, so that its last "
                    "tokens come from "
                    "the model alone; wait for the thread before you leave"
                )
            return said

        return learning


def _columns(args: tuple, kwargs: dict[str, Any]) -> int:
    """Tokens of the longest prompt that ``generate`` is given, padding counted; a lone begin token is one."""
    given = [*args[:1], *(kwargs.get(n) for n in ("inputs", "input_ids", "inputs_embeds", "attention_mask"))]
    return max((x.shape[1] for x in given if isinstance(x, Tensor) and x.dim() > 1), default=1)


def _check_length(module: Any, columns: int, kwargs: dict[str, Any]) -> None:
    """TypeError: prompt and reply together pass a window that some layers see."""
    window = sliding_window(module.config.get_text_config(decoder=True))
    if window is None:
        return
    given = kwargs.get("generation_config") or module.generation_config
    new = kwargs.get("max_new_tokens", given.max_new_tokens)
    longest = columns + new if new else kwargs.get("max_length", given.max_length) or columns + 1
    if longest - 1 > window:  # the last token is not read
        raise TypeError(interface.too_long(longest - 1, window))


def _restore(module: Any, before: Any) -> None:
    if before is None:
        vars(module).pop("generate", None)
    else:
        vars(module)["generate"] = before

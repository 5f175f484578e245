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
class Places:
    """Where the replies of one attached model begin."""

    _texts: WeakKeyDictionary[Any, _Text] = field(default_factory=WeakKeyDictionary)
    _asked: threading.local = field(default_factory=threading.local)  # prompts of generate, innermost last
    _left: bool = False

    def reply(self, cache: Any, first: int, stop: int) -> int:
        """Column of the first generated token, for a pass that reads columns ``first`` to ``stop``."""
        if prompts := getattr(self._asked, "prompts", None):
            return prompts[-1]
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
            if not hasattr(self._asked, "prompts"):
                self._asked.prompts = []
            columns = _columns(args, kwargs)
            _check_length(module, columns, kwargs)
            self._asked.prompts.append(columns)
            try:
                said = generate(*args, **kwargs)
            finally:
                self._asked.prompts.pop()
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

"""Angles that depend on the length of a text (dynamic, LongRoPE), as a KV cache or a fixed table has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


def by_length(config: dict[str, Any]) -> bool:
    """Whether a text's angles change when it grows."""
    return (config.get("rope_parameters") or {}).get("rope_type") in ("dynamic", "longrope")


@contextmanager
def kept(model: Any) -> Iterator[None]:
    """A position keeps the angles that it had when it was read first."""
    known: dict[Any, tuple] = {}

    def keep(module: Any, args: Any, output: tuple) -> tuple:
        old = known.get(module, tuple(x[:, :0] for x in output))
        known[module] = tuple(torch.cat([a, x[:, a.shape[1] :]], 1) for a, x in zip(old, output, strict=True))
        return known[module]

    with ExitStack() as stack:
        for module in _modules(model):
            stack.callback(module.register_forward_hook(keep).remove)
        yield


@contextmanager
def table(model: Any, length: int) -> Iterator[None]:
    """Angles as a text of that length has them."""

    def longer(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return (args[0], torch.arange(length)[None]), {}

    def cut(module: Any, args: tuple, kwargs: dict[str, Any], output: tuple) -> tuple:
        return tuple(x[:, :seen] for x in output)

    seen = 0

    def count(module: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        nonlocal seen
        seen = (args[1] if len(args) > 1 else kwargs["position_ids"]).shape[-1]

    with ExitStack() as stack:
        for module in _modules(model):
            for hook in (count, longer):
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(cut, with_kwargs=True).remove)
        yield


def _modules(model: Any) -> list[Any]:
    return [module for name, module in model.named_modules() if name.endswith("rotary_emb")]

"""transformers' attention interface: whose attention a model calls, and what is not served in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


def register(name: str, attention: Callable, mask: Callable) -> None:
    """Offer an attention function and its mask function under a name; any number of times."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)


@contextmanager
def serving(layers: Sequence[Any], name: str) -> Iterator[None]:
    """Let the layers call the attention of that name, until the context is left.

    The setting stands in the config, which the layers of a model share.
    """
    configs: list[Any] = list({id(m.config): m.config for m in layers}.values())
    before = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = name
        yield
    finally:
        for config, was in zip(configs, before, strict=True):
            config._attn_implementation = was


def check_plain(n_keys: int, dropout: float, options: dict[str, Any]) -> None:
    """TypeError: a layer asks for something that plain causal attention has not."""
    for name in ("softcap", "s_aux", "head_mask", "position_bias"):
        if options.get(name) is not None:
            raise TypeError(f"sparda serves plain causal attention; this model uses {name} in its layers")
    if options.get("is_causal") is False:
        raise TypeError(
            "sparda serves causal attention; this model's layers see what comes after a token too"
        )
    window = options.get("sliding_window")
    if window and n_keys > window:
        raise TypeError(too_long(n_keys, window))
    if dropout:
        raise TypeError("sparda has no attention dropout; call model.eval() or set attention_dropout to 0")


def too_long(n_tokens: int, window: int) -> str:
    """The sentence for a text that passes a model's window."""
    return (
        f"sparda serves plain causal attention, and some layers of this model see the last {window} "
        "tokens only: "
        f"{n_tokens} are too many; take at most {window}, or load the model with a config whose "
        "layer_types are "
        "all 'full_attention' and whose sliding_window is None, which changes what it computes"
    )


def same_as_causal(
    mask_function: Callable, batch_size: int, n_queries: int, n_keys: int, device: torch.device | str | None
) -> bool:
    """Whether a mask lets the last ``n_queries`` of ``n_keys`` tokens see exactly what came before."""
    from transformers.masking_utils import causal_mask_function

    if mask_function is causal_mask_function:
        return True
    row = torch.arange(batch_size, device=device)[:, None, None]
    head = torch.zeros((), dtype=torch.int64, device=device)
    key = torch.arange(n_keys, device=device)[None, None]
    step = max(1, 2**24 // max(1, batch_size * n_keys))
    for start in range(n_keys - n_queries, n_keys, step):
        query = torch.arange(start, min(start + step, n_keys), device=device)[None, :, None]
        try:
            seen = mask_function(row, head, query, key)
        except (IndexError, RuntimeError, TypeError, ValueError):  # not written for tensors
            return False
        seen = torch.as_tensor(seen, device=device)
        if not torch.equal(
            seen.expand(batch_size, *query.shape[1:2], n_keys), (key <= query).expand(batch_size, -1, -1)
        ):
            return False
    return True

"""What the library must know of a Hugging Face decoder: its attention layers, its context, where it ends.

Everything here is read off the model that is given; whether it is true of what the model computes is measured
in ``sparda.models.watch``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

PARTS = ("layer_idx", "config", "q_proj", "k_proj", "v_proj", "o_proj")


def attention_layers(model: nn.Module) -> list[Any]:
    """The attention modules in order; TypeError for a model that has none of the kind that is served."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"a loaded model is needed, as sparda.load(name).model is; got {model!r:.60}")
    layers = [m for m in model.modules() if all(hasattr(m, name) for name in PARTS)]
    if not layers:
        raise TypeError(
            f"{type(model).__name__} has no attention layers with q_proj, k_proj, v_proj and o_proj; "
            "attach() serves Llama-family decoders of transformers 5 (Llama, Qwen, Mistral, SmolLM, ...)"
        )
    return layers


def layer_index(module: nn.Module) -> int:
    """The number that the model itself gives to a layer."""
    return int(module.layer_idx)  # type: ignore[arg-type]


def name_of(model: nn.Module, module: nn.Module) -> str:
    """A module's path in the model, as error messages show it."""
    return next((name for name, m in model.named_modules() if m is module), type(module).__name__)


def head_dim(module: Any) -> int:
    """d, channels of a head."""
    config = module.config
    given = getattr(module, "head_dim", None) or getattr(config, "head_dim", None)
    return int(given or config.hidden_size // config.num_attention_heads)


def sizes(model: nn.Module) -> tuple[int, int, int, int]:
    """Layers, hidden channels, KV heads and channels of a head."""
    layers = attention_layers(model)
    d = head_dim(layers[0])
    return len(layers), layers[0].k_proj.in_features, layers[0].k_proj.out_features // d, d


@torch.no_grad()
def linear_map(module: nn.Module, n_inputs: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The matrix [out, in] that a projection applies, whatever it is made of; its bias is left out.

    The ``weight`` of an adapted, quantised or offloaded layer is not what it computes, so the layer is asked.
    """
    if type(module) is nn.Linear and not module.weight.is_meta and not is_hooked(module):
        return module.weight.detach().to(device, dtype)
    rest, columns = module(torch.zeros(1, n_inputs, device=device, dtype=dtype)), []
    for start in range(0, n_inputs, 1024):
        rows = torch.arange(start, min(start + 1024, n_inputs), device=device)
        unit = torch.zeros(len(rows), n_inputs, device=device, dtype=dtype)
        unit[torch.arange(len(rows), device=device), rows] = 1
        columns.append((module(unit) - rest).T)
    return torch.cat(columns, 1)


def is_hooked(module: nn.Module) -> bool:
    """Whether something besides the module's own code decides what it computes."""
    return bool(module._forward_hooks or module._forward_pre_hooks or hasattr(module, "_hf_hook"))


def rope_kinds(config: Any) -> list[dict[str, Any]]:
    """The rotary settings of a config, one for each kind of layer that has its own."""
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if given and all(isinstance(value, dict) for value in given.values()):
        return list(given.values())
    return [given]


def rope_type(config: Any) -> str:
    """How a config scales its rotary angles: default, linear, dynamic, yarn, longrope, llama3, ..."""
    kinds = {str(rope.get("rope_type", "default")) for rope in rope_kinds(config)}
    return min(kinds - {"default"}, default="default")


def context_limit(config: Any) -> int | None:
    """Tokens that a model was made to read, rotary scaling counted; None where its config does not say.

    linear, dynamic: max_position_embeddings times the factor. yarn, longrope: the original length times the
    factor, if that is more than max_position_embeddings. Others: max_position_embeddings.
    """
    longest = getattr(config, "max_position_embeddings", None)
    if longest is None:
        return None
    found = [int(longest)]
    for rope in rope_kinds(config):
        factor = rope.get("factor") or 1.0
        original = rope.get("original_max_position_embeddings")
        if rope.get("rope_type") in ("linear", "dynamic"):
            found.append(int((original or longest) * factor))
        elif rope.get("rope_type") in ("yarn", "longrope") and original:
            found.append(int(original * factor))
    return max(found)


def sliding_window(config: Any) -> int | None:
    """The smallest window that some layer's attention is limited to; None where every layer sees all.

    A chunk (Llama 4) limits a text in the same way: within the first one every token is seen.
    """
    kinds = set(getattr(config, "layer_types", None) or [])
    limits = []
    if "sliding_attention" in kinds or not kinds:
        limits.append(getattr(config, "sliding_window", None))
    if "chunked_attention" in kinds:
        limits.append(getattr(config, "attention_chunk_size", None))
    limits = [int(limit) for limit in limits if limit]
    return min(limits, default=None)


def end_tokens(model: Any) -> tuple[int, ...]:
    """The tokens that end a reply, as the model's generation_config says: a number, several, or none."""
    said = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if said is None:
        return ()
    if isinstance(said, Tensor):
        said = said.tolist()
    if not isinstance(said, Iterable):
        said = [said]
    return tuple(sorted({int(token) for token in said}))


# settings of a generation_config that change what greedy decoding says, and their values that do not
_CHANGE_TOKENS = {
    "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "bad_words_ids": None, "suppress_tokens": None,
    "begin_suppress_tokens": None, "forced_bos_token_id": None, "forced_eos_token_id": None, "min_length": 0,
    "min_new_tokens": None, "sequence_bias": None, "guidance_scale": 1.0, "stop_strings": None,
    "exponential_decay_length_penalty": None,
}  # fmt: skip


def settings_of_generate(model: Any) -> list[str]:
    """What a model's generation_config asks ``generate`` to do to greedy tokens, as "name=value"."""
    config = getattr(model, "generation_config", None)
    given = {name: getattr(config, name, None) for name in _CHANGE_TOKENS}
    return [f"{name}={x}" for name, x in given.items() if x is not None and x != _CHANGE_TOKENS[name]]

"""Block-sparse attention inside any Llama-family Hugging Face model, through transformers' own interface.

    sparsity = Sparsity(budget_blocks=4, local_blocks=1)
    with sparda.attach(model, selector="query", sparsity=sparsity, probe=True) as attached:
        model.generate(...)
    attached.probe.table()

The model's weights, modules and configuration are never changed, only which attention function it calls;
leaving the context restores that, also after an exception.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sparda.attention import block_attention, dense_attention
from sparda.forecast import Shape
from sparda.models.probe import Probe
from sparda.selectors import All, LayerView, Selector, make
from sparda.spec import Sparsity, check_sparsity

PHASES = ("prefill", "decode")
_ATTACHED: WeakKeyDictionary[nn.Module, Attachment] = WeakKeyDictionary()  # attention module -> who serves it


@dataclass
class Attachment:
    """What ``attach`` yields: the selector in use and, if asked for, the probe it fills."""

    selector: Selector
    sparsity: Sparsity
    phases: frozenset[str]
    probe: Probe | None = None
    _seen: dict[int, tuple] = field(default_factory=dict, repr=False)  # layer -> attention input, cos, sin

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale) -> Tensor:
        """q [B, H_q, T_q, d], k and v [B, H, T, d] post-RoPE -> [B, H_q, T_q, d]."""
        padding = _left_padding(mask, k)
        positions = torch.arange(k.shape[2] - q.shape[2], k.shape[2], device=q.device) - padding[:, None]
        positions = positions.clamp(min=0)  # [B, T_q]; padding queries are computed and never read
        k, v = _align(k, padding), _align(v, padding)
        sparse = ("decode" if q.shape[2] == 1 else "prefill") in self.phases
        sparse = sparse and not isinstance(self.selector, All)
        if not sparse and self.probe is None:
            return dense_attention(q, k, v, positions, scale=scale)
        view = LayerView(layer, q, k, positions, self.sparsity, scale, self._ahead(layer))
        ids = self.selector.select(view)  # [B, H, T_q, k]
        if self.probe is not None:
            self.probe.record(self.selector, view, ids)
        if not sparse:
            return dense_attention(q, k, v, positions, scale=scale)
        return block_attention(q, k, v, ids, positions, block_size=self.sparsity.block_size, scale=scale)

    def _ahead(self, layer: int) -> Tensor | None:
        """What the layer before knew of this one's choice; layer 0 has only itself."""
        if not self.selector.looks_ahead:
            return None
        return self.selector.look_ahead(layer, *self._seen.get(layer - 1, self._seen[layer]))

    def watch(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """Forward pre-hook: keeps the normed attention input of the layer before, and its rotary angles."""
        layer = _layer_index(module)
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        if "position_embeddings" not in kwargs:
            raise TypeError(
                f"selector {self.selector.name!r} needs the rotary angles, which this model does not hand to "
                "its attention by name; use a selector that does not look ahead"
            )
        cos, sin = kwargs["position_embeddings"]  # [B or 1, T_q, d], both halves alike
        angles = (x[..., : x.shape[-1] // 2].expand(hidden.shape[0], -1, -1).float() for x in (cos, sin))
        self._seen[layer] = (hidden, *angles)
        self._seen.pop(layer - 2, None)


@contextmanager
def attach(
    model: nn.Module, *, selector: str | Selector = "query", sparsity: Sparsity,
    phases: str | Collection[str] = PHASES, probe: bool | Probe = False, **selector_options,
) -> Iterator[Attachment]:  # fmt: skip
    """Serve the model's attention by a selector while the context is open.

    selector : a name of ``sparda.selectors.SELECTORS`` with its options as keywords, or a Selector
    sparsity : block size, forced blocks and budget, see ``sparda.spec.Sparsity``
    phases   : where attention is sparse; () leaves it dense and only lets the probe watch the selector
    probe    : True or a Probe to record every layer's choice

    Raises ValueError for an unknown selector or phase, TypeError for a model that cannot be served,
    RuntimeError if the model is already attached.
    """
    check_sparsity(sparsity)
    phases = {phases} if isinstance(phases, str) else set(phases)
    if unknown := phases - set(PHASES):
        raise ValueError(f"unknown phases {sorted(unknown)}; choose from {', '.join(PHASES)}")
    watcher = Probe() if probe is True else probe or None
    layers = _attention_layers(model)
    _check_windows(layers[0].config)
    here = layers[0].k_proj.weight
    chooser = make(selector, **selector_options).to(here.device, here.dtype)
    chooser.check(Shape.of(model))
    attachment = Attachment(chooser, sparsity, frozenset(phases), watcher)
    if any(module in _ATTACHED for module in layers):
        raise RuntimeError("this model is already attached; leave the first `with sparda.attach(...)` block")
    config: Any = layers[0].config
    before = config._attn_implementation
    _register()
    hooks = []
    try:
        for module in layers:
            _ATTACHED[module] = attachment
            if attachment.selector.looks_ahead:
                hooks.append(module.register_forward_pre_hook(attachment.watch, with_kwargs=True))
        config._attn_implementation = "sparda"
        yield attachment
    finally:
        config._attn_implementation = before
        for hook in hooks:
            hook.remove()
        for module in layers:
            _ATTACHED.pop(module, None)
        attachment._seen.clear()


def _attention_layers(model: nn.Module) -> list[Any]:
    wanted = ("layer_idx", "config", "q_proj", "k_proj", "v_proj", "o_proj")
    layers = [m for m in model.modules() if all(hasattr(m, name) for name in wanted)]
    if not layers:
        raise TypeError(
            f"{type(model).__name__} has no attention layers with q_proj, k_proj, v_proj and o_proj; "
            "attach() serves Llama-family decoders of transformers 5 (Llama, Qwen, Mistral, SmolLM, ...)"
        )
    return layers


def _check_windows(config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or [])
    window = getattr(config, "sliding_window", None)
    if "sliding_attention" in kinds or (not kinds and window):
        raise TypeError(
            f"attach() serves plain causal attention; this model has a sliding window of {window} tokens; "
            "if your texts are shorter, load it with sliding_window=None in its config"
        )


def _layer_index(module: nn.Module) -> int:
    return int(module.layer_idx)  # type: ignore[arg-type]


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register("sparda", _attention_function)
    AttentionMaskInterface.register("sparda", _mask_function)


def _attention_function(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """Signature of transformers' attention interface; returns [B, T_q, H_q, d] and no weights."""
    if module not in _ATTACHED:
        raise RuntimeError("this model asks for 'sparda' attention outside of `with sparda.attach(model):`")
    for name in ("sliding_window", "softcap", "s_aux"):
        if kwargs.get(name) is not None:
            raise TypeError(f"attach() serves plain causal attention; this model uses {name} in its layers")
    if dropout:
        raise TypeError("attach() has no attention dropout; call model.eval() or set attention_dropout to 0")
    layer = _layer_index(module)
    out = _ATTACHED[module].attention(layer, query, key, value, attention_mask, scaling)
    return out.transpose(1, 2).contiguous(), None


def _mask_function(
    batch_size, q_length, kv_length, q_offset=0, mask_function=None, attention_mask=None, **kwargs
):
    """Keep the 2-D padding mask [B, T] (or None): positions already say what is causal."""
    from transformers.masking_utils import causal_mask_function

    if mask_function is not causal_mask_function:
        raise TypeError(
            "attach() serves plain causal attention; packed sequences, sliding windows and custom masks "
            "need one sequence per row and a model without them"
        )
    if int(q_offset) + q_length != kv_length:
        raise TypeError(
            "attach() needs a cache that grows with the text, and this one has its full length already; "
            "use transformers' DynamicCache, the default, and not a static cache"
        )
    return attention_mask


def _left_padding(mask: Tensor | None, k: Tensor) -> Tensor:
    """Padding tokens before each sequence, [B]."""
    if mask is None:
        return torch.zeros(k.shape[0], dtype=torch.int64, device=k.device)
    if mask.dim() != 2:
        raise TypeError("attach() takes a 2-D attention_mask [B, T]; masks of other shapes are not supported")
    real = mask.bool()
    changes = (real[:, 1:] & ~real[:, :-1]).sum(1) + real[:, 0].int()
    if bool((changes > 1).any()):  # none at all: a chunk of a longer prompt may be padding only
        raise ValueError(
            "each row of attention_mask must be one unbroken run of ones; to generate from a batch, pad on "
            "the left: tokenizer.padding_side = 'left'"
        )
    return real.int().argmax(1)


def _align(x: Tensor, padding: Tensor) -> Tensor:
    """Drop left padding, so that a key's index is its position; what follows the text is never visible."""
    if not bool(padding.any()):
        return x
    index = torch.arange(x.shape[2], device=x.device) + padding[:, None]  # [B, T]
    index = index.clamp(max=x.shape[2] - 1)[:, None, :, None].expand_as(x)
    return x.gather(2, index)

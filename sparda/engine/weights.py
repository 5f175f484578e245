"""Decoders: from a Hugging Face model, or random ones of given shapes to measure speeds with.

A model is read by what its modules are called, and then held to what they compute: ``sparda.engine.check``.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sparda.engine.decoder import Decoder, LayerWeights
from sparda.models.layers import (
    context_limit,
    head_dim,
    is_hooked,
    linear_map,
    rope_kinds,
    rope_type,
    sliding_window,
)  # fmt: skip
from sparda.spec import ModelShape

OUTER = ("embed_tokens", "layers", "norm", "rotary_emb")
PARTS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
    "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
)  # fmt: skip


@torch.no_grad()
def from_hugging_face(model: Any, max_tokens: int, check: bool = True) -> Decoder:
    """Fuse the weights of a decoder that is laid out as Llama's; fused ones are copies, the others shared.

    Adapters (PEFT) are folded in as they are now. With ``check`` the decoder is held to a forward pass of the
    model, module by module.

    TypeError: a model that computes something else; ValueError: more tokens than the model was made for.
    """
    whole = model
    if hasattr(model, "get_base_model"):  # of PEFT
        model = model.get_base_model()
    _check_layout(model)
    config, inner = model.config, model.model
    _check_context(config, max_tokens)
    read = _Reader(model)
    first = inner.layers[0].self_attn
    layers = [read.layer(layer) for layer in inner.layers]
    embed, final_norm, head = read(inner.embed_tokens), read(inner.norm), read(model.lm_head)
    read.check_all_read()
    cos, sin = _tables(inner, max_tokens, head_dim(first))
    decoder = Decoder(
        layers=layers,
        embed=embed,
        final_norm=final_norm,
        head=head,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        head_dim=head_dim(first),
        eps=config.rms_norm_eps,
        cos=cos,
        sin=sin,
        embed_scale=getattr(config, "embedding_multiplier", 1.0),
        residual_scale=getattr(config, "residual_multiplier", 1.0),
        logit_scale=1 / getattr(config, "logits_scaling", 1.0),
        attention_scale=getattr(first, "scaling", None),
    )
    if check:
        from sparda.engine.check import check_decoder

        check_decoder(decoder, model, whole, max_tokens)
    return decoder


def _check_layout(model: Any) -> None:
    """TypeError: parts that a decoder like Llama's has are not there."""
    kind, inner = type(model).__name__, getattr(model, "model", None)
    if not isinstance(getattr(model, "lm_head", None), nn.Module) or inner is None:
        raise TypeError(
            f"the engine needs a decoder with a language-model head (model and lm_head), and {kind} has "
            "none; "
            "load it with transformers.AutoModelForCausalLM, or use sparda.attach"
        )
    missing = [f"model.{name}" for name in OUTER if not hasattr(inner, name)]
    for i, layer in enumerate(getattr(inner, "layers", ())):
        missing += [f"model.layers.{i}.{path}" for path in PARTS if _at(layer, f"{path}.weight") is None]
    missing += [name for name in ("rms_norm_eps", "num_key_value_heads") if not hasattr(model.config, name)]
    if missing:
        raise TypeError(
            f"the engine runs decoders that are laid out as Llama's, and {kind} has no {missing[0]}; "
            "use sparda.attach for this model"
        )


def _at(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


def _check_context(config: Any, max_tokens: int) -> None:
    """ValueError: texts so long would not be read as the model reads them."""
    limit, window = context_limit(config), sliding_window(config)
    advice = "make the engine with max_tokens={} or less"
    if rope_type(config) == "dynamic" and max_tokens > (limit := config.max_position_embeddings):
        raise ValueError(
            f"max_tokens = {max_tokens} passes the {limit} tokens up to which dynamic RoPE leaves the "
            "angles alone; "
            f"beyond, they change with every token and cached keys would not fit; {advice.format(limit)}, "
            "or load "
            "the model with rope_type 'linear' or 'yarn' in its config's rope_parameters"
        )
    short = rope_kinds(config)[0].get("original_max_position_embeddings")
    if rope_type(config) == "longrope" and short and short < max_tokens:
        warnings.warn(
            f"max_tokens = {max_tokens}: every text is read with LongRoPE's angles for long texts, those "
            "of up to "
            f"{short} tokens too, for which transformers takes the short ones; {advice.format(short)} for "
            "them",
            stacklevel=4,
        )
    if limit is not None and max_tokens > limit:
        raise ValueError(
            f"max_tokens = {max_tokens} passes the model's context of {limit}; {advice.format(limit)}"
        )
    if window is not None and max_tokens > window:
        raise ValueError(
            f"max_tokens = {max_tokens} passes the model's sliding window of {window}, which the engine "
            "does not "
            f"have; {advice.format(window)}"
        )


@dataclass
class _Reader:
    """Reads modules one by one and remembers which parameters it has read."""

    model: Any
    _read: set[int] = field(default_factory=set)

    def __post_init__(self):
        weights = dict(self.model.named_parameters())
        away = next((name for name, p in weights.items() if p.is_meta), None)
        if away is not None:
            raise TypeError(
                f"the weights of {away} are not on a device, because they were offloaded or never loaded; "
                "load the "
                "whole model onto one device, without offloading"
            )
        if len(places := sorted({str(p.device) for p in weights.values()})) > 1:
            raise TypeError(
                f"the model's weights lie on {', '.join(places)}, and the engine runs on one device; load "
                "the model "
                f"with device_map={places[0]!r}"
            )
        kinds = sorted({str(p.dtype) for p in weights.values() if p.is_floating_point()})
        if len(kinds) > 1:
            raise TypeError(
                f"the model's weights are {' and '.join(kinds)}, and the engine computes in one dtype; "
                "convert it "
                f"with model.to({kinds[0]})"
            )

    def __call__(self, module: Any) -> Tensor:
        """A module's weight; of a projection that is no plain one (an adapter, say) what it computes."""
        embedding = self.model.get_input_embeddings().weight
        if hasattr(module, "in_features") and (type(module) is not nn.Linear or is_hooked(module)):
            self._read.update(id(p) for p in module.parameters())
            return self._map(module, embedding.device)
        self._read.add(id(module.weight))
        return module.weight.detach()

    def _map(self, module: Any, device: torch.device) -> Tensor:
        try:
            return linear_map(module, module.in_features, device, self.model.dtype).contiguous()
        except (TypeError, RuntimeError):
            raise TypeError(
                f"the engine cannot read a {type(module).__module__.split('.')[0]} "
                f"{type(module).__name__} as a "
                "projection; merge the adapter first (model.merge_and_unload() of PEFT), or use sparda.attach"
            ) from None

    def layer(self, layer: Any) -> LayerWeights:
        """One layer's weights, fused."""
        attention, ffn = layer.self_attn, layer.mlp
        return LayerWeights(
            qkv=torch.cat([self(p) for p in (attention.q_proj, attention.k_proj, attention.v_proj)]),
            out=self(attention.o_proj),
            gate_up=torch.cat([self(ffn.gate_proj), self(ffn.up_proj)]),
            down=self(ffn.down_proj),
            attention_norm=self(layer.input_layernorm),
            ffn_norm=self(layer.post_attention_layernorm),
        )

    def check_all_read(self) -> None:
        """TypeError: the model has weights that a decoder has no place for."""
        left = [name for name, p in self.model.named_parameters() if id(p) not in self._read]
        if left:
            more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
            raise TypeError(
                f"the engine has no place for the model's {left[0]}{more}, so it would compute something "
                "else; "
                "use sparda.attach for this model"
            )


def _tables(inner: Any, max_tokens: int, d: int) -> tuple[Tensor, Tensor]:
    """The model's own rotary tables, [T_max, d/2] float32; the model keeps those that it had."""
    from sparda.models.watch import at_rest

    weight = inner.embed_tokens.weight
    places = torch.arange(max_tokens, device=weight.device)[None]
    try:
        with at_rest(inner):
            cos, sin = inner.rotary_emb(weight.new_empty(1, dtype=torch.float32), places)
    except (TypeError, ValueError, AttributeError):
        cos = sin = weight.new_empty(1, max_tokens, 0)
    if cos.shape[-1] != d or cos.is_complex():
        raise TypeError(
            f"the engine rotates all {d} channels of a head by one table, and this model does not (it "
            "hands its "
            f"layers angles of shape {list(cos.shape)}); use sparda.attach for this model"
        )
    return tuple(x[0, :, : d // 2].float().contiguous() for x in (cos, sin))  # type: ignore[return-value]


def random_decoder(
    shape: ModelShape, max_tokens: int, *, device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32, seed: int = 0,
) -> Decoder:  # fmt: skip
    """Random weights of a model's shapes: enough to measure speeds, never to judge accuracy."""
    noise = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=noise, device=device, dtype=dtype) / columns**0.5

    d, heads = shape.head_dim, shape.n_heads * shape.head_dim
    gain = torch.ones(shape.hidden, device=device, dtype=dtype)
    layers = [
        LayerWeights(
            qkv=matrix(heads + 2 * shape.n_kv_heads * d, shape.hidden),
            out=matrix(shape.hidden, heads),
            gate_up=matrix(2 * shape.ffn, shape.hidden),
            down=matrix(shape.hidden, shape.ffn),
            attention_norm=gain,
            ffn_norm=gain,
        )
        for _ in range(shape.n_layers)
    ]
    embed = matrix(shape.vocab, shape.hidden)
    frequencies = shape.rope_theta ** (-torch.arange(0, d, 2, device=device, dtype=torch.float64) / d)
    angle = torch.arange(max_tokens, device=device, dtype=torch.float64)[:, None] * frequencies
    return Decoder(
        layers=layers,
        embed=embed,
        final_norm=gain,
        head=embed if shape.tied_embeddings else matrix(shape.vocab, shape.hidden),
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_kv_heads,
        head_dim=d,
        eps=shape.rms_eps,
        cos=angle.cos().float(),
        sin=angle.sin().float(),
        residual_scale=1.4 / shape.n_layers**0.5,  # keeps the activations of random weights small
    )

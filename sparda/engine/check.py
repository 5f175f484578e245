"""The engine's self-check: a decoder against one short forward pass of the model that it was read from.

Every module of the model gets the input that it had in its own pass, so that nothing adds up and the first
one that differs can be named. Norms are asked about small inputs too, where eps shows.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from sparda.engine.decoder import Decoder
from sparda.kernels import add_norm, rotate_prompt, silu_mul
from sparda.models.layers import rope_type
from sparda.models.watch import Layer, Pass, differs, watch

MODES = ("training", "gradient_checkpointing")  # say nothing of what a module computes in evaluation
SMALL = 2.0**-9  # an input so small that eps is a large part of its mean square


@torch.no_grad()
def check_decoder(decoder: Decoder, model: Any, whole: nn.Module, max_tokens: int) -> None:
    """TypeError, naming the first module that differs, if ``decoder`` is not what ``model`` computes.

    whole : the model as it was given, with what wraps ``model``
    """
    inner, modules = model.model, [model.lm_head, model.model.norm]
    for layer in inner.layers:
        modules += [
            layer,
            layer.mlp,
            layer.input_layernorm,
            layer.post_attention_layernorm,
            layer.self_attn.o_proj,
        ]
    found = watch(whole, last=max_tokens, modules=modules)
    if len(found.layers) != len(decoder.layers):
        raise TypeError(
            f"the model runs {len(found.layers)} attention layers for a text and the engine "
            f"{len(decoder.layers)}; "
            "use sparda.attach for this model"
        )
    tolerance = found.layers[0].tolerance
    for name, ours, theirs in _pairs(decoder, model, found):
        if isinstance(ours, float):
            wrong = abs(ours - theirs) > 1e-6 * abs(theirs)
        else:
            wrong = differs(ours, theirs, tolerance)
        if wrong:
            raise TypeError(_sentence(name, model))


def _sentence(name: str, model: Any) -> str:
    activation = getattr(model.config, "hidden_act", None)
    hint = f" (hidden_act is {activation!r}; the engine has SwiGLU, silu)" if name.endswith("mlp") else ""
    return (
        f"the engine would compute {name} otherwise than this {type(model).__name__} does{hint}: "
        "on a short text their results differ; use sparda.attach for this model"
    )


def _pairs(decoder: Decoder, model: Any, found: Pass) -> Iterator[tuple[str, Any, Any]]:
    """(module, what we compute, what it computes), in the order of the forward pass."""
    inner, seen = model.model, found.seen
    before, _ = decoder.enter(found.tokens)
    name = "model.embed_tokens"
    for i, (layer, one) in enumerate(zip(inner.layers, found.layers, strict=True)):
        at = f"model.layers.{i}"
        yield f"what comes from {name} to {at}", before, _states(seen[layer][0])
        before, name = _states(seen[layer][1]), at
        yield from _links(at, layer, one, seen)
        yield from _norm(
            f"{at}.input_layernorm", layer.input_layernorm, decoder.layers[i].attention_norm, decoder, seen
        )
        yield from _attention(f"{at}.self_attn", decoder, i, one, found.positions)
        yield from _after(at, decoder, i, layer, seen)
        yield from _norm(
            f"{at}.post_attention_layernorm",
            layer.post_attention_layernorm,
            decoder.layers[i].ffn_norm,
            decoder,
            seen,
        )
    yield f"what comes from {name} to model.norm", before, _states(seen[inner.norm][0])
    yield from _norm("model.norm", inner.norm, decoder.final_norm, decoder, seen)
    normed = add_norm(before.contiguous(), None, decoder.final_norm, decoder.eps)[1]
    if found.logits is None:
        raise TypeError(f"{type(model).__name__} returns no logits, so that the engine cannot be held to it")
    yield "lm_head and what scales it", decoder.logits(normed), found.logits.float()


def _links(at: str, layer: Any, one: Layer, seen: Any) -> Iterator[tuple[str, Any, Any]]:
    """What each module of a layer gives, against what the next one gets: nothing may happen in between."""
    first, second = seen[layer.input_layernorm], seen[layer.post_attention_layernorm]
    yield f"what comes to {at}.input_layernorm", _states(seen[layer][0]), _states(first[0])
    yield f"what comes to {at}.self_attn", _states(first[1]), one.x
    yield f"what comes to {at}.self_attn.o_proj", one.attended.flatten(2), seen[layer.self_attn.o_proj][0]
    yield f"what comes to {at}.mlp", _states(second[1]), seen[layer.mlp][0]


def _norm(
    name: str, module: nn.Module, gain: Tensor, decoder: Decoder, seen: Any
) -> Iterator[tuple[str, Any, Any]]:
    x = _states(seen[module][0])
    for scale in (1.0, SMALL):
        some = (x * (scale / x.float().square().mean().sqrt().clamp(min=1e-30))).to(x.dtype).contiguous()
        yield name, add_norm(some, None, gain, decoder.eps)[1], module(some)


def _attention(
    at: str, decoder: Decoder, layer: int, one: Layer, positions: Tensor
) -> Iterator[tuple[str, Any, Any]]:
    q, k, v = decoder.project(layer, one.x)[:3]  # [R, t, heads, d]
    if one.unrotated is not None:
        yield f"{at}.q_proj", q.transpose(1, 2), one.unrotated
    for name, x, theirs in (("q", q, one.queries), ("k", k, one.keys)):
        rows = zip(x, positions, strict=True)
        turned = [rotate_prompt(row.contiguous(), decoder.cos[p], decoder.sin[p]) for row, p in rows]
        yield f"{at}.{name}_proj and its rotation", torch.stack(turned), theirs
    yield f"{at}.v_proj", v.transpose(1, 2), one.values
    usual = decoder.head_dim**-0.5
    ours, theirs = (float(scale or usual) for scale in (decoder.attention_scale, one.scale))
    yield f"{at} (the scale of its scores)", ours, theirs
    yield f"{at} (attention)", one.ours, one.answer


def _after(at: str, decoder: Decoder, i: int, layer: Any, seen: Any) -> Iterator[tuple[str, Any, Any]]:
    """Output projection, FFN and residuals; each branch by itself too, as it may add little to the stream."""
    w, before = decoder.layers[i], _states(seen[layer][0]).contiguous()
    attended, update = (x.contiguous() for x in seen[layer.self_attn.o_proj])
    yield f"{at}.self_attn.o_proj", linear(attended, w.out), update
    hidden, _ = add_norm(before, update, w.ffn_norm, decoder.eps, decoder.residual_scale)
    yield f"{at} (its first residual)", hidden, _states(seen[layer.post_attention_layernorm][0])
    x, ffn = seen[layer.mlp]
    yield f"{at}.mlp", linear(silu_mul(linear(x, w.gate_up)), w.down), _states(ffn)
    hidden, _ = decoder.after_attention(i, before, attended)
    yield f"{at} (its second residual)", hidden, _states(seen[layer][1])


def _states(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


@dataclass(frozen=True)
class Origin:
    """The model that a decoder was read from, and its weights as they were then."""

    model: weakref.ref
    state: tuple[list[tuple], Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> Origin:
        return cls(weakref.ref(model), _state(model))

    def check(self) -> None:
        """RuntimeError: the weights have changed since; nothing is said of a model that is gone."""
        model = self.model()
        if model is None:
            return
        (before, values), (now, values_now) = self.state, _state(model)
        if before != now or not torch.equal(values, values_now):
            raise RuntimeError(
                "the model's weights, or an adapter's, have changed or moved since this engine was made "
                "from them; "
                "make the engine again"
            )


@torch.no_grad()
def _state(model: nn.Module) -> tuple[list[tuple], Tensor]:
    """What tells that weights changed: places and versions, some of their values, settings of adapters."""
    facts, some = [], []
    moving = rope_type(model.config) in ("dynamic", "longrope")  # their tables change with what is read
    for name, p in (*model.named_parameters(), *model.named_buffers()):
        if moving and "inv_freq" in name:
            continue
        version = None if p.is_inference() else p._version
        facts.append((name, p.data_ptr(), version))
        if p.numel() and not p.is_meta:
            some.append(p.detach().flatten()[:: max(1, p.numel() // 8)][:8])
    for name, module in model.named_modules():
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        foreign = [
            id(hook) for hook in hooks if not str(getattr(hook, "__module__", "")).startswith("sparda.")
        ]
        rotary = hasattr(module, "inv_freq")
        settings = {k: v for k, v in vars(module).items() if k not in MODES and "hook" not in k and _plain(v)}
        facts.append((name, type(module).__name__, foreign, None if rotary else repr(settings)))
    return facts, torch.cat([s.double() for s in some]).nan_to_num()


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, dict)):
        return all(_plain(v) for v in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, (bool, int, float, str, type(None)))

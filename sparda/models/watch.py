"""One short forward pass of the real model, watched: what its layers read, compute and answer.

What we compute is held to it: the self-checks of ``attach`` and ``Engine``, the rotation of every layer, and
what ``Proxy`` and a Forecast's training start from. Three rows of the same few tokens stand at the beginning,
in the middle and at the end of the context, so that a rotary table is compared where it matters.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sparda.attention import dense_attention
from sparda.models import interface
from sparda.models.layers import attention_layers, context_limit, name_of
from sparda.models.rotary import Rotary, measured

ROWS, LENGTH = 3, 6
NAME = "sparda-watch"
# how far two computations of one module may be apart, as a share of the result's norm; TF32 counts as float32
TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3, torch.float16: 4e-3, torch.bfloat16: 2e-2}


@dataclass
class Layer:
    """One attention layer in the pass; tensors of the three rows.

    x [R, t, hidden]: what it reads, normed; cos, sin [R or 1, t, r], None where it is not handed them
    queries, keys, values [R, heads, t, d] as they meet, after RoPE; scale: of q . k, as the model says it
    unrotated             the queries with all angles zero, None where there are no angles
    answer                what the module returns; ours: the same with our dense attention
    """

    module: Any
    name: str
    x: Tensor
    cos: Tensor | None
    sin: Tensor | None
    answer: Tensor
    queries: Tensor = field(default_factory=lambda: torch.empty(0))
    keys: Tensor = field(default_factory=lambda: torch.empty(0))
    values: Tensor = field(default_factory=lambda: torch.empty(0))
    attended: Tensor = field(default_factory=lambda: torch.empty(0))
    scale: float | None = None
    unrotated: Tensor | None = None
    ours: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def tolerance(self) -> float:
        """How far apart two computations of this layer may be, as a share of the result's norm."""
        return TOLERANCE.get(self.x.dtype, 2e-2)

    def rotary(self) -> Rotary | None:
        """How this layer rotates; None: in no way that is known, or it does not say by which angles."""
        if self.cos is None or self.sin is None or self.unrotated is None:
            return None
        return measured(self.unrotated, self.queries, self.cos, self.sin, self.tolerance)


@dataclass
class Pass:
    """A watched pass: tokens and positions [R, t], the layers in order, and what other modules gave.

    seen : of each module that was asked for, its first positional input and its output
    """

    tokens: Tensor
    positions: Tensor
    layers: list[Layer]
    logits: Tensor | None
    seen: dict[nn.Module, tuple[Any, Any]]


def differs(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    """Whether two results of one computation are apart; two that are both no numbers are not."""
    if ours.shape != theirs.shape:
        return True
    a, b = ours.detach().double(), theirs.detach().double().to(ours.device)
    finite = b.isfinite()
    if not torch.equal(finite, a.isfinite()):
        return True
    a, b = a.masked_fill(~finite, 0), b.masked_fill(~finite, 0)
    if bool((a - b).norm() > tolerance * b.norm()):
        return True
    if b.dim() < 2 or not b.numel():
        return False
    rows = b.flatten(0, -2).norm(dim=-1)  # a few tokens may be so large that they hide all others
    wrong = (a - b).flatten(0, -2).norm(dim=-1)
    return bool((wrong > 3 * tolerance * rows.clamp(min=0.3 * float(rows.median()))).any())


@torch.no_grad()
def watch(model: nn.Module, *, last: int | None = None, modules: Sequence[nn.Module] = ()) -> Pass:
    """Run the model once on three short rows; the model is left as it was.

    last    : tokens of the longest text that will be read; default: the model's context
    modules : whose input and output to keep besides

    TypeError, with one sentence: the pass fails, or a layer's attention is not plain causal attention or goes
    past transformers' attention interface.
    """
    layers = attention_layers(model)
    limit = last or context_limit(layers[0].config) or 4096
    tokens, positions = _rows(model, limit)
    kept: dict[nn.Module, tuple[Any, Any]] = {}
    calls: dict[nn.Module, tuple[tuple, dict[str, Any], Tensor]] = {}

    def keep(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        kept[module] = (args[0] if args else kwargs.get("hidden_states"), output)

    def call(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        calls[module] = (args, kwargs, output[0] if isinstance(output, tuple) else output)

    with at_rest(model):
        with ExitStack() as hooks:
            for module in modules:
                hooks.callback(module.register_forward_hook(keep, with_kwargs=True).remove)
            for module in layers:
                hooks.callback(module.register_forward_hook(call, with_kwargs=True).remove)
            if (
                layers[0].config._attn_implementation == "sparda"
            ):  # attached: what it computes by itself is asked
                hooks.enter_context(interface.serving(layers, "sdpa"))
            output = _run(model, tokens, positions)
        called = [m for m in layers if m in calls]  # a layer for another kind of input may not be
        with interface.serving(layers, NAME):
            watched = [_again(model, m, *calls[m]) for m in called]
    return Pass(tokens, positions, watched, getattr(output, "logits", None), kept)


def _rows(model: Any, limit: int) -> tuple[Tensor, Tensor]:
    """Tokens [R, t], every row alike, and their positions: the first, middle and last of the context."""
    embedding = model.get_input_embeddings()
    config, device = model.config, getattr(embedding.weight, "device", torch.device("cpu"))
    if device.type == "meta":
        device = _execution_device(embedding)
    n = min(LENGTH, limit)
    special = {v for k, v in vars(config).items() if k.endswith("token_id") and isinstance(v, int)}
    usual = [i for i in range(min(embedding.weight.shape[0], 512)) if i not in special] or [0]
    drawn = torch.randint(len(usual), (n,), generator=torch.Generator().manual_seed(0))
    tokens = torch.tensor(usual)[drawn].expand(ROWS, -1).to(device)
    starts = torch.tensor([0, (limit - n) // 2, limit - n], device=device)
    return tokens.contiguous(), starts[:, None] + torch.arange(n, device=device)


def _execution_device(module: Any) -> torch.device:
    """Where a module whose weights are elsewhere computes (accelerate)."""
    place = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
    return torch.device("cpu" if place is None else place)


def _run(model: nn.Module, tokens: Tensor, positions: Tensor) -> Any:
    try:
        return model(input_ids=tokens, position_ids=positions, use_cache=False)
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:160]
        raise TypeError(
            f"{type(model).__name__} could not be checked: a short text with positions of its own ended in "
            f"{type(error).__name__} ({reason}); pass its text decoder, or check=False to go on unchecked"
        ) from error


def _again(model: nn.Module, module: Any, args: tuple, kwargs: dict[str, Any], answer: Tensor) -> Layer:
    """Ask one layer again, with our dense attention, and once more with all angles zero."""
    kwargs = kwargs | {"attention_mask": None}
    x = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
    angles = kwargs.get("position_embeddings")
    cos = sin = None
    if isinstance(angles, (tuple, list)) and len(angles) == 2 and isinstance(angles[0], Tensor):
        cos, sin = angles
    layer = Layer(module, name_of(model, module), x, cos, sin, answer)
    layer.ours = _ask(layer, args, kwargs)
    if cos is not None and sin is not None and not cos.is_complex():
        turned = (layer.queries, layer.keys, layer.values, layer.attended, layer.scale)
        still = kwargs | {"position_embeddings": (torch.ones_like(cos), torch.zeros_like(sin))}
        _ask(layer, args, still)
        layer.unrotated = layer.queries
        layer.queries, layer.keys, layer.values, layer.attended, layer.scale = turned
    return layer


def _ask(layer: Layer, args: tuple, kwargs: dict[str, Any]) -> Tensor:
    layer.queries = torch.empty(0)
    _HERE.layer = layer
    try:
        output = layer.module(*args, **kwargs)
    finally:
        _HERE.layer = None
    if not layer.queries.numel():
        raise TypeError(
            f"{layer.name} does not call its attention through transformers' attention interface, so it "
            "cannot "
            "be served; load the model without its own code (trust_remote_code=False)"
        )
    return output[0] if isinstance(output, tuple) else output


_HERE = threading.local()  # the layer that this thread is asking


def _attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    layer = getattr(_HERE, "layer", None)
    if layer is None or layer.module is not module:
        raise RuntimeError("another thread runs this model while it is being checked; let it wait")
    if layer.queries.numel():
        raise TypeError(f"{layer.name} calls its attention more than once, which is not served")
    if value.shape != key.shape:
        raise TypeError(
            f"{layer.name} has keys of {key.shape[-1]} channels and values of {value.shape[-1]}, and one "
            "size for "
            "both is served; use the model unattached"
        )
    interface.check_plain(key.shape[2], dropout, kwargs)
    first = key.shape[2] - query.shape[2]  # keys may stand in front of the text, as a prefix
    positions = torch.arange(first, key.shape[2], device=query.device).expand(len(query), -1)
    attended = dense_attention(query, key, value, positions, scale=scaling).transpose(1, 2).contiguous()
    layer.queries, layer.keys, layer.values = query, key, value
    layer.attended, layer.scale = attended, scaling
    return attended, None


def _mask(*args, **kwargs):
    return None


@contextmanager
def at_rest(model: Any) -> Iterator[None]:
    """Evaluation mode, and fresh rotary tables, which a long position may change, for a while."""
    interface.register(NAME, _attention, _mask)
    training = [m for m in model.modules() if m.training]
    tables = [m for m in model.modules() if hasattr(m, "inv_freq") or hasattr(m, "original_inv_freq")]
    kept = [(dict(vars(m)), dict(m._buffers)) for m in tables]
    model.eval()
    try:
        for m in tables:
            if isinstance(getattr(m, "max_seq_len_cached", None), int | Tensor) and hasattr(
                m, "original_inv_freq"
            ):
                m.max_seq_len_cached, m.inv_freq = (
                    m.original_max_seq_len,
                    m.original_inv_freq.to(m.inv_freq.device),
                )
        yield
    finally:
        for m in training:
            m.training = True
        for m, (attributes, buffers) in zip(tables, kept, strict=True):
            vars(m).update(attributes)
            m._buffers = buffers

"""Block-sparse attention inside any Llama-family Hugging Face model, through transformers' own interface.

    sparsity = Sparsity(budget_blocks=4, local_blocks=1)
    with sparda.attach(model, selector="query", sparsity=sparsity, probe=True) as attached:
        model.generate(...)
    attached.probe.table()

The model's weights, modules and configuration are never changed, only which attention function it calls;
leaving the context restores that, also after an exception.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from sparda.attention import block_attention, dense_attention
from sparda.forecast import Shape
from sparda.kernels import limits
from sparda.models import interface
from sparda.models.check import checked, warn_of_other_weights
from sparda.models.layers import attention_layers, head_dim, layer_index
from sparda.models.phase import PHASES, Places
from sparda.models.probe import Probe
from sparda.models.rotary import Rotary
from sparda.selectors import All, LayerView, Selector, make
from sparda.spec import Sparsity, check_sparsity

_ATTACHED: WeakKeyDictionary[nn.Module, Attachment] = WeakKeyDictionary()  # attention module -> who serves it
_attention_layers = attention_layers


@dataclass
class Attachment:
    """What ``attach`` yields: the selector in use and, if asked for, the probe it fills."""

    selector: Selector
    sparsity: Sparsity
    phases: frozenset[str]
    probe: Probe | None = None
    places: Places = field(default_factory=Places, repr=False)
    _rotaries: list[Rotary] = field(default_factory=list, repr=False)
    # of each forward pass, known by its rotary angles: layer -> what foresees its choice, not rotated. A pass
    # that gradient checkpointing computes again has the same angles, and finds what it found the first time.
    _foreseen: MutableMapping[Tensor, dict[int, Tensor]] = field(
        default_factory=WeakTensorKeyDictionary, repr=False
    )
    _entered: threading.local = field(default_factory=threading.local, repr=False)

    def attention(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None
    ) -> Tensor:
        """q [B, H_q, T_q, d], k and v [B, H, T, d] post-RoPE -> [B, H_q, T_q, d]."""
        if not (waiting := self._waiting(module)):
            raise RuntimeError("a layer's attention was called past the layer itself; run the whole model")
        ahead, cache = waiting.pop()
        first = k.shape[2] - q.shape[2]
        n_prompt = max(0, min(q.shape[2], self.places.reply(cache, first, k.shape[2]) - first))
        padding = _left_padding(mask, k)
        positions = torch.arange(first, k.shape[2], device=q.device) - padding[:, None]
        if self.sparsity.visibility != "end" and bool(padding.any()):
            raise ValueError(
                "visibility='start' reads windows that end after a row's text, where padding begins; use "
                "visibility='end' for batches, or one text at a time"
            )
        positions = positions.clamp(min=0)  # [B, T_q]; padding queries are computed and never read
        k, v = _align(k, padding), _align(v, padding)
        parts = {"prefill": slice(0, n_prompt), "decode": slice(n_prompt, q.shape[2])}
        dense = [
            part
            for phase, part in parts.items()
            if phase not in self.phases or isinstance(self.selector, All)
        ]
        if self.probe is None and sum(part.stop - part.start for part in dense) == q.shape[2]:
            return dense_attention(q, k, v, positions, scale=scale)
        view = LayerView(layer_index(module), q, k, positions, self.sparsity, scale, ahead)
        ids = self.selector.select(view)  # [B, H, T_q, k]
        if self.probe is not None:
            self.probe.record(self.selector, view, ids, decoding=n_prompt == 0)
        out = [
            dense_attention(q[:, :, part], k, v, positions[:, part], scale=scale)
            if part in dense
            else block_attention(
                q[:, :, part], k, v, ids[:, :, part], positions[:, part],
                block_size=self.sparsity.block_size, scale=scale,
            )
            for part in parts.values() if part.start < part.stop
        ]  # fmt: skip
        return torch.cat(out, 2) if len(out) > 1 else out[0]

    def _waiting(self, module: nn.Module) -> list[tuple[Tensor | None, Any]]:
        """What ``enter`` has handed to this layer's attention, in this thread; the innermost call last."""
        if not hasattr(self._entered, "calls"):
            self._entered.calls = defaultdict(list)
        return self._entered.calls[module]

    def enter(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """Forward pre-hook: what the layer before foresaw, and the cache that says where the text stands."""
        if module.config._attn_implementation != "sparda":  # type: ignore[union-attr]
            return  # it is being checked
        ahead = None
        if self.selector.looks_ahead:
            hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            ahead = self._look_ahead(module, hidden, *kwargs["position_embeddings"])
        self._waiting(module).append((ahead, kwargs.get("past_key_values")))

    def _look_ahead(self, module: Any, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Foresee the next layer's choice; return what was foreseen of this one's, [B, n, T_q, d]."""
        layer, here = layer_index(module), self._entered
        foreseen = self._foreseen.get(cos)
        if foreseen is None:  # a new pass, or other angles than the layer before has in this one
            goes_on = layer > 0 and getattr(here, "latest", None) == layer - 1
            foreseen = self._foreseen[cos] = here.foreseen if goes_on else {}
        here.foreseen, here.latest = foreseen, layer
        for target in ([0] if layer == 0 else []) + ([layer + 1] if layer + 1 < len(self._rotaries) else []):
            foreseen[target] = self.selector.look_ahead(target, hidden)
        if layer not in foreseen:
            raise RuntimeError(
                f"layer {layer} runs without the layer before it, which chooses its blocks; run the whole "
                "model, or use a selector that does not look ahead, such as 'query'"
            )
        again = torch.is_grad_enabled() or module.training  # may be computed again, by gradient checkpointing
        flat = foreseen[layer] if again else foreseen.pop(layer)
        heads = flat.to(cos.device).unflatten(-1, (-1, head_dim(module))).transpose(1, 2)
        rotary = self._rotaries[layer]
        return rotary.turn(heads, *(x[:, None] for x in rotary.angles(cos, sin)))

    def clear(self) -> None:
        """Let go of what the last passes have left."""
        self._foreseen.clear()
        self._entered = threading.local()


@contextmanager
def attach(
    model: Any, *, selector: str | Selector = "query", sparsity: Sparsity,
    phases: str | Collection[str] = PHASES, probe: bool | Probe = False, check: bool = True,
    **selector_options,
) -> Iterator[Attachment]:  # fmt: skip
    """Serve the model's attention by a selector while the context is open.

    selector : a name of ``sparda.selectors.SELECTORS`` with its options as keywords, or a Selector
    sparsity : block size, forced blocks and budget, see ``sparda.spec.Sparsity``
    phases   : where attention is sparse; () leaves it dense and only lets the probe watch the selector.
               "decode" is all that comes after the first generated token, see ``sparda.models.phase``
    probe    : True or a Probe to record every layer's choice
    check    : hold our attention and the selector's view of a layer to one short forward pass of the model

    Raises ValueError for an unknown selector or phase, TypeError for a model that cannot be served,
    RuntimeError if the model is already attached.
    """
    check_sparsity(sparsity)
    phases = {phases} if isinstance(phases, str) else set(phases)
    if unknown := phases - set(PHASES):
        raise ValueError(f"unknown phases {sorted(unknown)}; choose from {', '.join(PHASES)}")
    watcher = Probe() if probe is True else probe or None
    layers = attention_layers(model)
    chooser = make(selector, **selector_options)
    chooser.check(Shape.of(model))
    if any(module in _ATTACHED for module in layers):
        raise RuntimeError("this model is already attached; leave the first `with sparda.attach(...)` block")
    if any(module.config._attn_implementation == "sparda" for module in layers):
        raise RuntimeError(
            "this model shares its config object with one that is attached; make it from a copy: "
            "copy.deepcopy(config)"
        )
    rotaries = checked(model, looks_ahead=chooser.looks_ahead) if check or chooser.looks_ahead else []
    here = getattr(layers[0].k_proj, "weight", None)  # of a quantised layer it may be something else
    place = here.device if isinstance(here, Tensor) else next(model.parameters()).device
    if place.type == "cuda":
        limits.check(head_dim(layers[0]), sparsity)
    warn_of_other_weights(model, chooser)
    if place.type != "meta":
        chooser = chooser.to(place, model.dtype)
    attachment = Attachment(chooser, sparsity, frozenset(phases), watcher, _rotaries=rotaries)
    interface.register("sparda", _attention_function, _mask_function)
    with ExitStack() as stack:
        stack.callback(attachment.clear)
        for module in layers:
            _ATTACHED[module] = attachment
            stack.callback(_ATTACHED.pop, module, None)
            hook = module.register_forward_pre_hook(attachment.enter, with_kwargs=True)
            stack.callback(hook.remove)
        stack.enter_context(attachment.places.watching(model))
        stack.enter_context(interface.serving(layers, "sparda"))
        yield attachment


def _attention_function(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """Signature of transformers' attention interface; returns [B, T_q, H_q, d] and no weights."""
    if module not in _ATTACHED:
        raise RuntimeError(
            "this model asks for 'sparda' attention outside of `with sparda.attach(model):`; if it "
            "shares its "
            "config object with a model that is attached, make it from a copy: copy.deepcopy(config)"
        )
    interface.check_plain(key.shape[2], dropout, kwargs)
    if isinstance(attention_mask, _TooLong):
        raise TypeError(attention_mask.why)
    out = _ATTACHED[module].attention(module, query, key, value, attention_mask, scaling)
    return out.transpose(1, 2).contiguous(), None


@dataclass(frozen=True)
class _TooLong:
    """In place of the mask of a window that a text passes: some models make one that no layer uses."""

    why: str


def _mask_function(
    batch_size, q_length, kv_length, *, mask_function, q_offset=0, kv_offset=0, attention_mask=None,
    local_size=None, device=None, **kwargs,
):  # fmt: skip
    """Keep the 2-D padding mask [B, T] (or None): positions already say what is causal."""
    if local_size is not None and int(q_offset) + q_length > local_size:
        return _TooLong(interface.too_long(int(q_offset) + q_length, local_size))
    if int(q_offset) + q_length != kv_length or int(kv_offset):
        raise TypeError(
            "attach() needs a cache that grows with the text, and this one has its full length already; "
            "use transformers' DynamicCache, the default, and not a static cache"
        )
    if not interface.same_as_causal(mask_function, batch_size, q_length, kv_length, device):
        raise TypeError(
            "attach() serves plain causal attention; packed sequences, sliding windows and custom masks "
            "need one sequence per row and a model without them"
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

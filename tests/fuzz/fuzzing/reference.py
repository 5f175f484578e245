"""The oracle: the Hugging Face model itself, with an attention function of our own, without a KV cache.

Written from the rules alone, one sequence at a time and without any code of ``sparda``: means of windows,
scores, the best window of each block, forced blocks, the best k with ties to the lower id, and softmax over
the tokens of those blocks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fuzzing import rotary
from fuzzing.margins import margins
from fuzzing.models import Chooser

NAME = "fuzz_reference"
IGNORED = {
    "position_ids", "use_cache", "output_attentions", "output_hidden_states", "cache_position", "is_causal",
    "position_embeddings", "output_router_logits", "logits_to_keep", "return_dict",
}  # fmt: skip
_NOW: list[Reference] = []  # the one that runs


class Unservable(Exception):
    """The model's attention is of a kind that blocks cannot serve: the right answer is a refusal."""


class Reference:
    """Logits of a model under a rule.

    rule   : fields of a Sparsity
    phases : where attention is sparse
    phase  : position -> "prefill" or "decode"
    reads  : position -> last position whose key exists when that one is read (it matters for windows that
             are visible from their start)
    """

    def __init__(
        self, model: Any, rule: dict[str, Any], chooser: Chooser, phases: tuple[str, ...], n_prompt: int,
        phase: Callable[[int], str], reads: Callable[[int], int], measure: bool = False,
    ):  # fmt: skip
        self.model, self.rule, self.chooser, self.phases = model, rule, chooser, phases
        self.n_prompt, self.phase, self.reads, self.measure = n_prompt, phase, reads, measure
        self.inputs: dict[int, Tensor] = {}  # layer -> normed attention input [1, T, hidden]
        self.foreseen: dict[int, Tensor] = {}  # layer -> [H, T, d]
        self.margin = np.empty(0)  # [T], smallest of all layers and heads
        self.called: set[int] = set()

    @torch.no_grad()
    def logits(self, tokens: Tensor) -> Tensor:
        """tokens [T] -> [n, vocab] float32: what comes after the prompt and each token after it."""
        self.margin = np.full(len(tokens), np.inf)
        with self._running():
            out = self._once(tokens)[self.n_prompt - 1 :]
        if not self.called:
            raise Unservable("its attention does not go through transformers' attention interface")
        return out

    @torch.no_grad()
    def stepwise(self, tokens: Tensor, ends: list[int], keep: bool) -> Tensor:
        """The same, for angles that depend on how long a text is: read up to each of ``ends`` in turn.

        keep : as with a KV cache, a position keeps the angles that it had when it was read first
        """
        self.margin = np.full(len(tokens), np.inf)
        with self._running(), rotary.kept(self.model) if keep else nullcontext():
            rows = [self._once(tokens[:end])[-1] for end in ends]
        return torch.stack(rows[-(len(tokens) - self.n_prompt + 1) :])

    def _once(self, tokens: Tensor) -> Tensor:
        return self.model(tokens[None], use_cache=False).logits[0].float()

    @contextmanager
    def _running(self):
        from transformers import AttentionInterface, AttentionMaskInterface

        AttentionInterface.register(NAME, _attention)
        AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
        config = self.model.config.get_text_config()
        before, config._attn_implementation = config._attn_implementation, NAME
        hooks = []
        if self.chooser.ahead:
            found = [m for m in self.model.modules() if hasattr(m, "q_proj") and hasattr(m, "layer_idx")]
            hooks = [m.register_forward_pre_hook(self._foresee, with_kwargs=True) for m in found]
        _NOW.append(self)
        try:
            yield
        finally:
            _NOW.pop()
            config._attn_implementation = before
            for hook in hooks:
                hook.remove()

    def _foresee(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        """F = RoPE(W x): x of the layer before, turned as the queries here, for it meets the keys here."""
        layer = module.layer_idx
        self.inputs[layer] = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        rest = {name: value for name, value in kwargs.items() if name != "hidden_states"}
        x = self.inputs[max(0, layer - 1)]
        self.foreseen[layer] = _as_query(module, self.chooser.ahead[layer], (x, *args[1:]), rest)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, extra: dict) -> Tensor:
        """q [H_q, T, d], k and v [H, T, d] -> [H_q, T, d]."""
        self.called.add(layer)
        n, group = q.shape[1], q.shape[0] // k.shape[0]
        place = torch.arange(n)
        allowed = (place[:, None] >= place).expand(k.shape[0], n, n).clone()  # [H, T, T]
        if self.chooser.name != "all" or layer in self.chooser.waits:
            sparse = torch.tensor([self.phase(t) in self.phases for t in range(n)])
            blocks = self.choose(layer, q, k, scale)  # [H, T, N]
            tokens = blocks.repeat_interleave(self.rule["block_size"], -1)[..., :n]
            allowed &= tokens | ~sparse[:, None]
        if extra.get("sliding_window"):
            allowed &= place[:, None] - place < extra["sliding_window"]
        exact = torch.float64 if q.dtype == torch.float64 else torch.float32
        logits = q.to(exact) @ k.to(exact).repeat_interleave(group, 0).transpose(1, 2) * scale
        if extra.get("softcap"):
            logits = torch.tanh(logits / extra["softcap"]) * extra["softcap"]
        logits = logits.masked_fill(~allowed.repeat_interleave(group, 0), float("-inf"))
        if extra.get("s_aux") is not None:
            sink = extra["s_aux"].to(exact).reshape(-1, 1, 1).expand(-1, n, 1)
            weights = torch.cat([logits, sink], -1).softmax(-1)[..., :-1]
        else:
            weights = logits.softmax(-1)
        return (weights @ v.to(exact).repeat_interleave(group, 0)).to(q.dtype)

    def choose(self, layer: int, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """Blocks that each query reads, bool [H, T, N]."""
        n, size, rule = q.shape[1], self.rule["block_size"], self.rule
        n_blocks = -(-n // size)
        scores, by_window = self._scores(layer, q, k, scale, n_blocks)  # [H, T, N]; [H, T, N, w] or None
        block, own = np.arange(n_blocks), (np.arange(n) // size)[:, None]
        local = (block >= own - rule["local_blocks"]) & (block <= own)
        forced = np.broadcast_to((block < rule["init_blocks"]) & (block <= own) | local, scores.shape)
        future = np.broadcast_to(block > own, scores.shape)
        order = np.lexsort((np.broadcast_to(block, scores.shape), -scores, ~forced, future), axis=-1)
        taken = order[..., : rule["budget_blocks"]]
        chosen = np.zeros(scores.shape, bool)
        np.put_along_axis(chosen, taken, True, -1)
        chosen &= ~future
        if self.measure:
            linear = self._name(layer) in ("forecast", "proxy")
            least = margins(scores, by_window, chosen, forced, future, linear)
            self.margin[:n] = np.minimum(self.margin[:n], least)
        return torch.from_numpy(chosen)

    def _name(self, layer: int) -> str:
        return "query" if layer in self.chooser.waits else self.chooser.name

    def _scores(self, layer: int, q: Tensor, k: Tensor, scale: float, n_blocks: int):
        """Scores of blocks [H, T, N], float32; and of the windows that each of them takes the best of."""
        name, n, size = self._name(layer), q.shape[1], self.rule["block_size"]
        shape = (k.shape[0], n, n_blocks)
        if name in ("all", "streaming"):
            return np.broadcast_to(np.arange(n_blocks, dtype=np.float32), shape), None
        if name == "random":
            return chances(self.chooser.seed, layer, shape), None
        causal = torch.arange(n)[:, None] >= torch.arange(n)
        by_block = torch.arange(n) // size == torch.arange(n_blocks)[:, None]  # [N, T]
        if name == "oracle":
            logits = q.float() @ k.float().repeat_interleave(q.shape[0] // len(k), 0).transpose(1, 2) * scale
            mass = logits.masked_fill(~causal, float("-inf")).softmax(-1)
            mass = mass.unflatten(0, (len(k), -1)).mean(1)
            return (mass @ by_block.float().T).numpy(), None
        if name == "proxy":
            skew = self.chooser.skew[layer].to(k)
            points = (self.foreseen[layer] @ skew).float() @ (k @ skew).float().transpose(1, 2)
            return _best(points, by_block, causal)
        means, overlap, visible = self._windows(k, n_blocks)
        if name == "forecast":
            points = self.foreseen[layer].float() @ means.float().transpose(1, 2)
        else:
            logits = q.float() @ means.float().repeat_interleave(q.shape[0] // len(k), 0).transpose(1, 2)
            weights = (logits * scale).masked_fill(~visible, float("-inf")).softmax(-1)
            points = weights.unflatten(0, (len(k), -1)).sum(1)
        return _best(points, overlap, visible)

    def _windows(self, k: Tensor, n_blocks: int) -> tuple[Tensor, Tensor, Tensor]:
        """Means of complete windows [H, N_c, d]; which overlap which block [N, N_c]; visible [T, N_c]."""
        size, window, stride = (self.rule[name] for name in ("block_size", "window", "stride"))
        starts = torch.tensor(
            [s for s in range(0, k.shape[1], stride) if s + window <= k.shape[1]], dtype=torch.int64
        )
        means = [k[:, s : s + window].float().mean(1).to(k.dtype) for s in starts.tolist()]
        stacked = torch.stack(means, 1) if means else k.new_zeros(k.shape[0], 0, k.shape[2])
        first = torch.arange(n_blocks)[:, None] * size
        overlap = (starts < first + size) & (starts + window > first)
        last = starts + window - 1
        place = torch.arange(k.shape[1])[:, None]
        if self.rule["visibility"] == "end":
            return stacked, overlap, last <= place
        there = torch.tensor([self.reads(t) for t in range(k.shape[1])])[:, None]
        return stacked, overlap, (starts <= place) & (last <= there)


def _best(points: Tensor, overlap: Tensor, visible: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """[H, T, w], [N, w], [T, w] -> best of each block [H, T, N], and all, -inf where not seen."""
    each = torch.where(overlap & visible[:, None], points[:, :, None], torch.tensor(float("-inf")))
    if each.shape[-1] == 0:
        return np.full(each.shape[:-1], -np.inf, np.float32), each.numpy()
    return each.amax(-1).numpy(), each.numpy()


def chances(seed: int, layer: int, shape: tuple[int, ...]) -> np.ndarray:
    """The random selector's draws by (seed, layer, head, position, block): 24 bits of a hash, as float32."""
    heads, n, n_blocks = shape
    parts = (np.uint64(layer), np.arange(heads, dtype=np.uint64)[:, None, None],
             np.arange(n, dtype=np.uint64)[:, None], np.arange(n_blocks, dtype=np.uint64))  # fmt: skip
    code = np.uint64(seed)
    with np.errstate(over="ignore"):
        for part in parts:
            code = (code + part) * np.uint64(-7046029254386353131 % 2**64)
            code = (code ^ (code >> np.uint64(29))) * np.uint64(-4658895280553007687 % 2**64)
            code = code ^ (code >> np.uint64(32))
    return np.asarray(code >> np.uint64(40), np.float32) / np.float32(2**24)


def _as_query(module: Any, weights: Tensor, args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """What the layer would hand to attention as its query, [H, T, d], with other weights and no norm."""
    group = module.q_proj.out_features // module.k_proj.out_features
    rows = weights.to(module.q_proj.weight).unflatten(0, (-1, module.head_dim))  # [H, d, hidden]
    tiled = rows.repeat_interleave(group, 0).flatten(0, 1)
    double = copy.copy(module)
    double._modules = dict(module._modules)
    double._forward_pre_hooks = {}
    double._forward_pre_hooks_with_kwargs = {}
    double.q_proj = nn.Linear(tiled.shape[1], tiled.shape[0], bias=False)
    double.q_proj.weight = nn.Parameter(tiled, requires_grad=False)
    for name in ("q_norm", "query_layernorm", "q_layernorm", "qk_norm"):
        if isinstance(getattr(module, name, None), nn.Module):
            setattr(double, name, nn.Identity())
    if getattr(module.config, "clip_qkv", None) is not None:
        double.config = copy.copy(module.config)
        double.config.clip_qkv = None
        double.config._attn_implementation = NAME
    seen: list[Tensor] = []
    double.__dict__["fuzz_capture"] = seen
    double(*args, **kwargs)
    return seen[0][0, ::group]


def _attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """Signature of transformers' attention interface."""
    if (seen := module.__dict__.get("fuzz_capture")) is not None:
        seen.append(query)
        return query.transpose(1, 2).contiguous(), None
    extra = {name: kwargs.pop(name) for name in ("sliding_window", "softcap", "s_aux") if name in kwargs}
    if unknown := [name for name, given in kwargs.items() if given is not None and name not in IGNORED]:
        raise Unservable(f"its attention takes {', '.join(unknown)}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = _NOW[-1].attend(module.layer_idx, query[0], key[0], value[0], scale, extra)
    return out.transpose(0, 1)[None].contiguous(), None

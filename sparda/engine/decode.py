"""One decode step for a batch: the order of operations, eagerly on a CPU, captured in a graph on a GPU.

layer l:  project (Q, K, V and what foresees l + 1), rotate, append the token
          choose for l + 1 beside the rest of the layer; its copy starts at once     [lookahead]
          or choose for l now, and wait for its copy           [on demand, layer 0, and layers that wait]
          wait for the copy of l, attention, output, FFN
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparda.cache import rotate
from sparda.engine.decoder import Decoder
from sparda.kernels import rope_append, sparse_decode, store_token, topk_difference
from sparda.selectors import LayerView, Selector
from sparda.store import Store
from sparda.transports import Transport


@dataclass(frozen=True)
class Step:
    """What one step works with; ``run`` is the step."""

    decoder: Decoder
    store: Store
    selector: Selector
    transport: Transport
    replacement: str = "recent"

    def run(self, tokens: Tensor) -> Tensor:
        """Read one token a sequence, [B], at ``store.positions``; return logits [B, vocab].

        The positions do not move: the caller advances those sequences that go on.
        """
        hidden, normed = self.decoder.enter(tokens)  # [B, hidden] each
        ahead = None  # what the layer before foresees of this one, [B, n, d]
        for layer in range(len(self.decoder.layers)):
            with self.transport.traced("layer", layer):
                attended, ahead = self._attention(layer, normed, ahead)
                with self.transport.traced("ffn", layer):
                    hidden, normed = self.decoder.after_attention(layer, hidden, attended.flatten(1))
        return self.decoder.logits(normed)

    def _attention(self, layer: int, normed: Tensor, ahead: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Attention of one layer, [B, H_q, d], and what it foresees of the next."""
        state, positions, rule = self.store.layers[layer], self.store.positions, self.store.plan.sparsity
        early = self._early(layer)
        q, k, v, following, own = self.decoder.project(layer, normed)
        if early:
            self.transport.chosen(layer)
        tail = state.selection.tail_slot if early else self.store.nowhere
        q, following = rope_append(
            q, k, v, following, self.decoder.cos, self.decoder.sin, positions, tail, state.cache, rule
        )
        if state.index is not None:
            self._append_index(layer)
        if not early:
            self._choose(layer, q, self._turned(own) if own is not None else ahead)
            store_token(v, positions, state.selection.tail_slot, state.cache)
        if self._early(layer + 1):
            self._choose(layer + 1, None, following, early=True)
        if state.offloaded:
            with self.transport.traced("wait", layer):
                self.transport.wait(layer)
        chosen, scale = state.selection, self.decoder.attention_scale
        with self.transport.traced("attention", layer):
            attended = sparse_decode(
                q, state.cache.slots, chosen.slot_ids, chosen.block_ids, positions + 1, scale
            )
        return attended, following

    def _early(self, layer: int) -> bool:
        """Whether the layer before chooses for this one."""
        if not (self.selector.looks_ahead and self.transport.early) or layer in self.selector.waits:
            return False
        return 0 < layer < len(self.decoder.layers)

    def _choose(self, layer: int, q: Tensor | None, ahead: Tensor | None, early: bool = False) -> None:
        """PREP: score, force, top-k, difference; then the copy of what is missing starts."""
        state, rule = self.store.layers[layer], self.store.plan.sparsity
        with self.transport.prepare(layer, early):
            queries = q if q is not None else ahead
            assert queries is not None  # one layer early there is no query, and the selector needs none
            view = LayerView(
                layer, queries[:, :, None], self._keys(layer), self.store.positions[:, None], rule,
                scale=self.decoder.attention_scale, ahead=None if ahead is None else ahead[:, :, None],
                stored=state.cache.compressed if state.index is None else state.index,
                stored_blocks=self.store.plan.n_blocks,
            )  # fmt: skip
            scores = self.selector.block_scores(view)[:, :, 0].contiguous()  # [B, H, N]
            topk_difference(
                scores, self.store.positions, state.slot_block, state.block_slot, rule,
                out=state.selection, policy=self.replacement,
            )  # fmt: skip

    def _turned(self, own: Tensor) -> Tensor:
        positions = self.store.positions
        return rotate(own, self.decoder.cos[positions][:, None], self.decoder.sin[positions][:, None])

    def _newest_key(self, layer: int) -> Tensor:
        """The rotated key that was just appended, [B, H, 1, d]."""
        ring = self.store.layers[layer].cache.ring
        place = (self.store.positions % ring.shape[2])[:, None, None, None]
        return ring.gather(2, place.expand(-1, ring.shape[1], 1, ring.shape[3]))

    def _append_index(self, layer: int) -> None:
        index = self.store.layers[layer].index
        assert index is not None
        row = self.selector.index_keys(layer, self._newest_key(layer)).to(index.dtype)
        index.scatter_(2, self.store.positions[:, None, None, None].expand_as(row), row)

    def _keys(self, layer: int) -> Tensor | None:
        """Every key by position, [B, H, N * S, d], for a selector that reads them: nothing is offloaded."""
        if not self.selector.needs_keys:
            return None
        keys = self.store.layers[layer].cache.slots[:, :, :, 0].flatten(2, 3)  # a copy
        new = self._newest_key(layer)
        return keys.scatter(2, self.store.positions[:, None, None, None].expand_as(new), new)


def sample(logits: Tensor, temperature: float, top_p: float, chance: Tensor) -> Tensor:
    """Next tokens [B] from logits [B, vocab]; temperature 0 takes the best, the lower id in a tie.

    chance : [B] uniform in [0, 1), one draw a sequence; equal draws give equal tokens on every device
    """
    if temperature == 0:
        return logits.argmax(-1)
    weights, order = (logits / temperature).softmax(-1).sort(-1, descending=True)
    reached = weights.cumsum(-1)
    weights = weights.masked_fill(reached - weights >= top_p, 0.0)  # the token that crosses top_p stays
    reached = weights.cumsum(-1)
    place = (reached <= chance[:, None] * reached[:, -1:]).sum(-1, keepdim=True)
    return order.gather(-1, place.clamp(max=weights.shape[-1] - 1))[:, 0]

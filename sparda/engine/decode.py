"""One decode step for a batch, eagerly: the order of operations that the graph will capture.

layer l:  norm, project, rotate    [chooses for l itself, if nothing looks ahead]
          choose for l + 1, start its copy
          append the token, wait for the copy of l, attention, output, FFN
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparda.cache import rotate
from sparda.engine.decoder import Decoder
from sparda.kernels import rope_append, sparse_decode, topk_difference
from sparda.selectors import LayerView, Selector
from sparda.store import Store
from sparda.transports import Transport


def decode_step(
    decoder: Decoder, store: Store, selector: Selector, transport: Transport, tokens: Tensor
) -> Tensor:
    """Read one token a sequence, [B], at ``store.positions``; return logits [B, vocab].

    The positions do not move: the caller advances those sequences that go on.
    """
    hidden = decoder.enter(tokens)  # [B, hidden]
    early = selector.looks_ahead and transport.early
    before = None  # normed input of the layer before
    for layer, weights in enumerate(decoder.layers):
        normed = decoder.norm(hidden, weights.attention_norm)
        q, k, v = decoder.project(layer, normed)
        if layer == 0 or not early:
            _choose(decoder, store, selector, transport, layer, normed if layer == 0 else before, q, k)
        if early and layer + 1 < len(decoder.layers):
            _choose(decoder, store, selector, transport, layer + 1, normed)
        attended = _attend(decoder, store, transport, layer, q, k, v)
        hidden = decoder.after_attention(layer, hidden, attended.flatten(1))
        before = normed
    return decoder.logits(hidden)


def _choose(decoder, store, selector, transport, layer, before, q=None, k=None) -> None:
    """PREP: score, force, top-k, difference; then start the copy of what is missing."""
    state, positions = store.layers[layer], store.positions[:, None]  # [B, 1]
    angles = decoder.cos[positions], decoder.sin[positions]  # [B, 1, d/2]
    ahead = selector.look_ahead(layer, before[:, None], *angles) if selector.looks_ahead else None
    if q is not None:
        queries = rotate(q, *angles)[:, :, None]  # [B, H_q, 1, d]
    else:
        assert ahead is not None  # one layer early there is no query yet, and the selector needs none
        queries = ahead
    keys = None
    if selector.needs_keys and k is not None:
        keys = _all_keys(store, layer, rotate(k, *angles))
    view = LayerView(
        layer, queries, keys, positions, store.plan.sparsity, ahead=ahead,
        stored=state.cache.compressed, stored_blocks=store.plan.n_blocks,
    )  # fmt: skip
    scores = selector.block_scores(view)[:, :, 0].contiguous()  # [B, H, N]
    topk_difference(
        scores, store.positions, state.slot_block, state.block_slot, store.plan.sparsity, out=state.selection
    )
    if state.offloaded:
        transport.start(layer)


def _all_keys(store: Store, layer: int, new: Tensor) -> Tensor:
    """Keys by position, [B, H, N * S, d], with the new token's [B, H, d]: only where nothing is offloaded."""
    keys = store.layers[layer].cache.slots[:, :, :, 0].flatten(2, 3)  # a copy
    places = store.positions[:, None, None, None].expand(-1, new.shape[1], 1, new.shape[2])
    return keys.scatter(2, places, new[:, :, None])


def _attend(decoder, store, transport, layer, q, k, v) -> Tensor:
    """Append the token, wait for the blocks, attend: [B, H_q, d]."""
    state = store.layers[layer]
    rotated, _ = rope_append(
        q.contiguous(), k.contiguous(), v.contiguous(), None, decoder.cos, decoder.sin, store.positions,
        state.selection.tail_slot, state.cache, store.plan.sparsity,
    )  # fmt: skip
    if state.offloaded:
        transport.wait(layer)
    chosen = state.selection
    lengths = store.positions + 1
    return sparse_decode(rotated, state.cache.slots, chosen.slot_ids, chosen.block_ids, lengths)


def sample(logits: Tensor, temperature: float, top_p: float, generator: torch.Generator | None) -> Tensor:
    """Next tokens [B] from logits [B, vocab]; temperature 0 takes the best, the lower id in a tie."""
    if temperature == 0:
        return logits.argmax(-1)
    weights, order = (logits / temperature).softmax(-1).sort(-1, descending=True)
    kept = weights.cumsum(-1) - weights < top_p  # the token that crosses top_p stays
    weights = weights.masked_fill(~kept, 0.0)
    return order.gather(-1, torch.multinomial(weights, 1, generator=generator))[:, 0]

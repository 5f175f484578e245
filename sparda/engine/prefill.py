"""Read a prompt, layer by layer and in chunks of queries; leave its keys and values in the store.

One layer's keys and values of one sequence are on the device at a time. Of the rest only the hidden states
grow with the prompt: queries, scores and FFN exist for one chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparda.attention import block_attention, dense_attention
from sparda.cache import rotate
from sparda.engine.decoder import Decoder
from sparda.selectors import All, LayerView, Selector
from sparda.store import Store

CHUNK = 512  # queries


def prefill(decoder: Decoder, store: Store, selector: Selector, sequence: int, tokens: Tensor) -> Tensor:
    """Read the prompt tokens [T] into place ``sequence`` of the batch; return logits [vocab] of its end."""
    hidden = decoder.enter(tokens)[None]  # [1, T, hidden]
    ahead = None
    for layer in range(len(decoder.layers)):
        hidden, ahead = _layer(decoder, store, selector, sequence, layer, hidden, ahead)
    store.positions[sequence] = len(tokens)
    return decoder.logits(hidden[0, -1])


def _layer(decoder, store, selector, sequence, layer, hidden, ahead):
    """One layer for the whole prompt; returns its output and what its selector foresees for the next."""
    n_tokens = hidden.shape[1]
    chunks = [slice(i, min(i + CHUNK, n_tokens)) for i in range(0, n_tokens, CHUNK)]
    gain = decoder.layers[layer].attention_norm
    keys, values, following = [], [], []
    for part in chunks:
        normed = decoder.norm(hidden[:, part], gain)
        _, k, v = decoder.project(layer, normed)
        keys.append(_turn(decoder, k, part))
        values.append(v.transpose(1, 2))
        if selector.looks_ahead:
            angles = decoder.cos[None, part], decoder.sin[None, part]
            if layer == 0:
                ahead = _join(ahead, selector.look_ahead(0, normed, *angles))
            if layer + 1 < len(decoder.layers):
                following.append(selector.look_ahead(layer + 1, normed, *angles))
    k, v = torch.cat(keys, 2), torch.cat(values, 2)  # [1, H, T, d]
    store.load_prompt(layer, sequence, k[0], v[0])
    out = torch.empty_like(hidden)
    for part in chunks:
        q = _turn(decoder, decoder.project(layer, decoder.norm(hidden[:, part], gain))[0], part)
        attended = _attend(store, selector, layer, q, k, v, part, ahead)
        out[:, part] = decoder.after_attention(layer, hidden[:, part], attended.transpose(1, 2).flatten(2))
    return out, torch.cat(following, 2) if following else None


def _attend(store, selector, layer, q, k, v, part, ahead) -> Tensor:
    positions = torch.arange(part.start, part.start + q.shape[2], device=q.device)[None]
    if isinstance(selector, All):
        return dense_attention(q, k, v, positions)
    rule = store.plan.sparsity
    ahead = None if ahead is None else ahead[:, :, part]
    ids = selector.select(LayerView(layer, q, k, positions, rule, ahead=ahead))
    return block_attention(q, k, v, ids, positions, block_size=rule.block_size)


def _turn(decoder: Decoder, x: Tensor, part: slice) -> Tensor:
    """[1, t, heads, d] before RoPE -> [1, heads, t, d] after it."""
    return rotate(x.transpose(1, 2), decoder.cos[part], decoder.sin[part])


def _join(before: Tensor | None, now: Tensor) -> Tensor:
    return now if before is None else torch.cat([before, now], 2)

"""Read a prompt, layer by layer and in chunks of tokens; leave its keys and values in the store.

One layer's keys and values of one sequence are on the device at a time; they travel to the host while the
next layer computes. Of the rest only the hidden states (and what foresees the next layer) grow with the
prompt: queries, scores and FFN exist for one chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from sparda.attention import dense_attention
from sparda.engine.decoder import Decoder
from sparda.kernels import rotate_prompt, sparse_prefill
from sparda.selectors import All, LayerView, Selector
from sparda.store import Store

CHUNK = {"cpu": 512, "cuda": 8192}  # tokens


class Prefill:
    """Reads one prompt; its buffers serve all layers."""

    def __init__(self, decoder: Decoder, store: Store, selector: Selector, sequence: int, tokens: Tensor):
        self.decoder, self.store, self.selector, self.sequence = decoder, store, selector, sequence
        self.n_tokens = len(tokens)
        self.hidden, self.normed = decoder.enter(tokens)  # [T, hidden] each
        if self.normed is self.hidden:
            self.normed = self.normed.clone()
        step = CHUNK[tokens.device.type]
        self.chunks = [slice(i, min(i + step, self.n_tokens)) for i in range(0, self.n_tokens, step)]
        self.ahead: Tensor | None = None  # [1, n, T, d] for this layer
        self.following: Tensor | None = None  # for the next

    def run(self) -> Tensor:
        """Return the logits [vocab] of the prompt's end."""
        for layer in range(len(self.decoder.layers)):
            self._layer(layer)
        self.store.positions[self.sequence] = self.n_tokens
        self.store.settle()
        return self.decoder.logits(self.normed[-1])

    def _layer(self, layer: int) -> None:
        d, heads = self.decoder.head_dim, self.decoder.n_kv_heads
        keys, values = (self.hidden.new_zeros(1, heads, self.n_tokens, d) for _ in range(2))
        self.ahead, self.following = self.following, None
        for part in self.chunks:
            q, k, v, following, own = self.decoder.project(layer, self.normed[part])
            keys[:, :, part] = self._turned(k, part)
            values[:, :, part] = v.transpose(0, 1)
            if own is not None:
                self.ahead = self._keep(self.ahead, own, part)
            if following is not None:
                self.following = self._keep(self.following, following, part)
            self._index(layer, keys, part)
            attended = self._attend(layer, self._turned(q, part), keys, values, part)
            rows = attended[0].transpose(0, 1).flatten(1)  # [t, H_q * d]
            self.hidden[part], self.normed[part] = self.decoder.after_attention(
                layer, self.hidden[part], rows
            )
        self.store.load_prompt(layer, self.sequence, keys[0], values[0])

    def _turned(self, x: Tensor, part: slice) -> Tensor:
        """[t, heads, d] before RoPE -> [1, heads, t, d] after it."""
        return rotate_prompt(x, self.decoder.cos[part], self.decoder.sin[part])[None]

    def _keep(self, buffer: Tensor | None, x: Tensor, part: slice) -> Tensor:
        """Rotate what foresees a layer into its buffer for the whole prompt."""
        if buffer is None:
            buffer = x.new_empty(1, x.shape[1], self.n_tokens, x.shape[2])
        buffer[:, :, part] = self._turned(x, part)
        return buffer

    def _index(self, layer: int, keys: Tensor, part: slice) -> None:
        """Compressed keys, and the selector's own index, up to the end of this chunk."""
        self.store.index_prompt(layer, self.sequence, keys[:, :, : part.stop], part.start)
        index = self.store.layers[layer].index
        if index is not None:
            rows = self.selector.index_keys(layer, keys[:, :, part])
            index[self.sequence, :, part] = rows[0].to(index.dtype)

    def _attend(self, layer: int, q: Tensor, keys: Tensor, values: Tensor, part: slice) -> Tensor:
        positions = torch.arange(part.start, part.stop, device=q.device)[None]
        scale = self.decoder.attention_scale
        if isinstance(self.selector, All):
            seen = (keys[:, :, : part.stop], values[:, :, : part.stop])
            return _dense(q, *seen, positions, scale)
        state, rule = self.store.layers[layer], self.store.plan.sparsity
        stored = state.cache.compressed if state.index is None else state.index
        view = LayerView(
            layer, q, keys[:, :, : part.stop] if self.selector.needs_keys else None, positions, rule, scale,
            ahead=None if self.ahead is None else self.ahead[:, :, part],
            stored=stored[self.sequence, None], stored_blocks=-(-part.stop // rule.block_size),
        )  # fmt: skip
        ids = self.selector.select(view)
        return sparse_prefill(q, keys, values, ids, positions, block_size=rule.block_size, scale=scale)


def _dense(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, scale: float | None) -> Tensor:
    """Causal attention of the last tokens; on a GPU through torch's fused kernels."""
    if not q.is_cuda:
        return dense_attention(q, keys, values, positions, scale=scale)
    mask = causal_lower_right(q.shape[2], keys.shape[2])
    return scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale, enable_gqa=True)

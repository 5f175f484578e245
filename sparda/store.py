"""Where the past of a batch lies: slots on the GPU, every block in pinned host memory, and the byte ledger.

``sparda.plan`` says how much of each there is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparda import blocks
from sparda.cache import LayerCache, Selection, empty_maps
from sparda.kernels import compress_keys
from sparda.plan import HostPool, Plan


@dataclass(frozen=True)
class LayerState:
    """One layer: its tensors, the maps of its slots, and the buffers of its selection.

    slot_block [B, H, C] and block_slot [B, H, N] int32, as ``sparda.cache`` describes them
    index [B, H, T_max, r]: what a selector with an index of its own scores against, else None
    """

    cache: LayerCache
    slot_block: Tensor
    block_slot: Tensor
    selection: Selection
    index: Tensor | None = None

    @property
    def offloaded(self) -> bool:
        return self.cache.host is not None

    @property
    def job(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What a transport copies for this layer: host, slots, src, dst, count."""
        if self.cache.host is None:
            raise ValueError("a layer whose blocks all stay on the GPU has nothing to copy")
        chosen = self.selection
        return self.cache.host, self.cache.slots, chosen.src, chosen.dst, chosen.count


class Store:
    """All layers of a batch, allocated once for the longest sequence.

    host      : memory for the host stores, layer by layer, made before; None: allocated here
    positions : [B] int64, the index that each sequence's next token will have
    nowhere   : [B, H] int32, -1: the tail slot of a layer that has not chosen yet

    MemoryError, before anything is pinned: the host has not enough memory.
    """

    def __init__(self, plan: Plan, host: HostPool | None = None):
        self.plan = plan
        self.host = host or HostPool(plan)
        self.positions = torch.zeros(plan.batch, dtype=torch.int64, device=plan.device)
        self.nowhere = torch.full((plan.batch, plan.n_kv_heads), -1, dtype=torch.int32, device=plan.device)
        self.layers = [self._layer(layer) for layer in range(plan.n_layers)]
        self._copies = torch.cuda.Stream() if self.positions.is_cuda else None

    def _layer(self, layer: int) -> LayerState:
        plan, rule = self.plan, self.plan.sparsity
        pair, n_slots = (plan.batch, plan.n_kv_heads), plan.n_slots(layer)
        run = (2, rule.block_size, plan.head_dim)
        n_windows = max(1, blocks.count_windows(plan.max_tokens, rule))
        on_gpu = {"dtype": plan.dtype, "device": plan.device}
        cache = LayerCache(
            slots=torch.empty(*pair, n_slots, *run, **on_gpu),
            ring=torch.zeros(*pair, rule.window, plan.head_dim, **on_gpu),
            compressed=torch.zeros(*pair, n_windows, plan.head_dim, **on_gpu),
            host=self.host.take(layer, plan) if plan.offloads(layer) else None,
        )
        maps = empty_maps(*pair, n_slots, plan.n_blocks, plan.device)
        chosen = Selection.empty(*pair, rule.budget_blocks, n_slots, torch.device(plan.device))
        index = torch.zeros(*pair, plan.max_tokens, plan.index_dim, **on_gpu) if plan.index_dim else None
        return LayerState(cache, *maps, chosen, index)

    def load_prompt(self, layer: int, sequence: int, keys: Tensor, values: Tensor) -> None:
        """Put a prompt's keys (post-RoPE) and values, [H, T, d] each, where decode finds them.

        Compressed keys and the index are written by whoever made the keys: ``index_prompt``. On a GPU the
        blocks travel to the host on a stream of their own; ``settle`` waits for them.
        """
        state, rule = self.layers[layer], self.plan.sparsity
        n_tokens = keys.shape[1]
        padding = -n_tokens % rule.block_size
        pair = torch.stack([keys, values], 1)  # [H, 2, T, d]
        cut = torch.nn.functional.pad(pair, (0, 0, 0, padding)).unflatten(2, (-1, rule.block_size))
        runs = cut.transpose(1, 2).contiguous()  # [H, n, 2, S, d]
        tail = n_tokens // rule.block_size if padding else -1
        self._place(state, sequence, runs, tail)
        recent = torch.arange(max(0, n_tokens - rule.window), n_tokens, device=keys.device)
        state.cache.ring[sequence][:, recent % rule.window] = keys[:, recent]

    def index_prompt(self, layer: int, sequence: int, keys: Tensor, start: int) -> None:
        """Write the compressed keys whose windows end in tokens ``start`` to the end of keys [1, H, T, d]."""
        rule, compressed = self.plan.sparsity, self.layers[layer].cache.compressed
        done, n_windows = (blocks.count_windows(n, rule) for n in (start, keys.shape[2]))
        if n_windows > done:
            fresh = compress_keys(keys[:, :, done * rule.stride :].contiguous(), rule)
            compressed[sequence, :, done:n_windows] = fresh[0]

    def fill(self, n_tokens: int, seed: int = 0) -> None:
        """Random keys and values of n_tokens in every sequence, as if prompts had been read: speeds only.

        Every page of the host is written; the slots hold the first blocks and the one being written.
        """
        if not 0 < n_tokens < self.plan.max_tokens:
            raise ValueError(f"fill takes 1 to {self.plan.max_tokens - 1} tokens, got {n_tokens}")
        noise = torch.Generator(self.plan.device).manual_seed(seed)
        own = n_tokens // self.plan.sparsity.block_size
        for state in self.layers:
            tensors = [state.cache.slots, state.cache.ring, state.cache.compressed, state.index]
            for tensor in tensors:
                if tensor is not None:
                    tensor.normal_(generator=noise)
            state.slot_block.fill_(-1)
            state.block_slot.fill_(-1)
            n_slots = state.slot_block.shape[2]
            held = torch.arange(n_slots, dtype=torch.int32, device=self.positions.device)
            if n_slots <= own:
                held[-1] = own
            state.slot_block[:] = held
            state.block_slot[:, :, held.long()] = torch.arange(n_slots, dtype=torch.int32, device=held.device)
        self.host.write(noise)
        self.positions.fill_(n_tokens)

    def settle(self) -> None:
        """Hold the stream until the prompt's blocks are in host memory."""
        if self._copies is not None:
            torch.cuda.current_stream().wait_stream(self._copies)

    def _place(self, state: LayerState, sequence: int, runs: Tensor, tail: int) -> None:
        """Identity slots where all stay; else all blocks to the host, and the unfinished one to slot 0."""
        state.slot_block[sequence] = -1
        state.block_slot[sequence] = -1
        if state.cache.host is None:
            state.cache.slots[sequence, :, : runs.shape[1]] = runs
            every = torch.arange(self.plan.n_blocks, dtype=torch.int32, device=runs.device)
            state.slot_block[sequence] = every
            state.block_slot[sequence] = every
            return
        self._to_host(runs, state.cache.host[sequence, :, : runs.shape[1]])
        if tail >= 0:
            state.cache.slots[sequence, :, 0] = runs[:, tail]
            state.slot_block[sequence, :, 0] = tail
            state.block_slot[sequence, :, tail] = 0

    def _to_host(self, runs: Tensor, place: Tensor) -> None:
        """[H, n, 2, S, d]: each head's blocks are contiguous on both sides."""
        if self._copies is None:
            place.copy_(runs)
            return
        self._copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copies):
            for head, target in zip(runs, place, strict=True):
                target.copy_(head, non_blocking=True)
        runs.record_stream(self._copies)

    def ledger(self) -> dict[str, int]:
        """Bytes held, by what they are for; "pinned" lies in host memory, all else on the device."""
        kinds = ("resident", "compressed", "index", "rings", "maps", "pinned")
        total: dict[str, int] = dict.fromkeys(kinds, 0)
        for state in self.layers:
            total["resident"] += state.cache.slots.nbytes
            total["compressed"] += state.cache.compressed.nbytes
            total["index"] += 0 if state.index is None else state.index.nbytes
            total["rings"] += state.cache.ring.nbytes
            buffers = vars(state.selection).values()
            total["maps"] += (
                state.slot_block.nbytes + state.block_slot.nbytes + sum(t.nbytes for t in buffers)
            )
        total["maps"] += self.positions.nbytes + self.nowhere.nbytes
        total["pinned"] = self.host.nbytes
        return total

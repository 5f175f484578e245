"""Where the past of a batch lies: slots on the GPU, every block in pinned host memory, and the byte ledger.

    cache "full"    every block has its own slot and nothing is offloaded
    cache "k"       k slots a (sequence, KV head), all blocks in host memory
    cache 144       so many slots, at least k

Layer 0 has no layer before it that could look ahead: by default its blocks stay on the GPU, for every method.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparda import blocks
from sparda.cache import LayerCache, Selection, empty_maps
from sparda.spec import Sparsity


@dataclass(frozen=True)
class LayerState:
    """One layer: its tensors, the maps of its slots, and the buffers of its selection.

    slot_block [B, H, C] and block_slot [B, H, N] int32, as ``sparda.cache`` describes them
    """

    cache: LayerCache
    slot_block: Tensor
    block_slot: Tensor
    selection: Selection

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


@dataclass(frozen=True)
class Plan:
    """Sizes of a store. ``slots``: "full", "k" or a number; ``max_tokens``: prompt and reply together."""

    batch: int
    max_tokens: int
    n_layers: int
    n_kv_heads: int
    head_dim: int
    sparsity: Sparsity
    slots: int | str = "k"
    layer0_resident: bool = True
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"

    def __post_init__(self):
        if min(self.batch, self.max_tokens) < 1:
            raise ValueError(f"batch and max_tokens must be at least 1, got {self.batch}, {self.max_tokens}")
        if isinstance(self.slots, str) and self.slots not in ("full", "k"):
            raise ValueError(f"cache is 'full', 'k' or a number of slots, got {self.slots!r}")
        if isinstance(self.slots, int) and self.slots < self.sparsity.budget_blocks:
            raise ValueError(
                f"cache = {self.slots} slots cannot hold the {self.sparsity.budget_blocks} chosen blocks; "
                "use 'k' or more slots, or lower budget_blocks"
            )

    @property
    def n_blocks(self) -> int:
        return blocks.count_blocks(self.max_tokens, self.sparsity)

    def n_slots(self, layer: int) -> int:
        """Slots of a (sequence, KV head) in this layer; N where nothing is offloaded."""
        if self.slots == "full" or (layer == 0 and self.layer0_resident):
            return self.n_blocks
        wanted = self.sparsity.budget_blocks if self.slots == "k" else int(self.slots)
        return min(wanted, self.n_blocks)

    def offloads(self, layer: int) -> bool:
        return self.slots != "full" and not (layer == 0 and self.layer0_resident)


class Store:
    """All layers of a batch, allocated once for the longest sequence.

    positions : [B] int64, the index that each sequence's next token will have
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.positions = torch.zeros(plan.batch, dtype=torch.int64, device=plan.device)
        self.layers = [self._layer(layer) for layer in range(plan.n_layers)]

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
            host=self._host((*pair, plan.n_blocks, *run)) if plan.offloads(layer) else None,
        )
        maps = empty_maps(*pair, n_slots, plan.n_blocks, plan.device)
        chosen = Selection.empty(*pair, rule.budget_blocks, n_slots, torch.device(plan.device))
        return LayerState(cache, *maps, chosen)

    def _host(self, shape: tuple[int, ...]) -> Tensor:
        if torch.device(self.plan.device).type != "cuda":
            return torch.empty(shape, dtype=self.plan.dtype)
        from sparda.kernels.host_memory import pinned_empty

        return pinned_empty(shape, self.plan.dtype)

    def load_prompt(self, layer: int, sequence: int, keys: Tensor, values: Tensor) -> None:
        """Put a prompt's keys (post-RoPE) and values, [H, T, d] each, where decode finds them."""
        state, rule = self.layers[layer], self.plan.sparsity
        n_tokens = keys.shape[1]
        padding = -n_tokens % rule.block_size
        pair = torch.stack([keys, values], 1)  # [H, 2, T, d]
        cut = torch.nn.functional.pad(pair, (0, 0, 0, padding)).unflatten(2, (-1, rule.block_size))
        runs = cut.transpose(1, 2)  # [H, n, 2, S, d]
        tail = n_tokens // rule.block_size if padding else -1
        self._place(state, sequence, runs, tail)
        compressed = blocks.compress_keys(keys[None], rule)[0]  # [H, N_c, d]
        state.cache.compressed[sequence, :, : compressed.shape[1]] = compressed
        recent = torch.arange(max(0, n_tokens - rule.window), n_tokens, device=keys.device)
        state.cache.ring[sequence][:, recent % rule.window] = keys[:, recent]

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
        state.cache.host[sequence, :, : runs.shape[1]] = runs
        if tail >= 0:
            state.cache.slots[sequence, :, 0] = runs[:, tail]
            state.slot_block[sequence, :, 0] = tail
            state.block_slot[sequence, :, tail] = 0

    def ledger(self) -> dict[str, int]:
        """Bytes held, by what they are for; "pinned" lies in host memory, all else on the device."""
        total: dict[str, int] = dict.fromkeys(("resident", "compressed", "rings", "maps", "pinned"), 0)
        for state in self.layers:
            total["resident"] += state.cache.slots.nbytes
            total["compressed"] += state.cache.compressed.nbytes
            total["rings"] += state.cache.ring.nbytes
            buffers = vars(state.selection).values()
            total["maps"] += (
                state.slot_block.nbytes + state.block_slot.nbytes + sum(t.nbytes for t in buffers)
            )
            total["pinned"] += 0 if state.cache.host is None else state.cache.host.nbytes
        return total

"""Closed forms for bytes and FLOPs: what long-context decoding costs before anything is run.

Every function takes keywords only. Bytes are plain integers; ``dtype_bytes`` is 2 for bf16. What these
bytes cost in time is in ``bounds.py``.
"""

from __future__ import annotations

from typing import Literal

from sparda.blocks import count_blocks, count_windows
from sparda.spec import ModelShape, Sparsity

Selector = Literal["query", "forecast"]
Placement = Literal["gpu", "offload"]


def _need(value: float, name: str, at_least: float = 0) -> None:
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}; check its sign and unit")


# --- bytes -------------------------------------------------------------------------------------------


def kv_bytes(*, shape: ModelShape, n_tokens: int, batch: int = 1, dtype_bytes: int = 2) -> int:
    """Bytes of all keys and values: 2 (K and V) * L * B * T * H * d * dtype_bytes.

    >>> from sparda.spec import model
    >>> kv_bytes(shape=model("minicpm4.1-8b"), n_tokens=131_072) / 2**30
    4.0
    """
    _need(n_tokens, "n_tokens")
    _need(batch, "batch")
    return 2 * shape.n_layers * batch * n_tokens * shape.n_kv_heads * shape.head_dim * dtype_bytes


def compressed_key_bytes(
    *, shape: ModelShape, sparsity: Sparsity, n_tokens: int, batch: int = 1, dtype_bytes: int = 2
) -> int:
    """Bytes of all compressed keys: L * B * N_c * H * d * dtype_bytes; about 1/16 of K at stride 16.

    >>> from sparda.spec import model, sparsity
    >>> of = dict(shape=model("minicpm4.1-8b"), sparsity=sparsity("minicpm4.1-8b"))
    >>> compressed_key_bytes(n_tokens=131_072, **of)
    134201344
    """
    _need(batch, "batch")
    n_windows = count_windows(n_tokens, sparsity)
    return shape.n_layers * batch * n_windows * shape.n_kv_heads * shape.head_dim * dtype_bytes


def proxy_index_bytes(
    *, shape: ModelShape, n_tokens: int, share: float = 0.25, batch: int = 1, dtype_bytes: int = 2
) -> int:
    """Bytes of InfiniGen's index, a share of the channels of every key: L * B * T * H * (d * share) numbers.

    >>> from sparda.spec import model
    >>> proxy_index_bytes(shape=model("minicpm4.1-8b"), n_tokens=131_072)
    536870912
    """
    _need(n_tokens, "n_tokens")
    _need(batch, "batch")
    channels = int(shape.head_dim * share)
    return shape.n_layers * batch * n_tokens * shape.n_kv_heads * channels * dtype_bytes


def block_bytes(*, head_dim: int, block_size: int = 64, dtype_bytes: int = 2) -> int:
    """Bytes of one block of one KV head, K and V together: the unit of every transfer.

    >>> block_bytes(head_dim=128) / 2**10
    32.0
    """
    return 2 * block_size * head_dim * dtype_bytes


def selected_kv_bytes(
    *, shape: ModelShape, sparsity: Sparsity, n_tokens: int, batch: int = 1, dtype_bytes: int = 2
) -> int:
    """Bytes that block-sparse attention reads in one step: L * B * H * min(k, blocks) blocks.

    >>> from sparda.spec import model, sparsity
    >>> selected_kv_bytes(shape=model("minicpm4.1-8b"), sparsity=sparsity("minicpm4.1-8b"), n_tokens=131_072)
    201326592
    """
    n_blocks = min(sparsity.budget_blocks, count_blocks(n_tokens, sparsity))
    one = block_bytes(head_dim=shape.head_dim, block_size=sparsity.block_size, dtype_bytes=dtype_bytes)
    return shape.n_layers * batch * shape.n_kv_heads * n_blocks * one


def miss_bytes(
    *, shape: ModelShape, sparsity: Sparsity, misses: float, batch: int = 1, dtype_bytes: int = 2
) -> float:
    """Bytes over the link in one step: (L - 1) * B * H * misses blocks; layer 0 stays on the GPU.

    ``misses`` counts the blocks of one KV head and layer that are wanted and not resident.

    >>> from sparda.spec import model, sparsity
    >>> miss_bytes(shape=model("minicpm4.1-8b"), sparsity=sparsity("minicpm4.1-8b"), misses=11) / 2**10
    21824.0
    """
    _need(misses, "misses")
    if misses > sparsity.budget_blocks:
        raise ValueError(f"{misses} misses of {sparsity.budget_blocks} slots; give at most budget_blocks")
    one = block_bytes(head_dim=shape.head_dim, block_size=sparsity.block_size, dtype_bytes=dtype_bytes)
    return (shape.n_layers - 1) * batch * shape.n_kv_heads * misses * one


def forecast_parameters(*, shape: ModelShape) -> int:
    """Weights that SparDA adds: L - 1 Forecasts and layer 0's own, each hidden x (H * d). No bias.

    >>> from sparda.spec import model
    >>> added = forecast_parameters(shape=model("minicpm4.1-8b"))
    >>> added, round(100 * added / model("minicpm4.1-8b").n_parameters, 2)
    (33554432, 0.41)
    """
    return (shape.n_layers - 1 + 1) * shape.hidden * shape.n_kv_heads * shape.head_dim


def weight_bytes(*, shape: ModelShape, dtype_bytes: int = 2) -> int:
    """Bytes of the model's weights, the Forecast not included.

    >>> from sparda.spec import model
    >>> weight_bytes(shape=model("minicpm4.1-8b"))
    16370507776
    """
    return shape.n_parameters * dtype_bytes


def step_weight_bytes(*, shape: ModelShape, forecast: bool = True, dtype_bytes: int = 2) -> int:
    """Weight bytes that one decode step reads, whatever the batch.

    All weights and the Forecast, without the input embedding table: a step looks up B of its rows.
    A tied table is read in full, as the output head.

    >>> from sparda.spec import model
    >>> step_weight_bytes(shape=model("minicpm4.1-8b"))
    15835930624
    """
    looked_up = 0 if shape.tied_embeddings else shape.vocab * shape.hidden
    added = forecast_parameters(shape=shape) if forecast else 0
    return (shape.n_parameters - looked_up + added) * dtype_bytes


def gpu_bytes(
    *,
    shape: ModelShape,
    sparsity: Sparsity,
    n_tokens: int,
    batch: int,
    placement: Placement,
    dtype_bytes: int = 2,
) -> dict[str, int]:
    """Ledger of GPU memory in decode, by part. Activations and workspace are not in it.

    "gpu": weights, all K and V, compressed keys. "offload": weights and Forecast, k slots in each layer
    but 0, all K and V of layer 0, compressed keys; the other K and V live in pinned host memory.
    """
    if placement not in ("gpu", "offload"):
        raise ValueError(f"placement is 'gpu' or 'offload', got {placement!r}")
    sizes = {"shape": shape, "n_tokens": n_tokens, "batch": batch, "dtype_bytes": dtype_bytes}
    kv, weights = kv_bytes(**sizes), weight_bytes(shape=shape, dtype_bytes=dtype_bytes)
    keys = compressed_key_bytes(sparsity=sparsity, **sizes)
    if placement == "gpu":
        return {"weights": weights, "K and V": kv, "compressed keys": keys}
    layer0 = kv // shape.n_layers
    slots = selected_kv_bytes(sparsity=sparsity, **sizes) // shape.n_layers * (shape.n_layers - 1)
    weights += forecast_parameters(shape=shape) * dtype_bytes
    return {"weights": weights, "K and V": layer0 + slots, "compressed keys": keys}


def largest_batch(*, memory_gib: float, **of) -> int:
    """Most sequences whose ledger fits into ``memory_gib``; ``of`` are the keywords of gpu_bytes but batch.

    >>> from sparda.spec import model, sparsity
    >>> of = dict(shape=model("minicpm4.1-8b"), sparsity=sparsity("minicpm4.1-8b"), n_tokens=131_072)
    >>> [largest_batch(memory_gib=80, placement=where, **of) for where in ("gpu", "offload")]
    [15, 149]
    """
    fixed = sum(gpu_bytes(batch=0, **of).values())
    per_sequence = sum(gpu_bytes(batch=1, **of).values()) - fixed
    room = memory_gib * 2**30 - fixed
    return max(0, int(room // per_sequence))


# --- FLOPs -------------------------------------------------------------------------------------------


def matmul_flops(*, shape: ModelShape) -> int:
    """FLOPs of all weight matrices for one token: two per weight; lookups and norms cost none.

    >>> from sparda.spec import model
    >>> matmul_flops(shape=model("minicpm4.1-8b")) / 1e9
    15.76828928
    """
    gains = (2 * shape.n_layers + 1) * shape.hidden
    looked_up = 0 if shape.tied_embeddings else shape.vocab * shape.hidden
    return 2 * (shape.n_parameters - gains - looked_up)


def attention_flops(*, shape: ModelShape, n_attended: int) -> int:
    """FLOPs of attention for one token over ``n_attended`` keys: 4 * L * H_q * d * n_attended.

    Dense: n_attended = T. Sparse: at most k * S, whatever T is.

    >>> from sparda.spec import model
    >>> dense = attention_flops(shape=model("minicpm4.1-8b"), n_attended=131_072)
    >>> dense // attention_flops(shape=model("minicpm4.1-8b"), n_attended=96 * 64)
    21
    """
    return 4 * shape.n_layers * shape.n_heads * shape.head_dim * n_attended


def selection_dots(*, shape: ModelShape, sparsity: Sparsity, n_tokens: int, selector: Selector) -> int:
    """Dot products of length d that choose blocks for one token, all layers: L * heads * N_c.

    "query" scores with every query head, "forecast" with one head per KV head: G times fewer.
    Both grow with T; multiply by 2 * d for FLOPs.

    >>> from sparda.spec import model, sparsity
    >>> of = dict(shape=model("minicpm4.1-8b"), sparsity=sparsity("minicpm4.1-8b"), n_tokens=131_072)
    >>> selection_dots(selector="query", **of), selection_dots(selector="forecast", **of)
    (8387584, 524224)
    """
    heads = {"query": shape.n_heads, "forecast": shape.n_kv_heads}
    if selector not in heads:
        raise ValueError(f"selector is 'query' or 'forecast', got {selector!r}")
    return shape.n_layers * heads[selector] * count_windows(n_tokens, sparsity)

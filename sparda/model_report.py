"""``sparda doctor --model NAME``: what one model can do here, and for each "no" why and what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sparda.blocks import count_blocks
from sparda.forecast import Shape
from sparda.kernels import limits
from sparda.plan import Plan
from sparda.spec import Sparsity
from sparda.units import format_bytes


@dataclass(frozen=True)
class Row:
    """One line of the table: what, whether it can be done here, and how much or why not."""

    what: str
    can: bool
    said: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.can else 'no  '} {self.what:<22} {self.said}"


def report(name: str, *, context: int | None = None, batch: int = 1, device: str | None = None) -> str:
    """The table for a model; ``context`` defaults to the model's own.

    Errors of ``sparda.load`` are the caller's; all that is asked afterwards is a row.
    """
    from sparda.models.load import load

    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        model, _ = load(name, device=where)
        found = rows(model, context=context, batch=batch)
    said = [f"note {w.message}" for w in heard if issubclass(w.category, UserWarning)]
    return "\n".join([f"{name}: {type(model).__name__} on {where}", *map(str, found), *dict.fromkeys(said)])


def rows(model: Any, *, context: int | None = None, batch: int = 1) -> list[Row]:
    """All rows for a loaded Hugging Face model; nothing is raised for what it cannot do."""
    from sparda.models.check import checked, query_weights
    from sparda.models.layers import attention_layers

    attach = _row("attach", lambda: checked(model, looks_ahead=False), "every selector by its own query")
    if not attach.can:
        return [attach, *(Row(what, False, "see attach") for what in ("look-ahead", "train", "engine"))]
    config = attention_layers(model)[0].config
    limit, longest = _context(model, config, context)
    rule = rule_for(longest)
    found = [
        attach,
        _row("look-ahead", lambda: checked(model, looks_ahead=True), "Forecast and proxy, one layer early"),
        _row("proxy (InfiniGen)", lambda: query_weights(model), "queries are a linear map of their input"),
        _row("train", lambda: _train(model), "a Forecast, by `sparda train`"),
        _row("train --init query", lambda: query_weights(model), "starts from the next layer's queries"),
        limit,
    ]
    engine = _row("engine", lambda: _decoder(model, longest), "prefill, decode and offload on this device")
    return [*found, engine, _graph(engine), *_kernels(model, rule), *_memory(model, longest, batch, rule)]


def rule_for(context: int) -> Sparsity:
    """The block rule that sizes are told for: 64-token blocks, an eighth of them, at least the forced ones.

    >>> rule_for(131072).budget_blocks, rule_for(2048).budget_blocks, rule_for(64).block_size
    (256, 4, 16)
    """
    size = 64 if context >= 1024 else 16
    blocks = max(4, -(-context // size) // 8)
    return Sparsity(blocks, block_size=size, local_blocks=max(1, blocks // 4))


def _row(what: str, ask: Callable[[], Any], good: str) -> Row:
    try:
        ask()
    except (TypeError, ValueError, MemoryError, ImportError) as error:
        return Row(what, False, str(error))
    return Row(what, True, good)


def _context(model: Any, config: Any, asked: int | None) -> tuple[Row, int]:
    """The limit's row, and the context that the other rows are told for."""
    from sparda.models.layers import context_limit, rope_type, sliding_window

    limit, window = context_limit(config), sliding_window(config)
    how = f"{limit:,} tokens" if limit else "not stated in the config"
    how += f", RoPE scaled by {kind!r}" if (kind := rope_type(config)) != "default" else ""
    how += f"; some layers see {window:,} only, so texts up to that are served" if window else ""
    most = min((x for x in (limit, window) if x), default=4096)
    if asked is not None and asked > most:
        return Row("context", False, f"{how}; {asked:,} are too many: ask for {most:,} or less"), most
    return Row("context", True, how), asked or most


def _train(model: Any) -> None:
    from sparda.models.check import checked

    if Shape.of(model).n_layers < 2:
        raise TypeError("a Forecast chooses one layer ahead, and this model has one layer; use 'query'")
    if len(set(checked(model, looks_ahead=True))) > 1:
        raise TypeError("layers rotate in several ways, and a Forecast is trained for one; use 'query'")


def _decoder(model: Any, longest: int) -> None:
    from sparda.engine.weights import from_hugging_face

    from_hugging_face(model, longest)


def _graph(engine: Row) -> Row:
    if not torch.cuda.is_available():
        return Row(
            "CUDA graph", False, "no CUDA device here: the engine steps one by one; use a GPU for speed"
        )
    return Row("CUDA graph", engine.can, "a decode step is one graph" if engine.can else "see engine")


def _kernels(model: Any, rule: Sparsity) -> list[Row]:
    shape = Shape.of(model)
    wrong = limits.problems(shape.head_dim, rule)
    here = "" if torch.cuda.is_available() else " (no GPU here: their torch references run)"
    fine = [kernel for kernel in limits.POWERS_OF_TWO if kernel not in wrong]
    found = [Row("kernels", not wrong, f"{', '.join(fine) or 'none'}{here}")]
    mend = "run this model on the CPU"
    return [*found, *(Row(f"kernel {kernel}", False, f"{why}; {mend}") for kernel, why in wrong.items())]


def _memory(model: Any, longest: int, batch: int, rule: Sparsity) -> list[Row]:
    """What weights and cache take, offloaded with k blocks resident."""
    shape = Shape.of(model)
    weights = sum(p.nbytes for p in model.parameters())
    plan = Plan(
        batch, longest, shape.n_layers, shape.n_kv_heads, shape.head_dim, rule, "k", dtype=model.dtype
    )
    run = 2 * rule.block_size * shape.head_dim * plan.dtype.itemsize
    pairs = batch * shape.n_kv_heads
    resident = sum(plan.n_slots(layer) for layer in range(shape.n_layers)) * pairs * run
    whole = shape.n_layers * count_blocks(longest, rule) * pairs * run
    said = (
        f"weights {format_bytes(weights)}; KV {format_bytes(whole)}, offloaded at k = "
        f"{rule.budget_blocks} blocks of "
        f"{rule.block_size}: {format_bytes(resident)} on the device and {format_bytes(plan.host_bytes)} "
        "in host "
        "memory (modelled)"
    )
    return [Row(f"memory, {batch} x {longest:,}", True, said)]

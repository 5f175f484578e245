"""Checkers of chapter 01. Each calls the student's function with numbers that tell mistakes apart."""

from __future__ import annotations

import math

from sparda import costs
from sparda.bounds import decode_bound
from sparda.checks import Verdict, checker
from sparda.spec import model, sparsity


def _close(got: float, want: float) -> bool:
    return math.isclose(got, want, rel_tol=1e-6)


@checker
def ch01_ex1(student) -> Verdict:
    """student(*, n_layers, n_kv_heads, head_dim, dtype_bytes) -> bytes of K and V that one token adds."""
    for sizes in (
        {"n_layers": 3, "n_kv_heads": 5, "head_dim": 7, "dtype_bytes": 11},
        {"n_layers": 32, "n_kv_heads": 2, "head_dim": 128, "dtype_bytes": 2},
    ):
        got, want = student(**sizes), 2 * math.prod(sizes.values())
        if _close(2 * got, want):
            return Verdict("not yet", "this is half: a token adds a key and a value")
        if not _close(got, want):
            return Verdict("not yet", f"{sizes} gave {got}, expected {want}")
    return Verdict("ok")


@checker
def ch01_ex2(student) -> Verdict:
    """student(*, memory_bytes, weight_bytes, bytes_per_sequence) -> whole sequences that fit, at least 0."""
    cases = ((100, 20, 30, 2), (100, 10, 30, 3), (100, 120, 30, 0), (100, 200, 30, 0), (10**12, 0, 1, 10**12))
    for memory, weights, each, want in cases:
        got = student(memory_bytes=memory, weight_bytes=weights, bytes_per_sequence=each)
        if got != int(got):
            return Verdict("not yet", f"{got} sequences: count whole ones only")
        if got < 0:
            return Verdict("not yet", f"{got} sequences when the weights do not fit; answer 0 there")
        if got != want:
            hint = f"memory {memory}, weights {weights}, {each} each gave {got}, expected {want}"
            return Verdict("not yet", hint)
    return Verdict("ok")


@checker
def ch01_ex3(student) -> Verdict:
    """student(*, shape, batch, misses, gb_per_s) -> seconds that the misses of one step take on the link."""
    rule = sparsity("minicpm4.1-8b")
    # 8 KV heads first, so that a forgotten head does not look like a forgotten V
    for name, batch, misses, rate in (("llama-3-70b", 1, 1, 64.0), ("minicpm4.1-8b", 16, 11, 50.8)):
        shape = model(name)
        got = student(shape=shape, batch=batch, misses=misses, gb_per_s=rate)
        want = costs.miss_bytes(shape=shape, sparsity=rule, misses=misses, batch=batch) / (rate * 1e9)
        slips = {
            shape.n_layers / (shape.n_layers - 1): "layer 0 misses nothing: its K and V stay on the GPU",
            1 / shape.n_kv_heads: "misses are counted per KV head; multiply by the KV heads",
            0.5: "a block is 64 keys and 64 values",
            1e9 / 2**30: "GB/s are 10**9 bytes a second, not 2**30",
        }
        for factor, hint in slips.items():
            if _close(got, factor * want):
                return Verdict("not yet", hint)
        if not _close(got, want):
            return Verdict(
                "not yet", f"batch {batch}, {misses} misses gave {got:.3g} s, expected {want:.3g} s"
            )
    return Verdict("ok")


@checker
def ch01_ex4(student) -> Verdict:
    """student(*, batch) -> most misses of MiniCPM4.1-8B at 131072 tokens that memory reads still hide."""
    of = {"shape": model("minicpm4.1-8b"), "sparsity": sparsity("minicpm4.1-8b"), "n_tokens": 131_072}
    for batch in (1, 16, 64):
        got = student(batch=batch)
        if got != int(got) or not 0 <= got <= 96:
            return Verdict("not yet", f"batch {batch} gave {got}; misses are whole blocks, 0 to 96")
        if decode_bound(batch=batch, misses=got, **of).limit == "link":
            return Verdict("not yet", f"batch {batch}: with {got} misses the link is the limit already")
        if got < 96 and decode_bound(batch=batch, misses=got + 1, **of).limit == "memory":
            return Verdict("not yet", f"batch {batch}: {got + 1} misses are hidden too")
    return Verdict("ok")


@checker
def ch01_ex5(student) -> Verdict:
    """student(*, shape) -> percent of a model's parameters that its Forecasts add."""
    for name in ("minicpm4.1-8b", "llama-3-70b"):
        shape = model(name)
        got = student(shape=shape)
        want = 100 * costs.forecast_parameters(shape=shape) / shape.n_parameters
        if _close(100 * got, want):
            return Verdict("not yet", "this is the share; give it in percent")
        if _close(got, want * shape.group):
            return Verdict("not yet", "a Forecast has one head per KV head, not one per query head")
        if _close(got, want * (shape.n_layers - 1) / shape.n_layers):
            return Verdict("not yet", "layer 0 has a projection of its own: count it too")
        if not _close(got, want):
            return Verdict("not yet", f"{name} gave {got:.4g} %, expected {want:.4g} %")
    return Verdict("ok")

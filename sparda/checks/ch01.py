"""Checkers of chapter 01. Each calls the student's function with numbers that tell mistakes apart."""

from __future__ import annotations

import math

from sparda import costs
from sparda.bounds import decode_bound
from sparda.checks import Random, Verdict, checker, close, off
from sparda.checks.shapes import a_shape
from sparda.spec import model, sparsity


@checker
def ch01_ex1(student) -> Verdict:
    """student(*, n_layers, n_kv_heads, head_dim, dtype_bytes) -> bytes of K and V that one token adds."""
    draw, names = Random(), ("n_layers", "n_kv_heads", "head_dim", "dtype_bytes")
    fresh = [[draw.randrange(3, 99) for _ in names] for _ in range(2)]
    for numbers in ((3, 5, 7, 11), (32, 2, 128, 2), *fresh):
        sizes = dict(zip(names, numbers, strict=True))
        got, want = student(**sizes), 2 * math.prod(numbers)
        if close(2 * got, want):
            return Verdict("not yet", "this is half: a token adds a key and a value")
        if not close(got, want):
            return Verdict("not yet", f"{sizes} gave {got}, {off(got, want)}")
    return Verdict("ok")


@checker
def ch01_ex2(student) -> Verdict:
    """student(*, memory_bytes, weight_bytes, bytes_per_sequence) -> whole sequences that fit, at least 0."""
    draw = Random()
    cases = [(100, 20, 30), (100, 10, 30), (100, 120, 30), (100, 200, 30), (10**12, 0, 1)]
    cases += [(draw.randrange(500, 900), draw.randrange(400), draw.randrange(5, 60)) for _ in range(3)]
    for memory, weights, each in cases:
        got = student(memory_bytes=memory, weight_bytes=weights, bytes_per_sequence=each)
        want = max(0, (memory - weights) // each)
        if got == want:
            continue
        hint = f"memory {memory}, weights {weights}, {each} each gave {got}, {off(got, want)}"
        if got < 0:
            hint = f"{got} sequences when the weights do not fit; answer 0 there"
        elif got % 1:
            hint = f"{got} sequences: count whole ones only"
        return Verdict("not yet", hint)
    return Verdict("ok")


@checker(without=[costs.miss_bytes])
def ch01_ex3(student) -> Verdict:
    """student(*, shape, batch, misses, gb_per_s) -> seconds that the misses of one step take on the link."""
    rule, draw = sparsity("minicpm4.1-8b"), Random()
    # 8 KV heads first, so that a forgotten head does not look like a forgotten V
    cases = [(model("llama-3-70b"), 1, 1, 64.0), (model("minicpm4.1-8b"), 16, 11, 50.8)]
    cases.append((a_shape(draw), draw.randrange(2, 60), draw.randrange(2, 60), draw.uniform(10, 90)))
    for shape, batch, misses, rate in cases:
        got = student(shape=shape, batch=batch, misses=misses, gb_per_s=rate)
        want = costs.miss_bytes(shape=shape, sparsity=rule, misses=misses, batch=batch) / (rate * 1e9)
        slips = {
            shape.n_layers / (shape.n_layers - 1): "layer 0 misses nothing: its K and V stay on the GPU",
            1 / shape.n_kv_heads: "misses are counted per KV head; multiply by the KV heads",
            0.5: "a block is 64 keys and 64 values",
            1e9 / 2**30: "GB/s are 10**9 bytes a second, not 2**30",
        }
        for factor, hint in slips.items():
            if close(got, factor * want):
                return Verdict("not yet", hint)
        if not close(got, want):
            return Verdict("not yet", f"batch {batch}, {misses} misses gave {got:.3g} s, {off(got, want)}")
    return Verdict("ok")


@checker
def ch01_ex4(student) -> Verdict:
    """student(*, batch) -> most misses of MiniCPM4.1-8B at 131072 tokens that memory reads still hide."""
    of = {"shape": model("minicpm4.1-8b"), "sparsity": sparsity("minicpm4.1-8b"), "n_tokens": 131_072}
    for batch in (1, 16, 64, *Random().sample(range(2, 64), 4)):
        got = student(batch=batch)
        if got not in range(97):
            return Verdict("not yet", f"batch {batch} gave {got}; misses are whole blocks, 0 to 96")
        if decode_bound(batch=batch, misses=got, **of).limit == "link":
            return Verdict("not yet", f"batch {batch}: with {got} misses the link is the limit already")
        if got < 96 and decode_bound(batch=batch, misses=got + 1, **of).limit == "memory":
            return Verdict("not yet", f"batch {batch}: {got} is too few; one more is hidden too")
    return Verdict("ok")


@checker(without=[costs.forecast_parameters])
def ch01_ex5(student) -> Verdict:
    """student(*, shape) -> percent of a model's parameters that its Forecasts add."""
    for shape in (model("minicpm4.1-8b"), model("llama-3-70b"), a_shape(Random())):
        got = student(shape=shape)
        want = 100 * costs.forecast_parameters(shape=shape) / shape.n_parameters
        if close(100 * got, want):
            return Verdict("not yet", "this is the share; give it in percent")
        if close(got, want * shape.group):
            return Verdict("not yet", "a Forecast has one head per KV head, not one per query head")
        if close(got, want * (shape.n_layers - 1) / shape.n_layers):
            return Verdict("not yet", "layer 0 has a projection of its own: count it too")
        if not close(got, want):
            return Verdict("not yet", f"{shape.name} gave {got:.4g} %, {off(got, want)}")
    return Verdict("ok")

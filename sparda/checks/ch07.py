"""Checks of chapter 07: samples for an interval, a paired comparison, bytes of an index."""

from __future__ import annotations

import math

from sparda import costs
from sparda.checks import Random, Verdict, checker, close, off
from sparda.checks.shapes import a_shape
from sparda.evaluation.statistics import Z, sign_test, wilson
from sparda.spec import model, sparsity

RULE = sparsity("minicpm4.1-8b")


def samples_needed(share: float, half: float) -> int:
    """The fewest samples whose Wilson interval, at ``share`` right, is at most 2 * half wide."""
    n = 1
    while (limits := wilson(share * n, n))[1] - limits[0] > 2 * half:
        n += 1
    return n


@checker(without=[samples_needed])
def ch07_ex1(student) -> Verdict:
    """student(share, half) -> fewest samples whose Wilson interval is at most 2 * half wide."""
    draw = Random()
    fresh = [(round(draw.uniform(0.05, 0.95), 2), round(draw.uniform(0.04, 0.12), 3)) for _ in range(3)]
    for share, half in ((0.5, 0.05), (0.9, 0.03), (1.0, 0.02), *fresh):
        got, want = student(share, half), samples_needed(share, half)
        if got == want:
            continue
        simple = math.ceil(Z**2 * share * (1 - share) / half**2)
        slips = {
            samples_needed(share, half / 2): "`half` is half of the width; the whole may be twice as much",
            want - 1: "one more: the interval may be at most as wide, and yours is still wider",
            simple: "this is the simple interval, p plus or minus z sqrt(p (1 - p) / n); use Wilson's",
        }
        if got in slips:
            return Verdict("not yet", f"share {share:g}, half {half:g}: {slips[got]}")
        return Verdict("not yet", f"share {share:g}, half {half:g} gave {got}, {off(got, want)}")
    return Verdict("ok")


@checker(without=[sign_test])
def ch07_ex2(student) -> Verdict:
    """student(ours, theirs) -> (wins, losses, p): right (1) and wrong (0) on the same prompts, exact test."""
    draw, n = Random(), 14
    cases = [
        ([1, 1, 1, 1, 1, 1, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1, 1, 0, 1, 0]),
        ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 1, 1]),
        ([1, 1, 0], [1, 1, 0]),
        *(
            tuple([int(draw.random() < p) for _ in range(n)] for p in shares)
            for shares in ((0.9, 0.4), (0.4, 0.6))
        ),
    ]
    for ours, theirs in cases:
        gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
        wins, losses, p = gaps.count(1), gaps.count(-1), sign_test(gaps)
        got = tuple(student(list(ours), list(theirs)))
        if len(got) != 3:
            return Verdict("not yet", f"return wins, losses and p; got {len(got)} values")
        if got[:2] == (losses, wins) != (wins, losses):
            return Verdict("not yet", "wins and losses are swapped: a win is ours right and theirs wrong")
        if got[:2] != (wins, losses):
            hint = f"{got[0]} wins and {got[1]} losses; count where only one is right"
            return Verdict("not yet", f"ours {ours}, theirs {theirs}: {hint}")
        if close(got[2], p):
            continue
        if close(2 * got[2], p):
            return Verdict("not yet", "both sides count: as many losses would surprise as much")
        if got[2] > 1:
            return Verdict("not yet", f"p = {got[2]:.3g} is no probability; it ends at 1")
        if close(got[2], sign_test(gaps + [1, -1] * gaps.count(0)), 0.2):
            return Verdict("not yet", "prompts on which both agree say nothing; leave them out")
        return Verdict("not yet", f"{wins} wins, {losses} losses gave p = {got[2]:.4g}, {off(got[2], p)}")
    return Verdict("ok")


def index_bytes(*, shape, sparsity, n_tokens: int, method: str) -> int:
    """Bytes that one sequence's scoring keeps on the GPU, all layers, 2 bytes a number."""
    if method == "sparda":
        return costs.compressed_key_bytes(shape=shape, sparsity=sparsity, n_tokens=n_tokens)
    return costs.proxy_index_bytes(shape=shape, n_tokens=n_tokens)


@checker(without=[index_bytes, costs.compressed_key_bytes, costs.proxy_index_bytes])
def ch07_ex3(student) -> Verdict:
    """student(*, shape, sparsity, n_tokens, method) -> bytes that a sequence's scoring keeps on the GPU."""
    draw = Random()
    cases = [(model("smollm2-135m"), 8_192), (model("minicpm4.1-8b"), 131_072)]
    for shape, n_tokens in [*cases, (a_shape(draw), draw.randrange(50_000, 200_000))]:
        for method in ("sparda", "infinigen"):
            of = {"shape": shape, "sparsity": RULE, "n_tokens": n_tokens, "method": method}
            got, want = student(**of), index_bytes(**of)
            slips = {
                want / shape.n_layers: "this is one layer; every layer keeps its own",
                want * shape.n_heads / shape.n_kv_heads: "keys belong to KV heads, not to query heads",
                want / 2: "a number takes 2 bytes",
                2 * want: "keys only; values are not scored",
                4 * want: "InfiniGen keeps a quarter of the channels, not all of them",
                want * RULE.stride: "a compressed key begins every `stride` tokens, not every token",
            }
            if close(got, want, 1e-3):  # a window more or less at the end
                continue
            for slip, hint in slips.items():
                if close(got, slip, 1e-3):
                    return Verdict("not yet", f"{shape.name}, {method}: {hint}")
            hint = f"{shape.name}, {n_tokens} tokens, {method} gave {got:.6g} bytes, {off(got, want)}"
            return Verdict("not yet", hint)
    return Verdict("ok")

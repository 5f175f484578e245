"""Checks of chapter 06: split a gain, the link that a card deserves, misses of a cache with spare slots."""

from __future__ import annotations

from sparda.bounds import H200_RATES, decode_bound
from sparda.checks import Random, Verdict, checker, close, off
from sparda.spec import model, sparsity

OF = {"shape": model("minicpm4.1-8b"), "sparsity": sparsity("minicpm4.1-8b"), "n_tokens": 131_072}


@checker
def ch06_ex1(student) -> Verdict:
    """student(*, sparse, no_prefetch, sparda, sparda_best) -> {"selector", "overlap", "batch"}: factors.

    sparse, no_prefetch, sparda: tokens/s at one batch; sparda_best: SparDA's at its best batch
    """
    draw, names = Random(), ("sparse", "no_prefetch", "sparda", "sparda_best")
    for numbers in ((200.0, 250.0, 300.0, 1200.0), sorted(draw.uniform(100, 2000) for _ in names)):
        rates = dict(zip(names, numbers, strict=True))
        sparse, apart, full, best = numbers
        want = {"selector": apart / sparse, "overlap": full / apart, "batch": best / full}
        over_sparse = {"overlap": full / sparse, "batch": best / sparse}
        got = student(**rates)
        if set(got) != set(want):
            return Verdict("not yet", f"return a dict with {', '.join(want)}; got {', '.join(map(str, got))}")
        for name, factor in want.items():
            if close(got[name], factor):
                continue
            if close(got[name] * factor, 1):
                return Verdict("not yet", f"{name}: new over old, not old over new")
            if close(got[name], over_sparse.get(name, 0)):
                hint = f"{name}: over the step before it, not over Sparse: parts must multiply"
                return Verdict("not yet", hint)
            return Verdict("not yet", f"{rates}: {name} is {got[name]:.4g}, {off(got[name], factor)}")
    return Verdict("ok")


@checker
def ch06_ex2(student) -> Verdict:
    """student(*, batch, misses) -> GB/s from which the link is no longer the limit of a step."""
    draw = Random()
    for batch, misses in ((16, 11), (64, 11), (64, 5), (draw.randrange(5, 60), draw.randrange(12, 90))):
        bound = decode_bound(batch=batch, misses=misses, **OF)
        want = H200_RATES.link_gb_per_s * bound.link_s / bound.memory_s
        got = student(batch=batch, misses=misses)
        if close(got, want, 0.01):
            continue
        if close(got, H200_RATES.link_gb_per_s * bound.memory_s / bound.link_s, 0.01):
            return Verdict("not yet", "upside down: a slow link needs the larger factor, not the smaller one")
        if close(got * 2**30, want * 1e9, 0.01):
            return Verdict("not yet", "GB/s are 10**9 bytes a second, not 2**30")
        if close(got * 31, want * 32, 0.01) or close(got * 32, want * 31, 0.01):
            return Verdict("not yet", "31 layers fetch: layer 0 stays on the GPU")
        return Verdict("not yet", f"batch {batch}, {misses} misses gave {got:.4g} GB/s, {off(got, want)}")
    return Verdict("ok")


def misses_of(wanted: list[set[int]], slots: int, *, leaves: str = "recent") -> int:
    """Misses. leaves: "recent" (longest not wanted) or "oldest" (first to come); of equals the lower id."""
    held: dict[int, int] = {}  # block -> when it was wanted last, or when it came
    missed = 0
    for now, blocks in enumerate(wanted):
        missing = sorted(blocks - set(held))
        missed += len(missing)
        for block in blocks & set(held):
            held[block] = now if leaves == "recent" else held[block]
        free = sorted(set(held) - blocks, key=lambda block: (held[block], block))
        for block in free[: max(0, len(held) + len(missing) - slots)]:
            del held[block]
        held |= dict.fromkeys(missing, now)
    return missed


STEPS = [{1, 2}, {1, 3}, {1, 4}, {3, 5}, {1, 2}, {4, 5}, {1, 5}]


@checker(without=[misses_of])
def ch06_ex3(student) -> Verdict:
    """student(wanted, slots) -> misses of a cache, empty at first; what was wanted longest ago leaves."""
    draw = Random()
    cases = [(STEPS, 2), (STEPS, 3), (STEPS, 4), ([{7}, {8}, {9}, {7}, {8}], 3)]
    cases += [([set(draw.sample(range(6), 2)) for _ in range(8)], slots) for slots in (2, 3, 4)]
    for wanted, slots in cases:
        given = [set(blocks) for blocks in wanted]
        got, want, cold = student(given, slots), misses_of(wanted, slots), len(wanted[0])
        if given != wanted:
            return Verdict("not yet", "leave the wanted sets as they were given; copy what you change")
        if got == want:
            continue
        slips = {
            want - cold: f"the cache starts empty, so the first step misses {cold}",
            misses_of(wanted, max(map(len, wanted))): "keep blocks that were not wanted, while there is room",
            misses_of(
                wanted, slots, leaves="oldest"
            ): "what counts is when a block was wanted last, not when it came",
        }
        hint = slips.get(got, f"{wanted} gave {got} misses, {off(got, want)}")
        return Verdict("not yet", f"{slots} slots: {hint}")
    return Verdict("ok")

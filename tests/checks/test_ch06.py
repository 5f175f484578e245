"""Wrong answers of chapter 06 and what their hints say; test_exercises.py asks the checkers."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda.bounds import H200_RATES, decode_bound
from sparda.cache import Selection, difference, empty_maps
from sparda.checks.ch06 import OF, STEPS, misses_of


def factors(*, sparse, no_prefetch, sparda, sparda_best):
    return {"selector": no_prefetch / sparse, "overlap": sparda / no_prefetch, "batch": sparda_best / sparda}


def upside_down(**rates):
    return {name: 1 / factor for name, factor in factors(**rates).items()}


def all_over_sparse(*, sparse, no_prefetch, sparda, sparda_best):
    return {"selector": no_prefetch / sparse, "overlap": sparda / sparse, "batch": sparda_best / sparse}


def differences(*, sparse, no_prefetch, sparda, sparda_best):
    return {"selector": no_prefetch - sparse, "overlap": sparda - no_prefetch, "batch": sparda_best - sparda}


def link(*, batch, misses):
    bound = decode_bound(batch=batch, misses=misses, **OF)
    return H200_RATES.link_gb_per_s * bound.link_s / bound.memory_s


def inverse_link(*, batch, misses):
    return H200_RATES.link_gb_per_s**2 / link(batch=batch, misses=misses)


def recent(wanted, slots):
    held, missed = [], 0  # blocks, the one wanted longest ago first
    for blocks in wanted:
        missed += len(blocks - set(held))
        held = [block for block in held if block not in blocks] + sorted(blocks)
        held = held[-slots:]
    return missed


def only_k(wanted, slots):
    return recent(wanted, max(map(len, wanted)))


def first_come(wanted, slots):
    held, missed = [], 0  # the block that came first at the front
    for blocks in wanted:
        missing = sorted(blocks - set(held))
        missed += len(missing)
        leave = [block for block in held if block not in blocks][: max(0, len(held) + len(missing) - slots)]
        held = [block for block in held if block not in leave] + missing
    return missed


def warm(wanted, slots):
    return recent(wanted, slots) - len(wanted[0])


def wrong_only_with(case):
    """Right everywhere but in one of the checker's cases."""
    return lambda wanted, slots: recent(wanted, slots) + ((wanted, slots) == case)


WRONG = [
    ("ch06_ex1", upside_down, "selector: new over old"),
    ("ch06_ex1", all_over_sparse, "overlap: over the step before it"),
    ("ch06_ex1", differences, "selector is 50, too large"),
    ("ch06_ex1", lambda **_: {"selector": 1.25}, "return a dict with selector, overlap, batch; got selector"),
    ("ch06_ex2", inverse_link, "upside down"),
    ("ch06_ex2", lambda **k: link(**k) * 1e9 / 2**30, "not 2**30"),
    ("ch06_ex2", lambda **k: link(**k) * 32 / 31, "31 layers fetch"),
    ("ch06_ex2", lambda **k: 1.1 * link(**k), "too large"),
    ("ch06_ex3", only_k, "while there is room"),
    ("ch06_ex3", first_come, "wanted last, not when it came"),
    ("ch06_ex3", warm, "the cache starts empty"),
    ("ch06_ex3", lambda *_: 0, "gave 0 misses, too small"),
    *(("ch06_ex3", wrong_only_with((STEPS, slots)), f"{slots} slots: ") for slots in (2, 3, 4)),
    ("ch06_ex3", wrong_only_with(([{7}, {8}, {9}, {7}, {8}], 3)), "3 slots: "),
]


@given(
    wanted=st.lists(st.integers(0, 7), min_size=1, max_size=16),  # one block a step: no two are equally old
    slots=st.integers(2, 6),
)
def test_the_checker_counts_as_the_cache_does(wanted, slots):
    slot_block, block_slot = empty_maps(1, 1, slots, 9)
    out = Selection.empty(1, 1, 1, slots, torch.device("cpu"))
    missed = 0
    for step, block in enumerate(wanted):
        ids = torch.tensor([[[block]]], dtype=torch.int32)
        # far ahead, so that no wanted block is the query's own
        difference(ids, torch.tensor([8 * 100 + step]), slot_block, block_slot, 100, out)
        missed += int(out.count)
    assert missed == misses_of([{block} for block in wanted], slots)


def test_more_slots_never_miss_more():
    counts = [misses_of(STEPS, slots) for slots in range(2, 6)]
    assert counts == sorted(counts, reverse=True)

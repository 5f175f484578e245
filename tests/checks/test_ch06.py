"""Each checker of chapter 06 against its stub, its solution and wrong answers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda.bounds import H200_RATES, decode_bound
from sparda.cache import Selection, difference, empty_maps
from sparda.checks.ch06 import OF, STEPS, ch06_ex1, ch06_ex2, ch06_ex3, misses_of


def stub(*_args, **_keywords):
    return ...


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
    return misses_of(wanted, max(map(len, wanted)))


def first_come(wanted, slots):
    return misses_of(wanted, slots, leaves="oldest")


def warm(wanted, slots):
    return recent(wanted, slots) - len(wanted[0])


CASES = [
    (ch06_ex1, factors, [upside_down, all_over_sparse, differences, lambda **_: {"selector": 1.25}]),
    (ch06_ex2, link, [inverse_link, lambda **k: link(**k) * 1e9 / 2**30, lambda **k: link(**k) * 32 / 31]),
    (ch06_ex3, recent, [only_k, first_come, warm, lambda *_: 0]),
]


@pytest.mark.parametrize(("check", "solution", "wrong"), CASES)
def test_a_stub_is_to_do_the_solution_is_ok_and_wrong_answers_get_a_hint(
    check, solution, wrong, answers_back
):
    answers_back(check, stub, solution, wrong)


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

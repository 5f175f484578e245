"""Sizes of a store before it exists, and the pool of host memory behind it."""

from dataclasses import replace

import pytest
import torch

from sparda import plan as plans
from sparda.plan import HostPool, Plan
from sparda.spec import Sparsity

RULE = Sparsity(5, local_blocks=1, block_size=16)
PLAN = Plan(2, 200, 4, 3, 8, RULE)  # 2 sequences of 200 tokens, 4 layers, 3 KV heads of 8 channels: 13 blocks
RUN = 2 * 3 * 13 * 2 * 16 * 8  # numbers of one layer's host store


def test_a_layer_has_k_slots_a_number_of_them_or_one_for_each_block():
    assert [PLAN.n_slots(layer) for layer in range(4)] == [13, 5, 5, 5]
    assert replace(PLAN, layer0_resident=False).n_slots(0) == 5
    assert [replace(PLAN, slots=7).n_slots(layer) for layer in range(2)] == [13, 7]
    assert replace(PLAN, slots="full").n_slots(1) == 13


@pytest.mark.parametrize("slots", ["k", 5, 40])
def test_no_layer_has_more_slots_than_there_are_blocks(slots):
    assert replace(PLAN, max_tokens=33, slots=slots).n_slots(1) == 3


def test_all_layers_but_the_first_are_offloaded():
    assert [PLAN.offloads(layer) for layer in range(4)] == [False, True, True, True]
    assert replace(PLAN, layer0_resident=False).offloads(0)
    assert not any(replace(PLAN, slots="full", layer0_resident=False).offloads(layer) for layer in range(4))


@pytest.mark.parametrize(("kind", "size"), [(torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 2)])
def test_host_bytes_are_those_of_the_offloaded_layers_in_their_dtype(kind, size):
    made = replace(PLAN, dtype=kind)
    assert made.host_shape == (2, 3, 13, 2, 16, 8)
    assert made.host_bytes == HostPool(made).nbytes == 3 * RUN * size
    assert replace(made, layer0_resident=False).host_bytes == 4 * RUN * size
    assert replace(made, slots="full").host_bytes == HostPool(replace(made, slots="full")).nbytes == 0


def test_the_least_plan_there_can_be_is_taken_and_what_is_less_is_refused():
    assert Plan(1, 1, 1, 1, 1, RULE).n_blocks == 1
    assert replace(PLAN, slots=5).n_slots(1) == 5
    for wrong in ({"batch": 0}, {"max_tokens": 0}):
        with pytest.raises(ValueError, match="batch and max_tokens must be at least 1, got"):
            replace(PLAN, **wrong)
    with pytest.raises(ValueError, match="cache is 'full', 'k' or a number of slots, got 'all'"):
        replace(PLAN, slots="all")
    with pytest.raises(ValueError, match="cache = 4 slots cannot hold the 5 chosen blocks"):
        replace(PLAN, slots=4)


def test_each_layer_takes_memory_of_its_own_and_neighbours_share_it_if_asked():
    def pages(share):
        pool = HostPool(PLAN, share)
        taken = [pool.take(layer, PLAN) for layer in (1, 2, 3)]
        assert all(store.shape == PLAN.host_shape and store.dtype == PLAN.dtype for store in taken)
        return [store.data_ptr() for store in taken], pool.nbytes

    own, n_bytes = pages(1)
    assert len(set(own)) == 3
    assert n_bytes == 3 * RUN * 4
    shared, n_bytes = pages(2)  # layers 0 and 1, 2 and 3
    assert shared[0] != shared[1] == shared[2]
    assert n_bytes == 2 * RUN * 4


def test_a_pool_serves_what_is_smaller_and_refuses_what_is_larger_or_was_not_offloaded():
    pool = HostPool(PLAN)
    assert pool.take(1, replace(PLAN, batch=1)).shape == (1, 3, 13, 2, 16, 8)
    assert pool.take(1, replace(PLAN, dtype=torch.float16)).dtype == torch.float16
    for layer, wanted, says in (
        (1, replace(PLAN, batch=3), f"the pool holds {RUN * 4} bytes a layer"),
        (0, PLAN, "the pool has no memory for layer 0"),
        (4, PLAN, "the pool has no memory for layer 4"),
    ):
        with pytest.raises(ValueError, match=says):
            pool.take(layer, wanted)


def test_memory_is_asked_for_before_any_is_taken(monkeypatch):
    asked = []
    monkeypatch.setattr(plans, "expect_free", asked.append)
    HostPool(PLAN)
    HostPool(replace(PLAN, slots="full"))
    assert asked == [3 * RUN * 4]


def test_every_page_is_written_with_noise_of_the_plans_dtype():
    made = replace(PLAN, dtype=torch.bfloat16)
    pool = HostPool(made)
    stores = [pool.take(layer, made).fill_(torch.nan) for layer in (1, 2, 3)]
    pool.write(torch.Generator().manual_seed(0))
    for store in stores:
        assert 0.9 < float(store.float().std()) < 1.1
    assert not torch.equal(stores[0], stores[1])


def test_memory_is_pinned_for_a_gpu_and_ordinary_for_a_cpu(monkeypatch):
    pinned = []

    def pin(shape, dtype):
        pinned.append((shape, dtype))
        return torch.empty(shape, dtype=dtype)

    monkeypatch.setattr(plans, "pinned_empty", pin)
    HostPool(PLAN)
    assert pinned == []
    HostPool(replace(PLAN, device="cuda"))
    assert pinned == [((RUN * 4,), torch.uint8)] * 3

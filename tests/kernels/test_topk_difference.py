from dataclasses import replace

import pytest
import torch

from sparda import blocks, cache
from sparda.cache import Selection
from sparda.kernels import topk_difference
from sparda.spec import SPARSITY, Sparsity

SMALL = Sparsity(6, local_blocks=2)


def reference(scores, positions, slot_block, block_slot, rule, policy="recent", out=None):
    """The reference on the CPU; the maps given to it change, and so does out.last_use."""
    batch, heads, n_slots = slot_block.shape
    out = out or Selection.empty(batch, heads, rule.budget_blocks, n_slots, torch.device("cpu"))
    ids = blocks.select_blocks(scores.cpu()[:, :, None], positions.cpu()[:, None], rule)[:, :, 0]
    maps = slot_block, block_slot, rule.block_size, out
    return cache.difference(ids, positions.cpu(), *maps, policy=policy, scores=scores.cpu())


def assert_equal(got: Selection, want: Selection, step: int):
    for name in ("block_ids", "slot_ids", "tail_slot", "count", "last_use"):
        assert getattr(got, name).tolist() == getattr(want, name).tolist(), f"{name} of step {step}"
    assert got.misses() == want.misses(), f"misses of step {step}"


@pytest.mark.parametrize("policy", ["recent", "score"])
@pytest.mark.parametrize(("rule", "n_blocks", "n_slots", "steps"), [
    (SMALL, 24, 6, 5),  # exactly k slots
    (SMALL, 24, 9, 5),  # more than k
    (SMALL, 40, 13, 9),
    (SMALL, 4, 6, 3),  # a context shorter than the budget
    (Sparsity(3, init_blocks=0, local_blocks=0, block_size=16), 12, 3, 4),
])  # fmt: skip
def test_steps_follow_the_reference_from_an_empty_cache(rule, n_blocks, n_slots, steps, policy, device):
    maps = cache.empty_maps(2, 2, n_slots, n_blocks, device)
    want_maps = [m.cpu().clone() for m in maps]
    out = Selection.empty(2, 2, rule.budget_blocks, n_slots, device)
    want = Selection.empty(2, 2, rule.budget_blocks, n_slots, torch.device("cpu"))
    for step in range(steps):
        at = torch.tensor([step * 2, step + 1], device=device).clamp(max=n_blocks - 1)
        positions = at * rule.block_size + step
        scores = torch.randint(-2, 3, (2, 2, n_blocks), device=device).float()
        for name in ("block_ids", "slot_ids", "tail_slot", "src", "dst", "count", "scratch"):
            getattr(out, name).fill_(-77)
        topk_difference(scores, positions, *maps, rule, out=out, policy=policy)
        assert_equal(out, reference(scores, positions, *want_maps, rule, policy, want), step)
        assert all(torch.equal(m.cpu(), w) for m, w in zip(maps, want_maps, strict=True))
    assert int(out.ticket) == 0  # ready for the next launch


def test_the_example_of_the_slot_rule(device):
    # resident [5, 7, 9, tail 12], wanted {9, 11, 5, 12}: 11 goes to slot 1
    slot_block, block_slot = cache.empty_maps(1, 1, 4, 13, device)
    slot_block[0, 0] = torch.tensor([5, 7, 9, 12])
    block_slot[0, 0, [5, 7, 9, 12]] = torch.arange(4, dtype=torch.int32, device=device)
    scores = torch.zeros(1, 1, 13, device=device)
    scores[0, 0, [5, 9, 11]] = 1.0
    rule = Sparsity(4, init_blocks=0, local_blocks=0)
    got = topk_difference(scores, torch.tensor([12 * 64], device=device), slot_block, block_slot, rule)
    assert got.misses() == [(11, 1)]
    assert slot_block.tolist() == [[[5, 11, 9, 12]]]
    assert got.block_ids.tolist() == [[[5, 9, 11, 12]]]
    assert got.slot_ids.tolist() == [[[0, 2, 1, 3]]]
    assert got.tail_slot.tolist() == [[3]]


@pytest.mark.parametrize("policy", ["recent", "score"])
def test_queries_may_step_back_and_then_later_blocks_have_the_lowest_score(policy, device):
    maps, n_blocks, n_slots = cache.empty_maps(2, 1, 9, 24, device), 24, 9
    want_maps = [m.cpu().clone() for m in maps]
    out = Selection.empty(2, 1, 6, n_slots, device)
    want = Selection.empty(2, 1, 6, n_slots, torch.device("cpu"))
    noise = torch.Generator().manual_seed(0)
    for step, at in enumerate((20, 7, 23, 9, 11, 22, 8)):
        positions = torch.tensor([at * 64 + step, (30 - at) * 64 + step], device=device)
        scores = torch.rand(2, 1, n_blocks, generator=noise).to(device)  # later blocks have one too
        topk_difference(scores, positions, *maps, SMALL, out=out, policy=policy)
        assert_equal(out, reference(scores, positions, *want_maps, SMALL, policy, want), step)


def test_a_repeated_step_misses_nothing(device):
    maps = cache.empty_maps(1, 2, 6, 20, device)
    scores, positions = torch.rand(1, 2, 20, device=device), torch.tensor([19 * 64], device=device)
    first = topk_difference(scores, positions, *maps, SMALL)
    assert int(first.count) == 2 * 5  # the own block is new: no copy
    assert int(topk_difference(scores, positions, *maps, SMALL).count) == 0


def test_buffers_of_another_size_are_refused_before_anything_is_written(reference_only):
    maps, scores = cache.empty_maps(1, 1, 6, 20), torch.rand(1, 1, 20)
    out, rule = Selection.empty(1, 1, 6, 6, torch.device("cpu")), Sparsity(6, local_blocks=1)
    for name in ("slot_ids", "tail_slot", "src", "dst", "count", "ticket"):
        short = replace(out, **{name: getattr(out, name).flatten()[:0]})
        with pytest.raises(ValueError, match=f"out.{name}"):
            topk_difference(scores, torch.tensor([1200]), *maps, rule, out=short)
    maps[0][0, 0, 2] = -7
    with pytest.raises(ValueError, match="-1 for empty"):
        topk_difference(scores, torch.tensor([1200]), *maps, rule)


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["recent", "score"])
@pytest.mark.parametrize("n_slots", [96, 128, 192])
def test_forty_steps_at_131072_tokens(n_slots, policy, cuda):
    rule = SPARSITY["minicpm4.1-8b"]
    maps = cache.empty_maps(4, 2, n_slots, 2048, cuda)
    want_maps = [m.cpu().clone() for m in maps]
    out = Selection.empty(4, 2, rule.budget_blocks, n_slots, cuda)
    want = Selection.empty(4, 2, rule.budget_blocks, n_slots, torch.device("cpu"))
    for step in range(40):
        positions = torch.randint(0, 131_072, (4,), device=cuda)
        scores = torch.randint(-9, 9, (4, 2, 2048), device=cuda).float()
        topk_difference(scores, positions, *maps, rule, out=out, policy=policy)
        assert_equal(out, reference(scores, positions, *want_maps, rule, policy, want), step)
    assert torch.equal(maps[0].cpu(), want_maps[0])


@pytest.mark.gpu
def test_a_captured_graph_replays_the_step(cuda):
    maps = cache.empty_maps(2, 2, 8, 24, cuda)
    out, want = Selection.empty(2, 2, 6, 8, cuda), Selection.empty(2, 2, 6, 8, torch.device("cpu"))
    scores, positions = torch.rand(2, 2, 24, device=cuda), torch.tensor([700, 1500], device=cuda)
    topk_difference(scores, positions, *maps, SMALL, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        topk_difference(scores, positions, *maps, SMALL, out=out)
    want_maps = [m.cpu().clone() for m in maps]
    want.last_use.copy_(out.last_use)
    for step in range(5):
        scores.copy_(torch.rand_like(scores))
        positions += 1
        graph.replay()
        assert_equal(out, reference(scores, positions, *want_maps, SMALL, out=want), step)


def test_bad_input_is_refused_with_what_to_do(reference_only):
    scores, positions = torch.zeros(1, 1, 20), torch.tensor([64])
    maps = cache.empty_maps(1, 1, 6, 20)
    with pytest.raises(ValueError, match="at least k slots"):
        topk_difference(scores, positions, *cache.empty_maps(1, 1, 5, 20), SMALL)
    with pytest.raises(ValueError, match=r"only blocks 0\.\.19"):
        topk_difference(scores, positions * 30, *maps, SMALL)
    with pytest.raises(TypeError, match="slot_block must be int32"):
        topk_difference(scores, positions, maps[0].long(), maps[1], SMALL)
    with pytest.raises(ValueError, match="policy must be"):
        topk_difference(scores, positions, *maps, SMALL, policy="random")  # pyright: ignore
    maps[0][0, 0, 2] = 7
    with pytest.raises(ValueError, match="disagree"):
        topk_difference(scores, positions, *maps, SMALL)


@pytest.mark.parametrize("policy", [0, 1, 2])
def test_it_compiles_without_spills(policy, compiled):
    pointers = ["slot_block", "block_slot", "block_ids", "slot_ids", "tail_slot"]
    pointers += ["src", "dst", "count", "scratch", "last_use"]
    types = {"scores": "*fp32", "positions": "*i64", "ticket": "*i64", "n_blocks": "i32", "n_slots": "i32"}
    sizes = {"HEADS": 2, "S": 64, "INIT": 1, "LOCAL": 32, "K": 96, "KP": 128, "NP": 2048, "CP": 128}
    sizes |= {"POLICY": policy, "CHAINED": True}
    made = compiled(
        "sparda.kernels.topk_difference", "difference_kernel",
        signature=types | dict.fromkeys(pointers, "*i32"), constexprs=sizes, num_warps=8, launch_pdl=True,
    )  # fmt: skip
    assert made["usage"]["local"] == 0

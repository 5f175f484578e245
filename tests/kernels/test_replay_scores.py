import pytest
import torch

from sparda import cache
from sparda.cache import Selection
from sparda.kernels import replay_scores, topk_difference
from sparda.spec import Sparsity

RULE = Sparsity(8, local_blocks=2, block_size=16)  # 1 init, 2 local, the own block: 4 learned


def ranks(batch, heads, n_blocks, first, pool):
    """Random ranks of the candidates first .. first + pool - 1."""
    rank = torch.full((batch, heads, n_blocks), -1, dtype=torch.int32)
    order = torch.rand(batch, heads, pool).argsort(-1).int()
    rank[..., first : first + pool] = order
    return rank


def test_scores_equal_the_definition(device, poisoned):
    rank = ranks(2, 3, 1300, 1, 1200).to(device)
    positions = torch.tensor([131_071, 5], device=device)
    scores = poisoned(rank.shape, torch.float32, device)
    assert replay_scores(scores, rank, positions, misses=11, learned=62, pool=1200) is scores
    for b, p in enumerate(positions.tolist()):
        wanted = {(p * 11 + i) % 1200 for i in range(62)}
        want = [[float(r in wanted) for r in row] for row in rank[b].tolist()]
        assert scores[b].tolist() == want


@pytest.mark.parametrize("misses", [0, 1, 3, 4])
@pytest.mark.parametrize("n_slots", [8, 12])
def test_every_step_misses_exactly_as_often_as_asked_also_when_the_own_block_advances(
    misses, n_slots, device
):
    batch, heads, n_blocks, pool = 2, 2, 40, 24
    rank = ranks(batch, heads, n_blocks, 1, pool).to(device)
    maps = cache.empty_maps(batch, heads, n_slots, n_blocks, device)
    out = Selection.empty(batch, heads, 8, n_slots, device)
    scores = torch.empty(batch, heads, n_blocks, device=device)
    for step in range(7):  # the local window lies behind the candidates throughout
        positions = torch.tensor([28 * 16 + 12 + step, 33 * 16 + step], device=device)
        replay_scores(scores, rank, positions, misses=misses, learned=4, pool=pool)
        topk_difference(scores, positions, *maps, RULE, out=out)
        heads_of = [src // n_blocks for src, _ in out.misses()]
        assert step == 0 or [heads_of.count(head) for head in range(4)] == [misses] * 4


def test_a_pool_too_small_for_new_blocks_is_refused(reference_only):
    scores, rank = torch.zeros(1, 1, 9), torch.zeros(1, 1, 9, dtype=torch.int32)
    with pytest.raises(ValueError, match="at least 8 candidates, got 7"):
        replay_scores(scores, rank, torch.tensor([3]), misses=3, learned=5, pool=7)
    with pytest.raises(ValueError, match=r"rank must lie in -1\.\.6"):
        replay_scores(scores, rank + 7, torch.tensor([3]), misses=2, learned=5, pool=7)

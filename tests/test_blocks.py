"""The rules of selection: check values, then properties on shapes that hypothesis makes up."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda import blocks
from sparda.blocks import NEG_INF
from sparda.spec import Sparsity

FAR = Sparsity(budget_blocks=96)


def noise(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ids_of(mask):
    return mask.nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("tokens", "windows"),
    [(31, 0), (32, 1), (64, 3), (128, 7), (200, 11), (1024, 63), (32768, 2047), (131072, 8191)],
)
def test_the_number_of_compressed_keys_is_the_published_one(tokens, windows):
    assert blocks.count_windows(tokens, FAR) == windows
    if tokens <= 1024:
        assert blocks.compress_keys(noise(1, 1, tokens, 8), FAR).shape == (1, 1, windows, 8)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_a_compressed_key_is_the_float32_mean_of_its_window(kind):
    keys = noise(2, 3, 200, 16, dtype=kind)
    got = blocks.compress_keys(keys, FAR)
    assert got.dtype == kind
    for j in (0, 5, 10):
        want = keys[:, :, 16 * j : 16 * j + 32].float().mean(2).to(kind)
        assert torch.equal(got[:, :, j], want)


@pytest.mark.parametrize(
    ("position", "forced"),
    [(0, [0]), (2111, list(range(33))), (2176, [0, *range(2, 35)]), (131071, [0, *range(2015, 2048)])],
)
def test_forced_blocks_are_the_published_ones(position, forced):
    assert ids_of(blocks.forced_blocks(torch.tensor([[position]]), 2048, FAR)[0, 0]) == forced


def test_a_far_query_learns_62_of_its_96_blocks():
    scores = torch.rand(1, 2, 1, 2048, generator=torch.Generator().manual_seed(0))
    ids = blocks.select_blocks(scores, torch.tensor([[131071]]), FAR)
    forced = set(ids_of(blocks.forced_blocks(torch.tensor([[131071]]), 2048, FAR)[0, 0]))
    assert ids.shape == (1, 2, 1, 96)
    assert len(set(ids[0, 0, 0].tolist()) - forced) == 62


def test_a_window_is_visible_once_it_has_ended():
    positions = torch.tensor([[30, 31, 46, 47]])
    end = blocks.visible_windows(positions, 3, FAR)[0].int().tolist()
    assert end == [[0, 0, 0], [1, 0, 0], [1, 0, 0], [1, 1, 0]]
    positions = torch.tensor([[0, 15, 16, 31, 32]])
    start = blocks.visible_windows(positions, 3, Sparsity(96, visibility="start"))[0].int().tolist()
    assert start == [[1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
def test_a_block_takes_the_best_window_that_overlaps_it(block_size):
    rule = Sparsity(96, block_size=block_size)
    n_windows = 37
    scores = noise(n_windows)
    n_blocks = blocks.count_blocks(16 * (n_windows - 1) + 32, rule)
    got = blocks.pool_to_blocks(scores, n_blocks, rule)
    for b in range(n_blocks):
        overlap = [
            scores[j].item()
            for j in range(n_windows)
            if 16 * j < (b + 1) * block_size and 16 * j + 32 > b * block_size
        ]
        assert got[b].item() == max(overlap, default=NEG_INF)


def test_the_lower_block_id_wins_a_tie():
    scores = torch.zeros(1, 1, 1, 40)
    ids = blocks.select_blocks(scores, torch.tensor([[39 * 64 + 5]]), Sparsity(8, local_blocks=2))
    assert ids[0, 0, 0].tolist() == [0, 1, 2, 3, 4, 37, 38, 39]


def test_a_context_shorter_than_the_budget_reads_all_of_its_blocks():
    scores = noise(1, 1, 3, 3)
    positions = torch.tensor([[0, 70, 191]])
    ids = blocks.select_blocks(scores, positions, Sparsity(6, local_blocks=1))
    assert ids[0, 0].tolist() == [[0, -1, -1, -1, -1, -1], [0, 1, -1, -1, -1, -1], [0, 1, 2, -1, -1, -1]]


def test_unequal_lengths_select_as_if_each_sequence_were_alone():
    rule = Sparsity(5, local_blocks=1)
    keys, queries = noise(2, 3, 1000, 64), noise(2, 9, 1, 64, seed=1)
    positions = torch.tensor([[999], [417]])
    scores = blocks.query_scores(queries, blocks.compress_keys(keys, rule), positions, rule)
    both = blocks.select_blocks(blocks.pool_to_blocks(scores, 16, rule), positions, rule)
    alone_keys = blocks.compress_keys(keys[1:, :, :418], rule)
    alone = blocks.query_scores(queries[1:], alone_keys, positions[1:], rule)
    alone = blocks.select_blocks(blocks.pool_to_blocks(alone, 7, rule), positions[1:], rule)
    assert torch.equal(both[1:], alone)


@pytest.mark.parametrize("group", [1, 3, 4, 16])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_query_scores_follow_their_equation_for_any_group_and_scale(group, dim, scale):
    rule, heads, n = Sparsity(4, local_blocks=1), 2, 150
    q, k = noise(1, heads * group, 2, dim), noise(1, heads, n, dim, seed=1)
    compressed, positions = blocks.compress_keys(k, rule), torch.tensor([[20, 100]])
    got = blocks.query_scores(q, compressed, positions, rule, scale=scale)
    assert torch.all(got[:, :, 0] == NEG_INF)  # nothing is visible yet
    n_visible = blocks.count_windows(101, rule)
    for h in range(heads):
        want = torch.zeros(n_visible)
        for g in range(group):
            logits = compressed[0, h, :n_visible] @ q[0, h * group + g, 1]
            want += (logits * (scale or 1 / dim**0.5)).softmax(-1)
        torch.testing.assert_close(got[0, h, 1, :n_visible], want)
    assert torch.all(got[0, :, 1, n_visible:] == NEG_INF)


def test_scale_and_softmax_cannot_change_what_one_forecast_head_chooses():
    rule = Sparsity(6, local_blocks=1)
    f, k = noise(1, 2, 4, 64), noise(1, 2, 1500, 64, seed=1)
    compressed, positions = blocks.compress_keys(k, rule), torch.tensor([[1499, 1200, 900, 333]])
    raw = blocks.pool_to_blocks(blocks.forecast_scores(f, compressed, positions, rule), 24, rule)
    soft = blocks.pool_to_blocks(blocks.query_scores(f, compressed, positions, rule), 24, rule)
    same = blocks.select_blocks(raw, positions, rule) == blocks.select_blocks(soft, positions, rule)
    assert same.all()


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 12),
    budget=st.integers(3, 14),
    block_size=st.sampled_from([16, 32, 64, 128]),
    seed=st.integers(0, 99),
)
def test_selection_is_a_set_within_budget_that_keeps_the_best(n, budget, block_size, seed):
    generator = torch.Generator().manual_seed(seed)
    rule = Sparsity(budget, block_size=block_size, local_blocks=1)
    scores = torch.randint(0, 3, (2, 3, 4, n), generator=generator).float()  # many ties on purpose
    positions = torch.randint(0, n * block_size, (2, 4), generator=generator)
    ids = blocks.select_blocks(scores, positions, rule)
    chosen = blocks.block_mask(ids, n)
    own = (positions // block_size)[:, None, :, None]
    allowed = torch.arange(n) <= own
    forced = blocks.forced_blocks(positions, n, rule)[:, None]
    assert ids.shape == (2, 3, 4, budget)
    assert torch.equal(chosen.sum(-1), (own + 1).clamp(max=budget)[..., 0].expand(2, 3, 4))
    assert not (chosen & ~allowed).any()
    assert (chosen | ~forced).all()
    real = ids >= 0
    assert ((ids.diff(dim=-1) > 0) | ~real[..., 1:]).all()  # ascending, padding only at the end
    worst_in = scores.masked_fill(~chosen | forced, float("inf")).amin(-1)
    best_out = scores.masked_fill(chosen | ~allowed, NEG_INF).amax(-1)
    assert (worst_in >= best_out).all()


def test_the_reference_path_selects_from_2048_blocks_at_128k_tokens():
    rule = FAR
    keys, queries = noise(1, 1, 131072, 64), noise(1, 4, 8, 64, seed=1)
    positions = torch.arange(131064, 131072)[None]
    scores = blocks.query_scores(queries, blocks.compress_keys(keys, rule), positions, rule)
    ids = blocks.select_blocks(blocks.pool_to_blocks(scores, 2048, rule), positions, rule)
    assert ids.shape == (1, 1, 8, 96)
    assert ids.max() == 2047


def test_everything_is_made_where_the_inputs_are_whatever_the_default_device():
    rule, positions = Sparsity(3, local_blocks=0), torch.tensor([[20, 400]])
    queries, keys = noise(1, 4, 2, 16), noise(1, 2, 420, 16, seed=1)

    def choose():
        scores = blocks.query_scores(queries, blocks.compress_keys(keys, rule), positions, rule)
        ids = blocks.select_blocks(blocks.pool_to_blocks(scores, 7, rule), positions, rule)
        return blocks.block_mask(ids, 7)

    want = choose()
    with torch.device("meta"):
        assert torch.equal(choose(), want)


@pytest.mark.parametrize("wrong", [4.5, "8", None])
def test_sizes_are_whole_numbers(wrong):
    with pytest.raises(TypeError, match="budget_blocks is a whole number"):
        Sparsity(budget_blocks=wrong)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_score_that_could_displace_a_forced_block_is_refused(bad):
    with pytest.raises(ValueError, match=r"NaN or \+inf"):
        blocks.select_blocks(torch.full((1, 1, 1, 3), bad), torch.tensor([[0]]), FAR)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Sparsity(budget_blocks=33), "raise budget_blocks to 34"),
        (lambda: Sparsity(96, block_size=40), "block_size 40 must be a multiple of stride 16"),
        (lambda: Sparsity(96, visibility="now"), "'end' or 'start'"),
        (lambda: Sparsity(0), "at least 1"),
        (lambda: blocks.compress_keys(torch.zeros(3, 4), FAR), "must be"),
        (lambda: blocks.select_blocks(torch.zeros(1, 1, 1, 3), torch.tensor([[192]]), FAR), "only 3 blocks"),
        (lambda: blocks.select_blocks(torch.full((1, 1, 1, 3), torch.nan), torch.tensor([[0]]), FAR), "NaN"),
        (
            lambda: blocks.forecast_scores(
                torch.zeros(1, 4, 1, 8), torch.zeros(1, 2, 3, 8), torch.zeros(1, 1), FAR
            ),
            "one head per KV head",
        ),
    ],
)
def test_a_mistake_is_named_with_its_remedy(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()

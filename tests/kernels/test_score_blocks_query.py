import sys

import pytest
import torch

from sparda import blocks
from sparda.kernels import score_blocks_query
from sparda.spec import Sparsity

# B, H, G, d, T, T_q
CASES = [(2, 1, 3, 64, 600, 1), (1, 2, 4, 64, 300, 7), (1, 1, 16, 128, 500, 1), (1, 1, 1, 32, 200, 20)]
GPU_CASES = [(4, 2, 16, 128, 20_000, 1), (1, 2, 16, 128, 6000, 300), (1, 1, 20, 64, 3000, 130)]
KINDS = [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 1e-2)]


def inputs(case, kind, device, rule):
    batch, heads, group, dim, n_tokens, n_queries = case
    q = torch.randn(batch, heads * group, n_queries, dim, device=device).to(kind)
    compressed = torch.randn(batch, heads, blocks.count_windows(n_tokens, rule), dim, device=device).to(kind)
    return q, compressed, torch.randint(0, n_tokens, (batch, n_queries), device=device)


def reference(q, compressed, positions, rule, n_blocks, scale=None):
    scores = blocks.query_scores(q.cpu(), compressed.cpu(), positions.cpu(), rule, scale=scale)
    return blocks.pool_to_blocks(scores, n_blocks, rule)


def score_error(got, want, error):
    got, want = got.cpu(), want.cpu()
    assert torch.equal(got.isneginf(), want.isneginf())
    seen = ~want.isneginf()
    return error(got[seen], want[seen])


@pytest.mark.parametrize(("kind", "limit"), KINDS)
@pytest.mark.parametrize("case", CASES + GPU_CASES)
def test_block_scores_equal_the_reference_and_every_one_is_written(
    case, kind, limit, device, error, poisoned
):
    if device.type == "cpu" and (kind is torch.bfloat16 or case in GPU_CASES):
        pytest.skip("this case runs on a GPU only")
    rule, n_blocks = Sparsity(96), blocks.count_blocks(case[4], Sparsity(96))
    given = inputs(case, kind, device, rule)
    out = poisoned((case[0], case[1], case[5], n_blocks), torch.float32, device)
    score_blocks_query(*given, rule, n_blocks, out=out)
    assert score_error(out, reference(*given, rule, n_blocks), error) <= limit


@pytest.mark.parametrize(("kind", "limit"), [(torch.float32, 1e-5), (torch.float16, 1e-2)])
def test_the_last_queries_of_a_prompt(kind, limit, device, error):
    # most windows are seen by every row of a tile: the pass without masks
    on_gpu = device.type == "cuda"
    rule, n_tokens, n_queries = Sparsity(96), 9000 if on_gpu else 3000, 140 if on_gpu else 5
    q, compressed, _ = inputs((1, 1, 3, 64, n_tokens, n_queries), kind, device, rule)
    positions = torch.arange(n_tokens - n_queries, n_tokens, device=device)[None]
    n_blocks = blocks.count_blocks(n_tokens, rule)
    got = score_blocks_query(q, compressed, positions, rule, n_blocks)
    assert score_error(got, reference(q, compressed, positions, rule, n_blocks), error) <= limit


@pytest.mark.parametrize("n_queries", [1, 3])
def test_normalisers_of_several_splits_are_merged(n_queries, device, error, monkeypatch):
    module = sys.modules["sparda.kernels.score_blocks_query"]
    real = module.log_sum_exps
    monkeypatch.setattr(module, "log_sum_exps", lambda *a, split, **b: real(*a, split=64, **b))
    rule, n_tokens = Sparsity(96), 4000  # 249 windows: 4 splits
    q, compressed, _ = inputs((1, 1, 3, 16, n_tokens, n_queries), torch.float32, device, rule)
    positions = torch.tensor([[3999, 20, 1500][:n_queries]], device=device)
    n_blocks = blocks.count_blocks(n_tokens, rule)
    got = score_blocks_query(q, compressed, positions, rule, n_blocks)
    assert score_error(got, reference(q, compressed, positions, rule, n_blocks), error) <= 1e-5


@pytest.mark.parametrize("size", [16, 32, 128])
def test_other_block_sizes_and_a_given_scale(size, device, error):
    rule = Sparsity(12, block_size=size, local_blocks=2, visibility="start")
    given = inputs((1, 1, 5, 64, 400, 3), torch.float32, device, rule)
    n_blocks = blocks.count_blocks(400, rule)
    got = score_blocks_query(*given, rule, n_blocks, scale=0.3)
    assert score_error(got, reference(*given, rule, n_blocks, scale=0.3), error) <= 1e-5


@pytest.mark.parametrize("n_queries", [1, 20])
def test_a_prompt_shorter_than_a_window_has_no_scores(n_queries, device):
    rule = Sparsity(96)
    given = inputs((2, 1, 3, 64, 20, n_queries), torch.float32, device, rule)
    assert given[1].shape[2] == 0
    assert score_blocks_query(*given, rule, 1).isneginf().all()


def test_large_logits_do_not_overflow(device, error):
    rule = Sparsity(96)
    q, compressed, positions = inputs((1, 1, 2, 64, 300, 4), torch.float32, device, rule)
    got = score_blocks_query(q * 30, compressed, positions, rule, 5)
    assert score_error(got, reference(q * 30, compressed, positions, rule, 5), error) <= 1e-4  # logits ~ 700


def test_a_group_that_does_not_divide_is_refused(reference_only):
    q, compressed, positions = inputs((1, 2, 3, 64, 300, 4), torch.float32, "cpu", Sparsity(96))
    with pytest.raises(ValueError, match="cannot be grouped"):
        score_blocks_query(q[:, :5].contiguous(), compressed, positions, Sparsity(96), 5)


@pytest.mark.parametrize("group", [1, 3, 16])
def test_both_passes_compile_to_warpgroup_products(group, compiled):
    padded = 1 << (group - 1).bit_length()
    shared = {"HEADS": 2, "G": group, "D": 128, "PRECISION": "tf32", "REACH": 31, "STRIDE": 16}
    types = {"q": "*bf16", "compressed": "*bf16", "positions": "*i64", "lse": "*fp32", "out": "*fp32"}
    types |= dict.fromkeys(("n_queries", "n_windows", "n_blocks", "split_windows", "n_splits"), "i32")
    types["scale"] = "fp32"
    passes = {
        "normaliser_kernel": {"BM": 128, "BN": 128},
        "pooled_kernel": {"GP": padded, "BT": 256 // padded, "NB": 128, "SPLITS": 1, "R": 4, "BEFORE": 1},
    }
    for name, tile in passes.items():
        made = compiled(
            "sparda.kernels.score_blocks_query", name, signature=types, constexprs=shared | tile, num_warps=8,
            num_stages=3,
        )  # fmt: skip
        assert "wgmma" in made["ptx"]
        assert made["usage"]["local"] == 0

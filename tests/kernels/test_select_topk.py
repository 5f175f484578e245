import pytest
import torch

from sparda import blocks
from sparda.kernels import score_blocks, select_topk
from sparda.spec import SPARSITY, Sparsity

RULE = Sparsity(8, local_blocks=2)


@pytest.mark.parametrize(
    ("rule", "n_blocks", "n_queries"),
    [(RULE, 40, 6), (RULE, 5, 3), (Sparsity(4, init_blocks=0, local_blocks=3), 33, 4),
     (SPARSITY["minicpm4.1-8b"], 300, 3)],
)  # fmt: skip
def test_the_set_equals_the_reference_on_integers_with_many_ties(rule, n_blocks, n_queries, device, poisoned):
    scores = torch.randint(-2, 3, (2, 2, n_queries, n_blocks), device=device).float()
    scores[torch.rand_like(scores) < 0.2] = float("-inf")
    positions = torch.randint(0, n_blocks * 64, (2, n_queries), device=device)
    out = poisoned((2, 2, n_queries, rule.budget_blocks), torch.int32, device)
    select_topk(scores, positions, rule, out=out)
    assert out.tolist() == blocks.select_blocks(scores.cpu(), positions.cpu(), rule).tolist()


def test_negative_zero_ties_with_zero(device):
    scores = torch.tensor([0.0, -1.0, -0.0, 0.0, -0.0, 0.0, 0.0, 0.0], device=device)[None, None, None]
    positions = torch.tensor([[7 * 64]], device=device)
    rule = Sparsity(3, init_blocks=0, local_blocks=0)
    assert select_topk(scores, positions, rule).tolist() == [[[[0, 2, 7]]]]


def test_scores_of_every_size_and_sign_keep_their_order(device):
    scores = torch.tensor([-3e38, -1e-40, 1e-40, 3e38, -2.0, 2.0, 1.0, 0.0], device=device)[None, None, None]
    positions = torch.tensor([[7 * 64]], device=device)
    for budget in range(1, 9):
        rule = Sparsity(budget, init_blocks=0, local_blocks=0)
        want = blocks.select_blocks(scores.cpu(), positions.cpu(), rule).tolist()
        assert select_topk(scores, positions, rule).tolist() == want


@pytest.mark.gpu
def test_random_scores_at_131072_tokens(cuda):
    rule, scores = SPARSITY["minicpm4.1-8b"], torch.randn(1, 2, 500, 2048, device=cuda)
    positions = torch.randint(0, 131_072, (1, 500), device=cuda)
    want = blocks.select_blocks(scores.cpu(), positions.cpu(), rule)
    assert torch.equal(select_topk(scores, positions, rule).cpu().long(), want)


def test_bad_input_is_refused_with_what_to_do(reference_only):
    scores, positions = torch.zeros(1, 1, 1, 5), torch.tensor([[5 * 64]])
    with pytest.raises(ValueError, match=r"only blocks 0\.\.4 have scores"):
        select_topk(scores, positions, RULE)
    with pytest.raises(ValueError, match="hold NaN"):
        select_topk(scores * float("nan"), positions - 64, RULE)
    with pytest.raises(TypeError, match="must be float32"):
        select_topk(scores.half(), positions - 64, RULE)


def test_it_compiles_without_spills(compiled):
    made = compiled(
        "sparda.kernels.select_topk", "topk_kernel",
        signature={"scores": "*fp32", "positions": "*i64", "block_ids": "*i32", "n_queries": "i32",
                   "n_blocks": "i32"},
        constexprs={"HEADS": 2, "S": 64, "INIT": 1, "LOCAL": 32, "K": 96, "KP": 128, "NP": 2048}, num_warps=2,
    )  # fmt: skip
    assert made["usage"]["local"] == 0


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_scored_sets_differ_from_the_reference_at_the_boundary_only(kind, device):
    if device.type == "cpu" and kind is torch.bfloat16:
        pytest.skip("bfloat16 runs on a GPU only")
    n_tokens, n_queries = (20_000, 64) if device.type == "cuda" else (1500, 2)
    n_blocks = blocks.count_blocks(n_tokens, RULE)
    forecast = torch.randn(2, 2, n_queries, 64, device=device).to(kind)
    compressed = torch.randn(2, 2, blocks.count_windows(n_tokens, RULE), 64, device=device).to(kind)
    positions = torch.randint(n_tokens // 2, n_tokens, (2, n_queries), device=device)
    got = select_topk(score_blocks(forecast, compressed, positions, RULE, n_blocks), positions, RULE).cpu()
    exact = blocks.forecast_scores(forecast.cpu(), compressed.cpu(), positions.cpu(), RULE)
    scores = blocks.pool_to_blocks(exact, n_blocks, RULE)
    want = blocks.select_blocks(scores, positions.cpu(), RULE)
    for mine, theirs, row in zip(got.flatten(0, 2), want.flatten(0, 2), scores.flatten(0, 2), strict=True):
        only = set(mine.tolist()) ^ set(theirs.tolist())
        values = row[sorted(only)]
        assert not only or values.max() - values.min() <= 1e-5 * row[row.isfinite()].abs().max()

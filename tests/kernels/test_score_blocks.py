import pytest
import torch

from sparda import blocks
from sparda.kernels import compress_keys, score_blocks, score_blocks_query, select_topk
from sparda.spec import Sparsity

# B, H, d, T, T_q: one query is the decode kernel, several the prefill kernel
CASES = [(2, 2, 64, 1000, 1), (2, 1, 64, 300, 5), (1, 1, 128, 900, 40), (3, 1, 16, 40, 1)]
GPU_CASES = [(4, 2, 128, 20_000, 1), (1, 2, 128, 6000, 700), (2, 3, 64, 3000, 129)]
KINDS = [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 1e-2)]


def score_error(got, want, error):
    """Error over RMS where the reference is finite; elsewhere both must be -inf."""
    got, want = got.cpu(), want.cpu()
    assert torch.equal(got.isneginf(), want.isneginf())
    seen = ~want.isneginf()
    return error(got[seen], want[seen])


def inputs(case, kind, device):
    batch, heads, dim, n_tokens, n_queries = case
    n_windows = blocks.count_windows(n_tokens, Sparsity(96))
    forecast = torch.randn(batch, heads, n_queries, dim, device=device).to(kind)
    compressed = torch.randn(batch, heads, n_windows, dim, device=device).to(kind)
    positions = torch.randint(0, n_tokens, (batch, n_queries), device=device)
    return forecast, compressed, positions


def reference(forecast, compressed, positions, rule, n_blocks):
    scores = blocks.forecast_scores(forecast.cpu(), compressed.cpu(), positions.cpu(), rule)
    return blocks.pool_to_blocks(scores, n_blocks, rule)


@pytest.mark.parametrize(("kind", "limit"), KINDS)
@pytest.mark.parametrize("case", CASES + GPU_CASES)
def test_block_scores_equal_the_reference_and_every_one_is_written(
    case, kind, limit, device, error, poisoned
):
    if device.type == "cpu" and (kind is torch.bfloat16 or case in GPU_CASES):
        pytest.skip("this case runs on a GPU only")
    rule, n_blocks = Sparsity(96), blocks.count_blocks(case[3], Sparsity(96))
    given = inputs(case, kind, device)
    out = poisoned((*given[0].shape[:3], n_blocks), torch.float32, device)
    assert score_blocks(*given, rule, n_blocks, out=out) is out
    assert score_error(out, reference(*given, rule, n_blocks), error) <= limit


@pytest.mark.parametrize("n_queries", [1, 20])
def test_a_prompt_shorter_than_a_window_has_no_scores(n_queries, device):
    given = inputs((2, 2, 64, 20, n_queries), torch.float32, device)
    assert given[1].shape[2] == 0
    assert score_blocks(*given, Sparsity(96), 1).isneginf().all()


@pytest.mark.parametrize(
    "rule",
    [
        Sparsity(12, block_size=16, local_blocks=2),
        Sparsity(12, block_size=32, local_blocks=2),
        Sparsity(12, block_size=128, local_blocks=2, visibility="start"),
        Sparsity(12, block_size=64, local_blocks=2, window=64),
    ],
)
@pytest.mark.parametrize("n_queries", [1, 4])
def test_other_block_sizes_windows_and_visibility(rule, n_queries, device, error):
    forecast, _, positions = inputs((2, 2, 64, 700, n_queries), torch.float32, device)
    n_windows, n_blocks = blocks.count_windows(700, rule), blocks.count_blocks(700, rule)
    compressed = torch.randn(2, 2, n_windows, 64, device=device)
    got = score_blocks(forecast, compressed, positions, rule, n_blocks)
    want = reference(forecast, compressed, positions, rule, n_blocks)
    assert score_error(got, want, error) <= 1e-5


TOKENS = Sparsity(96, window=1, stride=1)


@pytest.mark.parametrize(("n_tokens", "n_queries"), [(330, 1), (450, 5), (131_072, 1), (9000, 300)])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_a_rule_of_single_tokens_scores_an_index_of_every_token(n_tokens, n_queries, kind, device, error):
    if device.type == "cpu" and (kind is torch.bfloat16 or n_tokens > 1000):
        pytest.skip("this case runs on a GPU only")
    forecast = torch.randn(2, 2, n_queries, 32, device=device).to(kind)
    index = torch.randn(2, 2, n_tokens, 32, device=device).to(kind)
    positions = torch.randint(0, n_tokens, (2, n_queries), device=device)
    index[:, :, int(positions.max()) + 1 :] = float("nan")  # not written yet
    n_blocks = blocks.count_blocks(n_tokens, TOKENS)
    got = score_blocks(forecast, index, positions, TOKENS, n_blocks)
    want = reference(forecast, index.nan_to_num(), positions, TOKENS, n_blocks)
    assert score_error(got, want, error) <= (1e-5 if kind is torch.float32 else 1e-2)


@pytest.mark.parametrize(("dim", "kind"), [(80, torch.float32), (96, torch.bfloat16), (8, torch.float64)])
def test_the_reference_takes_any_head_dimension_stride_and_float64(dim, kind, reference_only):
    rule = Sparsity(5, block_size=48, local_blocks=1)  # three windows a block
    compressed = torch.randn(2, 3, 30, dim, 2, dtype=kind)[..., 0]
    forecast = torch.randn(2, 4, 3, dim, dtype=kind).transpose(1, 2)
    positions = torch.randint(0, 480, (2, 4))
    got = score_blocks(forecast, compressed, positions, rule, 10)
    assert torch.equal(got, reference(forecast, compressed, positions, rule, 10))
    want = blocks.pool_to_blocks(blocks.query_scores(forecast, compressed, positions, rule), 10, rule)
    assert torch.equal(score_blocks_query(forecast, compressed, positions, rule, 10), want)
    assert select_topk(got, positions, rule).tolist() == blocks.select_blocks(got, positions, rule).tolist()
    keys = torch.randn(2, 200, 3, dim, dtype=kind).transpose(1, 2)
    assert torch.equal(compress_keys(keys, rule), blocks.compress_keys(keys, rule))


@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
def test_tiles_that_every_query_sees_in_full(kind, device, error):
    # the last queries of a prompt: most tiles need no mask, the first and the last ones do
    rule, n_tokens, n_queries = Sparsity(96), 9000, 140 if device.type == "cuda" else 33
    forecast, compressed, _ = inputs((1, 2, 64, n_tokens, n_queries), kind, device)
    positions = torch.arange(n_tokens - n_queries, n_tokens, device=device)[None]
    got = score_blocks(forecast, compressed, positions, rule, 141)
    assert score_error(got, reference(forecast, compressed, positions, rule, 141), error) <= 1e-5


@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
def test_an_early_and_a_late_query_in_one_tile_each_see_their_own_windows(kind, device, error):
    rule, n_tokens = Sparsity(96), 9000  # the second tile of blocks begins with window 127 or 255
    forecast, compressed, _ = inputs((1, 1, 16, n_tokens, 3), kind, device)
    positions = torch.tensor([[8999, 100, 4200]], device=device)
    got = score_blocks(forecast, compressed, positions, rule, 141)
    assert score_error(got, reference(forecast, compressed, positions, rule, 141), error) <= 1e-5


def test_float32_is_multiplied_in_float32():
    from sparda.kernels.score_blocks import dot_precision

    assert dot_precision(torch.zeros(1)) == "ieee"
    assert dot_precision(torch.zeros(1, dtype=torch.bfloat16)) == "tf32"


@pytest.mark.gpu
def test_compressed_keys_of_more_than_2_to_the_31_elements_are_addressed(cuda, error):
    forecast = torch.randn(1100, 2, 1, 128, device=cuda, dtype=torch.bfloat16)
    compressed = torch.randn(1100, 2, 8191, 128, device=cuda, dtype=torch.bfloat16)
    positions = torch.full((1100, 1), 131_071, device=cuda)
    got = score_blocks(forecast, compressed, positions, Sparsity(96), 2048)[-1:]
    want = reference(forecast[-1:], compressed[-1:], positions[-1:], Sparsity(96), 2048)
    assert score_error(got, want, error) <= 1e-5


@pytest.mark.parametrize("n_queries", [1, 3])
def test_rows_that_no_query_sees_may_hold_nan(n_queries, device):
    forecast, compressed, _ = inputs((1, 1, 64, 600, n_queries), torch.float32, device)
    compressed[:, :, 6:] = float("nan")
    positions = torch.full((1, n_queries), 5 * 16 + 31, device=device)
    scores = score_blocks(forecast, compressed, positions, Sparsity(96), 10)
    assert not scores.isnan().any()
    assert scores.isneginf()[..., 2:].all()


def test_before_the_first_window_ends_no_block_has_a_score(device):
    forecast, compressed, _ = inputs((1, 1, 64, 64, 1), torch.float32, device)
    positions = torch.full((1, 1), 30, device=device)
    assert score_blocks(forecast, compressed, positions, Sparsity(96), 1).isneginf().all()


def test_cpu_tensors_take_the_reference(reference_only):
    rule, given = Sparsity(96), inputs((2, 2, 64, 300, 3), torch.bfloat16, "cpu")
    assert torch.equal(score_blocks(*given, rule, 5), reference(*given, rule, 5))


def test_clear_errors_at_the_wrapper(reference_only):
    rule = Sparsity(96)
    forecast, compressed, positions = inputs((2, 2, 64, 300, 3), torch.float32, "cpu")
    with pytest.raises(ValueError, match="raise n_blocks"):
        score_blocks(forecast, compressed, positions + 500, rule, 5)
    with pytest.raises(TypeError, match="must be float32, got float16"):
        score_blocks(forecast.half(), compressed, positions, rule, 5)
    with pytest.raises(ValueError, match="one head per KV head"):
        score_blocks(forecast[:, :1].contiguous(), compressed, positions, rule, 5)
    with pytest.raises(ValueError, match="positions must have shape"):
        score_blocks(forecast, compressed, positions[:, :1].contiguous(), rule, 5)


CONSTANTS = {"HEADS": 2, "D": 128, "R": 4, "BEFORE": 1, "REACH": 31, "STRIDE": 16}
SIGNATURE = {"forecast": "*bf16", "compressed": "*bf16", "positions": "*i64", "out": "*fp32"}
SIGNATURE |= {"n_windows": "i32", "n_blocks": "i32"}


def test_the_decode_kernel_compiles_with_wide_loads_and_no_spills(compiled):
    made = compiled(
        "sparda.kernels.score_blocks", "decode_kernel", signature=SIGNATURE,
        constexprs=CONSTANTS | {"NB": 32, "CHAINED": True}, num_warps=4, launch_pdl=True,
    )  # fmt: skip
    assert made["usage"]["local"] == 0
    assert "ld.global.v4" in made["ptx"]


def test_the_prefill_kernel_compiles_to_warpgroup_products(compiled):
    tile = {"BM": 128, "NB": 128, "PRECISION": "tf32"}
    made = compiled(
        "sparda.kernels.score_blocks", "prefill_kernel", signature=SIGNATURE | {"n_queries": "i32"},
        constexprs=CONSTANTS | tile, num_warps=8, num_stages=3,
    )  # fmt: skip
    assert "wgmma" in made["ptx"]
    assert made["usage"]["local"] == 0

import pytest
import torch

from sparda import attention
from sparda.kernels import block_mass

# B, H, G, d, T, T_q
CASES = [(2, 1, 3, 64, 300, 1), (1, 2, 4, 64, 200, 7), (1, 1, 16, 128, 130, 1), (1, 1, 1, 32, 100, 20)]
GPU_CASES = [(4, 3, 3, 64, 8192, 512), (1, 2, 16, 128, 6000, 300), (1, 1, 20, 64, 3000, 130)]
KINDS = [(torch.float32, 1e-5), (torch.float16, 1e-4), (torch.bfloat16, 1e-4)]  # 16-bit keys, sums in float32


def inputs(case, kind, device):
    batch, heads, group, dim, n_tokens, n_queries = case
    q = torch.randn(batch, heads * group, n_queries, dim, device=device).to(kind)
    k = torch.randn(batch, heads, n_tokens, dim, device=device).to(kind)
    return q, k, torch.randint(0, n_tokens, (batch, n_queries), device=device)


def row_error(got, want):
    """Largest error of a row over its largest mass: rows sum to 1, and the first queries have few blocks."""
    return ((got.cpu() - want).abs().amax(-1) / want.amax(-1)).max().item()


def reference(q, k, positions, **how):
    return attention.block_mass(q.cpu(), k.cpu(), positions.cpu(), **how)


@pytest.mark.parametrize(("kind", "limit"), KINDS)
@pytest.mark.parametrize("case", CASES + GPU_CASES)
def test_the_mass_equals_the_reference_and_rows_sum_to_one(case, kind, limit, device):
    if device.type == "cpu" and (kind is torch.bfloat16 or case in GPU_CASES):
        pytest.skip("this case runs on a GPU only")
    given = inputs(case, kind, device)
    got = block_mass(*given, block_size=64)
    assert row_error(got, reference(*given, block_size=64)) <= limit
    torch.testing.assert_close(got.sum(-1).cpu(), torch.ones(got.shape[:3]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [16, 32, 128])
def test_other_block_sizes_and_a_given_scale(size, device):
    given = inputs((1, 1, 5, 64, 400, 3), torch.float32, device)
    got = block_mass(*given, block_size=size, scale=0.3)
    assert row_error(got, reference(*given, block_size=size, scale=0.3)) <= 1e-5


def test_the_last_queries_of_a_prompt_and_the_first(device):
    q, k, _ = inputs((1, 1, 3, 64, 450, 6), torch.float32, device)
    positions = torch.tensor([[0, 1, 63, 64, 448, 449]], device=device)
    got = block_mass(q, k, positions, block_size=64)
    assert row_error(got, reference(q, k, positions, block_size=64)) <= 1e-5
    assert got[0, 0, 0].tolist() == pytest.approx([1.0] + [0.0] * 7)  # a first token sees itself only


def test_a_query_after_the_keys_and_a_group_that_does_not_divide_are_refused(reference_only):
    q, k, positions = inputs((1, 2, 3, 64, 100, 4), torch.float32, "cpu")
    with pytest.raises(ValueError, match="cannot be grouped"):
        block_mass(q[:, :5].contiguous(), k, positions, block_size=64)
    with pytest.raises(ValueError, match="after the last of 100 keys"):
        block_mass(q, k, positions + 100, block_size=64)


@pytest.mark.parametrize("group", [1, 3, 16])
def test_the_second_pass_compiles_to_warpgroup_products(group, compiled):
    padded = 1 << (group - 1).bit_length()
    constants = {"HEADS": 2, "G": group, "GP": padded, "D": 64, "S": 64, "BT": 256 // padded, "NB": 16}
    types = {"q": "*bf16", "keys": "*bf16", "positions": "*i64", "lse": "*fp32", "out": "*fp32"}
    types |= dict.fromkeys(("n_queries", "n_tokens", "n_blocks"), "i32") | {"scale": "fp32"}
    made = compiled(
        "sparda.kernels.block_mass", "mass_kernel", signature=types,
        constexprs=constants | {"PRECISION": "tf32"}, num_warps=8, num_stages=3,
    )  # fmt: skip
    assert "wgmma" in made["ptx"]
    assert made["usage"]["local"] == 0

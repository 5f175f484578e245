import pytest
import torch

from sparda import cache
from sparda.kernels import rotate_prompt


@pytest.mark.parametrize(
    ("kind", "limit"), [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 1e-2)]
)
@pytest.mark.parametrize(("n_tokens", "heads", "dim"), [(70, 3, 64), (1, 1, 128)])
def test_a_slice_of_a_fused_projection_is_rotated_and_transposed(
    n_tokens, heads, dim, kind, limit, device, rms_error
):
    if device.type == "cpu" and kind is torch.bfloat16:
        pytest.skip("bfloat16 runs on a GPU only")
    fused = torch.randn(n_tokens, (heads + 2) * dim, device=device).to(kind)
    x = fused.unflatten(1, (-1, dim))[:, 1 : heads + 1]
    angle = torch.rand(n_tokens, dim // 2, device=device) * 6
    got = rotate_prompt(x, angle.cos(), angle.sin())
    assert got.is_contiguous()
    want = cache.rotate(x.float().cpu().transpose(0, 1), angle.cos().cpu(), angle.sin().cpu())
    assert rms_error(got, want) <= limit


def test_channels_that_do_not_lie_side_by_side_are_refused(device):
    if device.type == "cuda":
        pytest.skip("interpreter test")
    x, angle = torch.randn(64, 2, 8).transpose(0, 2), torch.zeros(8, 32)
    with pytest.raises(ValueError, match="side by side"):
        rotate_prompt(x, angle, angle)
    with pytest.raises(ValueError, match="heads, d"):
        rotate_prompt(x[0], angle, angle)


def test_it_compiles(compiled):
    made = compiled(
        "sparda.kernels.rotate_prompt", "rotate_kernel",
        signature={
            "x": "*bf16", "cos": "*fp32", "sin": "*fp32", "out": "*bf16", "n_tokens": "i32",
            "token_step": "i32", "head_step": "i32",
        },
        constexprs={"D": 128, "TOKENS": 32}, num_warps=4,
    )  # fmt: skip
    assert made["usage"]["local"] == 0

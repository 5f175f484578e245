import pytest
import torch

from sparda import blocks
from sparda.kernels import compress_keys
from sparda.spec import Sparsity

RULE = Sparsity(96)


@pytest.mark.parametrize(
    ("kind", "limit"), [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 1e-2)]
)
@pytest.mark.parametrize("n_tokens", [31, 32, 64, 200, 1000])
def test_means_equal_the_reference(n_tokens, kind, limit, device, rms_error, poisoned):
    if device.type == "cpu" and kind is torch.bfloat16:
        pytest.skip("bfloat16 runs on a GPU only")
    keys = torch.randn(2, 2, n_tokens, 64, device=device).to(kind)
    out = poisoned((2, 2, 80, 64), kind, device)
    got = compress_keys(keys, RULE, out=out)
    want = blocks.compress_keys(keys.float().cpu(), RULE)
    assert got.shape == want.shape
    assert not got.numel() or rms_error(got, want) <= limit
    assert out[:, :, want.shape[2] :].isnan().all()  # nothing is written past the last window


def test_a_window_of_one_stride_and_of_four(device, rms_error):
    keys = torch.randn(1, 2, 333, 128, device=device)
    for window in (16, 64):
        rule = Sparsity(96, window=window)
        assert rms_error(compress_keys(keys, rule), blocks.compress_keys(keys.cpu(), rule)) <= 1e-5


@pytest.mark.gpu
def test_a_store_of_more_than_4_gib_is_addressed(cuda, rms_error):
    keys = torch.empty(20, 2, 524_288, 128, dtype=torch.bfloat16, device=cuda).normal_()  # 5 GiB
    got = compress_keys(keys, RULE)
    want = blocks.compress_keys(keys[-1:, -1:, -4096:].float().cpu(), RULE)
    assert rms_error(got[-1:, -1:, -want.shape[2] :], want) <= 1e-2


def test_an_output_that_is_too_small_is_refused(reference_only):
    with pytest.raises(ValueError, match="64 tokens give 3"):
        compress_keys(torch.zeros(1, 1, 64, 16), RULE, out=torch.zeros(1, 1, 2, 16))


def test_it_compiles(compiled):
    made = compiled(
        "sparda.kernels.compress_keys", "compress_kernel",
        signature={"keys": "*bf16", "out": "*bf16", "n_tokens": "i32", "n_windows": "i32", "capacity": "i32"},
        constexprs={"D": 128, "WINDOW": 32, "STRIDE": 16, "NW": 16}, num_warps=4,
    )  # fmt: skip
    assert made["usage"]["local"] == 0

import pytest
import torch
from torch.nn.functional import silu

from sparda.kernels import silu_mul

KINDS = [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 1e-2)]


def reference(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return silu(gate) * up


@pytest.mark.parametrize(("kind", "limit"), KINDS)
@pytest.mark.parametrize("shape", [(3, 64), (2, 3, 200), (1, 3072), (4, 2 * 1536)])
def test_gated_features_equal_the_reference(shape, kind, limit, device, error, poisoned):
    if device.type == "cpu" and kind is torch.bfloat16:
        pytest.skip("the interpreter has no bfloat16")
    gate_up = (3 * torch.randn(shape, device=device)).to(kind)
    out = poisoned((*shape[:-1], shape[-1] // 2), kind, device)
    assert silu_mul(gate_up, out=out) is out
    assert error(out, reference(gate_up)) <= limit


def test_large_gates_stay_finite(device, error):
    gate_up = torch.tensor([[-200.0, 200.0, 0.0, -88.0, 1.0, 1.0, 1.0, 1.0]], device=device)
    assert error(silu_mul(gate_up), reference(gate_up)) <= 1e-5


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_the_torch_backend_is_the_reference_itself(kind, reference_only):
    gate_up = torch.randn(2, 3, 40, 2, dtype=kind)[..., 0]  # strided
    assert torch.equal(silu_mul(gate_up), reference(gate_up))


def test_an_odd_width_is_refused_and_no_rows_are_no_work(reference_only):
    with pytest.raises(ValueError, match="side by side"):
        silu_mul(torch.zeros(2, 7))
    assert silu_mul(torch.zeros(0, 8)).shape == (0, 4)


@pytest.mark.gpu
def test_a_whole_prompt(cuda, rms_error):
    gate_up = torch.randn(70_000, 2 * 640, device=cuda, dtype=torch.bfloat16)
    assert rms_error(silu_mul(gate_up), reference(gate_up.float())) <= 1e-2


def test_it_compiles_without_spills(compiled):
    made = compiled(
        "sparda.kernels.silu_mul", "silu_mul_kernel",
        signature={"gate_up": "*bf16", "out": "*bf16", "width": "i32"},
        constexprs={"BF": 1024, "CHAINED": True}, num_warps=4, launch_pdl=True,
    )  # fmt: skip
    assert made["usage"]["local"] == 0

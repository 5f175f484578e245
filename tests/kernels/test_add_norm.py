import pytest
import torch
from torch.nn.functional import rms_norm

from sparda.kernels import add_norm

KINDS = [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 1e-2)]


def reference(hidden, update, gain, eps, scale):
    new = hidden if update is None else hidden + scale * update
    return new, rms_norm(new, (hidden.shape[-1],), gain, eps)


@pytest.mark.parametrize(("kind", "limit"), KINDS)
@pytest.mark.parametrize("shape", [(3, 64), (2, 3, 96), (1, 1, 576), (5, 4096)])
@pytest.mark.parametrize("scale", [None, 1.0, 0.2475])
def test_sum_and_norm_equal_the_reference(shape, kind, limit, scale, device, error, poisoned):
    if device.type == "cpu" and kind is torch.bfloat16:
        pytest.skip("the interpreter has no bfloat16")
    hidden, update = (torch.randn(shape, device=device).to(kind) for _ in range(2))
    update = None if scale is None else update
    gain = (1 + torch.randn(shape[-1], device=device) / 4).to(kind)
    out = (poisoned(shape, kind, device), poisoned(shape, kind, device))
    new, normed = add_norm(hidden, update, gain, 1e-6, scale or 1.0, out=out)
    want_new, want = reference(hidden, update, gain, 1e-6, scale or 1.0)
    assert new is (hidden if update is None else out[0])
    assert normed is out[1]
    assert error(new, want_new) <= (1e-6 if kind is torch.float32 else 0)  # rounded as torch rounds
    assert error(normed, want) <= limit


def test_the_sum_may_replace_the_residual(device, error):
    hidden, update = torch.randn(2, 7, 48, device=device)
    want = reference(hidden, update, torch.ones(48, device=device), 1e-5, 1.0)
    normed = torch.empty_like(hidden)
    add_norm(hidden, update, torch.ones(48, device=device), 1e-5, out=(hidden, normed))
    assert error(hidden, want[0]) <= 1e-6
    assert error(normed, want[1]) <= 1e-5


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_the_torch_backend_is_the_reference_itself(kind, reference_only):
    hidden, update = torch.randn(2, 3, 40, 2, dtype=kind).unbind(-1)  # strided
    gain = torch.randn(40, dtype=kind)
    for got, want in zip(add_norm(hidden, update, gain, 1e-6, 0.5),
                         reference(hidden, update, gain, 1e-6, 0.5), strict=True):  # fmt: skip
        assert torch.equal(got, want)


def test_no_rows_are_no_work(device):
    empty = torch.zeros(0, 32, device=device)
    new, normed = add_norm(empty, empty, torch.ones(32, device=device), 1e-6)
    assert new.shape == normed.shape == (0, 32)


def test_rows_of_another_width_or_dtype_are_refused(reference_only):
    hidden = torch.zeros(2, 8)
    with pytest.raises(ValueError, match="hidden must have shape"):
        add_norm(hidden, None, torch.ones(9), 1e-6)
    with pytest.raises(TypeError, match="update must be float32"):
        add_norm(hidden, hidden.half(), torch.ones(8), 1e-6)


@pytest.mark.gpu
def test_a_whole_prompt_and_a_captured_chain(cuda, rms_error):
    hidden, update = torch.randn(2, 131_072, 512, device=cuda, dtype=torch.bfloat16)
    gain = torch.ones(512, device=cuda, dtype=torch.bfloat16)
    new, normed = add_norm(hidden, update, gain, 1e-6)
    want = reference(hidden.float(), update.float(), gain.float(), 1e-6, 1.0)
    assert rms_error(new, want[0]) <= 1e-2
    assert rms_error(normed, want[1]) <= 1e-2
    a, b = hidden[:4].clone(), update[:4].contiguous()
    out = (torch.empty_like(a), torch.empty_like(a))
    add_norm(a, b, gain, 1e-6, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(8):  # each reads what the one before it wrote
            add_norm(a, b, gain, 1e-6, out=out)
            add_norm(out[1], b, gain, 1e-6, out=(a, out[0]))
    a.copy_(hidden[:4])
    graph.replay()
    want_a = hidden[:4].clone()
    for _ in range(8):
        _, second = reference(want_a, b, gain, 1e-6, 1.0)
        want_a = second + b
    assert rms_error(a, want_a) <= 1e-2


def test_it_compiles_without_spills(compiled):
    pointers = dict.fromkeys(("hidden", "update", "gain", "hidden_out", "normed"), "*bf16")
    made = compiled(
        "sparda.kernels.add_norm", "add_norm_kernel", signature=pointers | {"scale": "fp32", "eps": "fp32"},
        constexprs={"DIM": 4096, "DP": 4096, "HAS_UPDATE": True, "SCALED": True, "CHAINED": True},
        num_warps=8, launch_pdl=True,
    )  # fmt: skip
    assert made["usage"]["local"] == 0
    assert "griddepcontrol.wait" in made["ptx"]

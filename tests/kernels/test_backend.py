import os
import subprocess
import sys

import pytest
import torch

from sparda import kernels
from sparda.kernels import backend
from sparda.spec import Sparsity


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean | environment, timeout=100
    )


def test_cpu_tensors_take_the_reference(reference_only):
    assert backend.choose(torch.zeros(1), None) == "torch"


def test_the_interpreter_is_taken_when_asked_for_and_refuses_bfloat16(interpreter):
    assert backend.choose(torch.zeros(1)) == "interpreter"
    with pytest.raises(TypeError, match="wrong bfloat16"):
        backend.choose(torch.zeros(1, dtype=torch.bfloat16))


def test_an_interpreter_chosen_after_import_is_a_clear_error(reference_only, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="after Triton was imported"):
        backend.choose(torch.zeros(1))


def test_tensors_on_several_devices_are_refused():
    with pytest.raises(ValueError, match="one device"):
        backend.choose(torch.zeros(1), torch.zeros(1, device="meta"))


def test_importing_the_package_imports_no_triton():
    done = run("import sys, sparda.kernels; print('triton' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


def test_without_triton_the_reference_serves():
    code = """
import sys; sys.modules["triton"] = None
import torch; from sparda import kernels; from sparda.spec import Sparsity
print(kernels.compress_keys(torch.zeros(1, 1, 64, 16), Sparsity(96)).shape[2])
"""
    done = run(code)
    assert done.stdout.strip() == "3", done.stderr


def test_a_name_of_the_package_is_the_function_even_after_its_module_was_imported():
    from sparda.kernels.score_blocks import decode_kernel

    assert decode_kernel is not None
    assert callable(kernels.score_blocks)


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(AttributeError, match="it offers add_norm, block_mass"):
        kernels.nothing  # noqa: B018


def test_checks_say_what_to_do():
    with pytest.raises(TypeError, match="must be int32 or int64, got float32"):
        backend.expect("x", torch.zeros(3), (3,), (torch.int32, torch.int64))
    with pytest.raises(ValueError, match="power of two"):
        backend.expect_power_of_two(head_dim=96)


def test_kernels_need_contiguous_tensors_of_three_dtypes_and_the_reference_does_not(monkeypatch):
    monkeypatch.setattr(backend, "interpreter_loaded", lambda: False)
    backend.expect("x", torch.zeros(3, 2, dtype=torch.float64).T, (2, 3), backend.FLOATS)
    monkeypatch.setattr(backend, "interpreter_loaded", lambda: True)
    with pytest.raises(ValueError, match=r"call \.contiguous"):
        backend.expect("x", torch.zeros(3, 2).T, (2, 3), backend.FLOATS)
    with pytest.raises(TypeError, match="float32 or float16 or bfloat16, got float64"):
        backend.expect("x", torch.zeros(3, dtype=torch.float64), (3,), backend.FLOATS)


@pytest.mark.gpu
def test_values_on_a_gpu_are_read_only_when_asked_for(cuda, monkeypatch):
    scores, beyond = torch.zeros(1, 1, 1, 5, device=cuda), torch.tensor([[5 * 64]], device=cuda)
    monkeypatch.setenv("SPARDA_CHECK", "1")
    with pytest.raises(ValueError, match="have scores"):
        kernels.select_topk(scores, beyond, Sparsity(8, local_blocks=2))
    monkeypatch.delenv("SPARDA_CHECK")
    kernels.select_topk(scores, beyond - 64, Sparsity(8, local_blocks=2))  # compiled before the capture
    with torch.cuda.graph(torch.cuda.CUDAGraph()):  # a wait for the GPU would end the capture
        kernels.select_topk(scores, beyond - 64, Sparsity(8, local_blocks=2))

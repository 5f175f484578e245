"""Two ways to run these tests, each in its own process, because Triton fixes its mode at its first import.

    pytest tests/kernels                      wrappers and references; GPU twins where there is a GPU
    TRITON_INTERPRET=1 pytest tests/kernels   the kernels themselves, interpreted on the CPU

Markers by fixture: a test that takes ``interpreter`` runs under the interpreter only; ``cuda`` needs a GPU;
``compiled`` gives a function that compiles kernels for sm_90 in a clean process. Skips carry a reason, so
that a run says how many tests it could not make.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes")


@pytest.fixture
def interpreter() -> torch.device:
    """The CPU, with kernels interpreted."""
    if not INTERPRETED:
        pytest.skip("interpreter test: run with TRITON_INTERPRET=1")
    pytest.importorskip("triton")
    return torch.device("cpu")


@pytest.fixture
def cuda() -> torch.device:
    """The current GPU. A test that takes this is also marked gpu."""
    if INTERPRETED:
        pytest.skip("GPU test: run without TRITON_INTERPRET")
    if not torch.cuda.is_available():
        pytest.skip("GPU test: no CUDA device here")
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> torch.device:
    """Twins: the same test interpreted on the CPU and compiled on a GPU."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def reference_only() -> None:
    """Tests of the torch backend on CPU tensors."""
    if INTERPRETED:
        pytest.skip("torch-backend test: run without TRITON_INTERPRET")


# one clean process compiles for all tests: importing torch and Triton takes longer than a kernel
_COMPILER = """
import importlib, json, pathlib, re, subprocess, sys, tempfile, traceback
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

cubin = pathlib.Path(tempfile.mkdtemp()) / "kernel.cubin"

def build(job):
    kernel = getattr(importlib.import_module(job["module"]), job["kernel"])
    names = [p.name for p in kernel.params]
    signature = {n: job["signature"].get(n, "constexpr") for n in names}
    constants = {(names.index(n),): v for n, v in job["constexprs"].items() if n in names}
    attrs = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n].startswith("*")}
    source = ASTSource(kernel, signature, constants, attrs)
    made = compile(source, target=GPUTarget("cuda", 90, 32), options=job["options"])
    cubin.write_bytes(made.asm["cubin"])
    command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(cubin)]
    text = subprocess.run(command, capture_output=True, text=True).stdout
    usage = {k.lower(): int(v) for k, v in re.findall(r"(REG|STACK|LOCAL|SHARED):(\\d+)", text)}
    return {"shared": made.metadata.shared, "ptx": made.asm["ptx"], "usage": usage}

for line in sys.stdin:
    try:
        answer = build(json.loads(line))
    except Exception:
        answer = {"error": traceback.format_exc()[-3000:]}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(scope="session")
def compiler():
    """A process without the interpreter that answers one compilation a line."""
    pytest.importorskip("triton")
    clean = os.environ | {"TRITON_INTERPRET": "0"}
    process = subprocess.Popen(
        [sys.executable, "-c", _COMPILER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean
    )
    yield process
    process.stdin.close()
    process.wait(timeout=20)


@pytest.fixture
def compiled(compiler):
    """compiled("module", "kernel", signature={...}, constexprs={...}, **options) -> ptx, shared, usage.

    signature names the run-time arguments ("*bf16", "i32", "fp32"), constexprs the others.
    """

    def build(module: str, kernel: str, *, signature: dict, constexprs: dict, **options) -> dict:
        job = {"module": module, "kernel": kernel, "signature": signature, "constexprs": constexprs}
        compiler.stdin.write(json.dumps(job | {"options": options}) + "\n")
        compiler.stdin.flush()
        answer = json.loads(compiler.stdout.readline())
        assert "error" not in answer, f"{module}.{kernel} does not compile for sm_90:\n{answer['error']}"
        return answer

    return build


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest error over the reference's RMS; NaN never passes a comparison with it."""
    if not want.numel():
        return 0.0
    want = want.double().cpu()
    rms = want.square().mean().sqrt().clamp(min=1e-30)
    return ((got.double().cpu() - want).abs().max() / rms).item()


@pytest.fixture
def error():
    return relative_error


@pytest.fixture
def poisoned():
    """poisoned(shape, dtype, device): an output buffer full of NaN (floats) or of a wrong id (integers)."""

    def make(shape, dtype, device):
        value = float("nan") if dtype.is_floating_point else -77
        return torch.full(shape, value, dtype=dtype, device=device)

    return make


@pytest.fixture
def rms_error():
    """RMS of the difference over the reference's RMS: for outputs that are rounded to 16 bits."""

    def measure(got: torch.Tensor, want: torch.Tensor) -> float:
        got, want = got.double().cpu(), want.double().cpu()
        return ((got - want).square().mean().sqrt() / want.square().mean().sqrt()).item()

    return measure

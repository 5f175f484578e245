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


_COMPILE = """
import importlib, json, sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
job = json.loads(sys.argv[1])
kernel = getattr(importlib.import_module(job["module"]), job["kernel"])
names = [p.name for p in kernel.params]
constexprs = {n: v for n, v in job["constexprs"].items()}
signature = {n: job["signature"].get(n, "constexpr") for n in names}
attrs = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n].startswith("*")}
source = ASTSource(kernel, signature, {(names.index(n),): v for n, v in constexprs.items()}, attrs)
built = compile(source, target=GPUTarget("cuda", 90, 32), options=job["options"])
from triton import knobs
import re, subprocess, tempfile, pathlib
path = pathlib.Path(tempfile.mkdtemp()) / "k.cubin"
path.write_bytes(built.asm["cubin"])
tool = getattr(knobs.nvidia.cuobjdump, "path", "cuobjdump")
usage = subprocess.run([tool, "--dump-resource-usage", str(path)], capture_output=True, text=True).stdout
found = {k.lower(): int(v) for k, v in re.findall(r"(REG|STACK|LOCAL|SHARED):(\\d+)", usage)}
print(json.dumps({"shared": built.metadata.shared, "ptx": built.asm["ptx"], "usage": found}))
"""


@pytest.fixture
def compiled():
    """compiled("module", "kernel", signature={...}, constexprs={...}, **options) -> ptx, shared, usage.

    signature names the run-time arguments ("*bf16", "i32", "fp32"), constexprs the others.
    """
    pytest.importorskip("triton")

    def build(module: str, kernel: str, *, signature: dict, constexprs: dict, **options) -> dict:
        job = {"module": module, "kernel": kernel, "signature": signature, "constexprs": constexprs}
        clean = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_INTERPRET": "0"}
        done = subprocess.run(
            [sys.executable, "-c", _COMPILE, json.dumps(job | {"options": options})],
            capture_output=True, text=True, env=clean, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"{module}.{kernel} does not compile for sm_90:\n{done.stderr[-3000:]}"
        return json.loads(done.stdout.splitlines()[-1])

    return build


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest error over the reference's RMS; NaN never passes a comparison with it."""
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

"""The transfer path under the CUDA toolkit's memcheck and synccheck."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

SCRIPT = """
from sparda.kernels import gather_misses
from sparda.kernels.resident_worker import ResidentWorker
from sparda.measure.transfer_cases import random_case, same_bits

case = random_case("cuda", n_blocks=20, n_slots=8, block_size=64, head_dim=128)
want = case.expected()
gather_misses(*case)
assert same_bits(case.slots, want)
case.slots.fill_(float("nan"))
with ResidentWorker([case], n_ctas=2, idle_s=20) as worker:
    for _ in range(3):
        worker.ring(0)
        worker.wait(0)
assert same_bits(case.slots, want)
print("bytes are right")
"""


@pytest.mark.gpu
@pytest.mark.parametrize("tool", ["memcheck", "synccheck"])
def test_the_transfer_is_clean_under_the_sanitizer(cuda, tool):
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not on the PATH")
    command = [sanitizer, "--tool", tool, "--error-exitcode", "3", sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "bytes are right" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    assert "ERROR SUMMARY: 0 errors" in done.stdout + done.stderr, done.stdout[-3000:]
    assert done.returncode == 0

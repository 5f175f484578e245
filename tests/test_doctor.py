"""What `sparda doctor` says of machines that are made up here; the real one has no GPU."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from sparda import doctor, machine
from sparda.machine import Gpu, Machine

GIB = 2**30
H200 = Gpu("NVIDIA H200", 140.4, "580.159.04", 9.0, 5, 16, 16)
GOOD = Machine((H200,), 1, "13.0", 512 * GIB, 400 * GIB, None)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(doctor, "weights_problem", lambda: None)


def lines(of: Machine) -> dict[str, str]:
    return {line.split(":")[0][5:]: line for line in doctor.report(of).splitlines()}


def test_a_machine_of_an_h200_can_run_all():
    said = lines(GOOD)
    assert said["GPU"] == "ok   GPU: NVIDIA H200, 140 GiB, driver 580.159.04"
    assert said["link"] == "ok   link: PCIe 5.0 x16, 63 GB/s each way at most"
    assert "room to pin 92 sequences of MiniCPM4.1-8B at 131,072 tokens" in said["host memory"]
    assert said["locked memory"].startswith("ok")
    assert doctor.report(GOOD).splitlines()[-1] == "here: `make reproduce PROFILE=gpu`"


def test_without_a_gpu_it_says_what_runs_instead():
    said = doctor.report(Machine(host_bytes=24 * GIB, free_bytes=20 * GIB))
    assert "no   GPU: none found; chapters run in profiles smoke and cpu" in said
    assert said.splitlines()[-1].startswith("here: `make reproduce` (profile cpu)")
    assert "`bench` as a check and no measurement; no GPU build" in said.splitlines()[-1]
    assert "pin" not in said


@pytest.mark.parametrize(
    ("change", "subject", "sentence"),
    [
        ({"torch_sees": 0, "torch_cuda": None}, "GPU", "built for the CPU only; run `make -B install`"),
        ({"torch_sees": 0}, "GPU", "built for CUDA 13.0, cannot use it; look at the driver's age"),
        ({"gpus": (replace(H200, capability=7.5),)}, "GPU", "capability 7.5; the bf16 kernels need 8.0"),
        (
            {"gpus": (replace(H200, width=8),)},
            "link",
            "x8, 32 GB/s each way at most; card and slot could do x16",
        ),
        ({"gpus": (replace(H200, generation=0),)}, "link", "does not tell its generation"),
        ({"free_bytes": 2 * GIB}, "host memory", "too little for one; take a shorter context"),
        ({"host_bytes": 0, "free_bytes": 0}, "host memory", "cannot be read here"),
        ({"lock_bytes": 8 * 2**20}, "locked memory", "ulimit -l is 8 MiB"),
    ],
)
def test_what_is_wrong_with_a_machine_is_said_with_a_remedy(change, subject, sentence):
    line = lines(replace(GOOD, **change))[subject]
    assert line.startswith("no ")
    assert sentence in line


def test_measurements_that_are_too_large_for_a_card_are_named():
    small = replace(GOOD, gpus=(replace(H200, name="RTX", memory_gib=24.0),), free_bytes=100 * GIB)
    last = doctor.report(small).splitlines()[-1]
    assert "too large for it, so they keep what is committed: decode_large" in last
    assert "latency" not in last


def test_a_gpu_that_torch_cannot_use_promises_nothing():
    assert "no GPU build" in doctor.report(replace(GOOD, torch_sees=0)).splitlines()[-1]


def test_missing_widget_extensions_are_named(monkeypatch, tmp_path):
    jupyter = pytest.importorskip("jupyter_core.paths")
    monkeypatch.setattr(jupyter, "jupyter_path", lambda *names: [str(tmp_path)])
    assert "the extension of jupyterlab_widgets, anywidget is missing" in lines(GOOD)["widgets"]
    (tmp_path / "anywidget").mkdir()
    (tmp_path / "@jupyter-widgets" / "jupyterlab-manager").mkdir(parents=True)
    assert lines(GOOD)["widgets"].startswith("ok")


def test_the_driver_is_asked_for_each_gpu(monkeypatch):
    text = "NVIDIA H100 80GB HBM3, 81559, 580.1, 9.0, 5, 16, 16\nNVIDIA L4, 23034, 580.1, 8.9, 4, 8, 16\n"
    done = subprocess.CompletedProcess([], 0, stdout=text)
    monkeypatch.setattr(machine.subprocess, "run", lambda *args, **options: done)
    first, second = machine.list_gpus()
    assert (first.name, round(first.memory_gib, 1)) == ("NVIDIA H100 80GB HBM3", 79.6)
    assert (second.generation, second.width, second.lanes) == (4, 8, 16)


def test_no_driver_means_no_gpus(monkeypatch):
    def absent(*args, **options):
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(machine.subprocess, "run", absent)
    assert machine.list_gpus() == ()


def test_this_machine_can_be_probed():
    here = machine.probe()
    assert here.free_bytes <= here.host_bytes

"""Speed of observing: operations are counted as the formula says, and every case gets a row."""

import csv

import pytest
import torch
from safetensors.torch import load_file

import sparda
from sparda.training import throughput


def test_operations_of_a_forward_pass_are_two_a_weight_and_half_the_square(tiny_folder):
    from sparda.models import load

    model = load.load(str(tiny_folder / "model")).model
    weights = load_file(tiny_folder / "model" / "model.safetensors")
    matrices = sum(w.numel() for name, w in weights.items() if ".layers." in name and w.dim() == 2)
    assert throughput.forward_flops(model, 64) == 2 * matrices * 64 + 2 * 4 * 32 * 64**2 / 2


def test_every_case_has_a_row(tiny_folder, tmp_path):
    where = ["--model", tiny_folder / "model", "--out", tmp_path]
    throughput.main([str(a) for a in [*where, "--tokens", 512, "--batch", 1, 2, "--queries", 16]])
    rows = list(csv.DictReader((tmp_path / "training_speed.csv").open()))
    assert {(r["what"], r["batch"]) for r in rows} == {
        (what, batch) for what in ("forward", "observe_mass", "observe_paper") for batch in ("1", "2")
    }
    assert all(float(r["ms_per_sequence"]) > 0 for r in rows)


@pytest.mark.gpu
@pytest.mark.model
def test_observing_32k_tokens_takes_less_than_4_gb():
    model = sparda.load("smollm2-135m", device="cuda", dtype=torch.bfloat16).model
    (row,) = [r for r in throughput.measure(model, 32768, [1], 512) if r["what"] == "observe_mass"]
    assert row["peak_gib"] * 2**30 < 4e9

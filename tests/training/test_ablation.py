"""The ablation trains every variant on the same text and keeps one row a budget."""

import csv

import pytest

from sparda.training import ablation

pytest.importorskip("accelerate")


def test_variants_are_trained_and_kept(tiny_folder, tmp_path):
    names = ["ours", "three_heads", "paper_one_entry", "coarse"]
    sizes = "--length 512 --rounds 1 --sequences 2 --positions 32 --step-sequences 2 --step-positions 32"
    files = ["--model", tiny_folder / "model", "--text", tiny_folder / "train.npy"]
    files += ["--held-out", tiny_folder / "held_out.npy", "--out", tmp_path]
    ablation.main(
        [str(a) for a in [*files, *sizes.split(), "--budget", "5", "--local", "1", "--variants", *names]]
    )
    rows = list(csv.DictReader((tmp_path / "forecast_ablation.csv").open()))
    assert {(r["variant"], r["budget_blocks"]) for r in rows} == {(n, k) for n in names for k in ("5", "10")}
    assert all(0 < float(r["mass_recall"]) <= 1 for r in rows)


def test_wrong_options_are_told_without_a_traceback(tiny_folder, tmp_path):
    files = [
        "--text",
        "none.txt",
        "--held-out",
        tiny_folder / "held_out.npy",
        "--out",
        tmp_path,
        "--length",
        "64",
    ]
    with pytest.raises(SystemExit, match=r"^sparda\.training\.ablation: .*raise --length"):
        ablation.main([str(a) for a in files])

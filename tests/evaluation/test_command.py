"""``sparda eval`` from the command line to its files."""

from __future__ import annotations

import csv
import json

import pytest

from sparda import cli
from sparda.evaluation import runs


@pytest.fixture
def use_tiny(monkeypatch, tiny):
    monkeypatch.setattr(runs, "subject", lambda options, device: tiny)
    monkeypatch.setenv("SPARDA_COMMIT", "test")


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_accuracy_is_kept_with_samples_pairs_replies_and_a_sidecar(use_tiny, tmp_path, capsys):
    command = [
        "eval",
        "accuracy",
        "--methods",
        "dense,sparse",
        "--context",
        "512",
        "--shares",
        "0.5",
        "--n",
        "2",
    ]
    command += ["--tasks", "niah_single_noise", "--all-tasks", "--device", "cpu", "--out", str(tmp_path)]
    assert cli.main([*command, "--replies", str(tmp_path / "said.jsonl")]) == 0
    assert [r["method"] for r in rows(tmp_path / "accuracy.csv")] == ["dense", "sparse"]
    assert [r["right"] for r in rows(tmp_path / "samples.csv")] == ["0 0", "0 0"]
    assert {r["task"] for r in rows(tmp_path / "pairs.csv")} == {"niah_single_noise"}
    assert len((tmp_path / "said.jsonl").read_text().splitlines()) == 4
    (run,) = json.loads((tmp_path / "accuracy.json").read_text())["runs"]
    assert run["commit"] == "test"
    assert run["precision"] == "float32"
    assert "niah_single_noise" in capsys.readouterr().out
    assert cli.main(command) == 0  # again: rows are replaced
    assert len(rows(tmp_path / "accuracy.csv")) == 2
    fewer = [word if word != "2" else "1" for word in command]
    assert cli.main(fewer) == 0  # a cell of fewer samples never replaces one of more
    assert "not kept: 2 samples are" in capsys.readouterr().out
    assert {r["n"] for r in rows(tmp_path / "accuracy.csv")} == {"2"}
    assert {r["right"] for r in rows(tmp_path / "samples.csv")} == {"0 0"}


def test_recall_is_kept_layer_by_layer(use_tiny, tmp_path):
    command = ["eval", "recall", "--methods", "sparse,sparda", "--context", "512", "--shares", "0.5"]
    command += ["--sequences", "2", "--queries", "16", "--texts", "king_james", "--device", "cpu"]
    assert cli.main([*command, "--out", str(tmp_path)]) == 0
    made = rows(tmp_path / "recall.csv")
    assert {r["method"] for r in made} == {"sparse", "sparda", "forced"}
    assert {r["n"] for r in made} == {"32"}
    assert {r["layer"] for r in made} == {"0", "1", "2", "mean"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--tasks", "niah"], "choose from niah_single_noise"),
        (["--context", "512", "--shares", "0.125"], "larger share"),
        (["--context", "64", "--shares", "4"], "use at least"),
    ],
)
def test_wrong_input_ends_with_a_sentence(use_tiny, capsys, options, says):
    assert cli.main(["eval", "accuracy", "--methods", "sparse", "--device", "cpu", "--n", "1", *options]) == 2
    assert says in capsys.readouterr().err


def test_a_method_that_is_not_known_is_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        cli.main(["eval", "accuracy", "--methods", "sparce"])
    assert "unknown method 'sparce'; choose from dense" in capsys.readouterr().err


def test_missing_forecast_weights_say_how_to_get_them(tmp_path, monkeypatch):
    from sparda.evaluation.subject import forecast_file

    monkeypatch.setenv("SPARDA_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="sparda train"):
        forecast_file("tiny")
    folder = tmp_path / "forecasts" / "tiny"
    folder.mkdir(parents=True)
    (folder / "a.safetensors").touch()
    assert forecast_file("tiny").name == "a.safetensors"
    (folder / "b.safetensors").touch()
    with pytest.raises(FileNotFoundError, match="--forecast"):
        forecast_file("tiny")

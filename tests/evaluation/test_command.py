"""``sparda eval`` from the command line to its files."""

from __future__ import annotations

import csv
import json
from concurrent.futures.process import BrokenProcessPool

import pytest
import torch

from sparda import cli
from sparda.evaluation import runs
from sparda.models import load


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
    assert "not kept: accuracy.csv has more samples" in capsys.readouterr().out
    assert {r["n"] for r in rows(tmp_path / "accuracy.csv")} == {"2"}
    assert {r["right"] for r in rows(tmp_path / "samples.csv")} == {"0 0"}


def test_a_method_of_which_a_layer_waits_is_one_more_method_paired_with_the_plain_one(use_tiny, tmp_path):
    command = [
        "eval",
        "accuracy",
        "--methods",
        "sparda@1,dense,sparda",
        "--context",
        "512",
        "--shares",
        "0.5",
    ]
    command += ["--n", "2", "--tasks", "niah_single_noise", "--all-tasks", "--device", "cpu"]
    assert cli.main([*command, "--out", str(tmp_path)]) == 0
    assert [r["method"] for r in rows(tmp_path / "accuracy.csv")] == ["dense", "sparda", "sparda@1"]
    compared = [(r["method"], r["baseline"]) for r in rows(tmp_path / "pairs.csv")]
    assert compared == [("sparda", "dense"), ("sparda@1", "dense"), ("sparda@1", "sparda")]


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("sparda@99", "'forecast@99': the model's layers are 0 to"),
        ("infinigen@1", "'proxy@1' keeps an index of its own"),
        ("dense@1", "'all' reads every block"),
    ],
)
def test_layers_that_cannot_wait_are_refused_before_the_first_prompt(use_tiny, capsys, method, why):
    assert cli.main(["eval", "accuracy", "--methods", method, "--device", "cpu"]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "why"),
    [("sparda@", "after @ come layers"), ("", "give at least one"), (" , ", "give at least one")],
)
def test_a_method_that_makes_no_sense_is_refused_with_the_options(capsys, method, why):
    with pytest.raises(SystemExit):
        cli.main(["eval", "accuracy", "--methods", method])
    assert why in capsys.readouterr().err


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
        (["--context", "256", "--shares", "1"], "use at least"),
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


def test_the_needle_is_kept_and_fewer_samples_do_not_replace_more(use_tiny, tmp_path, capsys, monkeypatch):
    def read_out(sample, tokenizer, block_size):
        tokens = torch.tensor(sample.input_ids)
        return tokens, torch.tensor([len(tokens) - 2, len(tokens) - 1]), torch.tensor([3])

    monkeypatch.setattr(runs.needle, "read_out", read_out)  # the tiny tokenizer knows no offsets
    command = ["eval", "needle", "--methods", "sparse,sparda", "--context", "512", "--shares", "0.5"]
    command += ["--tasks", "niah_single_noise", "--device", "cpu", "--out", str(tmp_path)]
    assert cli.main([*command, "--n", "2"]) == 0
    before = rows(tmp_path / "needle.csv")
    assert {r["n"] for r in before} == {"2"}
    assert cli.main([*command, "--n", "1"]) == 0
    assert "not kept: needle.csv has more samples" in capsys.readouterr().out
    assert rows(tmp_path / "needle.csv") == before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--tasks", "niah_multivalue_noise"], "no task of one fact; choose from niah_single_noise"),
        (["--methods", "dense"], "dense chooses no blocks"),
        (["--shares", "2"], "between 0 and 1"),
    ],
)
def test_what_the_needle_cannot_be_asked_is_a_sentence(use_tiny, capsys, options, says):
    assert cli.main(["eval", "needle", "--device", "cpu", *options]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("option", ["needle --n 0", "accuracy --batch 0", "recall --queries -1"])
def test_counts_are_at_least_one(option, capsys):
    with pytest.raises(SystemExit):
        cli.main(["eval", *option.split()])
    assert "at least 1" in capsys.readouterr().err


def test_replies_need_a_folder(use_tiny, capsys, tmp_path):
    command = ["eval", "accuracy", "--context", "512", "--shares", "0.5", "--device", "cpu"]
    assert cli.main([*command, "--replies", str(tmp_path / "none" / "said.jsonl")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_a_context_beyond_the_models_is_refused_before_prompts_are_made(tiny, monkeypatch, capsys):
    monkeypatch.setattr(load, "load", lambda *_, **__: (tiny.model, tiny.tokenizer))
    monkeypatch.setattr(load, "context_of", lambda name: None)
    monkeypatch.setattr(runs, "check_fits", lambda *_: None)
    command = ["eval", "needle", "--device", "cpu", "--methods", "sparse", "--context", "1024,99999"]
    assert cli.main(command) == 2
    assert "--context 99999: smollm2-135m reads 2048 tokens at most" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "kind"), [("--context", "whole numbers"), ("--shares", "numbers")])
def test_numbers_that_are_none_say_what_was_expected(capsys, option, kind):
    with pytest.raises(SystemExit):
        cli.main(["eval", "recall", option, "12.5%"])
    assert f"expected {kind}, separated by commas, got '12.5%'" in capsys.readouterr().err


def test_a_tokenizer_that_does_not_fit_the_model_is_refused(tiny, monkeypatch, capsys):
    vocabulary = tiny.model.get_input_embeddings().num_embeddings
    monkeypatch.setattr(load, "load", lambda *_, **__: (tiny.model, range(vocabulary + 1)))
    assert cli.main(["eval", "needle", "--device", "cpu", "--methods", "sparse"]) == 2
    assert "do not belong together" in capsys.readouterr().err


def test_a_process_that_died_is_a_sentence(monkeypatch, capsys):
    def died(options, device):
        raise BrokenProcessPool

    monkeypatch.setitem(runs.RUNS, "accuracy", died)
    assert cli.main(["eval", "accuracy", "--device", "cpu", "--jobs", "2"]) == 1
    assert "fewer --jobs" in capsys.readouterr().err


def test_an_exchange_is_kept_layer_by_layer_and_says_what_it_cannot_exchange(use_tiny, tmp_path, capsys):
    command = ["eval", "exchange", "--context", "512", "--shares", "0.5", "--n", "2", "--device", "cpu"]
    command += ["--tasks", "niah_single_noise"]
    assert cli.main([*command, "--out", str(tmp_path)]) == 0
    made = rows(tmp_path / "exchange.csv")
    assert {r["method"] for r in made} == {"sparda"}
    assert {"none", "0", "all"} <= {r["layer"] for r in made}
    assert cli.main([*command, "--methods", "dense,sparse"]) == 2
    assert "give --methods others, such as sparda" in capsys.readouterr().err

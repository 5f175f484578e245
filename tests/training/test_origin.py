"""A run goes on only as itself: the model's weights, the texts, the start and the options are compared."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from sparda.cli import main
from sparda.models.fingerprint import fingerprint
from sparda.models.load import load
from sparda.training import data, setting
from sparda.training.data import Sequences

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

SIZES = "--length 512 --rounds 2 --sequences 2 --positions 32 --step-sequences 2 --step-positions 32"
OPTIONS = f"{SIZES} --passes 1 --budget 5 --local 1".split()


@pytest.fixture
def files(tiny_folder, tmp_path):
    """A model, its texts and a folder for its run that this test may change."""
    shutil.copytree(tiny_folder / "model", tmp_path / "model")
    for name in ("train.npy", "held_out.npy"):
        shutil.copy(tiny_folder / name, tmp_path / name)
    return tmp_path


def train(files, *more, model="model", out="out"):
    where = ["--model", files / model, "--text", files / "train.npy", "--held-out", files / "held_out.npy"]
    return main([str(a) for a in ["train", *where, "--out", files / out, *OPTIONS, *more]])


def change_weights(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file({n: t * 1.001 for n, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def another_model(files):
    shutil.copytree(files / "model", files / "chat")
    change_weights(files / "chat")
    return {"model": "chat"}


def another_theta(files):
    path = files / "model" / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"]["rope_theta"] = 5e5
    path.write_text(json.dumps(config))


def another_text(name):
    def change(files):
        tokens = np.load(files / name)
        tokens[[0, 1]] = tokens[[1, 0]]
        np.save(files / name, tokens)

    return change


CHANGES = {
    "another model of the same shape": (another_model, "model was model)"),
    "new weights in the same folder": (
        lambda files: change_weights(files / "model"), "model was model, another model of that name)",
    ),
    "another rotation in the same folder": (another_theta, "rope_parameters was {'rope_theta': 10000.0"),
    "the text was changed in place": (another_text("train.npy"), "text was 4 sequences of train.npy,"),
    "the held-out text was changed": (another_text("held_out.npy"), "held-out text was 4 sequences"),
    "fewer held-out sequences": (lambda files: {"more": ["--validate-on", "2"]}, "held-out text was 4"),
    "another option": (lambda files: {"more": ["--lr", "0.01"]}, "lr was 0.005)"),
    "another start": (lambda files: {"more": ["--init", "random"]}, "init was query)"),
    "other seeds": (lambda files: {"more": ["--seeds", "1"]}, "seeds was [0])"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("finished", [True, False])
def test_another_runs_checkpoint_is_refused_and_left_as_it_is(files, capsys, change, finished):
    assert train(files, *([] if finished else ["--minutes", "0"])) == 0
    before = {path.name: path.read_bytes() for path in (files / "out").iterdir()}
    make, says = CHANGES[change]
    changed = make(files) or {}
    capsys.readouterr()
    assert train(files, *changed.pop("more", []), **changed) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "checkpoint.safetensors is of another run (" in said
    assert says in said
    assert {path.name: path.read_bytes() for path in (files / "out").iterdir()} == before


def test_another_dtype_is_another_run_of_the_same_model(files, capsys, monkeypatch):
    assert train(files) == 0
    read = setting.load.load
    monkeypatch.setattr(setting.load, "load", lambda name, **o: read(name, **o | {"dtype": torch.bfloat16}))
    assert train(files) == 2
    said = capsys.readouterr().err
    assert "(dtype was float32);" in said


def test_an_init_folder_whose_weights_were_replaced_is_another_start(files, capsys):
    assert train(files, out="first") == 0
    assert train(files, "--init", files / "first") == 0
    assert train(files, "--init", files / "first") == 0
    tensors = load_file(files / "first" / "forecast.safetensors")
    with safe_open(files / "first" / "forecast.safetensors", "pt") as file:
        about = file.metadata()
    save_file({n: 2 * t for n, t in tensors.items()}, files / "first" / "forecast.safetensors", about)
    assert train(files, "--init", files / "first") == 2
    assert "another --init folder of that name" in capsys.readouterr().err


def test_a_finished_run_says_so_and_changes_nothing(files, capsys):
    assert train(files) == 0
    texts = [(files / "out" / name) for name in ("card.json", "log.csv", "checkpoint.safetensors")]
    before = [path.read_bytes() for path in texts]
    weights = load_file(files / "out" / "forecast.safetensors")
    assert "nothing left to train" not in capsys.readouterr().out
    assert train(files) == 0
    assert "nothing left to train: all 2 rounds are done" in capsys.readouterr().out
    assert [path.read_bytes() for path in texts] == before
    again = load_file(files / "out" / "forecast.safetensors")
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_a_finished_run_whose_weights_were_removed_writes_them_again(files):
    assert train(files) == 0
    before = load_file(files / "out" / "forecast.safetensors")
    (files / "out" / "forecast.safetensors").unlink()
    (files / "out" / "card.json").unlink()
    assert train(files) == 0
    again = load_file(files / "out" / "forecast.safetensors")
    assert all(torch.equal(before[name], again[name]) for name in before)
    assert json.loads((files / "out" / "card.json").read_text())["rounds_done"] == 2


def test_a_model_that_only_moved_is_the_same_run(files, capsys):
    assert train(files, "--minutes", "0") == 0
    (files / "model").rename(files / "elsewhere")
    assert train(files, model="elsewhere") == 0
    assert json.loads((files / "out" / "card.json").read_text())["rounds_done"] == 2


def test_a_checkpoint_that_does_not_know_its_model_is_refused(files, capsys):
    assert train(files) == 0
    path = files / "out" / "checkpoint.safetensors"
    with safe_open(path, "pt") as file:
        about = file.metadata()
    save_file(load_file(path), path, {k: v for k, v in about.items() if k != "origin"})
    assert train(files) == 2
    said = capsys.readouterr().err
    assert "does not say which model and text it was trained on" in said
    assert "another --out" in said


def test_the_forecast_names_the_model_that_it_was_trained_for(files):
    assert train(files) == 0
    with safe_open(files / "out" / "forecast.safetensors", "pt") as file:
        about = file.metadata()
    assert about["model"] == str(files / "model")
    assert about["model_fingerprint"] == fingerprint(load(files / "model").model)


@pytest.mark.parametrize("row", [0, 1, 500, 999])
def test_one_token_of_a_large_mapped_file_counts_whether_its_row_is_sampled_or_not(
    tmp_path, monkeypatch, row
):
    monkeypatch.setattr(data, "HASHED", 10 * 60)  # ten rows
    tokens = np.random.default_rng(0).integers(3, 90, (1000, 64)).astype(np.uint16)
    digests = []
    for _ in range(2):
        np.save(tmp_path / "t.npy", tokens)
        digests.append(Sequences(np.load(tmp_path / "t.npy", mmap_mode="r"), 60, "t.npy").digest())
        tokens[row, 30] += 1
    assert digests[0] != digests[1]
    tokens[:, 60:] = 7  # beyond the length: no run reads it
    np.save(tmp_path / "t.npy", tokens)
    tokens[:, 60:] = 8
    np.save(tmp_path / "u.npy", tokens.astype(np.int64))
    one, other = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "tu")
    assert Sequences(one, 60, "t").digest() == Sequences(other, 60, "u").digest()

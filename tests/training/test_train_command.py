"""``sparda train`` end to end on a tiny model: one process, two, and wrong input."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from sparda.cli import main
from sparda.forecast import Forecast, Shape
from sparda.training.loop import Run
from sparda.training.validate import Validation

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

SIZES = "--length 512 --rounds 3 --sequences 2 --positions 64 --step-sequences 2 --step-positions 32"
OPTIONS = f"{SIZES} --passes 1 --budget 5 --local 1 --keep-every 1"


def arguments(folder, out, *more):
    files = ["--text", folder / "train.npy", "--held-out", folder / "held_out.npy", "--out", out]
    return [str(a) for a in ["train", "--model", folder / "model", *files, *OPTIONS.split(), *more]]


def test_one_command_writes_weights_log_and_run_card(tiny_folder, tmp_path, capsys):
    assert main(arguments(tiny_folder, tmp_path, "--seeds", "0,1")) == 0
    assert "forecast.safetensors" in capsys.readouterr().out
    shape = Shape(2, 32, 1, 16)
    for name in ("forecast", "forecast-seed1"):
        Forecast.load(tmp_path / f"{name}.safetensors", shape)
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["plan"]["sparsity"]["budget_blocks"] == 5
    assert card["rounds_done"] == 3
    assert len(card["recall"]["forecast_k5_1"]) == 2
    assert {"device", "commit", "versions", "date"} <= set(card)


def test_a_run_that_was_stopped_goes_on_and_ends_as_one_that_was_not(tiny_folder, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(arguments(tiny_folder, whole)) == 0
    assert main(arguments(tiny_folder, parts, "--minutes", "0")) == 0  # one round, then out of time
    assert json.loads((parts / "card.json").read_text())["rounds_done"] == 1
    assert main(arguments(tiny_folder, parts)) == 0
    a, b = (load_file(f / "forecast.safetensors") for f in (whole, parts))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_ctrl_c_says_last_where_the_checkpoint_is_and_the_same_command_goes_on(
    tiny_folder, tmp_path, capsys, monkeypatch
):
    done, one_round = [], Run._one_round

    def interrupted(run):
        if done:
            raise KeyboardInterrupt
        done.append(run.round)
        return one_round(run)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_one_round", interrupted)
        assert main(arguments(tiny_folder, tmp_path)) == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(f"the same command goes on from {tmp_path / 'checkpoint.safetensors'}")
    assert main(arguments(tiny_folder, tmp_path)) == 0
    assert json.loads((tmp_path / "card.json").read_text())["rounds_done"] == 3


def test_a_second_phase_goes_on_from_the_weights_of_each_seed(tiny_folder, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(arguments(tiny_folder, first, "--seeds", "0,1")) == 0
    more = ["--seeds", "0,1", "--init", first, "--objective", "recall", "--softness", "0.5", "--lr", "1e-3"]
    assert main(arguments(tiny_folder, second, *more)) == 0
    ends, begins = ((f / "log.csv").read_text().splitlines() for f in (first, second))
    for end, begin in zip(ends[-2:], begins[1:3], strict=True):  # one is in float32, one was read in bf16
        assert float(begin.split(",")[5]) == pytest.approx(float(end.split(",")[5]), abs=2e-3)
    card = json.loads((second / "card.json").read_text())
    assert card["went_on_from"]["plan"]["recipe"]["objective"] == "divergence"
    assert all((second / name).exists() for name in ("forecast.safetensors", "forecast-seed1.safetensors"))


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_two_processes_give_what_one_gives(device, tiny_folder, tmp_path):
    if device == "gpu" and torch.cuda.device_count() < 2:
        pytest.skip("fewer than two CUDA devices here")
    assert main(arguments(tiny_folder, tmp_path / "one")) == 0
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
               "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
               "--main_process_port", "0", "-m", "sparda",
               *arguments(tiny_folder, tmp_path / "two")]  # fmt: skip
    # torchrun's kind of start, which the launcher uses for GPUs; with --cpu alone it would ask for MPI
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    env |= {"ACCELERATE_USE_CPU": "true"} if device == "cpu" else {}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "two" / "card.json").read_text())["processes"] == 2
    one, two = (load_file(tmp_path / n / "checkpoint.safetensors") for n in ("one", "two"))
    for name in one:
        if name.endswith("weight"):
            torch.testing.assert_close(one[name], two[name], rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--text", "none.txt"], "no file or folder none.txt"),
        (["--teacher", "best"], "choose from mass, fine, coarse"),
        (["--length", "64"], "raise --length"),
        (["--tail", "4000"], "a --tail of 4000; raise --length over"),
        (["--budget", "8"], "every block is kept at k = 8 of 8 blocks"),
        (["--model", "no-such-model"], "unknown model"),
        (["--model", "owner/name"], "could not be fetched from the hub"),
        (["--init", "zero"], "query, random or a folder"),
    ],
)
def test_wrong_input_is_one_sentence_and_status_2(tiny_folder, tmp_path, capsys, more, sentence):
    assert main(arguments(tiny_folder, tmp_path, *more)) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


def test_weights_that_score_nothing_after_the_last_step_are_told_with_layer_and_step(
    tiny_folder, tmp_path, capsys, monkeypatch
):
    before = Validation.row

    def row(validation, student):
        if done:
            student.weight.data[1, 0, 0] = float("nan")
        done.append(1)
        return before(validation, student)

    done = []
    monkeypatch.setattr(Validation, "row", row)
    assert main(arguments(tiny_folder, tmp_path)) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "after step 2 the weights of layer 1 give scores that are no numbers" in said
    assert "nothing was kept yet" in said


def test_equal_seeds_are_refused(tiny_folder, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(arguments(tiny_folder, tmp_path, "--seeds", "0,0"))
    assert "seeds must differ" in capsys.readouterr().err


def test_a_copy_of_the_text_is_not_held_out(tiny_folder, tmp_path, capsys):
    copy = tmp_path / "copy.npy"
    copy.write_bytes((tiny_folder / "train.npy").read_bytes())
    assert main(arguments(tiny_folder, tmp_path / "out", "--held-out", str(copy))) == 2
    assert "not trained on" in capsys.readouterr().err


def test_a_checkpoint_from_before_an_option_was_there_is_resumed(tiny_folder, tmp_path):
    assert main(arguments(tiny_folder, tmp_path)) == 0
    path = tmp_path / "checkpoint.safetensors"
    with safe_open(path, "pt") as file:
        about = file.metadata()
    plan = json.loads(about["plan"])
    assert plan.pop("tail") == 32
    before = load_file(path)
    save_file(before, path, about | {"plan": json.dumps(plan)})
    assert main(arguments(tiny_folder, tmp_path)) == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in load_file(path).items())
    with pytest.raises(SystemExit):
        main(arguments(tiny_folder, tmp_path, "--tail", "none"))
    assert main(arguments(tiny_folder, tmp_path, "--tail", "8")) == 2

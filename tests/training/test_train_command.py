"""``sparda train`` end to end on a tiny model: one process, two, and wrong input."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sparda.cli import main
from sparda.forecast import Forecast, Shape

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

SIZES = (
    "--length 512 --rounds 3 --sequences 2 --positions 64 --step-sequences 2 --step-positions 32 --passes 1"
)
OPTIONS = f"{SIZES} --budget 5 --local 1 --keep-every 1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, its tokenizer, and packed tokens."""
    from tokenizers import Tokenizer, models

    folder = tmp_path_factory.mktemp("train")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, vocab_size=101, max_position_embeddings=1024,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(101)}, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(
        folder / "model"
    )
    for name, seed in (("train", 0), ("held_out", 1)):
        tokens = np.random.default_rng(seed).integers(3, 101, (4, 512)).astype(np.uint16)
        np.save(folder / f"{name}.npy", tokens)
    return folder


def arguments(folder, out, *more):
    files = ["--text", folder / "train.npy", "--held-out", folder / "held_out.npy", "--out", out]
    return [str(a) for a in ["train", "--model", folder / "model", *files, *OPTIONS.split(), *more]]


def test_one_command_writes_weights_log_and_run_card(folder, tmp_path, capsys):
    assert main(arguments(folder, tmp_path, "--seeds", "0,1")) == 0
    assert "forecast.safetensors" in capsys.readouterr().out
    shape = Shape(2, 32, 1, 16)
    for name in ("forecast", "forecast-seed1"):
        Forecast.load(tmp_path / f"{name}.safetensors", shape)
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["plan"]["sparsity"]["budget_blocks"] == 5
    assert card["rounds_done"] == 3
    assert len(card["recall"]["forecast_k5_1"]) == 2
    assert {"device", "commit", "versions", "date"} <= set(card)


def test_a_run_that_was_stopped_goes_on_and_ends_as_one_that_was_not(folder, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(arguments(folder, whole)) == 0
    assert main(arguments(folder, parts, "--minutes", "0")) == 0  # one round, then out of time
    assert json.loads((parts / "card.json").read_text())["rounds_done"] == 1
    assert main(arguments(folder, parts)) == 0
    a, b = (load_file(f / "forecast.safetensors") for f in (whole, parts))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_two_processes_give_what_one_gives(folder, tmp_path):
    assert main(arguments(folder, tmp_path / "one")) == 0
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
               "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
               "--main_process_port", "0", "-m", "sparda", *arguments(folder, tmp_path / "two")]  # fmt: skip
    # torchrun's kind of start, which the launcher uses for GPUs; with --cpu alone it would ask for MPI
    env = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
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
        (["--model", "no-such-model"], "unknown model"),
        (["--init", "zero"], "choose query or random"),
    ],
)
def test_wrong_input_is_one_sentence_and_status_2(folder, tmp_path, capsys, more, sentence):
    assert main(arguments(folder, tmp_path, *more)) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said

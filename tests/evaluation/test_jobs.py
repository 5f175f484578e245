"""Several processes answer what one answers."""

from __future__ import annotations

import csv
import json

import pytest
import torch

from sparda import cli

transformers = pytest.importorskip("transformers")


@pytest.fixture
def model_folder(tmp_path):
    """A random model and a tokenizer of a hundred words, as ``sparda.load`` reads them."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, vocab_size=101, max_position_embeddings=1024,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(101)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2")
    made.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_two_processes_answer_what_one_answers(model_folder, tmp_path):
    found = []
    for jobs in ("1", "2"):
        out = tmp_path / jobs
        command = ["eval", "accuracy", "--model", str(model_folder), "--device", "cpu", "--jobs", jobs]
        command += [
            "--methods",
            "dense,sparse,streaming",
            "--context",
            "320,512",
            "--shares",
            "1.0",
            "--n",
            "2",
        ]
        command += ["--tasks", "niah_single_noise", "--all-tasks", "--out", str(out)]
        assert cli.main([*command, "--replies", str(out) + ".jsonl"]) == 0
        with open(out / "samples.csv", newline="") as file:
            answers = [{k: row[k] for k in ("method", "context", "right")} for row in csv.DictReader(file)]
        said = sorted((tmp_path / f"{jobs}.jsonl").read_text().splitlines())
        found.append((answers, said))
    assert len(found[0][0]) == 6
    assert found[0] == found[1]
    assert {json.loads(line)["method"] for line in found[1][1]} == {"dense", "sparse", "streaming"}


def test_a_number_of_processes_below_one_is_refused(capsys):
    with pytest.raises(SystemExit):
        cli.main(["eval", "accuracy", "--jobs", "0"])
    assert "at least 1" in capsys.readouterr().err

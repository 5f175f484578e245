"""``sparda train`` before and after the work: options checked at once, what comes, what was reached."""

from __future__ import annotations

import json
import re
import shlex

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sparda.cli import main, parser
from sparda.training import setting
from sparda.training.command import PRESETS, complete, plan_of
from sparda.training.loop import Run
from sparda.training.progress import Progress, Work
from sparda.training.student import Student

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

SIZES = "--length 512 --rounds 2 --sequences 2 --positions 32 --step-sequences 2 --step-positions 16"
OPTIONS = f"{SIZES} --passes 1 --budget 5 --local 1".split()


def arguments(folder, out, *more, model="model"):
    files = ["--text", folder / "train.npy", "--held-out", folder / "held_out.npy", "--out", out]
    return [str(a) for a in ["train", "--model", folder / model, *files, *OPTIONS, *more]]


@pytest.fixture
def nothing_is_loaded(monkeypatch):
    monkeypatch.setattr(setting.load, "load", lambda *_, **__: pytest.fail("a model was loaded"))


def test_all_that_is_wrong_is_said_at_once_before_anything_is_loaded(tmp_path, capsys, nothing_is_loaded):
    (tmp_path / "empty.txt").write_text("")
    np.save(tmp_path / "short.npy", np.ones((2, 64), np.uint16))
    command = [
        "train",
        "--model",
        "./typo",
        "--text",
        "none.txt",
        tmp_path / "empty.txt",
        "--out",
        tmp_path / "o",
    ]
    command += ["--held-out", tmp_path / "short.npy", "--init", "none", "--minutes", "-1", "--lr", "nan"]
    command += ["--teacher", "best", "--budget", "1", "--sequences", "3", "--rounds", "0", "--clip", "-1"]
    assert main([str(a) for a in command]) == 2
    said = capsys.readouterr().err.splitlines()
    assert all(line.startswith("sparda: ") for line in said)
    for one in (
        "no directory ./typo", "no file or folder none.txt", "empty.txt is empty", "use --length 64",
        "--init is", "--minutes must be", "--lr must be", "unknown teacher", "budget_blocks = 1",
        "--rounds must be", "--clip must be", "change --sequences",
    ):  # fmt: skip
        assert sum(one in line for line in said) == 1, one
    assert len(said) == 12


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--length", "2048"], "model reads 1024 tokens at most; lower --length"),
        (["--text", "a.npy", "b.txt"], "no file a.npy"),
        (["--tail", "-1"], "--tail must be at least 0, got -1"),
        (["--lr", "inf"], "--lr must be a number above 0, got inf"),
        (["--minutes", "nan"], "--minutes must be a number from 0 on"),
        (["--seeds", "0,7"], "there is no"),
        (["--out", "{first}"], "--init and --out are one folder"),
    ],
)
def test_an_option_that_cannot_be_is_refused_before_anything_is_loaded(
    tiny_folder, tmp_path, capsys, nothing_is_loaded, more, says
):
    first = tmp_path / "first"
    first.mkdir()
    (first / "forecast.safetensors").touch()
    more = [part.format(first=first) for part in more]
    assert main(arguments(tiny_folder, tmp_path / "out", "--init", first, *more)) == 2
    assert says in capsys.readouterr().err


def test_packed_tokens_and_text_are_not_joined_and_no_numpy_file_is_no_traceback(
    tiny_folder, tmp_path, capsys
):
    (tmp_path / "fake.npy").write_text("no array")
    text = ["--text", tiny_folder / "train.npy", tmp_path / "fake.npy"]
    assert main(arguments(tiny_folder, tmp_path / "out", *text)) == 2
    said = capsys.readouterr().err
    assert "train.npy holds packed tokens and is not joined to other text; give it alone" in said
    assert "fake.npy is no file of numpy's" in said


def test_what_is_no_text_is_refused(tiny_folder, tmp_path, capsys):
    (tmp_path / "weights.bin").write_bytes(b"w1 w2 \0\0" * 400)
    assert main(arguments(tiny_folder, tmp_path / "out", "--text", tmp_path / "weights.bin")) == 2
    assert "weights.bin is not text" in capsys.readouterr().err


def test_a_preset_gives_values_and_what_is_given_wins():
    given = [
        "train",
        "--text",
        "a",
        "--held-out",
        "b",
        "--out",
        "o",
        "--preset",
        "tiny-cpu",
        "--budget",
        "12",
    ]
    options = complete(parser().parse_args(given))
    assert options.budget == 12
    for name, value in PRESETS["tiny-cpu"].items():
        assert getattr(options, name) == (12 if name == "budget" else value)
    assert plan_of(options).length == 2048
    usual = complete(parser().parse_args(given[:7]))
    assert (usual.length, usual.budget, usual.validate_on, usual.softness) == (8192, 16, 16, 1.0)
    assert "tiny-cpu: --length 2048" in re.sub(r"\s+", " ", cli_help("train"))


def cli_help(*command):
    import contextlib
    import io

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return said.getvalue()


def test_before_the_work_it_says_how_much_and_after_it_what_was_reached_and_what_to_try(
    tiny_folder, tmp_path, capsys
):
    out = tmp_path / "out"
    assert main(arguments(tiny_folder, out, "--seeds", "0,1")) == 0
    said = capsys.readouterr().out
    assert re.search(r"^4 sequences to look at and 8 steps to take: about \d+ s on cpu", said)
    lines = said.splitlines()
    assert sum(line.startswith("round ") for line in lines) == 2
    for seed in (0, 1):
        (reached,) = (line for line in lines if line.startswith(f"seed {seed}, gap from"))
        *_, last = (
            line.split(",") for line in (out / "log.csv").read_text().splitlines() if f",{seed}," in line
        )
        assert f"{last[5]} now), no gap at k 10 (recall 1.00000 at round 0, 1.00000 now)" in reached
    command = next(line for line in lines if line.startswith("to judge it: ")).removeprefix(
        "to judge it: sparda "
    )
    assert main([*shlex.split(command), "--device", "cpu"]) == 0  # the advice can be followed
    assert "sparda" in capsys.readouterr().out


def test_a_run_that_is_out_of_time_says_that_the_same_command_goes_on(tiny_folder, tmp_path, capsys):
    assert main(arguments(tiny_folder, tmp_path, "--minutes", "0")) == 0
    assert "stopped after round 1 of 2; the same command goes on" in capsys.readouterr().out
    assert main(arguments(tiny_folder, tmp_path)) == 0
    assert "going on after round 1" in capsys.readouterr().out


def test_a_run_that_does_harm_is_told(tiny_folder, tmp_path, capsys, monkeypatch):
    (tmp_path / "log.csv").write_text(
        "round,step,seed,seconds,loss,recall_k5,gap_closed_k5\n0,0,0,1,,0.8,0.1\n2,4,0,2,0.1,0.7,-0.2\n"
    )
    from sparda.training import summary

    assert "it chooses worse than at its start at k 5" in summary._reached(tmp_path / "log.csv", 0)[-1]
    assert summary._reached(tmp_path / "log.csv", 1) == []


def test_an_estimate_teaches_nothing(tiny_folder, tmp_path, monkeypatch):
    assert main(arguments(tiny_folder, tmp_path / "with")) == 0
    monkeypatch.setattr(Run, "estimate", lambda run: 1.0)
    assert main(arguments(tiny_folder, tmp_path / "without")) == 0
    one, other = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("with", "without"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_looking_is_no_step_and_the_time_left_counts_both(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("sparda.training.progress.perf_counter", lambda: now[0])
    progress = Progress(Work(sequences=4, steps=6), total=9, shown=False)
    with progress:
        now[0] += 40
        progress.looked(2)  # 20 s each
        assert progress._time_left() == ""
        now[0] += 3
        progress.stepped()
        now[0] += 1
        progress.stepped()  # 2 s each
        assert progress._time_left() == "about 48 s left"  # 2 to look at, 4 steps
        now[0] += 500  # a validation
        progress.resume()
        now[0] += 2
        progress.stepped()
        assert progress._time_left() == "about 46 s left"
        assert progress._bar.total == 9


@pytest.mark.parametrize("rate", ["1e30", "300"])
def test_a_rate_that_leaves_weights_of_nothing_ends_with_the_layer_and_no_forecast(
    tiny_folder, tmp_path, capsys, rate
):
    assert main(arguments(tiny_folder, tmp_path, "--lr", rate, "--warmup", "0")) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"layer \d", said)
    assert "nothing was kept yet: lower --lr" in said
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.fixture(scope="module", params=["Qwen2", "Qwen3"])
def qwen(request, tiny_folder):
    """A folder of a model whose queries have a bias or a norm."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{request.param}Config")(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, vocab_size=101, max_position_embeddings=1024,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, weight in model.named_parameters():
        if "q_proj.bias" in name or "q_norm" in name:
            torch.nn.init.normal_(weight)
    model.save_pretrained(tiny_folder / request.param)
    transformers.AutoTokenizer.from_pretrained(tiny_folder / "model").save_pretrained(
        tiny_folder / request.param
    )
    return request.param


def test_a_model_without_a_proxy_is_trained_from_random_weights(qwen, tiny_folder, tmp_path):
    assert main(arguments(tiny_folder, tmp_path, "--init", "random", model=qwen)) == 0
    recall = json.loads((tmp_path / "card.json").read_text())["recall"]
    assert {"query_k5", "oracle_k5", "forecast_k5_0"} <= set(recall)
    assert not [name for name in recall if name.startswith("proxy")]


def test_a_start_from_queries_that_there_cannot_be_names_the_one_that_there_is(
    qwen, tiny_folder, tmp_path, capsys
):
    assert main(arguments(tiny_folder, tmp_path, model=qwen)) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("sparda: this model has no start from its queries")
    assert said[-1].endswith("give --init random")


def test_a_gpu_that_is_too_small_is_a_sentence(tiny_folder, tmp_path, capsys, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nMore")

    monkeypatch.setattr(Student, "forward", full)
    assert main(arguments(tiny_folder, tmp_path)) == 1
    assert (
        "not enough memory (CUDA out of memory. Tried to allocate 9 GiB); lower --batch"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("bug", [KeyError("weight"), TypeError("can only add int to int"), ValueError("no")])
def test_a_bug_keeps_its_traceback(tiny_folder, tmp_path, monkeypatch, bug):
    def broken(*_):
        raise bug

    monkeypatch.setattr(Run, "observe", broken)
    with pytest.raises(type(bug)):
        main(arguments(tiny_folder, tmp_path))

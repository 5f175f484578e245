"""One's own text and model in ``sparda eval``: files and folders, named by what they hold; refused early."""

from __future__ import annotations

import csv
import shutil

import pytest
import torch

from sparda import cli
from sparda.evaluation import jobs, recall, runs, texts
from sparda.evaluation.subject import Subject
from sparda.forecast import Forecast
from sparda.models import load
from sparda.models.fingerprint import fingerprint


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


RECALL = ["eval", "recall", "--context", "320", "--shares", "0.8", "--queries", "8", "--device", "cpu"]


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.txt").write_text(" ".join(f"word{i % 89}" for i in range(900)), encoding="utf-8")
    (tmp_path / "book").mkdir()
    for i, part in enumerate("ab"):
        (tmp_path / "book" / f"{part}.md").write_text(" ".join(f"w{i}x{j % 71}" for j in range(500)))
    return tmp_path


def test_files_and_folders_of_ones_own_are_judged_on(own, tiny, monkeypatch, capsys):
    monkeypatch.setattr(runs, "subject", lambda options, device: tiny)
    command = [*RECALL, "--methods", "sparse,sparda", "--sequences", "1", "--out", str(own / "out")]
    assert cli.main([*command, "--texts", f"{own / 'own.txt'},{own / 'book'}"]) == 0
    assert "0/2 [" in capsys.readouterr().err  # how much is left
    names = {row["text"] for row in rows(own / "out" / "recall.csv")}
    assert names == {texts.label(str(own / "own.txt")), texts.label(str(own / "book"))}
    assert {name.rsplit("-", 1)[0] for name in names} == {"own", "book"}
    (own / "own.txt").write_text((own / "own.txt").read_text() + " more words", encoding="utf-8")
    assert cli.main([*command, "--texts", str(own / "own.txt")]) == 0  # another text now: no row is replaced
    assert len({row["text"] for row in rows(own / "out" / "recall.csv")}) == 3


def test_a_folder_is_read_in_order_and_a_path_below_home_is_found(own, monkeypatch):
    monkeypatch.setenv("HOME", str(own))
    whole = texts.read(str(own / "book"))
    assert whole.startswith("w0x0 ")
    assert whole.index("w1x0") > whole.index("w0x70")
    assert texts.read("~/book") == whole
    assert texts.label("~/book") == texts.label(str(own / "book"))
    assert texts.label("king_james") == "king_james"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "none.txt",
            "unknown text 'none.txt'; choose from jargon_file, king_james, or give a file or a folder",
        ),
        ("{own}/empty.txt", "empty.txt is empty"),
        ("{own}/blank.txt", "blank.txt is empty"),
        ("{own}/data.bin", "data.bin is not text"),
        ("{own}/t.npy", "holds packed tokens; give the text itself"),
        ("{own}/nothing", "holds no text"),
    ],
)
def test_a_text_that_cannot_serve_is_refused_before_the_model_is_loaded(own, monkeypatch, capsys, text, says):
    monkeypatch.setattr(load, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    (own / "empty.txt").write_text("")
    (own / "blank.txt").write_text(" \n")
    (own / "data.bin").write_bytes(b"a\0b")
    (own / "t.npy").write_bytes(b"x")
    (own / "nothing").mkdir()
    assert cli.main([*RECALL, "--texts", text.format(own=own)]) == 2
    assert says in capsys.readouterr().err


def test_a_text_that_is_too_short_is_refused_before_any_sequence_is_read(own, tiny, monkeypatch, capsys):
    monkeypatch.setattr(runs, "subject", lambda options, device: tiny)
    monkeypatch.setattr(recall, "recall_of", lambda *_: pytest.fail("a sequence was read"))
    command = [*RECALL, "--texts", f"king_james,{own / 'own.txt'}", "--sequences", "8"]
    assert cli.main(command) == 2
    assert "own.txt is too short for 8 sequences of 320 tokens; give a longer text" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["accuracy", "recall", "needle", "exchange"])
def test_a_context_beyond_a_folders_model_is_refused_before_it_is_loaded(
    tiny_model, monkeypatch, capsys, what
):
    monkeypatch.setattr(load, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    assert cli.main(["eval", what, "--model", str(tiny_model), "--context", "4096", "--device", "cpu"]) == 2
    assert "model reads 1024 tokens at most; lower --context" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--forecast", "none.safetensors"]])
def test_weights_that_are_missing_are_missed_before_the_model_is_loaded(
    tiny_model, monkeypatch, capsys, more
):
    monkeypatch.setattr(load, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    command = ["eval", "recall", "--model", str(tiny_model), "--context", "1024", "--device", "cpu"]
    command += ["--queries", "64", "--shares", "0.5"]
    assert cli.main([*command, "--methods", "sparse,sparda@1", *more]) == 2
    said = capsys.readouterr().err
    assert "sparda train" in said
    assert ("there is no file none.safetensors" in said) == bool(more)


@pytest.mark.parametrize(("what", "names"), [("recall", ["king_james"]), ("needle", ["niah_multikey_prose"]),
                                             ("accuracy", ["frequent_words"])])  # fmt: skip
def test_help_lists_the_known_names(what, names, capsys):
    with pytest.raises(SystemExit):
        cli.main(["eval", what, "--help"])
    said = capsys.readouterr().out
    assert all(name in said for name in names)


def test_a_folders_rows_name_its_weights(tiny_model, tmp_path):
    shutil.copytree(tiny_model, tmp_path / "mine")
    model, tokenizer = load.load(tmp_path / "mine")
    one = Subject(str(tmp_path / "mine"), model, tokenizer)
    assert one.label == f"mine-{fingerprint(model)[:8]}"
    with torch.no_grad():
        model.lm_head.weight += 1
    assert Subject(str(tmp_path / "mine"), model, tokenizer).label != one.label
    assert Subject("smollm2-135m", model, tokenizer).label == "smollm2-135m"


def test_a_forecast_of_another_model_is_refused(tiny, tmp_path):
    weights = Forecast.untrained(n_layers=3, hidden=64, n_kv_heads=2, head_dim=16)
    for found, fits in ((fingerprint(tiny.model), True), ("0" * 32, False)):
        path = weights.save(tmp_path / f"{fits}.safetensors", model="other", model_fingerprint=found)
        who = Subject("tiny", tiny.model, tiny.tokenizer, path)
        if fits:
            assert who.selector("sparda").name == "forecast"
        else:
            with pytest.raises(ValueError, match=r"was trained for another model \(other, .*--forecast"):
                who.selector("sparda")


class Prompt:
    input_ids, max_new_tokens = list(range(2, 60)), 12


@pytest.mark.parametrize("form", ["number", "list", "tensor", "none"])
def test_replies_end_where_the_model_says_and_else_where_the_tokenizer_says(tiny, form):
    from sparda import Engine
    from sparda.evaluation.methods import rule

    torch.manual_seed(0)
    model = type(tiny.model)(replace_config(tiny.model.config, tie_word_embeddings=False)).eval()
    tokenizer = type(tiny.tokenizer)()

    def reply(said):
        model.generation_config.eos_token_id = said
        engine = Engine(model, selector="query", sparsity=rule(320, 1), cache="full", max_tokens=320)
        return jobs.replies(engine, tokenizer, [Prompt()], 1)[0].split()

    tokenizer.eos_token_id = None
    whole = reply(None)
    first, other = (int(word.removeprefix("word")) for word in list(dict.fromkeys(whole))[:2])
    assert len(whole) == 12
    tokenizer.eos_token_id = other if form == "none" else first
    said = {"number": other, "list": [96, other], "tensor": torch.tensor([other]), "none": None}[form]
    assert reply(said) == whole[: whole.index(f"word{other}") + 1]


def replace_config(config, **changes):
    return type(config).from_dict(config.to_dict() | changes)


def test_a_bug_in_an_evaluation_keeps_its_traceback(own, tiny, monkeypatch):
    monkeypatch.setattr(runs, "subject", lambda options, device: tiny)
    monkeypatch.setattr(recall, "draw_places", lambda *_: None)
    command = [*RECALL, "--texts", str(own / "own.txt"), "--sequences", "1", "--methods", "sparse"]
    with pytest.raises((TypeError, AttributeError)):
        cli.main(command)

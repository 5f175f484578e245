import random

import pytest
import torch

from sparda import tasks, text
from sparda.tasks.haystack import number_not_in


def test_both_texts_are_there_and_have_a_notice():
    notice = (text.data_dir() / "text" / "NOTICE.md").read_text(encoding="utf-8")
    assert set(text.texts()) == {"jargon_file", "king_james"}
    assert all(f"`{path.name}`" in notice for path in text.texts().values())
    assert 1_000_000 < sum(path.stat().st_size for path in text.texts().values()) < 3_000_000


def test_an_unknown_text_lists_the_known_ones():
    with pytest.raises(KeyError, match="jargon_file, king_james"):
        text.read_text("hamlet")


def test_a_missing_data_folder_says_how_to_set_it(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARDA_DATA", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="set SPARDA_DATA"):
        text.texts()


def test_the_data_folder_follows_the_environment(monkeypatch, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "own.txt").write_text("One. Two\nlines.\n\nThree", encoding="utf-8")
    monkeypatch.setenv("SPARDA_DATA", str(tmp_path))
    assert text.sentences("own") == ("One.", "Two lines.", "Three")


class Words:
    """A tokenizer with one token per word."""

    is_fast = True
    chat_template = None

    def __call__(self, prompt, **_):
        if isinstance(prompt, list):
            return {"input_ids": [self(part)["input_ids"] for part in prompt]}
        spans, at = [], 0
        for word in prompt.split():
            at = prompt.index(word, at)
            spans.append((at, at + len(word)))
            at += len(word)
        return {"input_ids": list(range(len(spans))), "offset_mapping": spans}


def covered(needle, span):
    offsets = Words()(needle.prompt)["offset_mapping"][slice(*span)]
    return needle.prompt[offsets[0][0] : offsets[-1][1]]


@pytest.mark.parametrize("haystack", ["noise", "king_james", "jargon_file"])
def test_a_needle_prompt_is_as_long_as_asked_but_no_longer(haystack):
    for n_tokens in (60, 333, 2048):
        made = tasks.niah_single(Words(), n_tokens, haystack=haystack, depth=0.3)
        longest = 60 if haystack == "jargon_file" else 30
        assert n_tokens - longest < made.input_ids.shape[1] <= n_tokens
        assert made.input_ids.shape[0] == 1
        assert made.prompt.count(made.answer) == 1


def test_the_spans_are_the_needle_and_its_number():
    made = tasks.niah_single(Words(), 500, depth=0.5, digits=6)
    assert covered(made, made.needle) == f"The secret number is {made.answer}."
    assert covered(made, made.number) == f"{made.answer}."  # a word of this tokenizer keeps its full stop
    assert len(made.answer) == 6


def test_depth_moves_the_needle_from_front_to_back():
    places = [tasks.niah_single(Words(), 1000, depth=d).needle[0] / 1000 for d in (0, 0.5, 1)]
    assert places[0] < 0.05
    assert 0.4 < places[1] < 0.6
    assert places[2] > 0.9


def test_the_seed_decides_everything():
    a, b, c = (tasks.niah_single(Words(), 400, haystack="king_james", seed=s) for s in (1, 1, 2))
    assert a.prompt == b.prompt
    assert torch.equal(a.input_ids, b.input_ids)
    assert a.prompt != c.prompt
    assert a.answer != c.answer


def test_an_answer_counts_only_as_a_whole_number():
    made = tasks.niah_single(Words(), 100)
    assert made.answered_by(f"It is {made.answer}.")
    assert not made.answered_by(f"It is 9{made.answer}.")
    assert not made.answered_by("I do not know.")


@pytest.mark.parametrize(
    ("kwargs", "error", "says"),
    [
        ({"n_tokens": 10}, ValueError, "use at least"),
        ({"depth": 1.5}, ValueError, "between 0"),
        ({"digits": 0}, ValueError, "at least 1"),
        ({"haystack": "hamlet"}, KeyError, "king_james"),
    ],
)
def test_bad_needle_arguments_say_what_to_do(kwargs, error, says):
    with pytest.raises(error, match=says):
        tasks.niah_single(Words(), **{"n_tokens": 200, **kwargs})


def test_a_slow_tokenizer_is_refused():
    with pytest.raises(ValueError, match="fast tokenizer"):
        tasks.niah_single(object(), 100)


def test_a_number_that_the_haystack_holds_is_not_drawn():
    full = " ".join(str(n) for n in range(10))
    with pytest.raises(ValueError, match="use more digits"):
        number_not_in(full, 1, random.Random(0))

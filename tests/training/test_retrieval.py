"""Synthetic retrieval: facts in a haystack, questions and their answers at the end."""

import re

import numpy as np
import pytest

from sparda import corpus
from sparda.training import retrieval

SENTENCES = (
    "Quiet harbours shelter wooden vessels while patient sailors mend their torn canvas.",
    "A miller counts the sacks that farmers bring before winter closes every mountain road.",
    "Lanterns along the pier guide late boats home through a thick and silent evening fog.",
    "Nobody remembers who planted the old orchard, yet every autumn it feeds the village.",
    "The clock above the market hall runs slow, and strangers often miss the last coach.",
)
TEXTS = [" ".join(SENTENCES) * 60] * 2


@pytest.mark.model
def test_each_answer_stands_once_in_the_haystack_and_again_at_the_end(smollm2):
    _, tokenizer = smollm2
    made = list(retrieval.sequences(tokenizer, TEXTS, n=6, length=1400, seed=1))
    again = list(retrieval.sequences(tokenizer, TEXTS, n=6, length=1400, seed=1))
    assert all((a == b).all() for a, b in zip(made, again, strict=True))
    for tokens in made:
        assert tokens.shape == (1400,)
        text = tokenizer.decode(tokens)
        answers = re.findall(r"<\|im_start\|>assistant\n\D*(\d+)\D*<\|im_end\|>", text)
        assert len(answers) == 8
        assert all(text.count(answer) == 2 for answer in answers)
        assert text.endswith("<|im_end|>\n")
    with pytest.raises(ValueError, match="too few for 12 facts and 8 questions"):
        list(retrieval.sequences(tokenizer, TEXTS, n=1, length=256, seed=1))


@pytest.mark.model
def test_the_three_haystacks_differ_as_they_say(smollm2):
    _, tokenizer = smollm2

    def hay(kind):
        (tokens,) = retrieval.sequences(tokenizer, TEXTS, n=1, length=1400, seed=2, hays=(kind,))
        return tokenizer.decode(tokens)

    text, repeated, facts = map(hay, retrieval.HAYS)
    assert sum(sentence in text for sentence in SENTENCES) == len(SENTENCES)
    assert max(repeated.count(sentence) for sentence in SENTENCES) > 5
    assert len(re.findall(r"\d{6,7}", facts)) > 40 > len(re.findall(r"\d{6,7}", text))


@pytest.mark.model
def test_retrieval_npy_has_questions_and_plain_text_by_turns(smollm2, tmp_path, monkeypatch, capsys):
    _, tokenizer = smollm2
    tokens = np.asarray(tokenizer(TEXTS[0])["input_ids"][:1400], dtype=np.uint16)
    asked = np.full_like(tokens, tokenizer.convert_tokens_to_ids("<|im_start|>"))
    np.save(tmp_path / "train.npy", np.stack([tokens, asked, tokens]))
    assert corpus.build_retrieval(tmp_path, tokenizer, n=4) == 4
    made = np.load(tmp_path / "retrieval.npy")
    assert made.dtype == np.uint16
    assert (made[1::2] == tokens).all()
    assert all(tokenizer.decode(row).count("<|im_start|>user") > 3 for row in made[0::2])
    monkeypatch.setattr("sys.argv", ["corpus", str(tmp_path), "--retrieval", "6"])
    with pytest.raises(SystemExit, match=r"sparda\.corpus: 6 sequences need 3 without questions"):
        corpus.main()
    assert "train.npy is there and stays" in capsys.readouterr().out

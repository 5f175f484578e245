"""Synthetic retrieval: facts in the text, questions and their answers at the end."""

import re

import pytest

from sparda.training import retrieval


@pytest.mark.model
def test_each_answer_stands_once_in_the_text_and_again_at_the_end(smollm2):
    _, tokenizer = smollm2
    texts = ["Quiet harbours shelter wooden vessels while patient sailors mend their torn canvas. " * 60] * 2
    made = list(retrieval.sequences(tokenizer, texts, n=3, length=700, seed=1))
    again = list(retrieval.sequences(tokenizer, texts, n=3, length=700, seed=1))
    assert all((a == b).all() for a, b in zip(made, again, strict=True))
    for tokens in made:
        assert tokens.shape == (700,)
        text = tokenizer.decode(tokens)
        answers = re.findall(r"<\|im_start\|>assistant\n(\d+)<\|im_end\|>", text)
        assert len(answers) == 3
        assert all(text.count(answer) == 2 for answer in answers)
        assert text.endswith("<|im_end|>\n")

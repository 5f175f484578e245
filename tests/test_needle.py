"""The needle experiment: a text that is read once answers as if it had been read for each question."""

import pytest
import torch

import sparda
from sparda import needle, tasks
from sparda.spec import Sparsity

pytest.importorskip("transformers")
RULE = Sparsity(4, block_size=16, local_blocks=1)


class Letters:
    def decode(self, tokens):
        return "".join(map(chr, tokens))


def test_the_first_digit_is_found_and_a_reply_without_one_is_refused():
    reply = needle.Reply("it is 42", [ord(c) for c in "it is 42"], True)
    assert needle.first_digit(Letters(), reply) == 6
    with pytest.raises(ValueError, match="no digit"):
        needle.first_digit(Letters(), needle.Reply("no", [ord("n"), ord("o")], False))


@pytest.fixture(scope="module")
def document(smollm2):
    return needle.read(*smollm2, tasks.niah_single(smollm2[1], 200))


@pytest.mark.model
def test_only_the_text_is_read_and_the_question_is_left(smollm2, document):
    rest = smollm2[1].decode(document.needle.input_ids[0, document.n_read :])
    assert rest.startswith("What is the secret number")
    assert document.cache.get_seq_length() == document.n_read


@pytest.mark.model
def test_a_document_answers_like_its_prompt_and_can_be_asked_again(smollm2, document):
    fresh = needle.ask(*smollm2, document.needle)
    assert fresh.right
    assert needle.ask(*smollm2, document) == needle.ask(*smollm2, document) == fresh


@pytest.mark.model
def test_a_sweep_has_a_row_for_each_try_and_leaves_the_document_unchanged(smollm2, document):
    keys = document.cache.layers[3].keys.clone()
    table = needle.sweep(*smollm2, [document], RULE, [("all", 13), ("streaming", 3)])
    assert table[["selector", "budget_blocks", "right"]].to_numpy().tolist() == [
        ["all", 13, True],
        ["streaming", 3, False],
    ]
    assert table["reads_needle"].tolist() == [1, 0]  # the needle is in none of streaming's blocks
    assert torch.equal(document.cache.layers[3].keys, keys)
    with sparda.attach(smollm2[0], sparsity=RULE, probe=True) as watched:
        needle.ask(*smollm2, document, start=needle.REPLY_START, max_new_tokens=2)
    assert len(watched.probe.records) == 30 * 2

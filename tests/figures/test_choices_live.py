"""The prompt explorer's reader: the choices that it notes are those that the selectors make in ``attach``."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

import sparda
from sparda import blocks
from sparda.figures.choices_live import Reader
from sparda.models.probe import Probe
from sparda.spec import Sparsity
from sparda.tasks.haystack import as_chat

RULE = Sparsity(budget_blocks=5, block_size=16, local_blocks=1)
PROMPT = "A fox went to the well, and a crow saw it. " * 12 + "What went to the well?"
pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def reader(smollm2):
    return Reader.of(*smollm2, RULE, max_tokens=256, n_steps=3)


@pytest.fixture(scope="module")
def choices(reader):
    return reader.read(PROMPT)


def test_all_layers_heads_and_steps_are_scored_in_every_way(choices, reader):
    assert next(iter(reader.selectors)) == "query"
    n_blocks = -(-(int(choices.positions[-1]) + 1) // 16)
    assert choices.mass.shape == (30, 3, 3, n_blocks)
    assert {tuple(scores.shape) for scores in choices.scores.values()} == {tuple(choices.mass.shape)}
    assert len(choices.texts) == n_blocks
    assert len(choices.tokens) == len(choices.positions) == 3
    assert torch.allclose(choices.mass.sum(-1), torch.ones(30, 3, 3), atol=1e-4)
    assert "What went to the well?" in "".join(choices.texts)


def test_the_choices_are_those_of_the_selectors_themselves(choices, reader):
    text = as_chat(reader.tokenizer, PROMPT, "")
    ids = reader.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    for name, selector in reader.selectors.items():
        probe = Probe()
        with (
            torch.no_grad(),
            sparda.attach(reader.model, selector=selector, sparsity=RULE, phases=(), probe=probe),
        ):
            reader.model(ids, logits_to_keep=1)
        for layer in (0, 1, 17, 29):
            record = probe.at(layer)
            n_blocks = record.block_scores.shape[-1]
            scores = choices.scores[name][layer, :, 0, :n_blocks]
            ours = blocks.select_blocks(scores[None, :, None], choices.positions[None, :1], RULE)
            assert torch.equal(ours, record.block_ids.long()), (name, layer)


def test_reading_leaves_the_model_as_it_was(reader, choices):
    assert reader.model.config._attn_implementation != "sparda"


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("  \n", "the prompt is empty"),
        ("hello", r"the prompt has \d+ tokens, all in blocks that are read anyway; from 64 on"),
        ("word " * 300, r"the prompt has \d+ tokens; cut it to 256"),
        ("x" * 10_000, "the prompt has 10,000 characters, too many for 256 tokens"),
    ],
)
def test_a_prompt_out_of_bounds_is_refused_in_a_sentence(prompt, said, reader):
    with pytest.raises(ValueError, match=said):
        reader.read(prompt)


def test_without_weights_the_others_are_compared_and_the_reader_says_so(smollm2):
    reader = Reader.of(*smollm2, RULE, name="no-such-model", n_steps=1)
    assert list(reader.selectors) == ["query", "proxy"]
    assert reader.missing[0].startswith("Without forecast: data/forecasts/no-such-model holds no Forecast")
    assert list(reader.read(PROMPT).scores) == ["query", "proxy"]

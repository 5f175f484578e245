"""What is measured is what the model attends to, also where its attention scale is its own."""

from __future__ import annotations

import pytest
import torch

import sparda
from sparda.engine.weights import from_hugging_face
from sparda.evaluation import needle, recall
from sparda.models.probe import Probe
from sparda.selectors import make
from sparda.spec import Sparsity

transformers = pytest.importorskip("transformers")

RULE = Sparsity(budget_blocks=5, block_size=16, local_blocks=1, window=16, stride=8)
N_TOKENS = 300


@pytest.fixture(scope="module")
def granite():
    """A Granite with random gains and sharp attention, whose scale is four times the usual one."""
    torch.manual_seed(0)
    config = transformers.GraniteConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=97, max_position_embeddings=512, attention_multiplier=1.0,
        residual_multiplier=0.4, embedding_multiplier=2.0, logits_scaling=3.0, initializer_range=0.15,
    )  # fmt: skip
    model = transformers.GraniteForCausalLM(config).eval()
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return model


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(2, 90, (N_TOKENS,), generator=torch.Generator().manual_seed(1))


def probed(model, tokens, method):
    """What a probe of the attached, dense model notes: by layer."""
    probe = Probe(queries=None)
    with torch.no_grad(), sparda.attach(model, selector=method, sparsity=RULE, phases=(), probe=probe):
        model(tokens[None])
    return [probe.at(layer) for layer in range(3)]


@pytest.mark.parametrize("method", ["query", "oracle"])
def test_recall_of_a_choice_is_that_of_the_attached_model(granite, tokens, method):
    places = recall.draw_places(N_TOKENS, 40, first=100, seed=0)
    found = recall.recall_of(
        from_hugging_face(granite, N_TOKENS), tokens, places, {method: make(method)}, [RULE]
    )
    for layer, record in enumerate(probed(granite, tokens, method)):
        got = found[method, 5][layer].float()
        for column, values in enumerate((record.mass_recall, record.agreement)):
            torch.testing.assert_close(got[:, column], values[0][:, places].nanmean(-1), atol=1e-3, rtol=0)


def test_the_needles_mass_and_what_is_caught_of_it_are_those_of_the_attached_model(granite, tokens):
    places, blocks = torch.tensor([280, 290, 298]), torch.tensor([5, 6])
    methods = {name: make(name) for name in ("query", "oracle")}
    found = needle.caught(from_hugging_face(granite, N_TOKENS), tokens, places, blocks, methods, RULE)
    noted = {name: probed(granite, tokens, name) for name in methods}
    for layer in range(3):
        mass = noted["oracle"][layer].block_scores[0][:, places][..., blocks]  # the oracle scores by mass
        for name in methods:
            ids = noted[name][layer].block_ids[0][:, places]  # [H, t, k]
            chosen = (ids[..., None] == blocks).any(-2)
            want = torch.stack([mass.sum(-1).mean(), (mass * chosen).sum(-1).mean()])
            torch.testing.assert_close(found[name][layer].float(), want.float(), atol=1e-4, rtol=0)

"""Recorded choices: what the file holds, and how they are recorded."""

from __future__ import annotations

import pytest
import torch

from sparda.engine.weights import random_decoder
from sparda.measure import choices
from sparda.spec import ModelShape, Sparsity

SHAPE = ModelShape("tiny", 3, 32, 4, 2, 16, 48, 97, 1e-6, 1e4, 4096, False, "made up")
RULE = Sparsity(6, local_blocks=1, block_size=16)  # 3 forced, 3 learned


def texts(n):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(97, (n,), generator=generator) for _ in range(2)]


def test_what_is_recorded_is_learned_and_of_every_layer_but_the_first():
    ids = choices.record(random_decoder(SHAPE, 200), texts(200), rule=RULE, n_steps=10, context=200)
    assert ids.shape == (10, 2, 2, 2, 3)
    assert int(ids.min()) >= RULE.init_blocks
    assert int(ids.max()) < 199 // RULE.block_size - RULE.local_blocks
    assert (ids.diff(dim=-1) > 0).all()


def test_a_context_that_the_budget_covers_is_refused():
    with pytest.raises(ValueError, match="do not fill 6 blocks"):
        choices.record(random_decoder(SHAPE, 60), texts(60), rule=RULE, n_steps=4, context=60)


def test_the_hit_rate_counts_what_the_step_before_chose_too():
    ids = torch.tensor([[1, 2, 3], [1, 2, 4], [1, 2, 4]]).view(3, 1, 1, 1, 3)
    assert choices.temporal_hit_rate(ids, budget=6) == pytest.approx(1 - 0.5 / 6)


def test_the_committed_choices_are_what_their_sidecar_says():
    committed = choices.load()
    steps, _, layers, heads, learned = committed.ids.shape
    assert (steps, layers, heads, learned) == (choices.STEPS, 29, 3, 62)
    rate = choices.temporal_hit_rate(committed.ids, choices.RULE.budget_blocks)
    assert rate == pytest.approx(committed.about["hit_rate"], abs=1e-4)
    assert int(committed.ids.max()) < choices.CONTEXT // 16 - 32

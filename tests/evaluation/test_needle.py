"""The needle's blocks in a task's prompt, and how much of their mass the choices hold."""

from __future__ import annotations

import pytest
import torch

from sparda import tasks
from sparda.engine.weights import from_hugging_face
from sparda.evaluation import needle
from sparda.evaluation.methods import METHODS
from sparda.spec import Sparsity

RULE = Sparsity(budget_blocks=5, block_size=16, local_blocks=1, window=16, stride=8)


@pytest.mark.model
@pytest.mark.parametrize("task", needle.TASKS)
def test_the_blocks_hold_the_fact_and_the_places_write_the_answer(smollm2, task):
    tokenizer = smollm2[1]
    sample = tasks.make(task, tokenizer, 600, seed=3)
    tokens, places, blocks = needle.read_out(sample, tokenizer, 64)
    text = "".join(tokenizer.decode(tokens[64 * b : 64 * b + 64]) for b in blocks.tolist())
    assert f"is {sample.answers[0]}" in text
    assert tokenizer.decode(tokens[places + 1]).strip() == sample.answers[0]
    assert int(places[0]) == len(sample.input_ids) - 1


@pytest.mark.model
def test_a_task_without_one_fact_is_refused(smollm2):
    sample = tasks.make("niah_multivalue_noise", smollm2[1], 600)
    with pytest.raises(ValueError, match="no task of one fact; choose from niah_single_noise"):
        needle.check_tasks([sample.task])
    with pytest.raises(ValueError, match="must stand once"):
        needle.read_out(sample, smollm2[1], 64)


def test_caught_mass_lies_between_none_and_all_and_the_oracle_holds_most(tiny):
    tokens = torch.randint(2, 90, (400,), generator=torch.Generator().manual_seed(1))
    places, wanted = torch.tensor([396, 397, 398]), torch.tensor([7, 8])
    selectors = {name: tiny.selector(name) for name in METHODS if name != "dense"}
    found = needle.caught(from_hugging_face(tiny.model, 400), tokens, places, wanted, selectors, RULE)
    for both in found.values():
        assert bool((both[:, 1] >= 0).all() and (both[:, 1] <= both[:, 0] + 1e-9).all())
        assert torch.equal(both[:, 0], found["oracle"][:, 0])
    assert float(found["oracle"][:, 1].sum()) >= float(found["streaming"][:, 1].sum())
    rows = needle.rows([found, found], model="tiny", task="x", context=400, budget_blocks=5, seed=0)
    assert [row["layer"] for row in rows if row["method"] == "sparda"] == ["0", "1", "2", "mean"]


def test_gain_is_paired_with_the_query_selection_and_has_an_interval():
    def one(*held):
        return {
            "sparse": torch.tensor([[0.5, 0.2], [0.5, held[0]]]),
            "sparda": torch.tensor([[0.5, 0.2], [0.5, held[1]]]),
        }

    rows = needle.rows(
        [one(0.1, 0.2), one(0.3, 0.4)], model="tiny", task="x", context=400, budget_blocks=5, seed=0
    )
    cells = {(row["method"], row["layer"]): row for row in rows}
    same, ahead = cells["sparse", "1"], cells["sparda", "1"]
    assert [float(same[c]) for c in ("caught", "gain", "gain_low", "gain_high")] == [0.2, 0, 0, 0]
    assert [round(float(ahead[c]), 6) for c in ("caught", "gain", "gain_low", "gain_high")] == [
        0.3,
        0.1,
        0.1,
        0.1,
    ]
    assert float(ahead["caught_low"]) < 0.3 < float(ahead["caught_high"])

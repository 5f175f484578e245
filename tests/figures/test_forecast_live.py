"""What chapter 03 computes live agrees with the evaluation's own measures, on a tiny model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sparda.figures import forecast_live as live
from sparda.spec import Sparsity
from sparda.training import validate
from sparda.training.plan import Plan

pytest.importorskip("pandas")
transformers = pytest.importorskip("transformers")

RULE = Sparsity(5, block_size=16, local_blocks=1, window=8, stride=4)
AT = torch.arange(100, 200, 7)


@pytest.fixture(scope="module")
def model():
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, vocab_size=50, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(0, 50, (2, 200), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def seen(model, tokens):
    return live.observe(model, tokens, AT, RULE)


def test_some_layers_are_what_all_layers_show_and_the_model_is_as_before(model, tokens, seen):
    some = live.observe(model, tokens, AT, RULE, [1, 2])
    for name in ("inputs", "compressed", "target", "queries"):
        torch.testing.assert_close(getattr(some, name), getattr(seen, name)[1:3])
    assert model.config.num_hidden_layers == 4


def test_a_student_of_some_layers_has_their_weights_and_exported_ones_choose_alike(seen, model):
    plan = Plan(RULE, length=200, noise=0.0)
    whole = live.student(model, plan)
    part = live.student(model, plan, [1, 3])
    torch.testing.assert_close(part.weight, whole.weight[[1, 3]])
    same = live.student_of(whole.export(), whole)
    assert torch.equal(live.choose(seen, same, RULE), live.choose(seen, whole, RULE))


def test_compare_gives_the_means_that_validation_gives(seen, model):
    whole = live.student(model, Plan(RULE, length=200))
    choosers = {"query": validate.by_query, "oracle": validate.by_oracle, "Forecast": whole}
    table = live.compare(seen, choosers, RULE)
    assert len(table) == 3 * 4 * 2
    assert table.loc[table["series"] == "query", "agreement"].eq(1).all()
    means = table.groupby(["series", "layer"])["mass_recall"].mean()
    scores = validate.by_student(seen, whole, RULE)
    want = validate.recall(seen, scores, RULE)
    assert means["Forecast"].tolist() == pytest.approx(want.tolist(), abs=1e-5)
    assert (means["oracle"] >= means["query"] - 1e-6).all()
    torch.testing.assert_close(live.recall_of(seen, whole, RULE).mean(1), want)


def test_rows_are_named_after_the_layers_that_were_asked_for(seen):
    table = live.compare(live.at_layers(seen, [2]), {"query": validate.by_query}, RULE, [2])
    assert table["layer"].tolist() == [2, 2]


def test_training_takes_the_plans_steps_and_finds_more_mass_where_it_trained(model, tokens, seen):
    plan = Plan(
        RULE, length=200, rounds=1, sequences=2, positions=len(AT), step_sequences=2, step_positions=8,
        passes=20, warmup=2, init="random",
    )  # fmt: skip
    ours = live.student(model, plan)
    losses, table = live.train(ours, seen, plan, seen, layers=range(4), every=10)
    assert len(losses) == plan.steps_per_round == 40
    assert losses[-1][1] < losses[0][1]
    by_step = table.groupby("step")["mass_recall"].mean()
    assert by_step.index.tolist() == [0, 10, 20, 30, 40]
    assert by_step.iloc[-1] > by_step.iloc[0]


def test_the_rule_is_the_evaluations_in_smaller_blocks():
    assert live.rule(512, 16) == replace(live.rule(2048, 64), block_size=16)
    with pytest.raises(ValueError, match="no room"):
        live.rule(64, 16)


def test_a_text_that_ends_too_early_is_refused():
    class Words:
        def __call__(self, text, **_):
            return {"input_ids": text.split()}

    with pytest.raises(ValueError, match="ends before 50 tokens"):
        live.sequences(Words(), "1 " * 60, 50, [0.5])

"""Cells, shared prompts, equal batches, and what is compared with what."""

from __future__ import annotations

import pytest

from sparda import tasks
from sparda.evaluation import accuracy, jobs
from sparda.evaluation.accuracy import ACCURACY, Prompts, Result
from sparda.evaluation.jobs import Here
from sparda.evaluation.methods import METHODS, rule

RUN = {"date": "2026-01-01", "commit": "a"}


def result(method, task, right, of=1, k=8, context=4096):
    return Result(method, task, context, k, right, of, [""] * len(right), 0.0)


def samples(*results):
    return [r.rows("tiny", 0, RUN)[1] for r in results]


def test_k_and_local_follow_the_context_and_too_small_a_k_is_refused():
    rules = [rule(c, s) for c in (2048, 4096, 8192) for s in (0.125, 0.25)]
    assert [(r.budget_blocks, r.local_blocks) for r in rules] == [
        (4, 1),
        (8, 2),
        (8, 2),
        (16, 4),
        (16, 4),
        (32, 8),
    ]
    assert {(r.block_size, r.init_blocks) for r in rules} == {(64, 1)}
    with pytest.raises(ValueError, match="longer context or a larger share"):
        rule(1024, 0.125)


def test_dense_runs_once_and_first_the_others_at_every_k_that_fits():
    steps = accuracy.plan(["sparda", "dense", "sparse"], 2048, (0.25, 0.125))
    assert [(m, r.budget_blocks) for m, r in steps] == [
        ("dense", 32), ("sparse", 8), ("sparda", 8), ("sparse", 4), ("sparda", 4),
    ]  # fmt: skip
    assert [r.budget_blocks for _, r in accuracy.plan(["sparse"], 1024, (0.125, 0.25))] == [4]
    with pytest.raises(ValueError, match="larger share"):
        accuracy.plan(["sparse"], 1024, (0.125,))


def test_a_cell_becomes_a_row_with_a_wilson_interval():
    row, sample = result("sparse", "niah", [4, 2, 0, 4], of=4).rows("tiny", 3, RUN)
    assert (row["n"], row["correct"], row["accuracy"], row["seed"]) == ("4", "2.5", "0.625", "3")
    assert float(row["ci_low"]) < 0.625 < float(row["ci_high"])
    assert (sample["right"], sample["of"]) == ("4 2 0 4", "4")
    assert set(row) == set(ACCURACY.columns)


def test_pairs_compare_with_every_method_before_and_average_over_the_tasks_that_count():
    rows = samples(
        result("dense", "a", [1, 1, 1, 1], k=64), result("dense", "b", [0, 0, 0, 0], k=64),
        result("sparse", "a", [1, 0, 0, 1]), result("sparse", "b", [0, 0, 0, 1]),
        result("sparda", "a", [1, 1, 0, 1]), result("sparda", "b", [0, 0, 0, 0]),
    )  # fmt: skip
    found = {(r["method"], r["baseline"], r["task"]): r for r in accuracy.pairs(rows)}
    ours = found["sparda", "sparse", "a"]
    assert (ours["difference"], ours["better"], ours["worse"], ours["p_value"]) == ("0.25", "1", "0", "1")
    assert found["sparda", "dense", "a"]["difference"] == "-0.25"
    assert found["sparda", "sparse", "average"]["difference"] == "0.25"  # task b does not count
    assert found["sparda", "sparse", "average"]["n"] == "4"
    assert ("dense", "sparse", "a") not in found


def test_cells_of_other_contexts_budgets_or_seeds_are_not_paired():
    a = result("sparse", "a", [1, 0])
    others = (result("sparda", "a", [1, 0], k=16), result("sparda", "a", [1, 0], context=8192))
    assert accuracy.pairs(samples(a, *others)) == []


def test_of_unequal_cells_the_samples_that_both_have_are_compared():
    (row,) = accuracy.pairs(samples(result("sparse", "a", [1, 0, 1]), result("sparda", "a", [1, 1])))[:1]
    assert (row["n"], row["difference"]) == ("2", "0.5")


def test_prompts_are_made_once_and_differ_between_samples_and_seeds(tiny):
    prompts = Prompts(tiny.tokenizer, 4, seed=0)
    made = prompts.of("niah_single_noise", 300)
    assert all(a is b for a, b in zip(prompts.of("niah_single_noise", 300), made, strict=True))
    other = Prompts(tiny.tokenizer, 4, seed=1).of("niah_single_noise", 300)
    assert len({s.prompt for s in [*made, *other]}) == 8


@pytest.mark.parametrize(("ends", "stop_at"), [((2,), None), ((), [1])])
def test_replies_come_in_batches_of_equal_size_and_end_where_the_model_says(ends, stop_at):
    """A model that names no end token ends where its tokenizer does."""
    batches = []

    class Engine:
        def generate(self, prompts, *, max_new_tokens, stop):
            assert stop == stop_at
            batches.append(len(prompts))
            return type("Made", (), {"tokens": [list(p) for p in prompts]})

    class Tokenizer:
        eos_token_id = 1

        def decode(self, tokens, skip_special_tokens):
            return str(tokens)

    asked = [tasks.Sample("x", "", (i,), ("a",), 5) for i in range(7)]
    Engine.ends = ends
    assert jobs.replies(Engine(), Tokenizer(), asked, 3) == [f"[{i}]" for i in range(7)]
    assert batches == [3, 3, 3]


def test_every_method_answers_and_methods_that_choose_every_block_answer_alike(tiny):
    found: list[Result] = []
    accuracy.measure(
        Here(tiny, Prompts(tiny.tokenizer, 2), 2), methods=list(METHODS), names=["niah_single_noise"],
        contexts=[320], shares=[1.0], all_tasks=True, done=found.append,
    )  # fmt: skip
    assert [r.method for r in found] == list(METHODS)
    assert {r.budget_blocks for r in found} == {5}
    assert len({tuple(r.replies) for r in found}) == 1


def test_tasks_that_dense_does_not_solve_are_left_out(tiny):
    found: list[Result] = []
    accuracy.measure(
        Here(tiny, Prompts(tiny.tokenizer, 2), 2), methods=["dense", "sparse"], names=["niah_single_noise"],
        contexts=[512], shares=[0.5], done=found.append,
    )  # fmt: skip
    assert [(r.method, sum(r.right)) for r in found] == [("dense", 0)]

"""The numbers of an evaluation on answers and recalls small enough to check by hand."""

from __future__ import annotations

import pytest
import torch

from sparda.engine.weights import from_hugging_face
from sparda.evaluation import accuracy, exchange, needle, recall
from sparda.evaluation.accuracy import Result
from sparda.evaluation.statistics import Z, paired_interval, wilson
from sparda.selectors import make
from sparda.spec import Sparsity
from sparda.tasks import Sample

RUN = {"date": "2026-01-01", "commit": "a"}
CELL = {"model": "tiny", "text": "x", "context": 400, "n": 8, "seed": 0, **RUN}


def result(method, right, task="niah_single_noise", of=1):
    return Result(method, task, 4096, 64 if method == "dense" else 8, right, of, [""] * len(right), 0.0)


def test_an_interval_is_over_the_samples_and_not_over_their_answers():
    row, _ = result("sparse", [4, 2, 0, 4], of=4).rows("tiny", 0, RUN)
    limits = float(row["ci_low"]), float(row["ci_high"])
    assert limits == pytest.approx(wilson(2.5, 4), rel=1e-3)


@pytest.mark.parametrize(("right", "counts"), [([1, 0, 0, 0, 0], False), ([1, 0, 0, 1, 0], True)])
def test_a_task_that_dense_solves_a_fifth_of_does_not_count(right, counts):
    """Neither is it asked of other methods, nor is it in the average of pairs."""
    asked = []

    def work(jobs):
        for job in jobs:
            asked.append(job.method)
            yield result(job.method, right)

    options = {"contexts": [4096], "shares": [0.125], "done": lambda _: None}
    accuracy.measure(work, methods=["dense", "sparse"], names=["niah_single_noise"], **options)
    assert asked == ["dense", *["sparse"] * counts]
    samples = [result(method, right).rows("tiny", 0, RUN)[1] for method in ("dense", "sparse")]
    assert ("average" in {row["task"] for row in accuracy.pairs(samples)}) == counts


def measures(*mass):
    """(method, k) -> [L, H, 3] of one sequence, of its mass recall by layer; the rest is one half."""
    found = torch.full((len(mass), 2, 3), 0.5, dtype=torch.float64)
    found[..., 0] = torch.tensor(mass, dtype=torch.float64)[:, None]
    return found


def of_all_layers(found, method):
    made = recall.rows(found, **CELL)
    (row,) = [r for r in made if r["method"] == method and r["layer"] == r["head"] == recall.MEAN]
    return row


def test_the_mean_over_layers_leaves_out_layer_0():
    assert float(of_all_layers([{("sparse", 5): measures(0.0, 1.0, 1.0)}] * 2, "sparse")["mass_recall"]) == 1


def test_a_gain_is_paired_sequence_by_sequence():
    """Both methods vary alike between the texts, so the gain is known without doubt."""
    found = [
        {("sparse", 5): measures(0, base, base), ("sparda", 5): measures(0, base + 0.125, base + 0.125)}
        for base in (0.25, 0.5, 0.75)
    ]
    ours, base = (of_all_layers(found, method) for method in ("sparda", "sparse"))
    assert [float(ours[name]) for name in ("gain", "gain_low", "gain_high")] == [0.125] * 3
    assert float(ours["mass_low"]) < float(ours["mass_recall"]) < float(ours["mass_high"])
    assert [float(base[name]) for name in ("gain", "gain_low", "gain_high")] == [0] * 3


def test_a_hit_is_a_wanted_block_that_the_place_before_had(tiny):
    """Position 47 reads blocks 0 to 2; position 48 wants 0 to 3, one of which is new."""
    tokens = torch.randint(2, 90, (60,), generator=torch.Generator().manual_seed(1))
    rule = Sparsity(budget_blocks=8, block_size=16, local_blocks=1, window=16, stride=8)
    decoder = from_hugging_face(tiny.model, 60)
    found = recall.recall_of(
        decoder, tokens, torch.tensor([47, 48]), {"streaming": make("streaming")}, [rule]
    )
    torch.testing.assert_close(found["streaming", 8][..., 2].float(), torch.full((3, 2), 0.75))


def test_every_number_of_a_row_stands_under_its_own_name():
    found = torch.tensor([[[0.5, 0.25, 0.75]] * 2] * 3, dtype=torch.float64)
    row = of_all_layers([{("sparse", 5): found}] * 2, "sparse")
    assert [float(row[name]) for name in ("mass_recall", "agreement", "hit_rate")] == [0.5, 0.25, 0.75]


def test_a_layers_number_is_the_mean_of_its_heads_and_a_heads_is_its_own():
    found = torch.zeros(2, 2, 3, dtype=torch.float64)
    found[1, :, 0] = torch.tensor([0.25, 0.75])
    made = recall.rows([{("sparse", 5): found}] * 2, **CELL)
    at = {(row["layer"], row["head"]): float(row["mass_recall"]) for row in made}
    assert [at["1", head] for head in ("0", "1", recall.MEAN)] == [0.25, 0.75, 0.5]


def test_the_needles_mean_over_layers_leaves_out_layer_0():
    found = [{"sparse": torch.tensor([[0.0, 0.0], [1.0, 0.5], [1.0, 0.5]])}] * 2
    rows = needle.rows(found, model="tiny", task="x", context=400, budget_blocks=5, seed=0)
    assert [(row["layer"], row["mass"], row["caught"]) for row in rows][-1] == (recall.MEAN, "1", "0.5")


def characters(text, add_special_tokens, return_offsets_mapping=False):
    """A tokenizer for which every sign is a token."""
    return {
        "input_ids": [ord(sign) for sign in text],
        "offset_mapping": [(i, i + 1) for i in range(len(text))],
    }


def test_the_full_stop_before_a_fact_is_no_part_of_it():
    """In blocks of four the stop ends block 0, and the fact begins block 1."""
    prompt = "abc. It is 7."
    sample = Sample("x", prompt, tuple(map(ord, prompt)), ("7",), 5)
    tokens, places, blocks = needle.read_out(sample, characters, 4)
    assert blocks.tolist() == [1, 2]
    assert "".join(map(chr, tokens[places + 1].tolist())) == " 7"


def test_what_an_exchange_gains_is_paired_prompt_by_prompt():
    found = [torch.tensor([-4.0, -3.5, -3.0]) + shift for shift in (0.0, 1.0, 3.0)]
    cell = {"model": "tiny", "method": "sparda", "task": "x", "context": 400, "budget_blocks": 5, "seed": 0}
    row = exchange.rows(found, **cell)[1]
    assert [float(row[name]) for name in exchange.GAIN] == [0.5] * 3


def test_a_paired_interval_by_hand():
    """Two samples, 1 and 0, and the two that Agresti and Min add: centre 1/4, variance (2/4 - 1/16) / 4."""
    mean, low, high = paired_interval([[1.0, 0.0]])
    half = Z * (0.4375 / 4) ** 0.5
    assert (mean, low, high) == pytest.approx((0.5, 0.25 - half, 0.25 + half))

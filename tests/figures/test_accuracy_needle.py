"""Why tasks are lost: differences by haystack, and what choices hold of the needle's mass, layer by layer."""

from __future__ import annotations

import pytest
import torch

from sparda.evaluation import exchange
from sparda.evaluation.accuracy import Result
from sparda.evaluation.needle import NEEDLE
from sparda.figures import accuracy_data, accuracy_needle
from sparda.measure import tables

pd = pytest.importorskip("pandas")

NOISE, PROSE = "niah_single_noise", "niah_single_prose"
CAUGHT = {  # method: what it holds of 0.4 of all mass, by haystack, in layer 1
    "sparse": (0.4, 0.2),
    "sparda": (0.3, 0.3),
    "infinigen": (0.4, 0.05),
    "oracle": (0.4, 0.4),
}


def needle_rows(context=4096, budget_blocks=8):
    of = {"model": "tiny", "context": context, "budget_blocks": budget_blocks, "seed": 0, "n": 5}
    of |= {"date": "2026-01-01", "commit": "abc"}
    return [
        NEEDLE.row(method=method, task=task, layer=layer, mass=mass, caught=min(mass, held), **of)
        for method, both in CAUGHT.items()
        for task, held in zip((NOISE, PROSE), both, strict=True)
        for layer, mass in ((0, 0.1), (1, 0.4), ("mean", 0.4))
    ]


def test_gains_over_the_query_are_one_methods_at_the_nearest_place():
    some = [row | {"gain": "-0.1" if row["method"] == "sparda" else "9"} for row in needle_rows()]
    rows = accuracy_data.numbers(pd.DataFrame([*some, *needle_rows(8192, 16)]))
    gains = accuracy_needle.needle_gains(rows, 4000, 9)
    assert set(gains["gain"]) == {-0.1}
    assert list(zip(gains["task"], gains["layer"], strict=True)) == [
        (NOISE, 0),
        (NOISE, 1),
        (PROSE, 0),
        (PROSE, 1),
    ]


@pytest.fixture
def rows():
    return accuracy_data.numbers(pd.DataFrame([*needle_rows(), *needle_rows(8192, 16)]))


@pytest.fixture
def answers():
    """SparDA has two answers more than Sparse over prose and one fewer over noise, InfiniGen two fewer."""
    right = {"dense": (10, 10), "sparse": (5, 3), "sparda": (4, 5), "infinigen": (5, 1)}
    made = [
        Result(
            method, task, 4096, 64 if method == "dense" else 8, [1] * n + [0] * (10 - n), 1, [""] * 10, 0.0
        )
        for method, both in right.items()
        for task, n in zip((NOISE, PROSE, "frequent_words"), (*both, 6), strict=True)
    ]
    return accuracy_data.live(made, "tiny", block_size=64, where="here")


def test_committed_rows_are_read_as_written(tmp_path, rows):
    about = {"device": "A GPU", "date": "2026-01-01", "commit": "abc"}
    tables.keep(NEEDLE, needle_rows(), tmp_path / "a-gpu", about)
    kept = accuracy_data.read("needle", "a-gpu", tmp_path, model="tiny")
    assert kept is not None
    assert kept.where == "A GPU · 2026-01-01 · commit abc"
    ours, theirs = (accuracy_needle.needle_table(table, 4096, 8) for table in (kept.rows, rows))
    assert ours["caught"].tolist() == theirs["caught"].tolist()


def test_the_table_is_of_the_nearest_place_and_says_what_is_missed(rows):
    table = accuracy_needle.needle_table(rows, 10_000, 8)
    assert set(table["context"]) == {8192}
    at = table.set_index(["hay", "method", "layer"])
    assert at.loc[("prose", "sparda", 1), ["mass", "caught", "missed"]].tolist() == pytest.approx(
        [0.4, 0.3, 0.1]
    )
    assert set(at.index.get_level_values("layer")) == {0, 1}


def test_tasks_of_one_haystack_are_averaged(rows):
    other = rows[rows["task"] == PROSE].assign(task="niah_multikey_prose", mass=0.8)
    table = accuracy_needle.needle_table(pd.concat([rows, other]), 4096, 8)
    assert table.set_index(["hay", "method", "layer"]).loc[("prose", "oracle", 1), "mass"] == pytest.approx(
        0.6
    )


def test_a_bar_is_as_high_as_the_mass_and_what_is_missed_is_hatched(rows):
    figure = accuracy_needle.needle_figure(accuracy_needle.needle_table(rows, 4096, 8), where="A GPU")
    assert figure.layout.meta["stamp"].startswith("measured · A GPU")
    caught, missed = figure.data[::2], figure.data[1::2]
    assert len(caught) == 2 * len(accuracy_needle.SHOWN)  # the oracle is in the table only
    for below, above in zip(caught, missed, strict=True):
        assert (below.y + above.y).tolist() == pytest.approx([10, 40])
        assert (above.marker.pattern.shape, below.marker.pattern.shape) == ("/", None)
    shown = [trace.name for trace in figure.data if trace.showlegend]
    assert shown == ["caught by Sparse", "missed", "caught by SparDA", "caught by InfiniGen"]
    titles = [note.text for note in figure.layout.annotations]
    assert titles[:2] == ["noise: Sparse catches 100 %", "prose: Sparse catches 60 %"]


def test_one_haystack_alone_is_drawn_too(rows):
    table = accuracy_needle.needle_table(rows[rows["task"] == PROSE], 4096, 8)
    assert len(accuracy_needle.needle_figure(table, where="here").data) == 6


def test_differences_by_haystack_leave_out_tasks_that_have_none(answers):
    split = accuracy_needle.by_hay(answers.samples, answers.pairs)
    split = split[(split["method"] == "sparda") & (split["baseline"] == "sparse")].set_index("hay")
    assert split["difference"].to_dict() == pytest.approx(
        {"all tasks": 0.1 / 3, "noise": -0.1, "prose": 0.2}, abs=1e-4
    )
    assert split.loc["noise", ["n", "share"]].tolist() == [10, 0.125]
    some = [row for row in answers.samples if row["task"] == PROSE]
    assert set(accuracy_needle.by_hay(some, answers.pairs)["hay"]) == {"all tasks", "prose"}


def exchange_rows(context=4096, budget_blocks=8):
    """Two layers; over noise the second is worth all that the query gains."""
    of = {"model": "tiny", "context": context, "budget_blocks": budget_blocks, "seed": 0}
    found = {NOISE: (-4.0, -4.0, -2.0, -2.0), PROSE: (-3.0, -3.0, -3.5, -3.5)}
    return [
        row
        for task, values in found.items()
        for row in exchange.rows([torch.tensor(values)] * 3, method="sparda", task=task, **of)
    ]


def test_a_bar_is_what_one_layer_gains_and_the_line_what_all_do():
    other = [row | {"method": "infinigen"} for row in exchange_rows()]
    rows = accuracy_data.numbers(pd.DataFrame([*exchange_rows(), *exchange_rows(8192, 16), *other]))
    table = accuracy_needle.exchange_table(rows, 5000, 8)
    assert set(table["context"]) == {4096}
    assert set(table["method"]) == {"sparda"}
    figure = accuracy_needle.exchange_figure(table, where="here")
    bars = [trace for trace in figure.data if trace.type == "bar"]
    lines = [trace for trace in figure.data if trace.type == "scatter"]
    assert [list(bar.y) for bar in bars] == [[0.0, 2.0], [0.0, -0.5]]
    assert [set(line.y) for line in lines] == [{2.0}, {-0.5}]
    assert [trace.showlegend for trace in figure.data] == [True, True, False, False]
    with pytest.raises(ValueError, match="no streaming; run `sparda eval exchange --methods streaming`"):
        accuracy_needle.exchange_table(rows, 4096, 8, "streaming")

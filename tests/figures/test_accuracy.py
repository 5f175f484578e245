"""Chapter 07's tables and figures: which tasks count, what is averaged, what is paired, what is drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparda.evaluation.accuracy import ACCURACY, AVERAGE, PAIRS, SAMPLES, Result, pairs
from sparda.evaluation.recall import RECALL
from sparda.evaluation.statistics import wilson
from sparda.figures import accuracy, accuracy_data
from sparda.measure import tables

pd = pytest.importorskip("pandas")

RUN = {"date": "2026-01-01", "commit": "abc"}
ABOUT = {"device": "A GPU", **RUN}
EASY, MANY, HARD = "niah_single_prose", "niah_multivalue_prose", "common_words"


def result(method, task, right, k=8, context=4096, of=1):
    return Result(method, task, context, k, right, of, [""] * len(right), 0.0)


def results():
    """Dense and two methods on two tasks that count and one that does not; the oracle on one."""
    made = []
    for method, gain in (("dense", 2), ("sparse", 0), ("sparda", 1)):
        k = 64 if method == "dense" else 8
        made.append(result(method, EASY, [1] * (6 + gain) + [0] * (4 - gain), k))
        made.append(result(method, MANY, [4] * gain + [2] * 4 + [0] * (6 - gain), k, of=4))
        made.append(result(method, HARD, [1] * gain + [0] * (10 - gain), k))
    return [*made, result("oracle", EASY, [1] * 10), result("sparse", EASY, [1] * 9 + [0], k=16)]


@pytest.fixture
def live():
    return accuracy_data.live(results(), "tiny", block_size=64, where="here")


def write(folder, name, rows):
    table = {"accuracy": ACCURACY, "samples": SAMPLES, "pairs": PAIRS, "recall": RECALL}[name]
    tables.keep(table, rows, folder / "a-gpu", ABOUT)


def recall_rows():
    of = {"model": "tiny", "context": 4096, "budget_blocks": 8, "seed": 0, **RUN}
    mass = {"sparse": (0.8, 0.84), "sparda": (0.84, 0.88), "forced": (0.7, 0.7)}
    return [
        RECALL.row(method=m, text=text, layer=layer, head="mean", mass_recall=value, agreement=0.7, **of)
        for m, values in mass.items()
        for text, value in zip(("a", "b"), values, strict=True)
        for layer in (0, "mean")
    ]


def test_what_is_not_committed_is_none_and_named(tmp_path):
    assert accuracy_data.committed("a-gpu", tmp_path, model="tiny") is None
    assert accuracy_data.read("recall", "a-gpu", tmp_path) is None
    for name in ("accuracy", "recall", "needle", "exchange"):
        assert f"sparda eval {name}" in accuracy_data.missing(name)
    assert "--methods sparda@7" in accuracy_data.missing("waiting")
    for name in ("accuracy", "waiting", "needle"):
        with pytest.raises(FileNotFoundError, match="sparda eval"):
            accuracy_data.need(name, "no-such-model")
    assert not any("@" in row["method"] for row in accuracy_data.need("accuracy").samples)
    assert any("@" in row["method"] for row in accuracy_data.need("waiting").samples)


def test_committed_tables_equal_live_ones_and_carry_their_stamp(tmp_path, live):
    rows = [r.rows("tiny", 0, RUN) for r in results()]
    write(tmp_path, "accuracy", [cell for cell, _ in rows])
    write(tmp_path, "samples", [sample for _, sample in rows])
    for with_pairs in (False, True):
        if with_pairs:
            write(tmp_path, "pairs", pairs([sample for _, sample in rows]))
        kept = accuracy_data.committed("a-gpu", tmp_path, model="tiny")
        assert kept is not None
        assert kept.where == "A GPU · 2026-01-01 · commit abc"
        key = ["method", "task", "share"]
        ours, theirs = (e.cells.set_index(key)["accuracy"].sort_index() for e in (kept, live))
        assert ours.tolist() == theirs.tolist()
        key = ["method", "baseline", "task", "share"]
        ours, theirs = (e.pairs.set_index(key)["difference"].sort_index() for e in (kept, live))
        assert ours.to_dict() == pytest.approx(theirs.to_dict(), abs=1e-3)


@pytest.mark.parametrize("with_pairs", [False, True])
def test_methods_of_which_a_layer_waits_are_there_only_if_asked_for(tmp_path, with_pairs):
    rows = [r.rows("tiny", 0, RUN) for r in [*results(), result("sparda@7", EASY, [1] * 10)]]
    write(tmp_path, "accuracy", [cell for cell, _ in rows])
    write(tmp_path, "samples", [sample for _, sample in rows])
    if with_pairs:
        write(tmp_path, "pairs", pairs([sample for _, sample in rows]))
    plain = accuracy_data.committed("a-gpu", tmp_path, model="tiny")
    every = accuracy_data.committed("a-gpu", tmp_path, model="tiny", waits=True)
    assert set(every.cells["method"]) - set(plain.cells["method"]) == {"sparda@7"}
    assert not any("@" in row["method"] for row in plain.samples)
    assert not plain.pairs[["method", "baseline"]].stack().str.contains("@").any()
    table = accuracy_data.pair_table(every.pairs, [(4096, 0.125)], ["sparse", "sparda"], "sparda@7")
    assert list(table["baseline"]) == ["sparse", "sparda"] * 2
    assert list(table["task"]) == [EASY, EASY, AVERAGE, AVERAGE]
    drawn = accuracy.pair_figure(table, method="SparDA@7")
    assert [trace.name for trace in drawn.data] == ["SparDA@7 − Sparse", "SparDA@7 − SparDA"]


def test_many_panels_have_short_titles(live):
    table = accuracy_data.pair_table(live.pairs, [(4096, 0.125)], ["sparse"])
    many = pd.concat([table.assign(context=context) for context in (1024, 2048, 4096)])
    titles = [note.text for note in accuracy.pair_figure(many).layout.annotations]
    assert titles[:3] == ["1K, 12.5 %", "2K, 12.5 %", "4K, 12.5 %"]


def test_a_second_model_in_the_files_changes_no_table_of_the_first(tmp_path, live):
    for name, gain in (("tiny", 0), ("a-second", 1)):
        rows = [
            replace(r, right=[x - gain if x else 0 for x in r.right]).rows(name, 0, RUN) for r in results()
        ]
        write(tmp_path, "accuracy", [cell for cell, _ in rows])
        write(tmp_path, "samples", [sample for _, sample in rows])
        write(tmp_path, "pairs", pairs([sample for _, sample in rows]))
        write(tmp_path, "recall", [row | {"model": name} for row in recall_rows()])
    kept = accuracy_data.committed("a-gpu", tmp_path, model="tiny")
    recall = accuracy_data.read("recall", "a-gpu", tmp_path, model="tiny")
    assert kept is not None
    assert recall is not None
    assert len(recall.rows) == len(recall_rows())
    assert (len(kept.samples), len(kept.pairs)) == (len(live.samples), len(live.pairs))
    key = ["share", "method"]
    ours, theirs = (accuracy_data.averages(e.cells).set_index(key)["accuracy"] for e in (kept, live))
    assert ours.to_dict() == theirs.to_dict()
    assert accuracy_data.committed("a-gpu", tmp_path, model="a-third") is None


def test_an_evaluation_that_has_not_come_to_sparda_yet_is_none(tmp_path):
    rows = [r.rows("tiny", 0, RUN) for r in results() if r.method != "sparda"]
    write(tmp_path, "accuracy", [cell for cell, _ in rows])
    write(tmp_path, "samples", [sample for _, sample in rows])
    assert accuracy_data.committed("a-gpu", tmp_path, model="tiny") is None
    assert "SparDA ran" in accuracy_data.missing("accuracy")


def test_of_several_seeds_the_first_is_shown(tmp_path):
    for seed, right in ((3, [1, 1]), (1, [0, 1])):
        write(tmp_path, "accuracy", [result("sparse", EASY, right).rows("tiny", seed, RUN)[0]])
    kept = accuracy_data.read("accuracy", "a-gpu", tmp_path, model="tiny")
    assert kept is not None
    assert (list(kept.rows["seed"]), list(kept.rows["accuracy"])) == ([1], [0.5])


def test_a_task_counts_where_dense_scores_over_a_fifth(live):
    assert accuracy_data.counted(live.cells, 4096, 0.125) == [EASY, MANY]
    without = live.cells[live.cells["method"] != "dense"]
    assert accuracy_data.counted(without, 4096, 0.125) == [EASY, MANY, HARD]


def test_only_methods_with_every_counted_task_have_an_average(live):
    means = accuracy_data.averages(live.cells).set_index(["share", "method"])
    assert set(means.loc[0.125].index) == {"dense", "sparse", "sparda"}  # the oracle has one task of two
    assert means.loc[(0.125, "sparse"), "accuracy"] == pytest.approx((0.6 + 0.2) / 2)
    assert means.loc[(0.25, "sparse"), "tasks"] == 1


def test_an_average_of_one_task_has_its_interval_and_of_many_a_narrower_one():
    low, high = wilson(8, 10)
    assert accuracy_data.average([0.8], [low], [high]) == pytest.approx((0.8, low, high))
    mean, below, above = accuracy_data.average([0.8] * 4, [low] * 4, [high] * 4)
    assert mean == pytest.approx(0.8)
    assert (0.8 - below, above - 0.8) == pytest.approx(((0.8 - low) / 2, (high - 0.8) / 2))


def test_the_nearest_measured_point_is_found_by_context_first(live):
    assert accuracy_data.points(live.cells) == [(4096, 0.125), (4096, 0.25)]
    assert accuracy_data.nearest(live.cells, 8192, 0.3) == (4096, 0.25)
    with pytest.raises(ValueError, match="evaluate sparse or sparda"):
        accuracy_data.nearest(live.cells[live.cells["method"] == "dense"], 4096, 0.125)


def test_pairs_come_task_by_task_with_the_average_last(live):
    table = accuracy_data.pair_table(live.pairs, [(4096, 0.125)], ["sparse", "dense"])
    assert list(table["task"].drop_duplicates())[-1] == AVERAGE
    row = table[(table["task"] == EASY) & (table["baseline"] == "sparse")].iloc[0]
    assert (row["difference"], row["better"], row["worse"]) == (0.1, 1, 0)


def test_recall_joins_by_method_context_and_k_as_a_mean_over_texts(live):
    means = accuracy_data.averages(live.cells)
    both = accuracy_data.with_recall(means, accuracy_data.numbers(pd.DataFrame(recall_rows())))
    assert both.set_index("method")["mass_recall"].to_dict() == pytest.approx(
        {"sparse": 0.82, "sparda": 0.86}
    )


def test_of_several_answers_none_some_and_all_are_told_apart(live):
    found = accuracy_data.said(live.samples, [EASY, MANY], 4096, 8).set_index("method")
    assert set(found["task"]) == {MANY}
    assert found.loc["SparDA", ["none", "some", "all"]].tolist() == pytest.approx([0.5, 0.4, 0.1])
    assert found.loc["Dense", "all"] == pytest.approx(0.2)


def test_figures_show_each_method_once_in_the_legend_and_are_stamped(live):
    places = [(4096, 0.125), (4096, 0.25)]
    by_task = accuracy_data.task_table(live.cells, places)
    compared = accuracy_data.pair_table(live.pairs, places[:1], ["sparse"])
    means = accuracy_data.averages(live.cells)
    both = accuracy_data.with_recall(means, accuracy_data.numbers(pd.DataFrame(recall_rows())))
    figures = [
        accuracy.task_figure(by_task, where="A GPU"),
        accuracy.pair_figure(compared, where="A GPU"),
        accuracy.context_figure(accuracy.context_table(means), where="A GPU"),
        accuracy.recall_figure(both, where="A GPU"),
    ]
    for figure in figures:
        assert figure.layout.meta["stamp"].startswith("measured · A GPU")
        shown = [trace.name for trace in figure.data if trace.showlegend is not False]
        assert len(shown) == len(set(shown)) > 0
    assert {"Dense", "Sparse", "SparDA", "oracle"} == {trace.name for trace in figures[0].data}


def test_a_method_of_a_later_panel_alone_is_in_the_legend(live):
    late = accuracy_data.task_table(live.cells, [(4096, 0.25), (4096, 0.125)])
    figure = accuracy.task_figure(late, where="A GPU")
    assert {trace.name for trace in figure.data if trace.showlegend} == {
        "Dense",
        "Sparse",
        "SparDA",
        "oracle",
    }


def test_a_published_point_has_no_error_bar_and_ours_has_one(live):
    figure = accuracy.context_figure(
        accuracy.context_table(accuracy_data.averages(live.cells)), where="A GPU"
    )
    bars = [trace.error_y.array is not None for trace in figure.data]
    assert any(bars)
    assert not any(bars[-4:])


def test_a_table_for_reading_names_methods_in_order_and_marks_what_is_not_there(live):
    table = accuracy_data.spread(live.cells[live.cells["share"] == 0.125], "task", "accuracy")
    assert list(table.columns) == ["Sparse", "SparDA", "oracle"]
    assert table.loc[EASY].tolist() == [0.6, 0.7, 1.0]
    assert table.loc[HARD, "oracle"] == "–"
    by_task = accuracy_data.spread(live.cells[live.cells["share"] == 0.125], "method", "accuracy", "task")
    assert list(by_task.columns) == [EASY, MANY, HARD]


def test_seven_methods_have_seven_looks():
    looks = [(m["color"], m["symbol"]) for m in (accuracy._mark(name)["marker"] for name in accuracy.LABELS)]
    assert len(set(looks)) == len({symbol for _, symbol in looks}) == 7


def test_published_panels_hold_the_published_numbers(live):
    table = accuracy.context_table(accuracy_data.averages(live.cells))
    nosa = table[table["panel"] == "NOSA-8B, published"].set_index(["method", "context"])["accuracy"]
    assert nosa["sparda", 131_072] == pytest.approx(0.45)
    assert nosa["dense", 32_768] == pytest.approx(0.862)


def test_what_is_kept_of_dense_stands_beside_table_1(live):
    kept = accuracy.kept_of_dense(accuracy_data.averages(live.cells), [(4096, 0.125)])
    assert (kept["Dense"] == 1).all()
    assert kept.iloc[0]["Sparse"] == pytest.approx(0.4 / 0.6)
    assert kept.loc["MiniCPM4.1-8B, RULER", "SparDA"] == pytest.approx(78.7 / 85.3)

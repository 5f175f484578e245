"""Side by side: what query, Forecast and proxy choose for one token, on scores that can be read off."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("plotly")
pytest.importorskip("pandas")

from sparda.figures.block_choices import At, block_sentence, choices_figure, choices_table, sums, within
from sparda.figures.choices_live import Choices
from sparda.spec import Sparsity

RULE = Sparsity(budget_blocks=4, block_size=16, init_blocks=1, local_blocks=0)


def choices(**scores) -> Choices:
    """One layer and head, eight blocks; the query is in block 6, so that block 7 does not exist yet."""
    mass = torch.tensor([0.4, 0.0, 0.2, 0.1, 0.0, 0.05, 0.25, 0.0])[None, None, None]
    named = {name: torch.tensor(row)[None, None, None] for name, row in scores.items()}
    return Choices(
        "a prompt", named, mass, torch.tensor([100]), [" 7"], [f"text {i}" for i in range(8)], RULE
    )


NEVER = float("-inf")
GOOD = [9.0, 1.0, 5.0, 4.0, 0.0, 2.0, NEVER, NEVER]  # as the oracle: 2 and 3
POOR = [0.0, -1.0, -3.0, 2.0, 1.0, 0.0, NEVER, NEVER]  # 3 and 4: without 2


@pytest.fixture
def table():
    return choices_table(choices(query=GOOD, forecast=POOR), At(budget_blocks=4))


def rows(table, selector):
    return table[table["selector"] == selector].set_index("block")


def test_each_way_to_choose_reads_forced_and_its_best_blocks(table):
    for selector, learned in (("query", [2, 3]), ("forecast", [3, 4]), ("oracle", [2, 3])):
        choice = rows(table, selector)["choice"]
        assert choice.index[choice == "forced"].tolist() == [0, 6]
        assert choice.index[choice == "learned"].tolist() == learned


def test_what_was_missed_is_judged_by_the_oracles_choice_and_mass(table):
    recall, missed, blocks = sums(table)["forecast"]
    assert (round(recall, 6), round(missed, 6), blocks) == (0.75, 0.2, [2])
    assert sums(table)["query"][1:] == (0, [])
    assert round(sums(table)["oracle"][0], 6) == 0.95


def test_a_block_that_does_not_exist_yet_has_no_row(table):
    assert table["block"].max() == 6


def test_the_best_block_to_choose_from_is_drawn_at_one_whatever_the_forced_ones_score(table):
    for selector, best in (("query", 2), ("forecast", 3)):
        height = rows(table, selector)["height"]
        assert height[best] == 1
        assert height.between(0, 1.12).all()
    assert rows(table, "query")["height"][6] == 0  # no window has ended there


def test_the_figure_marks_what_is_missed_by_a_sign_and_reads_by_pattern(table):
    figure = choices_figure(table, token=" 7", where="a laptop")
    titles = [note.text for note in figure.layout.annotations]
    assert titles[0] == "query: mass recall 0.950, misses nothing"
    assert titles[1] == "forecast: mass recall 0.750, misses 0.200 in block 2"
    bars = [t for t in figure.data if t.type == "bar" and not t.showlegend]
    marks = [t for t in figure.data if t.type == "scatter" and not t.showlegend]
    assert [list(mark.x) for mark in marks] == [[], [2], []]
    assert list(bars[1].marker.pattern.shape) == ["/", "", "", "x", "x", "", "/"]
    assert "a laptop" in figure.layout.meta["stamp"]
    rows = [figure.layout[name] for name in ("yaxis", "yaxis2", "yaxis3")]
    assert {axis.tickvals for axis in rows} == {(0, 1)}  # and they are labelled
    assert {axis.showticklabels for axis in rows} == {None}
    assert figure.layout.title.text == "Layer 0, KV head 0, token 100 writes “ 7”"


def test_hovering_shows_the_escaped_text_of_a_block(table):
    figure = choices_figure(table, texts=["<b>bold</b>"] * 8, where="")
    bars = next(t for t in figure.data if t.type == "bar" and not t.showlegend)
    assert bars.hovertemplate.startswith("block %{x}, %{customdata}")
    assert "learned: score 5, mass 0.200<br>&lt;b&gt;bold&lt;/b&gt;" in bars.customdata


def test_one_block_in_words(table):
    texts = [f"text {i}" for i in range(8)]
    said = block_sentence(table, 2, texts, 16)
    assert said.startswith("Block 2, tokens 32 to 47, holds 0.200 of the attention. Read by query, oracle.")
    assert said.endswith("Missed by forecast. Text: “text 2”")
    assert "it is forced" in block_sentence(table, 0, texts, 16)
    assert block_sentence(table, 7, texts, 16) == "Block 7 does not exist yet."


@pytest.mark.parametrize("wrong", [{"layer": 1}, {"head": -1}, {"step": 1}, {"budget_blocks": 1}])
def test_a_place_outside_of_the_choices_is_refused_with_its_range(wrong):
    with pytest.raises(ValueError, match=rf"{next(iter(wrong))} = .* choose from \d to \d"):
        within(choices(query=GOOD), At(**({"budget_blocks": 4} | wrong)))


def test_step_minus_one_is_the_last():
    assert within(choices(query=GOOD), At(step=-1, budget_blocks=4)).step == 0

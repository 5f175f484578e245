"""The block-score explorer without a browser: set a value, look at the figure."""

import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")
pytest.importorskip("plotly")
pytest.importorskip("pandas")

from sparda.figures.score_map import ScoreMaps
from sparda.spec import Sparsity
from sparda.widgets.block_scores import explore_blocks

RULE = Sparsity(budget_blocks=4, block_size=16, local_blocks=1)


@pytest.fixture(scope="module")
def maps():
    positions = torch.arange(3, 512, 4)
    scores = torch.rand(3, 2, len(positions), 32, generator=torch.Generator().manual_seed(0))
    mass = scores.masked_fill(torch.arange(32) > positions[:, None] // 16, 0)
    return ScoreMaps(scores, mass / mass.sum(-1, keepdim=True), positions, ["text"] * 32, RULE)


@pytest.fixture
def title(charts):
    return lambda box: charts(box)[0].layout.title.text


@pytest.fixture
def marks(charts):
    return lambda box, name: list(next(t for t in charts(box)[0].data if t.name == name).x)


def test_the_budget_slider_adds_learned_blocks_and_keeps_the_forced_ones(maps, control, marks, title):
    box = explore_blocks(maps, live=True, budget_blocks=4)
    before = marks(box, "learned, read")
    control(box, "budget k").value = 9
    assert marks(box, "forced, read") == [0, 30, 31]
    assert len(marks(box, "learned, read")) == 6
    assert set(before) <= set(marks(box, "learned, read"))
    assert "reads 9 of 32 blocks" in title(box)


def test_the_query_slider_moves_the_marks(maps, control, marks, title, charts):
    box = explore_blocks(maps, live=True)
    control(box, "query").value = 255
    assert marks(box, "forced, read") == [0, 14, 15]
    assert set(charts(box)[0].data[1].y) == {255}
    assert "query 255 reads 8 of 16" in title(box)


def test_another_layer_or_head_draws_another_map(maps, control, title, charts):
    box = explore_blocks(maps, live=True)
    seen = [charts(box)[0].data[0].z]
    for name in ("layer", "KV head"):
        control(box, name).value = 1
        assert charts(box)[0].data[0].z not in seen
        seen.append(charts(box)[0].data[0].z)
    assert title(box).startswith("Layer 1, KV head 1")


def test_one_change_after_the_other_is_drawn(maps, control, messages, title, charts):
    scores = maps.scores.clone()
    scores[..., 0, 5:] = float("-inf")
    box = explore_blocks(replace(maps, scores=scores), live=True)
    for name, value in (("layer", 1), ("query", 255), ("layer", 2), ("KV head", 1), ("budget k", 12)):
        control(box, name).value = value
        assert "Problem" not in messages(box)
    assert title(box).startswith("Layer 2, KV head 1: query 255 reads 12 of 16")
    fresh = explore_blocks(
        replace(maps, scores=scores), live=True, layer=2, head=1, position=255, budget_blocks=12
    )
    shown = [trace.to_plotly_json() for trace in charts(box)[0].data]
    for old, new in zip(shown, charts(fresh)[0].data, strict=True):
        for key in {"x", "y", "z", "customdata"} & set(old):
            assert [list(row) if hasattr(row, "__len__") else row for row in old[key]] == [
                list(row) if hasattr(row, "__len__") else row for row in new[key]
            ]


def test_a_live_figure_can_be_sent_as_strict_json(maps, control, charts):
    scores = maps.scores.clone()
    scores[..., 0, 5:] = float("-inf")  # no window of these blocks has ended
    box = explore_blocks(replace(maps, scores=scores), live=True)
    control(box, "query").value = 255
    traces = [trace.to_plotly_json() for trace in charts(box)[0].data]
    sent = json.dumps(traces, allow_nan=False, default=lambda array: array.tolist())
    assert "null" in sent


def test_the_static_twin_is_two_stamped_figures(maps):
    figures = explore_blocks(maps, live=False, note="made up")
    assert [f.layout.meta["status"] for f in figures] == ["measured"] * 2
    assert all("made up" in f.layout.meta["stamp"] for f in figures)
    assert [f.data[1].y[0] for f in figures] == [255, 511]


def test_the_static_twin_shows_fewer_rows_and_no_texts_to_stay_small(maps):
    figure = explore_blocks(maps, live=False)[1]
    assert figure.data[0].z.shape == (32, 32)
    assert figure.data[0].y[-1] == 511
    assert len(figure.to_json()) < 14_000


def test_static_is_the_default_outside_a_notebook(maps):
    assert isinstance(explore_blocks(maps), list)


def test_an_unknown_keyword_is_refused_with_the_known_ones(maps):
    with pytest.raises(TypeError, match="does not know buget; it takes layer, head, position"):
        explore_blocks(maps, buget=4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layer": 3}, "layer = 3 is not in these maps; choose from 0 to 2"),
        ({"head": -1}, "head = -1"),
        ({"position": 2}, "choose from 3 to 511"),
        ({"budget_blocks": 2}, "choose from 3 to 32"),
    ],
)
def test_a_value_outside_of_the_maps_is_refused_with_its_range(maps, wrong, message):
    with pytest.raises(ValueError, match=message):
        explore_blocks(maps, live=True, **wrong)


def test_a_redraw_takes_less_than_a_tenth_of_a_second(maps, control, quickest):
    box = explore_blocks(maps, live=True)
    assert quickest(control(box, "layer"), (1, 2, 0, 1, 2, 0, 1, 2, 0, 1)) < 0.1

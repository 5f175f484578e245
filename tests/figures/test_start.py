"""The figures of chapter 00, on tables small enough to read."""

import pytest
import torch

from sparda.figures import start
from sparda.models.probe import Probe, Record

pd = pytest.importorskip("pandas")
pytest.importorskip("plotly")


def record(step, layer, lists):
    ids = torch.tensor(lists)[None, :, None]  # [1, H, 1, k]
    nothing = torch.full(ids.shape[:3], float("nan"))
    return Record(step, layer, torch.tensor([[9]]), nothing, ids, nothing, nothing, nothing[..., 0])


@pytest.fixture
def blocks_read():
    probe = Probe(
        records=[
            record(1, 0, [[0, 2], [0, 3]]),
            record(1, 1, [[0, 2], [0, -1]]),
            record(2, 0, [[1, 2], [1, 2]]),
        ]
    )
    return start.blocks_read_table({"query": (probe, 1)}, n_blocks=4, needle_block=2)


def test_heads_are_counted_for_each_layer_and_block_of_the_step(blocks_read):
    assert blocks_read.pivot(index="layer", columns="block", values="heads").to_numpy().tolist() == [
        [2, 0, 1, 1],
        [2, 0, 1, 0],
    ]
    assert blocks_read.loc[blocks_read["needle"], "block"].unique().tolist() == [2]


def test_the_heat_map_frames_the_needle_and_names_its_device(blocks_read):
    figure = start.blocks_read_figure(blocks_read, where="a laptop")
    assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(1.5, 2.5)]
    assert "a laptop" in figure.layout.meta["stamp"]
    assert figure.data[0].z.tolist() == [[2, 0, 1, 1], [2, 0, 1, 0]]


def test_right_answers_are_counted_and_dense_is_a_reference_line():
    replies = pd.DataFrame(
        [
            ("all", 8, True, 1.0),
            ("all", 8, True, 1.0),
            ("query", 4, False, 0.25),
            ("query", 3, False, 0.0),
            ("query", 4, True, 0.75),
            ("query", 3, False, 0.0),
        ],
        columns=["selector", "budget_blocks", "right", "reads_needle"],
    )
    counts = start.right_answers(replies)
    figure = start.budget_figure(counts, where="a laptop")
    assert counts.to_numpy().tolist() == [
        ["all", 8, 2, 2, 1.0],
        ["query", 4, 1, 2, 0.5],
        ["query", 3, 0, 2, 0.0],
    ]
    assert [trace.name for trace in figure.data] == ["query"]
    assert (list(figure.data[0].x), list(figure.data[0].y)) == ([3, 4], [0, 1])
    assert figure.layout.annotations[0].text == "dense: 2 of 2"

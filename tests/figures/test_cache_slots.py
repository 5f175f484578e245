"""The figures about slots draw what their tables say."""

from __future__ import annotations

import pytest

from sparda.figures import cache_slots as figures
from sparda.figures.benchmarks import named
from sparda.figures.measured import Run

pytest.importorskip("plotly")
pd = pytest.importorskip("pandas")

WHERE = "a device · a day · commit abc"


def a_run(choices: str = "recorded") -> Run:
    """Made-up rates: slots times batch, twice that for SparDA."""
    rows = [
        (*point, slots, batch, slots / 200, speed * slots * batch)
        for *point, speed in (("query", "demand", 1.0), ("forecast", "lookahead", 2.0))
        for slots in (192, 96, 144)
        for batch in (4, 16)
    ]
    columns = ["selector", "transport", "cache_slots", "batch", "hit_rate", "tokens_per_s"]
    same = {"budget_blocks": 96, "context": 131_072, "status": "ok", "choices": choices}
    same |= {"bound_ms": 2.0, "peak_gpu_gib": 20.0, "gpu_memory_gib": float("nan")}
    return Run(named(pd.DataFrame(rows, columns=columns).assign(**same)), WHERE)


def test_a_line_for_each_number_of_slots():
    rows = [(layer, slots, slots / 20) for layer in (1, 2) for slots in (8, 12) for _ in range(3)]
    figure = figures.slots_figure(pd.DataFrame(rows, columns=["layer", "slots", "hit_rate"]))
    assert [line.name for line in figure.data] == ["8 slots", "12 slots"]
    assert list(figure.data[0].y) == pytest.approx([0.4, 0.4])


def test_a_system_keeps_its_name_whatever_its_slots():
    table = figures.recorded_table(a_run(), n_tokens=131_072)
    assert set(table["system"]) == {"Sparse", "SparDA"}
    assert len(table) == 12
    assert set(table.loc[table["batch"] == 16, "bound_tokens_per_s"]) == {8000.0}


def test_rates_and_ceilings_are_drawn_over_slots():
    figure = figures.recorded_figure(figures.recorded_table(a_run(), n_tokens=131_072), where=WHERE)
    lines = {line.name: line for line in figure.data}
    assert list(lines["SparDA, batch 4"].x) == [96, 144, 192]
    assert list(lines["SparDA, batch 4"].y) == pytest.approx([768, 1152, 1536])
    assert list(lines["ceiling, batch 4"].y) == [2000] * 3
    assert list(lines["hit rate"].y) == pytest.approx([0.48, 0.72, 0.96])
    assert figure.layout.meta["status"] == "measured"
    assert WHERE in figure.layout.meta["stamp"]


def test_without_recorded_choices_the_error_names_the_command():
    with pytest.raises(ValueError, match="--hit-rates real"):
        figures.recorded_table(a_run(choices="replayed"), n_tokens=131_072)

"""Committed benchmarks: read where they are, named by system, and a sentence where they are not."""

from __future__ import annotations

import json

import pytest

from sparda.figures import benchmarks, catalogue
from sparda.linkmodel import DATA

pd = pytest.importorskip("pandas")

ROWS = [
    ("all", "none", 2048, 96, "ok"),
    ("query", "demand", 96, 96, "ok"),
    ("forecast", "demand", 96, 96, "ok"),
    ("forecast", "lookahead", 96, 96, "ok"),
    ("forecast", "lookahead", 144, 96, "ok"),
    ("forecast", "lookahead", 192, 96, "out of memory: an example"),
]
COLUMNS = ["selector", "transport", "cache_slots", "budget_blocks", "status"]
SYSTEMS = ["Dense", "Sparse", "SparDA, no prefetch", "SparDA", "SparDA, 144 slots"]


def write(folder, runs):
    (folder / "a-gpu").mkdir()
    pd.DataFrame(ROWS, columns=COLUMNS).to_csv(folder / "a-gpu" / "decode.csv", index=False)
    (folder / "a-gpu" / "decode.json").write_text(json.dumps({"runs": runs}))


def test_rows_are_named_by_system_and_failures_are_left_out(tmp_path):
    write(tmp_path, [{"device": "A GPU", "date": "2026-11-30", "commit": "abc"}])
    run = benchmarks.read("decode", "a-gpu", tmp_path)
    assert run is not None
    assert list(run.rows["system"]) == SYSTEMS
    assert run.where == "A GPU · 2026-11-30 · commit abc"


def test_the_stamp_of_several_runs_has_the_newest_date_and_every_commit(tmp_path):
    days = {"abc": "2026-11-30", "bcd": "2026-12-01"}
    write(tmp_path, [{"device": "A GPU", "date": day, "commit": c} for c, day in days.items()])
    run = benchmarks.read("decode", "a-gpu", tmp_path)
    assert run is not None
    assert run.where == "A GPU · 2026-12-01 · commit abc, bcd"


def test_a_file_that_is_not_there_gives_none_and_a_sentence(tmp_path):
    assert benchmarks.read("prefill", "a-gpu", tmp_path) is None
    assert "sparda bench prefill" in benchmarks.missing("prefill")


def test_a_chapter_that_needs_a_file_stops_with_the_sentence(monkeypatch):
    assert len(benchmarks.need("decode").rows) > 0
    monkeypatch.setattr(benchmarks, "read", lambda name: None)
    with pytest.raises(FileNotFoundError, match="`sparda bench decode` writes it"):
        benchmarks.need("decode")


def test_an_unknown_benchmark_is_refused():
    with pytest.raises(ValueError, match="choose one of decode"):
        benchmarks.read("speed")


def test_every_system_that_can_be_measured_has_a_name():
    from sparda.measure.systems import SYSTEMS as measurable

    assert set(measurable) <= set(benchmarks.LABELS)


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("decode", ["decode_vs_batch", "decode_gain_parts", "decode_vs_hit_rate", "decode_vs_slots"]),
        ("prefill", ["prefill_throughput"]),
        ("breakdown", ["attention_time_decode", "attention_time_prefill"]),
    ],
)
def test_once_a_benchmark_is_committed_its_figures_are_declared_measured(root, name, figures):
    declared = {f.name: f for chapter in catalogue.read(root).values() for f in chapter.figures}
    path = DATA / "nvidia-h200" / f"{name}.csv"
    there = benchmarks.read(name) is not None
    for figure in figures:
        assert declared[figure].status == ("measured" if there else "modelled")
        assert (str(path.relative_to(root)) in declared[figure].inputs) == there

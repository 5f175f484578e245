"""What the gallery sets beside the paper: complete, true to both sides, and readable without scripts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("plotly")
pd = pytest.importorskip("pandas")

from sparda import build_report, paper, remeasure  # noqa: E402
from sparda.figures import catalogue, gallery, published, published_cap, published_ratios  # noqa: E402
from sparda.figures import published_tables as tables  # noqa: E402
from sparda.figures.benchmarks import Run  # noqa: E402
from sparda.figures.published_entries import BESIDE  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
DRAWN = [entry for entry in BESIDE if entry.draw]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The real gallery in another folder, with no figures of chapters."""
    folder = tmp_path_factory.mktemp("gallery")
    return gallery.write(ROOT, folder).read_text(encoding="utf-8"), folder


@pytest.fixture
def nothing_of_ours(monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "DATA", tmp_path)


def test_every_published_table_has_an_entry():
    files = {path.stem for path in (ROOT / "data" / "paper").glob("*.csv")}
    assert {name for entry in BESIDE for name in entry.files} == files


def test_every_figure_and_measurement_that_an_entry_names_exists():
    figures = {figure.name for chapter in catalogue.read(ROOT).values() for figure in chapter.figures}
    written = {name for step in remeasure.read(ROOT).steps.values() for name in step.writes}
    for entry in BESIDE:
        assert set(entry.see) <= figures, entry.name
        assert set(entry.uses) <= written, entry.name


def test_every_entry_gives_a_reason_and_what_cannot_be_ours_says_so():
    for entry in BESIDE:
        assert entry.reasons, entry.name
        if entry.draw and not entry.uses:
            assert any("ours yet" in reason for reason in entry.reasons), entry.name
    text = " ".join(reason for entry in BESIDE for reason in entry.reasons)
    assert "no accuracy at 8B" in text
    assert "NOSA-8B is not ours yet" in text
    assert "No A100 was at hand" in text


@pytest.mark.parametrize("entry", DRAWN, ids=lambda entry: entry.name)
def test_a_figure_has_both_sides_where_ours_exist_and_its_stamp_names_them(entry):
    table, figure = published.draw(entry)
    origins = set(table["origin"])
    assert "published" in origins
    stamp = figure.layout.meta["stamp"]
    if "measured" in origins:
        assert "ours: NVIDIA" in stamp
    else:
        assert "published numbers only" in stamp
    assert entry.about in stamp


def test_axes_are_named_after_what_stands_on_them():
    for name, x, y in (
        ("table3", "context, tokens", "prefill, tokens/s"),
        ("table4", "batch, sequences", "decode, tokens/s"),
        ("table7", "batch, sequences", "CTAs"),
    ):
        _, figure = published.draw(next(entry for entry in BESIDE if entry.name == name))
        assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == (x, y)


@pytest.mark.parametrize("entry", DRAWN, ids=lambda entry: entry.name)
@pytest.mark.usefixtures("nothing_of_ours")
def test_without_measurements_the_published_numbers_are_drawn_alone(entry):
    table, figure = published.draw(entry)
    assert set(table["origin"]) == {"published"}
    assert "published numbers only" in figure.layout.meta["stamp"]


def test_the_published_points_are_the_papers():
    table = tables.decode_vs_batch().table
    theirs = table[(table["origin"] == "published") & (table["system"] == "SparDA")].set_index("x")["value"]
    assert theirs[64] == paper.value(
        "table4_decode_throughput", model="MiniCPM4.1-8B", method="SparDA", context="128K", batch="64"
    )


def test_our_ratio_is_that_of_the_two_rates_beside_it():
    rates = tables.decode_vs_batch().table
    ours = rates[rates["origin"] == "measured"].set_index(["system", "x"])["value"]
    table = published_ratios.headline().table
    ratios = table[table["origin"] == "measured"].set_index("system")["value"]
    assert ratios["decode 128K, batch 4, over Sparse offload"] == ours["SparDA", 4] / ours["Sparse", 4]
    peak = ours["SparDA", 64] / ours["Sparse, no offload", 4]
    assert ratios["decode 128K, batch 64 to 4, over Sparse no offload"] == peak


def test_rows_under_the_memory_cap_stand_beside_table_4_and_nowhere_else(monkeypatch):
    run = tables.ours("decode")
    whole = run.rows[run.rows["gpu_memory_gib"].isna()]
    capped = whole[whole["system"].isin(["SparDA", "Sparse"])].assign(gpu_memory_gib=80.0)
    capped["tokens_per_s"] = 0.5 * capped["tokens_per_s"]
    both = Run(pd.concat([whole, capped], ignore_index=True), run.where)
    before = tables.decode_vs_batch().table
    monkeypatch.setattr(tables, "ours", lambda name: both)
    pd.testing.assert_frame_equal(tables.decode_vs_batch().table, before)
    table = published_cap.decode_capped().table
    ours = table[table["origin"] == "measured"].set_index(["system", "x"])["value"]
    whole = before[before["origin"] == "measured"].set_index(["system", "x"])["value"]
    assert ours["SparDA", 16] == 0.5 * whole["SparDA", 16]
    assert ours["Sparse", 64] == 0.5 * whole["Sparse", 64]


def test_this_machines_device_comes_first_then_the_committed_one(monkeypatch, tmp_path):
    for name in ("nvidia-a100", "nvidia-h200", "nvidia-l4"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "decode.csv").write_text("")
    monkeypatch.setattr(tables, "DATA", tmp_path)
    monkeypatch.setattr(tables.provenance, "device", lambda: "NVIDIA L4")
    assert tables.device("decode.csv") == "nvidia-l4"
    monkeypatch.setattr(tables.provenance, "device", lambda: "a processor, 2 cores")
    assert tables.device("decode.csv") == "nvidia-h200"
    with pytest.raises(FileNotFoundError, match="make reproduce PROFILE=gpu"):
        tables.device("none.csv")


def test_the_page_works_offline_and_without_scripts(page):
    text, folder = page
    assert not re.search(r"(src|href)=\"https?:", text)
    assert "This browser runs no scripts" in text
    assert text.count("<details>") >= len(BESIDE)
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 8_000_000


def test_the_page_says_whose_measurements_it_shows(page):
    text, _ = page
    assert "those of the GPU that wrote this page, where it has measured, else the committed ones" in text
    assert "ours: RULER, 8K, k 16" in text  # in the table of numbers, as text


def test_every_entry_is_on_the_page_with_its_source_and_its_reasons(page):
    text, _ = page
    for entry in BESIDE:
        assert f'id="paper-{entry.name}"' in text
        for name in entry.files:
            assert f">{name}.csv</a>" in text


def test_a_figure_that_has_not_changed_is_not_written_again(page):
    _, folder = page
    before = {path: path.stat().st_mtime_ns for path in (folder / "published").iterdir()}
    list(published.build(folder))
    assert {path: path.stat().st_mtime_ns for path in (folder / "published").iterdir()} == before


def test_the_committed_gallery_stays_below_its_size():
    files = [path for path in (ROOT / "figures").rglob("*") if path.suffix in (".html", ".js")]
    assert sum(path.stat().st_size for path in files) < 8_000_000


def test_a_note_about_a_step_reaches_every_figure_that_reads_what_it_writes(tmp_path):
    report = build_report.read(tmp_path)
    report.kept("decode", "it was stopped", ["decode.csv"])
    again = build_report.read(tmp_path)
    assert list(again.about(["data/measured/nvidia-h200/decode.csv"])) == ["decode"]
    assert again.about(["data/measured/nvidia-h200/prefill.csv"]) == {}
    again.done("decode")
    assert build_report.read(tmp_path).notes == {}


@pytest.mark.parametrize("entry", DRAWN, ids=lambda entry: entry.name)
def test_no_two_rows_of_one_side_stand_at_one_place(entry):
    table, _ = published.draw(entry)
    assert not table.duplicated(["origin", "system", "x"]).any()
    assert table["value"].notna().equals(table["status"] == "ok")


def capped_rows():
    table = published_cap.decode_capped().table
    return table[table["origin"] == "measured"].set_index(["system", "x"])


def test_what_does_not_fit_an_80_gb_card_is_a_row_and_a_cross_that_say_so():
    ours = capped_rows()
    for system in ("Dense", "Sparse, no offload"):
        assert ours.loc[(system, 8), "status"] == "ok"
        assert ours.loc[(system, 16), "status"] == tables.NO_ROOM
    assert (ours.loc["SparDA", "status"] == "ok").all()
    _, figure = published.draw(next(entry for entry in BESIDE if entry.name == "table4_cap"))
    crosses = [trace for trace in figure.data if trace.name == tables.NO_ROOM]
    assert [trace.text[0].strip() for trace in crosses] == [
        "InfiniGen, theirs",
        *("Sparse, no offload, ours", "Sparse, no offload, theirs"),
        *("Dense, ours", "Dense, theirs"),
    ]  # fmt: skip
    assert sum(trace.showlegend for trace in crosses) == 1


def test_a_system_looks_alike_on_the_whole_card_and_under_the_cap_and_is_no_cross():
    entries = [entry for entry in BESIDE if entry.name in ("table4", "table4_cap")]
    whole, capped = (
        {t.name: (t.marker.color, t.marker.symbol) for t in published.draw(entry)[1].data}
        for entry in entries
    )
    shared = (set(whole) & set(capped)) - {tables.NO_ROOM}
    assert {"Dense, ours", "Dense, published, H100"} <= shared
    assert all(whole[name] == capped[name] for name in shared)
    lines = {name: look for name, look in capped.items() if name != tables.NO_ROOM}
    assert len(set(lines.values())) == len(lines)
    assert not any(symbol.startswith("x") for _, symbol in lines.values())


def test_the_capped_table_says_how_it_differs_from_the_whole_card():
    beside = published_cap.decode_capped()
    whole = tables.decode_vs_batch().table
    whole = whole[whole["origin"] == "measured"].set_index(["system", "x"])["value"]
    ratios = (capped_rows()["value"] / whole).dropna()
    assert f"{ratios.min():.2f}" in beside.said
    assert "out of memory under it alone: Dense at batch 16; Sparse, no offload at batch 16" in beside.said
    assert "host pages shared at batch 4, 8, 16, 32, 64 by 4 layers" in beside.where


def test_a_stamp_names_the_commits_of_the_rows_that_are_drawn_and_no_others():
    run = tables.ours("decode")
    for beside, rows in (
        (tables.decode_vs_context(), run.rows[run.rows["batch"].eq(4) & run.rows["gpu_memory_gib"].isna()]),
        (published_cap.decode_capped(), run.rows[run.rows["gpu_memory_gib"] == 80]),
    ):
        named = re.findall(r"commit ([0-9a-f]+(?:, [0-9a-f]+)*)", beside.where)[0]
        assert set(named.split(", ")) <= set(rows["commit"]) < set(run.rows["commit"])


def test_the_best_that_fits_is_taken_within_the_memory_of_the_papers_card():
    best = capped_rows()["value"].groupby("system").max()
    table = published_ratios.headline().table
    ratios = table[table["origin"] == "measured"].set_index("system")["value"]
    ours = ratios["decode 128K, best that fits 80 GiB, over Sparse no offload"]
    assert ours == best["SparDA"] / best["Sparse, no offload"]
    assert ours < ratios["decode 128K, batch 64 to 4, over Sparse no offload"]


def test_our_accuracy_stands_beside_tables_1_and_2_under_its_own_model():
    for name in ("table1", "table2"):
        table, figure = published.draw(next(entry for entry in BESIDE if entry.name == name))
        ours = table[table["origin"] == "measured"]
        assert set(ours["system"]) == {"Dense", "Sparse", "InfiniGen", "SparDA"}
        assert ours["x"].str.startswith("ours:").all()
        assert "ours SmolLM2-135M" in figure.layout.meta["stamp"]
        assert ours["value"].between(0, 100).all()

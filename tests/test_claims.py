"""The claims about two write-ups, and the published tables themselves, recompute."""

import csv
import re

import pytest

from sparda import claims, paper
from sparda.claims import NOT_NUMERIC, RECOMPUTED, VERDICTS, agrees, rounds_to

ROWS = {row["id"]: row for row in paper.rows("claims")}
# a number that stands alone: not a part of a name, of "k + 1", "4b-1" or "1/sqrt(d)"
NUMBER = re.compile(r"(?<![\w.+-])(?<!\+ )\d+(?:\.\d+)?(?:e\d+)?(?![\w/])")


def printed(text: str) -> list[str]:
    return NUMBER.findall(text)


def test_every_claim_is_either_recomputed_or_listed_with_a_reason():
    assert set(RECOMPUTED) | set(NOT_NUMERIC) == set(ROWS)
    assert not set(RECOMPUTED) & set(NOT_NUMERIC)
    assert all(NOT_NUMERIC.values())


@pytest.mark.parametrize("key", sorted(RECOMPUTED))
def test_every_number_of_a_claim_recomputes(key):
    row = ROWS[key]
    text = " ".join((row["about"], row["stated"], row["correct"], row["why"]))
    for shown, number in RECOMPUTED[key]().items():
        assert shown in text, f"{key}: {shown} is not printed in the row"
        assert rounds_to(number, shown), f"{key}: printed {shown}, computed {number}"


@pytest.mark.parametrize("key", sorted(ROWS))
def test_no_number_of_the_correct_column_goes_unchecked(key):
    known = RECOMPUTED[key]() if key in RECOMPUTED else {}
    assert set(printed(ROWS[key]["correct"])) <= set(known)


@pytest.mark.parametrize("key", sorted(ROWS))
def test_a_verdict_is_known_and_carries_its_reason(key):
    assert ROWS[key]["verdict"] in VERDICTS
    assert ROWS[key]["why"].strip(" :")


def test_agreement_means_that_the_numbers_agree():
    numeric = [r for r in ROWS.values() if re.fullmatch(r"[\d.]+", r["stated"] + r["correct"])]
    assert len(numeric) >= 9
    for row in numeric:
        same = agrees(float(row["stated"]), float(row["correct"]))
        assert same == (row["verdict"] == "agrees"), row["id"]


def test_the_table_shows_each_claim_once():
    pytest.importorskip("pandas")
    table = claims.claims_table()
    assert list(table["id"]) == list(ROWS)
    assert table.set_index("id").loc["A-eq2", "correct"] == "343.6 GB"
    assert (table.set_index("id").loc[sorted(RECOMPUTED), "recomputed"] != "").all()


# --- the published tables --------------------------------------------------------------------------


def cell(name, **where):
    return paper.value(name, **where)


@pytest.mark.parametrize("model", ["MiniCPM4.1-8B", "NOSA-8B"])
@pytest.mark.parametrize("method", ["Dense", "Sparse", "InfiniGen", "SparDA"])
def test_averages_of_table_1_recompute(model, method):
    of = {"model": model, "method": method}
    suites = [
        cell("table1_accuracy", benchmark=b, **of) for b in ("HELMET", "LongBench", "RULER", "Reasoning")
    ]
    assert cell("table1_accuracy", benchmark="Average", **of) == pytest.approx(sum(suites) / 4, abs=0.0501)


@pytest.mark.parametrize("method", ["Dense", "Sparse", "InfiniGen", "SparDA"])
def test_averages_of_table_14_recompute_and_equal_table_1(method):
    of = {"model": "NOSA-8B", "method": method}
    sets = [cell("table14_reasoning", dataset=d, **of) for d in ("MATH-500", "AIME 2024", "AIME 2025")]
    average = cell("table14_reasoning", dataset="Average", **of)
    assert average == pytest.approx(sum(sets) / 3, abs=0.0501)
    assert average == cell("table1_accuracy", benchmark="Reasoning", **of)


def test_ruler_at_native_length_equals_table_1():
    native = {"MiniCPM4.1-8B": "64K", "NOSA-8B": "32K"}
    for row in paper.rows("table2_ruler_by_length"):
        if row["context"] == native[row["model"]]:
            of = {"model": row["model"], "method": row["method"]}
            assert float(row["value"]) == cell("table1_accuracy", benchmark="RULER", **of)


def test_table_10_repeats_table_4():
    for row in paper.rows("table10_decode_breakdown"):
        if row["method"] != "SparDA no-prefetch":
            assert float(row["value"]) == claims.decode(row["method"], int(row["batch"]))


def test_the_digitised_figure_quotes_table_4():
    for row in paper.rows("fig1c_decode_vs_batch_digitised"):
        gpu = row["kv_location"] != "CPU offload"
        batch = 4 if gpu else int(row["batch"])
        assert float(row["table4_value"]) == claims.decode(row["method"], batch, offload=not gpu)


def throughput(row, method: str) -> float | None:
    """Published tok/s that a ratio in headline_ratios.csv divides; None where it was not recovered."""
    batch = re.search(r"\(B(\d+)\)", method) or re.search(r"\bB(\d+)|\((\d+)\)", row["matching"])
    name = "table4_decode_throughput" if row["phase"] == "decode" else "prefill_throughput"
    where = "CPU offload" if "no offload" not in method else "GPU (no offload)"
    of = {"model": row["model"], "context": row["context"], "kv_location": where}
    try:
        return cell(name, method=method.split()[0], batch=next(filter(None, batch.groups())), **of)
    except LookupError:
        return None


RATIOS = [
    r for r in paper.rows("headline_ratios") if r["hardware"] == "H100" and "selection" not in r["numerator"]
]
# absolute NOSA values at these lengths were not recovered
UNKNOWN = {("NOSA-8B", context) for context in ("32K", "64K", "96K")}


@pytest.mark.parametrize(
    "row", RATIOS, ids=lambda r: f"{r['model']}-{r['context']}-{r['phase']}-{r['value']}"
)
def test_headline_ratios_recompute_from_the_tables(row):
    top, bottom = throughput(row, row["numerator"]), throughput(row, row["denominator"])
    if (row["model"], row["context"]) in UNKNOWN and row["phase"] == "decode":
        assert top is None or bottom is None
        return
    assert top is not None
    assert bottom is not None
    # two decimals at most: 1.4 stands for 1.40
    assert rounds_to(top / bottom, f"{float(row['value']):.2f}")


def test_the_published_forecast_share_recomputes():
    millions = cell("table5_training_hyperparameters", parameter="added parameters")
    # 33.554 is printed as 33.5: cut off, not rounded
    assert int(claims.forecast_m() * 10) / 10 == millions
    share = cell("table5_training_hyperparameters", parameter="added parameters share")
    assert rounds_to(1e8 * claims.forecast_m() / claims.M.n_parameters, str(share))


def test_the_presets_are_the_published_settings():
    def setting(item, model="both"):
        found = [r for r in paper.rows("settings_config") if r["item"] == item and r["model"] == model]
        assert len(found) == 1
        return found[0]["value"]

    assert str(claims.RULE.block_size) == setting("attention block size")
    assert str(claims.RULE.budget_blocks) == setting("block budget per query (init+local+selected)")
    assert str(claims.RULE.init_blocks) == setting("initial blocks")
    assert f"{claims.RULE.window}/{claims.RULE.stride}" == setting("compression kernel / stride at inference")
    local = claims.RULE.local_blocks * claims.RULE.block_size
    assert str(local) == setting("local window", "MiniCPM4.1-8B")


def test_the_readme_counts_the_rows_of_every_table():
    text = (paper.FOLDER / "README.md").read_text(encoding="utf-8")
    counts = dict(re.findall(r"^\| (\w+)\.csv \|.*?\| (\d+) \|", text, flags=re.M))
    files = {p.stem: len(list(csv.DictReader(p.open(encoding="utf-8")))) for p in paper.FOLDER.glob("*.csv")}
    assert {name: int(n) for name, n in counts.items()} == files


def test_the_readme_names_every_source_key():
    text = (paper.FOLDER / "README.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^- (S\d+)\b", text, flags=re.M))
    used = {
        key
        for p in paper.FOLDER.glob("*.csv")
        for key in re.findall(r"\bS\d+\b", p.read_text(encoding="utf-8"))
    }
    assert used <= known


def test_a_missing_table_or_cell_is_named():
    with pytest.raises(FileNotFoundError, match="table1_accuracy"):
        paper.rows("table99")
    with pytest.raises(LookupError, match="until exactly one does"):
        paper.value("table1_accuracy", model="NOSA-8B")
    with pytest.raises(LookupError, match="OOM"):
        claims.decode("Dense", 8, offload=False)

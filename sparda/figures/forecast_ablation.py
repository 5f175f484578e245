"""What each choice of the training recipe is worth: our table, beside the two differences of the paper's."""

from __future__ import annotations

from sparda import paper
from sparda.figures.measured import Run
from sparda.figures.style import series, stamp

FINE, COARSE = "paper", "coarse"  # our variants that are the two settings of Table 6
OURS = "exact mass, weighted (ours)"
LABELS = {
    "ours": OURS,
    "unweighted": "all queries count alike",
    "random_init": "from random weights",
    "three_heads": "three heads a KV head",
    "lower_rate": "a fifth of the learning rate",
    "paper": "fine keys (the paper)",
    "paper_released_pooling": "fine keys, pooled as released",
    "paper_no_rest": "fine keys, no rest bucket",
    "paper_one_entry": "fine keys, one entry a block",
    "coarse": "compressed keys",
}


def table(run: Run | None):
    """Columns panel, name, budget_blocks, value: Table 6's differences, ours, and each variant's gap closed.

    panel "difference": fine keys as teacher minus compressed keys, in points of accuracy (published) or of
    mass recall (ours); panel "gap closed": by variant, of the gap between query selection and oracle
    """
    import pandas as pd

    found = [
        ("difference", f"{row['benchmark']}, published", "", float(row["value"]))
        for row in paper.rows("table6_ablation")
    ]
    if run is not None:
        by = run.rows.groupby(["variant", "budget_blocks"])[["mass_recall", "gap_closed"]].mean()
        budgets = sorted(set(run.rows["budget_blocks"]))
        for k in (k for k in budgets if (FINE, k) in by.index and (COARSE, k) in by.index):
            points = 100 * (by.loc[(FINE, k), "mass_recall"] - by.loc[(COARSE, k), "mass_recall"])
            found.append(("difference", f"mass recall, k {k}", str(k), points))
        measured = list(run.rows["variant"].unique())
        for variant in sorted(measured, key=lambda v: list(LABELS).index(v) if v in LABELS else len(LABELS)):
            name = LABELS.get(variant, variant.replace("_", " "))
            values = [(k, by.loc[(variant, k), "gap_closed"]) for k in budgets if (variant, k) in by.index]
            found += [("gap closed", name, str(k), value) for k, value in values]
    return pd.DataFrame(found, columns=["panel", "name", "budget_blocks", "value"])


def figure(rows, *, note: str = "", where: str | None = None):
    """Above the differences in the shape of Table 6, below the gap closed by each variant, where measured."""
    from plotly.subplots import make_subplots

    variants, differences = (rows[rows["panel"] == panel] for panel in ("gap closed", "difference"))
    titles = ["fine minus compressed keys as teacher, points", "gap closed, by recipe"]
    titles = titles[: 1 if variants.empty else 2]
    drawn = make_subplots(
        rows=len(titles), subplot_titles=titles, row_heights=[0.3, 0.7][-len(titles) :], vertical_spacing=0.17
    )
    published = differences["budget_blocks"] == ""
    parts = [(1, "published", 1, differences[published]), (1, "ours", 0, differences[~published])]
    groups = variants.groupby("budget_blocks", sort=False)
    parts += [(2, f"k {k}", n, bars) for n, (k, bars) in enumerate(groups, 2)]
    for row, name, look, bars in (part for part in parts if len(part[3])):
        drawn.add_bar(
            x=bars["value"], y=bars["name"], name=name, orientation="h", marker=_bar(look), row=row, col=1
        )
    drawn.update_yaxes(autorange="reversed")
    if len(titles) > 1:
        drawn.update_xaxes(tickformat=".0%", row=2)
    title = "What the teacher and the other choices are worth"
    drawn.update_layout(title_text=title, barmode="group")
    drawn = stamp(drawn, "measured", note, where=where, line_chars=80)  # right of long names
    return drawn.update_layout(margin_t=130, height=280 * (len(titles) + 1) - 100)


def _bar(index: int) -> dict:
    patterns = ("", "/", "x", ".")
    return {"color": series(index)["line"]["color"], "pattern": {"shape": patterns[index % len(patterns)]}}

"""Every declared figure is there, and was built from the inputs that are there."""

import json
from pathlib import Path

import pytest

from sparda import provenance
from sparda.figures import catalogue

ROOT = Path(__file__).parents[2]
FIGURES = {figure.name: figure for chapter in catalogue.read(ROOT).values() for figure in chapter.figures}
# an earlier file with the same weights: tests/training/test_shipped.py rebuilds it from today's
SAME = {
    "data/forecasts/smollm2-135m/forecast.safetensors": (
        "8532a7bd01653f67de0af1dd9d02bcd20bcce2e735b687cd5264c40c966ccb8f"
    )
}


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_a_figure_is_whole_and_its_inputs_have_not_changed_since(name):
    """After a change of an input: `make reproduce`, then commit figures/."""
    folder = ROOT / "figures"
    assert all((folder / f"{name}.{kind}").is_file() for kind in ("json", "csv", "png"))
    record = json.loads((folder / f"{name}.provenance.json").read_text(encoding="utf-8"))
    now = {path: provenance.sha256(ROOT / path) for path in FIGURES[name].inputs}
    drawn_from = {
        path: now[path] if SAME.get(path) == kept else kept for path, kept in record["inputs"].items()
    }
    assert drawn_from == now

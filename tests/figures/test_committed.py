"""Every declared figure is there, and was built from the inputs that are there."""

import json
from pathlib import Path

import pytest

from sparda import provenance
from sparda.figures import catalogue

ROOT = Path(__file__).parents[2]
FIGURES = {figure.name: figure for chapter in catalogue.read(ROOT).values() for figure in chapter.figures}


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_a_figure_is_whole_and_its_inputs_have_not_changed_since(name):
    """After a change of an input: `make reproduce`, then commit figures/."""
    folder = ROOT / "figures"
    assert all((folder / f"{name}.{kind}").is_file() for kind in ("json", "csv", "png"))
    record = json.loads((folder / f"{name}.provenance.json").read_text(encoding="utf-8"))
    now = {path: provenance.sha256(ROOT / path) for path in FIGURES[name].inputs}
    assert record["inputs"] == now

"""The run card: everything needed to say where a Forecast came from, and to train it again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sparda import provenance
from sparda.files import write_text
from sparda.training.plan import Plan


def write(folder: Path, plan: Plan, seeds: list[int], data: dict[str, Any], **about: Any) -> Path:
    """Write ``card.json`` in one piece; ``about`` adds what was measured."""
    from sparda.measure.bench import describe_machine

    card = {
        "plan": plan.as_dict(),
        "seeds": seeds,
        "data": data,
        **describe_machine(),
        "versions": provenance.versions((*provenance.PACKAGES, "accelerate")),
        "command": " ".join(["sparda", *sys.argv[1:]]),
        **about,
    }
    folder_before = plan.init_folder
    before = folder_before and folder_before / "card.json"
    if before and before.exists():
        card["went_on_from"] = json.loads(before.read_text(encoding="utf-8"))
    path = folder / "card.json"
    write_text(path, json.dumps(card, indent=1) + "\n")
    return path

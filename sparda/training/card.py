"""The run card: everything needed to say where a Forecast came from, and to train it again."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from sparda import provenance
from sparda.training.plan import Plan
from sparda.training.student import Student
from sparda.training.validate import Validation, by_student


def write(folder: Path, plan: Plan, seeds: list[int], data: dict[str, Any], **about: Any) -> Path:
    """Write ``card.json`` in one piece; ``about`` adds what was measured."""
    card = {
        "plan": plan.as_dict(),
        "seeds": seeds,
        "data": data,
        "device": provenance.device(),
        "date": provenance.today(),
        "commit": provenance.commit(),
        "versions": provenance.versions((*provenance.PACKAGES, "accelerate")),
        "command": " ".join(["sparda", *sys.argv[1:]]),
        **about,
    }
    path, part = folder / "card.json", folder / "card.json.part"
    part.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)
    return path


def reached(validation: Validation, students: list[Student]) -> dict[str, Any]:
    """Recall of every layer on the held-out text: query selection, oracle, and each seed."""
    rows = {name: values.tolist() for name, values in validation.bounds().items()}
    for s in validation.budgets:
        for n, student in enumerate(students):
            values = validation.layers(lambda seen, rule, who=student: by_student(seen, who, rule), s)
            rows[f"forecast_k{s.budget_blocks}_{n}"] = values.tolist()
    return {name: [round(v, 5) for v in values] for name, values in rows.items()}

"""Several processes answer what one answers."""

from __future__ import annotations

import csv
import json

import pytest

from sparda import cli


def test_two_processes_answer_what_one_answers(tiny_model, tmp_path):
    found = []
    for jobs in ("1", "2"):
        out = tmp_path / jobs
        command = ["eval", "accuracy", "--model", str(tiny_model), "--device", "cpu", "--jobs", jobs]
        command += [
            "--methods",
            "dense,sparse,streaming",
            "--context",
            "320,512",
            "--shares",
            "1.0",
            "--n",
            "2",
        ]
        command += ["--tasks", "niah_single_noise", "--all-tasks", "--out", str(out)]
        assert cli.main([*command, "--replies", str(out) + ".jsonl"]) == 0
        with open(out / "samples.csv", newline="") as file:
            answers = [{k: row[k] for k in ("method", "context", "right")} for row in csv.DictReader(file)]
        said = sorted((tmp_path / f"{jobs}.jsonl").read_text().splitlines())
        found.append((answers, said))
    assert len(found[0][0]) == 6
    assert found[0] == found[1]
    assert {json.loads(line)["method"] for line in found[1][1]} == {"dense", "sparse", "streaming"}


def test_a_number_of_processes_below_one_is_refused(capsys):
    with pytest.raises(SystemExit):
        cli.main(["eval", "accuracy", "--jobs", "0"])
    assert "at least 1" in capsys.readouterr().err

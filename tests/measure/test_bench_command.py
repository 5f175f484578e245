"""What ``sparda bench`` prints, systems by the names that were asked for; and what it refuses before work."""

from __future__ import annotations

import pytest
import torch

from sparda import cli
from sparda.engine.weights import random_decoder
from sparda.measure import command, runs
from sparda.measure.setup import Setup
from sparda.measure.systems import SYSTEMS, name_of
from sparda.spec import ModelShape, Sparsity

SHAPE = ModelShape("tiny", 3, 32, 4, 2, 16, 48, 97, 1e-6, 1e4, 4096, False, "made up")
CONTEXT = 400


@pytest.fixture
def use_tiny(monkeypatch):
    rule = Sparsity(6, local_blocks=1, block_size=16)
    made = Setup(SHAPE, rule, random_decoder(SHAPE, CONTEXT), torch.device("cpu"), torch.float32)
    monkeypatch.setattr(runs, "setup", lambda options, device: made)


def test_every_system_is_found_by_how_it_chooses_and_copies():
    assert {name: name_of(system.selector, system.transport) for name, system in SYSTEMS.items()} == {
        name: name for name in SYSTEMS
    }


@pytest.mark.parametrize("what", command.WHAT)
def test_rows_stand_below_whole_headers_and_name_the_systems_that_were_asked_for(use_tiny, capsys, what):
    asked = ["sparda_no_prefetch", "sparse"]
    more = ["--context", str(CONTEXT), "--steps", "4", "--systems", ",".join(asked), "--device", "cpu"]
    assert cli.main(["bench", what, *more]) == 0
    said = capsys.readouterr()
    assert "0/2 [" in said.err  # how much is left
    _, head, *table = said.out.splitlines()
    names = head.split()
    assert names[0] == "system"
    if what == "decode":
        assert {"transfer_exposed_ms", "step_ms_median", "ratio_to_bound"} <= set(names)
    seen = list(dict.fromkeys(line.split()[0] for line in table))
    assert seen == asked
    ends = [head.index(name) + len(name) for name in names[:-1]]
    for line in table:  # nothing is pushed out of its column
        assert all(line[end] == " " for end in ends)
        assert line[ends[-1] :].split()[0] == "ok" or "skipped" in line


@pytest.mark.parametrize(
    ("option", "value"),
    [("--context", "0"), ("--batches", "4,0"), ("--repeats", "0"), ("--share-host", "0"), ("--steps", "-1")],
)
def test_counts_are_at_least_one(capsys, option, value):
    with pytest.raises(SystemExit):
        cli.main(["bench", "decode", option, value])
    assert f"argument {option}: expected a number of at least 1" in capsys.readouterr().err


def test_a_context_beyond_a_real_model_is_refused_before_it_is_loaded(monkeypatch, capsys):
    monkeypatch.setattr(runs, "setup", lambda *_: pytest.fail("a model was loaded"))
    assert cli.main(["bench", "decode", "--device", "cpu", "--context", "512,9000"]) == 2
    assert "--context 9000: smollm2-135m reads 8192 tokens at most" in capsys.readouterr().err


def test_weights_that_are_missing_are_a_sentence(monkeypatch, capsys):
    from sparda.models import load

    monkeypatch.setattr(load.importlib.metadata, "files", lambda package: [])
    assert cli.main(["bench", "decode", "--device", "cpu", "--context", "512"]) == 2
    assert "the weights of smollm2-135m are not installed; run " in capsys.readouterr().err

"""Measured steps of the GPU build: command lines against their parsers, and runs of stubs in their place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("yaml")

from sparda import cli, remeasure, remeasure_run
from sparda.figures.catalogue import BuildError
from sparda.measure import tables
from sparda.measure.decode import DECODE
from sparda.remeasure import Place, Step

ROOT = Path(__file__).resolve().parents[1]
PLAN = remeasure.read(ROOT)
# what `sparda bench` does, without its imports: a row at a time, and the run in the sidecar
STUB = """
import csv, json, os, pathlib, sys, time
rate, out = sys.argv[1], pathlib.Path(sys.argv[3])
columns, rows = json.loads(os.environ["COLUMNS_OF_DECODE"]), []
about = {"commit": os.environ["SPARDA_COMMIT"], "date": "2026-12-01", "command": "stub", "device": "Fake"}
def keep(batch, rate, status="ok"):
    same = {"device": "Fake", "context": 128, "date": about["date"], "commit": about["commit"]}
    rows.append(same | {"batch": batch, "tokens_per_s": rate, "status": status})
    with open(out / "decode.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\\n", restval="")
        writer.writeheader()
        writer.writerows(rows)
    (out / "decode.json").write_text(json.dumps({"runs": [about]}))
print("measuring", flush=True)
if rate == "fail": sys.exit("it broke here")
keep(4, 1 if rate in ("slow", "oom") else int(rate))
if rate == "slow": time.sleep(60)
if rate == "oom": keep(8, "", "out of memory: 1 GiB")
else: keep(8, 2 * int(rate))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A checkout with one step's stub as a module that processes can find."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "stub_step.py").write_text(STUB)
    path = [str(tmp_path / "code"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(part for part in path if part))
    monkeypatch.setenv("SPARDA_COMMIT", "aaaa")
    monkeypatch.setenv("COLUMNS_OF_DECODE", json.dumps(DECODE.columns))
    return Place(tmp_path, tmp_path / "measured", tmp_path / "state", "Fake")


def step(rate="100", **changes) -> Step:
    fields = {"name": "decode", "run": f"stub_step {rate}", "writes": ("decode.csv",), "reads": ("code",)}
    return Step(**(fields | {"seconds": 1, "gpu_gib": 1, "host_gib": 1} | changes))


def rates(place: Place) -> dict[str, str]:
    return {row["batch"]: row["tokens_per_s"] for row in tables.read(place.folder / "decode.csv")}


@pytest.mark.parametrize("name", PLAN.steps)
def test_every_declared_command_is_one_that_its_parser_takes(name, monkeypatch, tmp_path):
    one = PLAN.steps[name]
    module, *rest = remeasure_run.command(one, tmp_path)[2:]
    if module == "sparda":
        options = cli.parser().parse_args(rest)
        assert options.out == tmp_path
        assert callable(options.run)
        return
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True
    )
    for word in rest:
        if word.startswith("--"):
            assert word in done.stdout, f"{module} has no option {word}"
    assert ("--out" in done.stdout) is not one.in_place


def test_every_declared_file_is_a_known_table_or_a_file_as_a_whole():
    whole = {"transfer.csv", "transfer.json", "kernels.csv"}
    for one in PLAN.steps.values():
        for name in one.writes:
            assert name in remeasure.known_tables() or name in whole or name.startswith("trace_"), name


def test_a_usual_build_measures_within_its_budget_and_that_leaves_time_for_the_chapters():
    usual, _ = remeasure.choose(PLAN, [])
    assert sum(one.seconds for one in usual) <= PLAN.budget_s <= 600
    assert {"decode", "prefill", "breakdown", "latency", "trace"} <= {one.name for one in usual}


def test_steps_are_chosen_by_name_and_other_names_are_chapters():
    steps, rest = remeasure.choose(PLAN, ["decode_80gib", "06"])
    assert [one.name for one in steps] == ["decode_80gib"]
    assert rest == ["06"]
    assert remeasure.choose(PLAN, ["06"])[0] == []
    assert remeasure.choose(PLAN, [remeasure.MEASURE]) == (remeasure.choose(PLAN, [])[0], [])


GOOD = """
budget_s: 60
steps:
  decode: {run: stub_step 1, writes: [decode.csv], reads: [code], seconds: 1, gpu_gib: 1, host_gib: 1}
"""


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (("seconds: 1", "second: 1"), "unknown key 'second'; did you mean seconds"),
        (("seconds: 1", "seconds: 1.5"), "seconds must be of type int, got 1.5"),
        (("reads: [code]", "reads: [none]"), "it reads none, which does not exist"),
        ((", host_gib: 1", ""), "host_gib is missing"),
        (("budget_s: 60", "budget: 60"), "unknown key 'budget'; did you mean budget_s"),
        (("budget_s: 60", ""), "must hold budget_s"),
    ],
)
def test_a_wrong_declaration_is_refused_in_a_sentence(place, edit, complaint):
    folder = place.root / "figures"
    folder.mkdir()
    (folder / "measurements.yml").write_text(GOOD)
    assert list(remeasure.read(place.root).steps) == ["decode"]
    assert edit[0] in GOOD
    (folder / "measurements.yml").write_text(GOOD.replace(*edit))
    with pytest.raises(BuildError) as refused:
        remeasure.read(place.root)
    assert complaint in str(refused.value)


def test_a_step_that_ran_is_current_until_its_code_its_command_or_its_rows_change(place):
    assert not remeasure.is_current(step(), place)
    outcome = remeasure_run.run(step(), place, limit_s=60)
    assert (outcome.problem, outcome.rows) == ("", 2)
    assert rates(place) == {"4": "100", "8": "200"}
    assert remeasure.is_current(step(), place)
    assert not remeasure.is_current(step("101"), place)
    source = place.root / "code" / "stub_step.py"
    source.write_text(STUB + "# changed\n")
    assert not remeasure.is_current(step(), place)
    source.write_text(STUB)
    assert remeasure.is_current(step(), place)
    (place.folder / "decode.json").write_text('{"runs": []}')
    assert not remeasure.is_current(step(), place)


def test_rows_of_another_step_in_the_same_table_do_not_undo_it(place, monkeypatch):
    remeasure_run.run(step(), place, limit_s=60)
    when = {"commit": "aaaa", "date": "2026-12-01"}
    row = DECODE.row(batch=64, device="Fake", status="ok", **when)
    tables.keep(DECODE, [row], place.folder, when | {"command": "other"})
    assert remeasure.is_current(step(), place)


def test_what_does_not_fit_never_replaces_what_was_measured(place, monkeypatch):
    remeasure_run.run(step("100"), place, limit_s=60)
    monkeypatch.setenv("SPARDA_COMMIT", "bbbb")
    outcome = remeasure_run.run(step("oom"), place, limit_s=60)
    assert (outcome.problem, outcome.rows) == ("", 1)
    assert rates(place) == {"4": "1", "8": "200"}
    commits = {run["commit"] for run in remeasure.runs(place.folder / "decode.csv")}
    assert commits == {"aaaa", "bbbb"}


def test_what_does_not_fit_is_kept_where_nothing_was_measured(place):
    remeasure_run.run(step("oom"), place, limit_s=60)
    statuses = {row["batch"]: row["status"] for row in tables.read(place.folder / "decode.csv")}
    assert statuses == {"4": "ok", "8": "out of memory: 1 GiB"}


def test_a_step_that_fails_says_what_it_said_last_and_leaves_the_tables(place):
    remeasure_run.run(step("100"), place, limit_s=60)
    before = (place.folder / "decode.csv").read_bytes()
    outcome = remeasure_run.run(step("fail"), place, limit_s=60)
    assert outcome.problem == "it ended with status 1: it broke here"
    assert (place.folder / "decode.csv").read_bytes() == before
    assert not list(place.state.glob("staging-*"))


def test_a_step_that_takes_too_long_is_stopped_and_keeps_its_rows(place):
    start = time.monotonic()
    outcome = remeasure_run.run(step("slow"), place, limit_s=3)
    assert time.monotonic() - start < 30
    assert outcome.problem == "it was stopped after 3 s"
    assert outcome.rows == 1
    assert rates(place) == {"4": "1"}
    assert not remeasure.is_current(step("slow"), place)


def test_a_module_that_does_not_exist_is_a_sentence(place):
    outcome = remeasure_run.run(step(run="no_such_module_here"), place, limit_s=60)
    assert "No module named no_such_module_here" in outcome.problem


def test_files_that_are_no_tables_are_replaced_as_a_whole(place):
    (place.root / "code" / "tracer.py").write_text(
        "import sys, pathlib; pathlib.Path(sys.argv[2], 'trace_a.json').write_text('{}')"
    )
    one = step(run="tracer", writes=("trace_a.json",))
    assert remeasure_run.run(one, place, limit_s=60).problem == ""
    assert (place.folder / "trace_a.json").read_text() == "{}"
    assert remeasure.is_current(one, place)
    (place.folder / "trace_a.json").write_text("[]")
    assert not remeasure.is_current(one, place)


CODE = """
import sys, pathlib, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from sparda import remeasure_run
from sparda.remeasure import Place, Step
root = pathlib.Path(sys.argv[1])
step = Step("decode", "stub_step slow", ("decode.csv",), ("code",), 1, 1, 1)
remeasure_run.run(step, Place(root, root / "measured", root / "state", "Fake"), limit_s=60)
"""


def begin(place: Place) -> subprocess.Popen:
    """A build in a process of its own, at the moment when its step has kept one row."""
    build = subprocess.Popen([sys.executable, "-c", CODE, str(place.root)], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 40
    while time.monotonic() < until and not list(place.state.glob("staging-*/decode.json")):
        time.sleep(0.1)
    return build


def test_ctrl_c_ends_the_step_and_keeps_its_rows(place):
    build = begin(place)
    build.send_signal(signal.SIGINT)
    assert build.wait(timeout=40) != 0
    assert rates(place) == {"4": "1"}
    assert not list(place.state.glob("staging-*"))
    assert remeasure.runs(place.folder / "decode.csv")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_step_ends_with_a_build_that_is_killed_and_the_tables_stand(place):
    remeasure_run.run(step("100"), place, limit_s=60)
    before = (place.folder / "decode.csv").read_bytes()
    build = begin(place)
    (stage,) = place.state.glob("staging-*")
    build.kill()
    build.wait()
    until = time.monotonic() + 20
    while time.monotonic() < until and running(str(stage)):
        time.sleep(0.1)
    assert not running(str(stage))
    assert (place.folder / "decode.csv").read_bytes() == before


def running(word: str) -> list[str]:
    """Processes whose command line holds this word."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in file.read_text():
                found.append(file.parent.name)
        except OSError:
            continue
    return found


class Card:
    total_memory = 24 * 2**30


@pytest.mark.parametrize(
    ("gpu", "host", "sentence"),
    [
        (16, 8, ""),
        (48, 8, "it needs 48 GiB of GPU memory, and here are 24 GiB"),
        (16, 512, "it needs 512 GiB of free host memory, and here are 64 GiB"),
    ],
)
def test_a_machine_that_is_too_small_is_told_what_it_lacks(monkeypatch, gpu, host, sentence):
    from sparda.kernels import host_memory

    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: Card)
    monkeypatch.setattr(host_memory, "machine_memory", lambda: (128 * 2**30, 64 * 2**30))
    assert remeasure.too_small(step(gpu_gib=gpu, host_gib=host)) == sentence

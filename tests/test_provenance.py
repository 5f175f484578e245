from __future__ import annotations

import hashlib
import subprocess

import pytest

from sparda import provenance


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A small repository with one commit, seen as the project's root."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.delenv("SPARDA_COMMIT", raising=False)
    (tmp_path / "figures").mkdir()
    (tmp_path / "code.py").write_text("x = 1\n")
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", "-C", str(tmp_path)]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    return tmp_path


def test_an_edited_tree_is_told_from_a_clean_one(checkout):
    clean = provenance.commit()
    assert len(clean) == 10
    (checkout / "code.py").write_text("x = 2\n")
    assert provenance.commit() == f"{clean}+changes"


def test_writing_a_figure_does_not_count_as_an_edit(checkout):
    clean = provenance.commit()
    (checkout / "figures" / "new.json").write_text("{}")
    assert provenance.commit() == clean


def test_the_commit_can_be_given_where_git_is_absent(checkout, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert provenance.commit() == "unknown"
    monkeypatch.setenv("SPARDA_COMMIT", "abc123")
    assert provenance.commit() == "abc123"


def test_here_names_device_date_and_commit(monkeypatch):
    monkeypatch.setenv("SPARDA_COMMIT", "abc123")
    device, date, commit = provenance.here().split(" · ")
    assert device == provenance.device()
    assert date == provenance.today()
    assert commit == "commit abc123"


def test_versions_leave_out_what_is_not_installed():
    assert set(provenance.versions(("numpy", "no-such-package"))) == {"python", "numpy"}


def test_sha256_hashes_the_bytes(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert provenance.sha256(tmp_path / "f") == hashlib.sha256(b"abc").hexdigest()

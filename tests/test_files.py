"""A file is replaced once the new one is whole, or not at all."""

import errno

import pytest
import torch

from sparda import files


def test_an_error_half_way_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "table.csv"
    files.write_text(path, "good\n")

    def half():
        with files.replacing(path) as part:
            part.write_text("ha")
            raise OSError(errno.ENOSPC, "the disk is full")

    with pytest.raises(OSError, match="full"):
        half()
    assert path.read_text() == "good\n"
    assert [f.name for f in tmp_path.iterdir()] == ["table.csv"]


def test_a_full_disk_is_an_os_error_whatever_safetensors_calls_it(tmp_path, monkeypatch):
    from safetensors import SafetensorError
    from safetensors import torch as writer

    def full(*_):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    path = tmp_path / "weights.safetensors"
    files.write_tensors(path, {"a": torch.ones(2)}, {"format": "pt"})
    old = path.read_bytes()
    monkeypatch.setattr(writer, "save_file", full)
    with pytest.raises(OSError, match="No space left") as caught:
        files.write_tensors(path, {"a": torch.zeros(2)}, {})
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == old
    assert [f.name for f in tmp_path.iterdir()] == [path.name]

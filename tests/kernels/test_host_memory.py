"""Pinned memory: exact sizes, and messages that say what to lower."""

from __future__ import annotations

import gc

import pytest
import torch

from sparda.kernels import host_memory
from sparda.kernels.host_memory import expect_reachable, explain, machine_memory, pinned_empty


def test_a_failure_names_the_request_the_machine_and_what_to_lower(monkeypatch):
    monkeypatch.setattr(host_memory, "machine_memory", lambda: (128 * 2**30, 90 * 2**30))
    message = explain(200 * 2**30, "the driver answered 2")
    for part in ("200 GiB", "128 GiB", "90 GiB", "Lower the batch", "ulimit -l"):
        assert part in message


def test_the_machine_s_memory_is_read_from_the_system(tmp_path):
    path, none = tmp_path / "meminfo", tmp_path / "absent"
    path.write_text("MemTotal:       2048 kB\nMemFree:  12 kB\nMemAvailable:   1024 kB\n")
    assert machine_memory(path, none) == (2048 * 1024, 1024 * 1024)
    assert machine_memory(none, none) == (0, 0)


def test_a_container_s_limit_counts_where_it_is_smaller(tmp_path):
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       2048 kB\nMemAvailable:   1024 kB\n")
    (tmp_path / "memory.current").write_text("600000\n")
    (tmp_path / "memory.stat").write_text("anon 400000\ninactive_file 200000\n")
    (tmp_path / "memory.max").write_text("1000000\n")
    assert machine_memory(path, tmp_path) == (1_000_000, 600_000)
    (tmp_path / "memory.max").write_text("max\n")
    assert machine_memory(path, tmp_path) == (2048 * 1024, 1024 * 1024)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_pinning_without_a_gpu_says_what_to_use_instead():
    with pytest.raises(RuntimeError, match=r"torch\.empty"):
        pinned_empty((4,), torch.float32)


def test_a_store_that_the_slots_device_cannot_read_is_refused_and_ordinary_memory_serves_a_cpu():
    ordinary, elsewhere = torch.empty(3), torch.empty(3, device="meta")
    assert expect_reachable("host", ordinary, torch.device("cpu")) is None
    with pytest.raises(ValueError, match="host is on meta, the slots are on the CPU; move both"):
        expect_reachable("host", elsewhere, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"host is on meta; it must be pinned .*pinned_empty"):
        expect_reachable("host", elsewhere, torch.device("cuda"))
    with pytest.raises(ValueError, match=r"host is ordinary host memory, .*pinned_empty"):
        expect_reachable("host", ordinary, torch.device("cuda"))


@pytest.mark.gpu
def test_pinned_memory_has_the_asked_shape_is_page_aligned_and_survives_views(cuda):
    whole = pinned_empty((3, 1000), torch.bfloat16)
    assert whole.is_pinned()
    assert whole.data_ptr() % host_memory.PAGE == 0
    view = whole[1]
    view.fill_(7)
    del whole
    gc.collect()
    assert view.is_pinned()
    assert (view.to(cuda) == 7).all()


@pytest.mark.gpu
def test_pinning_more_than_the_machine_has_fails_before_anything_is_touched(cuda):
    with pytest.raises(MemoryError, match="lower the batch"):
        pinned_empty((2**46,), torch.uint8)

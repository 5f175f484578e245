import json

import pytest
import torch

from sparda.measure import bench

ABOUT = {"device": "NVIDIA Test", "date": "2026-01-01", "commit": "abc"}


def make(kernel, case, us):
    rates = bench.Ceilings(4e12, 8e14)
    return bench.row(kernel, case, "triton", bench.Times(us, us, us), n_bytes=4_000_000, rates=rates)


def test_the_floor_is_the_slower_of_bytes_and_arithmetic():
    rates = bench.Ceilings(bytes_per_s=4e12, flop_per_s=8e14)
    assert rates.floor_us(4e6, 0) == pytest.approx(1.0)
    assert rates.floor_us(4e6, 1.6e9) == pytest.approx(2.0)
    assert make("a", "x", 3.0).ratio_to_floor == pytest.approx(3.0)


def test_rows_are_replaced_by_kernel_case_and_backend_and_others_stay(tmp_path):
    bench.save([make("b", "x", 1.0), make("a", "x", 2.0)], topic="one", folder=tmp_path, about=ABOUT)
    path = bench.save([make("b", "x", 5.0), make("c", "x", 7.0)], topic="two", folder=tmp_path, about=ABOUT)
    lines = path.read_text().splitlines()
    assert lines[0] == "kernel,case,backend,median_us,p10_us,p90_us,bytes,flops,floor_us,ratio_to_floor"
    assert [line.split(",")[0] + line.split(",")[3] for line in lines[1:]] == ["a2", "b5", "c7"]


def test_the_sidecar_keeps_where_each_topic_comes_from(tmp_path):
    for topic in ("one", "two"):
        bench.save([make(topic, "x", 1.0)], topic=topic, folder=tmp_path, about=ABOUT)
    runs = json.loads((tmp_path / "kernels.json").read_text())
    assert runs["one"]["kernels"] == ["one"]
    assert runs["two"]["device"] == "NVIDIA Test"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_nothing_is_measured():
    with pytest.raises(SystemExit, match="needs a CUDA device"):
        bench.need_cuda()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="GPU test: no CUDA device here")
def test_a_longer_copy_takes_longer():
    tensors = [torch.ones(n, device="cuda") for n in (2**24, 2**28)]
    times = [bench.time_graph([x.clone], replays=9) for x in tensors]
    assert times[1].median_us > 4 * times[0].median_us
    assert times[0].p10_us <= times[0].median_us <= times[0].p90_us

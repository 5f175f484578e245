"""The engine's benchmarks on a tiny model: schema, out of memory as a row, refusals, what is never kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sparda import bounds, cli, spec
from sparda.engine.weights import random_decoder
from sparda.measure import bench, choices, decode, prompts, runs, traced
from sparda.measure import setup as running
from sparda.measure.command import size
from sparda.measure.hosts import Hosts
from sparda.measure.setup import Setup
from sparda.measure.systems import SYSTEMS, Case, cases
from sparda.plan import Plan
from sparda.spec import ModelShape, Sparsity
from sparda.timeline import Event

SHAPE = ModelShape("tiny", 3, 32, 4, 2, 16, 48, 97, 1e-6, 1e4, 4096, False, "made up")
RULE = Sparsity(6, local_blocks=1, block_size=16)  # 3 forced, 3 learned
CONTEXT = 400
ISSUE = """
device model selector budget_blocks block_size cache_slots transport layer0 context batch hit_rate
steps tokens_per_s step_ms_median step_ms_p99 bound_ms ratio_to_bound bytes_moved_per_step transfer_exposed_ms
peak_gpu_gib pinned_gib status"""


@pytest.fixture
def setup():
    return Setup(SHAPE, RULE, random_decoder(SHAPE, CONTEXT), torch.device("cpu"), torch.float32)


def sweep(setup, *cases, steps=4):
    return decode.sweep(setup, cases, steps=steps, done=lambda row: None)


def test_the_columns_are_those_that_were_agreed():
    agreed = ISSUE.split()
    assert list(decode.DECODE.columns[: len(agreed)]) == agreed
    assert prompts.PREFILL.columns[:10] == (
        "device", "model", "selector", "budget_blocks", "block_size", "attention", "context", "chunk",
        "tokens_per_s", "ttft_s",
    )  # fmt: skip
    assert {"phase", "part", "us_per_layer", "share", "status"} <= set(traced.BREAKDOWN.columns)
    assert {"ttft_ms", "tpot_ms_median", "tpot_ms_p99", "steps"} <= set(prompts.LATENCY.columns)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_decodes(setup, name):
    system = SYSTEMS[name]
    case = Case(system, CONTEXT, 2, 0.8 if system.offloads else 1.0, "k" if system.offloads else "full")
    (row,) = sweep(setup, case)
    assert row["status"] == "ok"
    assert (row["selector"], row["transport"]) == (system.selector, system.transport)
    assert float(row["step_ms_p99"]) >= float(row["step_ms_median"]) > 0
    assert float(row["tokens_per_s"]) == pytest.approx(2000 / float(row["step_ms_median"]), rel=1e-3)
    moved = 1 * 2 * 2 * 2 * (2 * 16 * 16 * 4) if system.offloads else 0  # misses, batch, heads, layers, block
    assert float(row["bytes_moved_per_step"]) == pytest.approx(moved, rel=1e-3)
    assert row["bound_ms"] == row["ratio_to_bound"] == ""  # rates of an H200 say nothing about this machine
    assert row["budget_blocks"] == ("25" if name == "dense" else "6")


def test_more_slots_and_the_cost_of_transfers_beside_a_step_without(setup):
    case = cases(["sparda"], contexts=[CONTEXT], batches=[1], hit_rates=[0.8, 1.0], slots=["k", 9])
    rows = sweep(setup, *case)
    assert [(r["cache_slots"], r["hit_rate"]) for r in rows] == [
        ("6", "1"), ("6", "0.8"), ("9", "1"), ("9", "0.8"),
    ]  # fmt: skip
    assert [r["status"] for r in rows] == ["ok"] * 4
    assert all(float(r["transfer_exposed_ms"]) >= 0 for r in rows)


def test_out_of_memory_is_a_row_and_the_sweep_goes_on(setup, monkeypatch):
    from sparda.engine import session

    class Small(session.Store):
        def __init__(self, plan, host=None):
            if plan.batch > 1:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. More")
            super().__init__(plan, host)

    monkeypatch.setattr(session, "Store", Small)
    rows = sweep(setup, *(Case(SYSTEMS["sparda"], CONTEXT, batch, 0.8) for batch in (2, 1)))
    assert rows[0]["status"].startswith("out of memory: ")
    assert rows[0]["tokens_per_s"] == rows[0]["step_ms_median"] == ""
    assert rows[1]["status"] == "ok"


def test_a_host_that_is_too_small_is_a_row_too(setup):
    one = Plan(1, CONTEXT, 3, 2, 16, RULE).host_bytes
    setup.hosts.limit = one
    rows = sweep(setup, *(Case(SYSTEMS["sparda"], CONTEXT, batch, 0.8) for batch in (2, 1)))
    assert "of host memory are over the limit of" in rows[0]["status"]
    assert rows[1]["status"] == "ok"


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case(SYSTEMS["sparda"], CONTEXT, 1, 0.1), "skipped: a hit rate of 0.1 means 5 misses"),
        (Case(SYSTEMS["sparda"], CONTEXT, 1, 1.0, 5), "skipped: cache = 5 slots cannot hold the 6"),
        (Case(SYSTEMS["sparda"], 24, 1, 1.0), "skipped: a context of 24 tokens has no room for 4 steps"),
    ],
)
def test_what_cannot_be_run_says_why(setup, case, reason):
    (row,) = sweep(setup, case)
    assert row["status"].startswith(reason)


def test_the_largest_batch_pins_and_the_smaller_ones_share_it(setup):
    hosts, plans = Hosts(), [Plan(batch, CONTEXT, 3, 2, 16, RULE) for batch in (4, 2, 1)]
    pools = [hosts.pool(plan) for plan in plans]
    assert pools[0] is pools[1] is pools[2]
    assert pools[0].take(1, plans[2]).shape == (1, 2, 25, 2, 16, 16)
    shared = Hosts(share=3).pool(plans[0])
    assert shared.nbytes == pools[0].nbytes // 2  # layers 1 and 2 in one


def test_recorded_choices_are_replayed_and_their_hit_rate_is_counted(setup, monkeypatch):
    """Two blocks alternate with two others: 2 misses a step with k slots, none once all four have a place."""
    one, other = torch.tensor([3, 4, 5]), torch.tensor([5, 6, 7])
    ids = torch.stack([one, other] * 20).view(40, 1, 1, 1, 3).expand(40, 2, 2, 1, 3).to(torch.int16)
    monkeypatch.setattr(running.choices, "load", lambda: choices.Choices(ids, {}))
    found = cases(["sparda"], contexts=[CONTEXT], batches=[3], hit_rates=[None], slots=["k", 8])
    rows = sweep(setup, *found)
    assert [(r["cache_slots"], r["hit_rate"], r["choices"]) for r in rows] == [
        ("6", f"{1 - 2 / 6:.4g}", "recorded"), ("8", "1", "recorded"),
    ]  # fmt: skip
    assert float(rows[1]["bytes_moved_per_step"]) == 0


def test_a_resident_system_is_measured_once_whatever_the_hit_rates():
    found = cases(["sparse", "sparda"], contexts=[512], batches=[1, 8], hit_rates=[0.5, 1.0], slots=["k"])
    assert [(c.system.name, c.batch, c.hit_rate, c.slots) for c in found] == [
        ("sparse", 8, 1.0, "full"), ("sparda", 8, 1.0, "k"), ("sparda", 8, 0.5, "k"),
        ("sparse", 1, 1.0, "full"), ("sparda", 1, 1.0, "k"), ("sparda", 1, 0.5, "k"),
    ]  # fmt: skip


@pytest.mark.parametrize(("batch", "ms"), [(4, 4.72), (8, 5.04), (16, 7.04), (64, 28.2)])
def test_the_bound_is_the_agreed_one(monkeypatch, setup, batch, ms):
    monkeypatch.setattr(decode.provenance, "device", lambda: "NVIDIA H200")
    real = Setup(
        spec.model("minicpm4.1-8b"),
        spec.sparsity("minicpm4.1-8b"),
        None,
        torch.device("cuda"),
        torch.bfloat16,
    )
    case = Case(SYSTEMS["sparda"], 131_072, batch, 0.89)
    assert decode.bound_ms(real, case, misses=11) == pytest.approx(ms, rel=2e-3)
    resident, dense = (Case(SYSTEMS[name], 131_072, batch, 1.0, "full") for name in ("sparse", "dense"))
    assert decode.bound_ms(real, resident, misses=0) < decode.bound_ms(real, dense, misses=0)
    assert bounds.H200_RATES.link_gb_per_s == 50.8


def test_prompts_and_latency(setup):
    found = cases(["sparda", "dense"], contexts=[CONTEXT], batches=[1], hit_rates=[0.8], slots=["k"])
    rows = prompts.prefill(setup, found, repeats=1, done=lambda row: None)
    assert [(r["selector"], r["attention"], r["status"]) for r in rows] == [
        ("forecast", "sparse_prefill", "ok"), ("all", "math", "ok"),
    ]  # fmt: skip
    late = prompts.latency(setup, found, steps=4, done=lambda row: None)
    assert [r["status"] for r in late] == ["ok", "ok"]
    assert all(float(r["ttft_ms"]) > 0 and float(r["tpot_ms_p99"]) > 0 for r in late)


def test_dense_prompts_through_torch_end_like_the_engine_s_own(setup):
    case = Case(SYSTEMS["dense"], CONTEXT, 1, 1.0, "full")
    with running.session(setup, case, past=CONTEXT) as session, torch.inference_mode():
        tokens = prompts.random_tokens(setup, 300, seed=1)
        ours = prompts.prompt(session, 0, tokens).run()
        theirs = prompts.prompt(session, 0, tokens, "math").run()
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_the_parts_of_a_layer_add_up(setup):
    found = [Case(SYSTEMS[name], CONTEXT, 1, 0.8) for name in ("sparda", "sparse_offload")]
    rows = traced.breakdown(setup, found, done=lambda row: None)
    assert {row["status"] for row in rows} == {"ok"}
    for selector in ("forecast", "query"):
        for phase in ("prefill", "decode"):
            mine = [r for r in rows if (r["selector"], r["phase"]) == (selector, phase)]
            assert {"projection", "selection", "attention", "ffn"} <= {r["part"] for r in mine}
            assert sum(float(r["share"] or 0) for r in mine) == pytest.approx(1, abs=0.01)
            assert all(float(r["us_per_layer"]) >= 0 for r in mine)


def test_a_trace_is_written_for_the_timeline(setup, tmp_path):
    from sparda.timeline import load

    case = Case(SYSTEMS["sparda"], CONTEXT, 2, 0.8)
    (row,) = traced.save(setup, [case], folder=tmp_path, done=lambda row: None)
    assert row["status"] == "ok"
    step = load(tmp_path / "trace_sparda_b2.json")
    assert (step.about["transport"], step.about["batch"], step.about["hit_rate"]) == ("lookahead", 2, 0.8)
    assert {e.layer for e in step.of("transfer")} == {1, 2}


def test_sizes_are_read_with_their_unit():
    assert size("80GiB") == 80 * 2**30
    with pytest.raises(Exception, match="such as 80GiB"):
        size("80")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--systems", "vllm"], ["--gpu-memory", "80"], ["--batches", "four"], ["--hit-rates", "89"],
        ["--model", "gpt-2"],
    ],
)  # fmt: skip
def test_wrong_options_are_refused_with_a_sentence(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", "decode", *arguments])
    assert stopped.value.code == 2
    assert "error: argument" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_processor_s_times_are_printed_and_kept_only_elsewhere(setup, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(runs, "setup", lambda options, device: setup)
    bench_it = ["bench", "decode", "--context", str(CONTEXT), "--batches", "1", "--systems", "sparda"]
    bench_it += ["--hit-rates", "0.8", "--steps", "4"]
    assert cli.main(bench_it) == 0
    assert "these times are not kept" in capsys.readouterr().out
    assert cli.main([*bench_it, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "decode.csv").exists()
    assert cli.main([*bench_it, "--out", str(bench.DATA / "cpu")]) == 2
    assert not (bench.DATA / "cpu").exists()
    assert "is for GPU measurements" in capsys.readouterr().err
    assert cli.main([*bench_it, "--device", "cuda"]) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("what", ["prefill", "latency", "breakdown", "trace"])
def test_every_benchmark_runs_from_the_command_line(setup, monkeypatch, tmp_path, capsys, what):
    monkeypatch.setattr(runs, "setup", lambda options, device: setup)
    size = ["--context", str(CONTEXT), "--systems", "sparda", "--steps", "4", "--out", str(tmp_path)]
    assert cli.main(["bench", what, *size]) == 0
    assert (tmp_path / ("trace_sparda_b1.json" if what == "trace" else f"{what}.csv")).exists()
    assert " ok" in capsys.readouterr().out


def test_a_copy_that_compute_makes_itself_is_waiting():
    spans = (
        ("layer", 0, 100),
        ("prep", 10, 30),
        ("transfer", 30, 70),
        ("wait", 70, 71),
        ("attention", 71, 80),
    )
    layer, prep, *rest = (Event(kind, 1, start, end) for kind, start, end in spans)
    parts = traced._divide(layer, {(e.kind, 1): e for e in rest}, [prep])
    assert (parts["wait"], parts["selection"], parts["projection"]) == (41, 20, 30)
    beside = {(e.kind, 1): replace(e, beside=e.kind == "transfer") for e in rest}
    assert traced._divide(layer, beside, [prep])["wait"] == 1

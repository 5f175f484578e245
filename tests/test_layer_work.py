"""What a layer's attention must do, against loops and against what the measured kernels were given."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda import costs
from sparda.bounds import H200_RATES
from sparda.layer_work import attended_keys, decode_work, prefill_work, scored_windows
from sparda.spec import Sparsity, model, sparsity

SHAPE, RULE = model("minicpm4.1-8b"), sparsity("minicpm4.1-8b")


@given(n=st.integers(0, 300), k=st.integers(1, 6), size=st.sampled_from([4, 16]))
def test_attended_keys_are_those_of_a_loop_over_the_queries(n, k, size):
    rule = Sparsity(k, size, init_blocks=0, local_blocks=0, window=4, stride=4)
    loop = sum((min(k, t // size + 1) - 1) * size + t % size + 1 for t in range(n))
    assert attended_keys(n, rule) == loop


@given(n=st.integers(0, 300))
def test_scored_windows_are_those_that_have_ended(n):
    rule = Sparsity(4, local_blocks=1)
    assert scored_windows(n, rule) == sum(max(0, (t - 31) // 16 + 1) for t in range(n))


def test_the_parts_of_all_layers_add_up_to_the_floor_of_a_step():
    sizes = {"shape": SHAPE, "sparsity": RULE, "n_tokens": 131_072, "batch": 16}
    work = decode_work(selector="forecast", **sizes)
    assert SHAPE.n_layers * work["selection"].kv_bytes == costs.compressed_key_bytes(**sizes)
    assert SHAPE.n_layers * work["attention"].kv_bytes == costs.selected_kv_bytes(**sizes)
    layers = SHAPE.n_layers * work["rest"].weight_bytes
    head_and_gains = costs.step_weight_bytes(shape=SHAPE) - layers
    assert 0 < head_and_gains < 0.05 * layers


def test_decode_waits_for_memory_and_prefill_for_arithmetic():
    sizes = {"shape": SHAPE, "sparsity": RULE, "n_tokens": 131_072, "selector": "query"}
    assert {w.limit() for w in decode_work(batch=16, **sizes).values()} == {"memory"}
    assert {w.limit() for w in prefill_work(**sizes).values()} == {"compute"}


def test_the_forecast_reads_the_same_keys_and_does_a_sixteenth_of_the_arithmetic():
    sizes = {"shape": SHAPE, "sparsity": RULE, "n_tokens": 65_536}
    for work in (
        lambda s: decode_work(batch=4, selector=s, **sizes),
        lambda s: prefill_work(selector=s, **sizes),
    ):
        query, forecast = work("query")["selection"], work("forecast")["selection"]
        assert query.kv_bytes == forecast.kv_bytes
        assert query.flops == SHAPE.group * forecast.flops


@pytest.mark.parametrize(("n_tokens", "attended"), [(100, 100), (96 * 64, 96 * 64), (131_072, 96 * 64)])
def test_a_decode_step_attends_to_k_blocks_or_to_the_tokens_there_are(n_tokens, attended):
    sizes = {"shape": SHAPE, "sparsity": RULE, "n_tokens": n_tokens, "batch": 3}
    flops = 3 * 4 * SHAPE.n_heads * SHAPE.head_dim * attended
    assert decode_work(selector="query", **sizes)["attention"].flops == flops


def test_dense_selects_nothing():
    work = prefill_work(shape=SHAPE, sparsity=RULE, n_tokens=4096, selector="all")
    assert work["selection"].floor_us(H200_RATES) == 0
    assert work["selection"].limit() == ""


def test_the_work_is_what_the_measured_kernels_were_given(root):
    with open(root / "data/measured/nvidia-h200/kernels.csv", newline="", encoding="utf-8") as file:
        rows = {(r["kernel"], r["case"], r["backend"]): r for r in csv.DictReader(file)}
    sizes = {"shape": SHAPE, "sparsity": RULE, "n_tokens": 131_072}
    dense = prefill_work(selector="all", **sizes)["attention"].flops
    sparse = prefill_work(selector="forecast", **sizes)
    assert float(rows["dense", "prefill_128k", "flash"]["flops"]) == dense
    assert float(rows["sparse_prefill", "prefill_128k_alike", "triton"]["flops"]) == sparse["attention"].flops
    scored = float(rows["score_blocks", "prefill_128k", "triton"]["flops"])
    assert scored == pytest.approx(sparse["selection"].flops, rel=1e-3)
    read = float(rows["sparse_decode", "decode_b16_128k", "triton"]["bytes"])
    assert read == decode_work(batch=16, selector="query", **sizes)["attention"].kv_bytes


def test_an_unknown_selector_is_refused():
    with pytest.raises(ValueError, match="selector is one of all, query, forecast"):
        decode_work(shape=SHAPE, sparsity=RULE, n_tokens=64, batch=1, selector="proxy")

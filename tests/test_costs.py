"""Bytes, FLOPs and times: hand-checked values, and the relations that must hold for every shape."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda import bounds, costs
from sparda.spec import HARDWARE, MEASURED_H200, MODELS, SPARSITY

MINICPM = {"shape": MODELS["minicpm4.1-8b"], "sparsity": SPARSITY["minicpm4.1-8b"]}
T_128K = 131_072


def test_a_sequence_of_128k_tokens_holds_four_gib_of_keys_and_values():
    assert costs.kv_bytes(shape=MINICPM["shape"], n_tokens=T_128K) == 4 * 2**30


def test_one_block_of_one_head_is_32_kib():
    assert costs.block_bytes(head_dim=128) == 32 * 1024


def test_compressed_keys_take_a_sixteenth_of_the_keys():
    keys = costs.kv_bytes(shape=MINICPM["shape"], n_tokens=T_128K) / 2
    share = costs.compressed_key_bytes(n_tokens=T_128K, **MINICPM) / keys
    assert share == pytest.approx(0.0625, rel=1e-3)


def test_no_compressed_key_exists_before_the_first_window_is_complete():
    assert costs.compressed_key_bytes(n_tokens=31, **MINICPM) == 0


@pytest.mark.parametrize(("share", "channels"), [(0.25, 32), (0.5, 64), (1.0, 128)])
def test_infinigens_index_keeps_a_share_of_the_channels_of_every_key(share, channels):
    size = costs.proxy_index_bytes(shape=MINICPM["shape"], n_tokens=1000, share=share, batch=3)
    assert size == 32 * 3 * 1000 * 2 * channels * 2  # layers, sequences, tokens, KV heads, channels, bytes


def test_the_forecast_adds_the_published_number_of_weights():
    added = costs.forecast_parameters(shape=MINICPM["shape"])
    assert added == 33_554_432
    assert round(100 * added / MINICPM["shape"].n_parameters, 2) == 0.41


def test_a_step_reads_all_weights_but_the_input_embeddings():
    shape = MINICPM["shape"]
    without = costs.step_weight_bytes(shape=shape, forecast=False)
    assert costs.weight_bytes(shape=shape) - without == 2 * 73448 * 4096
    assert costs.step_weight_bytes(shape=shape) - without == 2 * 33_554_432


def test_a_tied_table_is_read_as_the_output_head():
    tied = MODELS["smollm2-135m"]
    assert costs.step_weight_bytes(shape=tied, forecast=False) == costs.weight_bytes(shape=tied)


@pytest.mark.parametrize(("batch", "ms"), [(4, 4.72), (8, 5.04), (16, 7.04), (64, 28.2)])
def test_the_decode_bound_gives_the_four_reference_values(batch, ms):
    bound = bounds.decode_bound(n_tokens=T_128K, batch=batch, misses=11, **MINICPM)
    assert bound.seconds * 1e3 == pytest.approx(ms, abs=0.05 if batch == 64 else 0.005)
    assert bound.limit == ("memory" if batch < 16 else "link")
    assert bound.tokens_per_s == pytest.approx(batch / bound.seconds)


def test_selection_by_forecast_needs_g_times_fewer_dot_products():
    query, forecast = (
        costs.selection_dots(n_tokens=T_128K, selector=selector, **MINICPM)
        for selector in ("query", "forecast")
    )
    assert query == 16 * forecast


def test_sparse_attention_stops_growing_once_the_context_exceeds_the_budget():
    sizes = [costs.selected_kv_bytes(n_tokens=n, **MINICPM) for n in (64, 6144, 6145, T_128K)]
    assert sizes[0] * 96 == sizes[1] == sizes[2] == sizes[3]


def test_matmul_flops_are_two_per_matrix_weight():
    shape = MODELS["smollm2-135m"]
    layer = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536
    assert costs.matmul_flops(shape=shape) == 2 * (30 * layer + 49152 * 576)


def test_the_ledger_of_a_gpu_cache_adds_up():
    parts = costs.gpu_bytes(n_tokens=T_128K, batch=3, placement="gpu", **MINICPM)
    assert parts["K and V"] == 3 * 4 * 2**30
    assert parts["weights"] == 2 * 8_185_253_888


def test_offloading_keeps_layer_zero_and_k_slots_of_the_other_layers():
    parts = costs.gpu_bytes(n_tokens=T_128K, batch=1, placement="offload", **MINICPM)
    assert parts["K and V"] == T_128K * 2 * 2 * 128 * 2 + 31 * 96 * 2 * 32 * 1024


@given(n=st.integers(1, 300_000), batch=st.integers(1, 64), memory=st.integers(17, 200))
def test_the_largest_batch_fits_and_one_more_does_not(n, batch, memory):
    of = {"n_tokens": n, "placement": "offload", **MINICPM}
    fits = costs.largest_batch(memory_gib=memory, **of)
    assert sum(costs.gpu_bytes(batch=fits, **of).values()) <= memory * 2**30
    assert sum(costs.gpu_bytes(batch=fits + 1, **of).values()) > memory * 2**30


@given(n=st.integers(0, 300_000), batch=st.integers(1, 64), dtype_bytes=st.sampled_from([1, 2, 4]))
def test_bytes_are_linear_in_batch_and_dtype(n, batch, dtype_bytes):
    size = costs.kv_bytes(shape=MINICPM["shape"], n_tokens=n, batch=batch, dtype_bytes=dtype_bytes)
    assert size == batch * dtype_bytes * costs.kv_bytes(shape=MINICPM["shape"], n_tokens=n, dtype_bytes=1)


@given(misses=st.integers(0, 96), batch=st.integers(1, 128))
def test_more_misses_never_make_a_step_faster(misses, batch):
    few, many = (
        bounds.decode_bound(n_tokens=T_128K, batch=batch, misses=m, **MINICPM).seconds
        for m in (misses / 2, misses)
    )
    assert few <= many


def test_hit_rates_become_whole_misses():
    assert [bounds.misses_at(hit_rate=h, budget_blocks=96) for h in (1, 0.95, 0.89, 0.5, 0)] == [
        0,
        5,
        11,
        48,
        96,
    ]


def test_the_roofline_bends_at_the_ridge():
    rates = {"tflop_per_s": 989, "gb_per_s": 3350}
    ridge = bounds.ridge_flop_per_byte(**rates)
    assert bounds.roofline_tflop_per_s(flop_per_byte=ridge, **rates) == pytest.approx(989)
    assert bounds.roofline_tflop_per_s(flop_per_byte=ridge / 2, **rates) == pytest.approx(989 / 2)
    assert bounds.roofline_tflop_per_s(flop_per_byte=ridge * 2, **rates) == 989


def test_default_rates_are_the_measured_ones_and_presets_give_datasheet_peaks():
    assert bounds.H200_RATES.link_gb_per_s == MEASURED_H200["uva_gb_per_s"]
    assert bounds.Rates.of(HARDWARE["h100"]).kv_gb_per_s == 3350


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: costs.kv_bytes(shape=MINICPM["shape"], n_tokens=-1), "n_tokens must be at least 0"),
        (lambda: costs.miss_bytes(misses=97, **MINICPM), "at most budget_blocks"),
        (lambda: costs.selection_dots(n_tokens=64, selector="oracle", **MINICPM), "'query' or 'forecast'"),
        (lambda: costs.gpu_bytes(n_tokens=64, batch=1, placement="disk", **MINICPM), "'gpu' or 'offload'"),
        (lambda: bounds.misses_at(hit_rate=89, budget_blocks=96), "write 89 % as 0.89"),
        (lambda: bounds.transfer_seconds(n_bytes=1, gb_per_s=0), "give GB/s"),
        (lambda: bounds.decode_bound(n_tokens=64, batch=0, misses=0, **MINICPM), "batch must be at least 1"),
    ],
)
def test_bad_input_is_named_with_its_remedy(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_a_wider_kv_cache_costs_in_proportion():
    wide = dataclasses.replace(MINICPM["shape"], n_kv_heads=8)
    assert costs.kv_bytes(shape=wide, n_tokens=10) == 4 * costs.kv_bytes(shape=MINICPM["shape"], n_tokens=10)

"""Presets: their counts, their published facts, and what is refused."""

import dataclasses

import pytest

from sparda import spec


def test_parameter_counts_are_those_of_the_models():
    assert spec.model("minicpm4.1-8b").n_parameters == 8_185_253_888
    assert spec.model("smollm2-135m").n_parameters == 134_515_008
    assert spec.model("llama-3-70b").n_parameters == 70_553_706_496


def test_minicpm_forces_34_of_its_96_blocks():
    assert spec.sparsity("minicpm4.1-8b").forced_blocks == 34
    assert spec.sparsity("nosa-8b").forced_blocks == 18


def test_every_preset_names_its_source():
    for preset in (*spec.MODELS.values(), *spec.HARDWARE.values()):
        assert preset.source, preset.name


def test_presets_are_looked_up_in_any_case():
    assert spec.hardware("H100") is spec.HARDWARE["h100"]


@pytest.mark.parametrize(
    ("look_up", "kind"),
    [(spec.model, "model"), (spec.sparsity, "sparsity preset"), (spec.hardware, "hardware")],
)
def test_an_unknown_preset_lists_the_known_ones(look_up, kind):
    with pytest.raises(KeyError, match=f"unknown {kind} 'nonsense'; choose one of "):
        look_up("nonsense")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"budget_blocks": 33}, "cannot hold the 34 forced blocks"),
        ({"block_size": 40}, "a multiple of stride"),
        ({"window": 24}, "a multiple of stride"),
        ({"stride": 0}, "at least 1"),
        ({"block_size": 0}, "at least 1"),
        ({"window": 0}, "at least 1"),
        ({"local_blocks": -1}, "not be negative"),
        ({"init_blocks": -1}, "not be negative"),
        ({"visibility": "middle"}, "'end' or 'start'"),
    ],
)
def test_a_rule_that_cannot_hold_is_refused(change, says):
    with pytest.raises(ValueError, match=says):
        dataclasses.replace(spec.sparsity("minicpm4.1-8b"), **change)


def test_the_least_rule_there_can_be_is_taken():
    rule = spec.Sparsity(1, block_size=1, init_blocks=0, local_blocks=0, window=1, stride=1)
    assert rule.forced_blocks == 1
    assert spec.check_sparsity(rule) is None
    with pytest.raises(TypeError, match=r"sparsity is a sparda\.Sparsity, such as .*, got 8"):
        spec.check_sparsity(8)


def test_query_heads_may_be_shared_by_any_number_of_kv_heads_that_divides_theirs():
    assert [dataclasses.replace(spec.model("smollm2-135m"), n_kv_heads=n).group for n in (1, 3, 9)] == [
        9,
        3,
        1,
    ]


def test_query_heads_must_share_kv_heads_evenly():
    with pytest.raises(ValueError, match="must be a multiple"):
        dataclasses.replace(spec.model("minicpm4.1-8b"), n_kv_heads=5)

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


@pytest.mark.parametrize("look_up", [spec.model, spec.sparsity, spec.hardware])
def test_an_unknown_preset_lists_the_known_ones(look_up):
    with pytest.raises(KeyError, match="choose one of"):
        look_up("nonsense")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"budget_blocks": 33}, "cannot hold the 34 forced blocks"),
        ({"block_size": 40}, "multiples of stride"),
        ({"window": 24}, "multiples of stride"),
        ({"stride": 0}, "at least 1"),
        ({"local_blocks": -1}, "not be negative"),
        ({"visibility": "middle"}, "'end' or 'start'"),
    ],
)
def test_a_rule_that_cannot_hold_is_refused(change, says):
    with pytest.raises(ValueError, match=says):
        dataclasses.replace(spec.sparsity("minicpm4.1-8b"), **change)


def test_query_heads_must_share_kv_heads_evenly():
    with pytest.raises(ValueError, match="must be a multiple"):
        dataclasses.replace(spec.model("minicpm4.1-8b"), n_kv_heads=5)

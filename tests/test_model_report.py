"""`sparda doctor --model`: one table of what a model can do; each "no" has its reason and what to do."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import pytest

from sparda import cli, model_report
from sparda.kernels import limits
from sparda.spec import Sparsity

FAMILIES = {  # family: (options, what cannot be done and a part of the reason)
    "Llama": ({}, {}),
    "Granite": ({}, {}),
    "Qwen2": (
        {},
        {"engine": "q_proj.bias", "train --init query": "--init random", "proxy": "such as 'query'"},
    ),
    "Helium": ({"head_dim": 16}, {"engine": "its rotation"}),
    "Gemma2": ({"head_dim": 16}, {"attach": "softcap", "engine": "see attach", "train": "see attach"}),
    "MiniMax": (
        {"num_local_experts": 2, "head_dim": 16},
        {"look-ahead": "layers 0, 2; use a selector that does not look ahead", "train": "such as 'query'"},
    ),
}


def table(model, **options):
    return {row.what: row for row in model_report.rows(model, **options)}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_no_has_its_reason(tiny, family):
    options, refused = FAMILIES[family]
    found = table(tiny(family, **options), context=1024)
    for what, why in refused.items():
        row = next(row for name, row in found.items() if name.startswith(what))
        assert not row.can, row
        assert why in row.said
    if not refused:
        assert all(row.can for name, row in found.items() if name != "CUDA graph")


def test_the_context_and_the_memory_are_said_for_what_is_asked(tiny):
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    model = tiny(max_position_embeddings=512, rope_parameters=rope)
    found = table(model, batch=3)
    assert found["context"].said == "2,048 tokens, RoPE scaled by 'linear'"
    memory = found["memory, 3 x 2,048"].said
    # 4 layers x 3 sequences x 2 heads x 2,048 tokens x (K and V) x 16 channels x 4 bytes
    assert f"KV {4 * 3 * 2 * 2048 * 2 * 16 * 4 // 2**20} MiB" in memory
    assert "4.5 MiB in host memory (modelled)" in memory
    assert not table(model, context=4096)["context"].can
    assert "ask for 2,048 or less" in table(model, context=4096)["context"].said


def test_a_head_that_no_kernel_takes_is_named_with_each_kernel(tiny):
    found = table(tiny(head_dim=24, hidden_size=96), context=512)
    assert found["kernel rotate_prompt"].said == "head_dim 24 is no power of two; run this model on the CPU"
    assert "add_norm" in found["kernels"].said
    assert "rotate_prompt" not in found["kernels"].said


def test_the_limits_are_those_that_the_wrappers_ask_for():
    for kernel, names in limits.POWERS_OF_TWO.items():
        source = inspect.getsource(import_module(f"sparda.kernels.{kernel}"))
        said = set(re.findall(r"(\w+)=", " ".join(re.findall(r"expect_power_of_two\(([^)]*)\)", source))))
        said = {{"d": "head_dim"}.get(name, name) for name in said} - {"segment_bytes"}
        if kernel == "score_blocks_query":  # shares the other scorer's checks
            assert "check_tiles" in source
            assert "pool_constants" in source
            said = set(limits.POWERS_OF_TWO["score_blocks"])
        assert said == set(names), kernel


def test_sizes_that_a_gpu_cannot_take_are_refused_with_what_to_do():
    limits.check(64, Sparsity(96))
    with pytest.raises(ValueError, match=r"compress_keys.*head_dim 80.*run this model on the CPU"):
        limits.check(80, Sparsity(96))
    with pytest.raises(ValueError, match=r"block_size 48.*choose another Sparsity"):
        limits.check(64, Sparsity(96, block_size=48))
    assert "less than 16" in limits.problems(8, Sparsity(96))["score_blocks"]


def test_the_command_prints_the_table(tiny, tiny_model, capsys):
    assert cli.main(["doctor", "--model", str(tiny_model), "--context", "512", "--batch", "2"]) == 0
    said = capsys.readouterr().out
    assert "LlamaForCausalLM on cpu" in said
    assert "ok   engine" in said
    assert "memory, 2 x 512" in said
    assert cli.main(["doctor", "--model", "./no-such-folder"]) == 2

"""No false alarm and none missed: the check of ``attach`` says what the logits say, for each family."""

from __future__ import annotations

import pytest
import torch

import sparda
from sparda.spec import Sparsity

RULE = Sparsity(4, local_blocks=1, block_size=16)
EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}  # fmt: skip
SERVED = {
    "Apertus": {}, "Arcee": {}, "BitNet": {}, "Cohere": {}, "Cohere2": {}, "Ernie4_5": {}, "Exaone4": {},
    "Gemma": {"head_dim": 16}, "Gemma3Text": {"head_dim": 16}, "Glm": {"head_dim": 16},
    "Glm4": {"head_dim": 16}, "Granite": {}, "GraniteMoe": EXPERTS, "Helium": {"head_dim": 16},
    "HunYuanDenseV1": {"head_dim": 16}, "Llama": {}, "Ministral": {"head_dim": 16}, "Mistral": {},
    "Mixtral": EXPERTS,
    "Nemotron": {}, "Olmo": {}, "Olmo2": {}, "Olmo3": {}, "Olmoe": EXPERTS, "Phimoe": EXPERTS, "Qwen2": {},
    "Qwen2Moe": EXPERTS, "Qwen3": {"head_dim": 16}, "Qwen3Moe": EXPERTS | {"head_dim": 16}, "SeedOss": {},
    "SmolLM3": {}, "StableLm": {}, "Starcoder2": {},
}  # fmt: skip
OTHERS = ("Gemma2", "GptOss", "DiffLlama", "Doge")  # soft caps, sinks, two attentions, a mask of its own


@torch.no_grad()
@pytest.mark.parametrize("family", [*SERVED, *OTHERS])
def test_the_check_agrees_with_the_logits(tiny, ids, family):
    try:
        model = tiny(family, **SERVED.get(family, {"head_dim": 16}))
    except AttributeError:
        pytest.skip(f"this transformers has no {family}")
    text = ids(60)
    want = model(text, use_cache=False).logits
    try:
        with sparda.attach(model, selector="all", sparsity=RULE, check=False):
            got = model(text, use_cache=False).logits
        same = bool((got - want).norm() < 1e-3 * want.norm())
    except (TypeError, RuntimeError):
        same = False
    assert same == (family in SERVED)
    if same:
        with sparda.attach(model, sparsity=RULE):
            assert model(text).logits.isfinite().all()
    else:
        with pytest.raises(TypeError), sparda.attach(model, sparsity=RULE):
            pass

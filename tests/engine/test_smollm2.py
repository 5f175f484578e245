"""The engine on the real model: offloading changes no token."""

from __future__ import annotations

import pytest
import torch

import sparda
from sparda import tasks
from sparda.engine import Engine

pytestmark = pytest.mark.model
RULE = sparda.Sparsity(8, local_blocks=2, block_size=16)


@pytest.mark.parametrize(("selector", "cache"), [("query", "k")])
def test_greedy_tokens_are_those_of_the_attached_model(smollm2, selector, cache):
    model, tokenizer = smollm2
    prompts = [tasks.niah_single(tokenizer, n, seed=n).input_ids[0] for n in (300, 420)]
    engine = Engine(model, selector=selector, sparsity=RULE, cache=cache, max_tokens=512)
    got = engine.generate(prompts, max_new_tokens=24, stop=()).tokens
    with sparda.attach(model, selector=selector, sparsity=RULE), torch.no_grad():
        for prompt, reply in zip(prompts, got, strict=True):
            asked = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False}
            mask = torch.ones_like(prompt)[None]
            want = model.generate(prompt[None], attention_mask=mask, pad_token_id=2, eos_token_id=-1, **asked)
            assert reply == want[0, len(prompt) :].tolist()

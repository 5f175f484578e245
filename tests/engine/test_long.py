"""Thousands of steps in a row, on a GPU: right to the last token, and no byte more than at the start."""

from __future__ import annotations

import pytest
import torch

import sparda
from sparda import tasks
from sparda.engine import Engine
from sparda.forecast import Forecast
from sparda.spec import sparsity

pytestmark = [pytest.mark.gpu, pytest.mark.model, pytest.mark.timeout(600)]
STEPS = 4096
TIE = 1e-4  # logits closer than this may change places
RULE = sparsity("smollm2-4k")


def _options(selector: str, model) -> dict:
    if selector != "forecast":
        return {}
    config = model.config
    weights = Forecast.untrained(
        n_layers=config.num_hidden_layers, hidden=config.hidden_size,
        n_kv_heads=config.num_key_value_heads, head_dim=config.hidden_size // config.num_attention_heads,
    )  # fmt: skip
    return {"weights": weights.to(model.device, model.dtype)}


@pytest.mark.parametrize(
    ("selector", "cache", "transport"),
    [("query", "k", "demand"), ("forecast", 12, "lookahead"), ("forecast", "k", "lookahead_worker")],
)
def test_4096_tokens_are_those_of_the_attached_model(smollm2, selector, cache, transport):
    """Fed the engine's own reply, the attached model would have said each of its tokens itself."""
    model, tokenizer = smollm2
    model = model.to("cuda")
    prompts = [tasks.niah_single(tokenizer, n, seed=n).input_ids[0] for n in (1500, 700, 300, 130)]
    options = _options(selector, model)
    held = []

    def listen(sequence: int, _: int) -> None:
        if sequence == 0:
            held.append(torch.cuda.memory_allocated())

    engine = Engine(
        model, selector=selector, sparsity=RULE, cache=cache, transport=transport, max_tokens=6144, **options
    )
    replies = engine.generate(prompts, max_new_tokens=STEPS, on_token=listen).tokens
    engine.close()
    assert len(held) == STEPS
    assert max(held[STEPS // 2 :]) <= max(held[64 : STEPS // 2])
    for prompt, reply in zip(prompts, replies, strict=True):
        gaps = _gaps(model, prompt, reply, selector, options)
        assert len(gaps) == STEPS
        assert max(gaps) < TIE, f"{selector}: token {gaps.index(max(gaps))} is not the attached model's"
        print(f"{selector} {transport}: {sum(g > 0 for g in gaps)} ties of {STEPS}")


def _gaps(model, prompt, reply, selector, options) -> list[float]:
    """How far each token of the reply lies below the attached model's best logit: 0 where it is the best."""
    text = torch.cat([prompt, torch.tensor(reply)])[None, :-1].to(model.device)
    with sparda.attach(model, selector=selector, sparsity=RULE, **options), torch.no_grad():
        hidden = model.model(text, use_cache=False).last_hidden_state[0, len(prompt) - 1 :]
        logits = model.lm_head(hidden)
    said = torch.tensor(reply, device=model.device)[:, None]
    return (logits.max(-1).values - logits.gather(1, said)[:, 0]).tolist()

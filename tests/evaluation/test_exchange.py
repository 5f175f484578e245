"""One layer's choice is exchanged, and the answer's probability says what it was worth."""

from __future__ import annotations

import pytest
import torch

from sparda.evaluation import exchange
from sparda.models.attach import attach
from sparda.selectors import make
from sparda.spec import Sparsity

RULE = Sparsity(budget_blocks=5, block_size=16, local_blocks=1, window=16, stride=8)
PROMPT = torch.randint(2, 90, (300,), generator=torch.Generator().manual_seed(1))
ANSWER = torch.tensor([7, 8, 9])


def test_a_method_that_chooses_as_the_query_does_gains_nothing(tiny):
    found = exchange.log_p(tiny.model, make("query"), PROMPT, ANSWER, RULE)
    assert found.shape == (tiny.model.config.num_hidden_layers + 2,)
    assert torch.equal(found, found[:1].expand_as(found))


@pytest.mark.parametrize("method", ["sparda", "infinigen", "streaming"])
def test_none_is_the_method_itself_and_all_is_the_query_from_the_prompt_on(tiny, method):
    own, tokens = tiny.selector(method), torch.cat([PROMPT, ANSWER[:-1]])[None]
    found = exchange.log_p(tiny.model, own, PROMPT, ANSWER, RULE)

    def of(logits):
        return logits[0, -3:].double().log_softmax(-1).gather(1, ANSWER[:, None]).sum()

    with torch.inference_mode():
        with attach(tiny.model, selector=own, sparsity=RULE):
            whole = of(tiny.model(tokens).logits)
            past = tiny.model(PROMPT[None, :-1], use_cache=True).past_key_values
        with attach(tiny.model, selector="query", sparsity=RULE):
            late = of(tiny.model(tokens[:, len(PROMPT) - 1 :], past_key_values=past).logits)
    assert found[0].item() == pytest.approx(whole.item(), abs=1e-4)
    assert found[-1].item() == pytest.approx(late.item(), abs=1e-4)
    assert len(set(found.tolist())) > 2


def test_gains_are_paired_by_prompt():
    found = [torch.tensor([-3.0, -2.0, -3.0, -2.0]), torch.tensor([-5.0, -4.5, -5.0, -4.0])]
    rows = exchange.rows(found, model="tiny", method="sparda", task="x", context=300, budget_blocks=5, seed=0)
    assert [row["layer"] for row in rows] == ["none", "0", "1", "all"]
    assert [float(row["gain"]) for row in rows] == [0.0, 0.75, 0.0, 1.0]
    assert [float(row["log_p"]) for row in rows] == [-4.0, -3.25, -4.0, -3.0]
    assert float(rows[1]["gain_low"]) < 0.75 < float(rows[1]["gain_high"])

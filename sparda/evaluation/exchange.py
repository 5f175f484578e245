"""Which layer's choice costs an answer? Layers exchange their selector while the right answer is written.

Attention mass says what a choice misses, not what it costs. Here the prompt is read with one method's blocks;
then the right answer is given token by token, once with the method's own choice in every layer, once with the
query selection's in a single layer, for each layer, and once with it in all. What the answer's probability
gains is what that layer's choice had cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparda.evaluation.recall import interval
from sparda.measure.tables import Table
from sparda.models.attach import attach
from sparda.selectors import Selector
from sparda.selectors.waiting import waiting
from sparda.spec import Sparsity

_KEY = ("model", "method", "task", "context", "budget_blocks", "layer", "seed")
GAIN = ("gain", "gain_low", "gain_high")
EXCHANGE = Table("exchange", (*_KEY[:-1], "log_p", *GAIN, "n", "seed", "date", "commit"), _KEY)
NONE, ALL = "none", "all"


@torch.inference_mode()
def log_p(model: Any, selector: Selector, prompt: Tensor, answer: Tensor, sparsity: Sparsity) -> Tensor:
    """Log-probability of the answer: with no layer exchanged, with each alone, with all; [L + 2] float64.

    model : a Hugging Face decoder; prompt [T], answer [t] tokens. The last token of the prompt, and the
            answer's but the last, are read with exchanged layers; all before them with none.
    """
    n_layers, device = model.config.num_hidden_layers, model.device
    prompt, answer = prompt.to(device), answer.to(device)
    read = torch.cat([prompt[-1:], answer[:-1]])[None]
    with attach(model, selector=selector, sparsity=sparsity):
        past = model(prompt[None, :-1], use_cache=True, logits_to_keep=1).past_key_values
    found = []
    for layers in [(), *([layer] for layer in range(n_layers)), range(n_layers)]:
        with attach(model, selector=waiting(selector, frozenset(layers)), sparsity=sparsity):
            logits = model(read, past_key_values=past, use_cache=True).logits[0]
        past.crop(-len(answer))
        found.append(logits.double().log_softmax(-1).gather(1, answer[:, None]).sum())
    return torch.stack(found).cpu()


def rows(found: Sequence[Tensor], **cell: object) -> list[dict[str, str]]:
    """Rows of exchange.csv from ``log_p`` of several prompts; gains over no exchange, paired by prompt."""
    every = torch.stack(list(found))  # [n, L + 2]
    names = [NONE, *map(str, range(every.shape[1] - 2)), ALL]
    made = []
    for index, layer in enumerate(names):
        gain = interval("gain", "gain", every[:, index] - every[:, 0])
        mean = every[:, index].mean().item()
        made.append(EXCHANGE.row(**cell, layer=layer, log_p=mean, **gain, n=len(every)))
    return made

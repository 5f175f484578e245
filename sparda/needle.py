"""Read a needle prompt once, then ask for the number again and again under different selections.

Reading is the long part, so it is done once and densely. The question and the answer then run on a copy of
the KV cache, inside whatever ``sparda.attach`` the caller has opened::

    document = read(model, tokenizer, tasks.niah_single(tokenizer, 2048))
    with sparda.attach(model, selector="query", sparsity=rule):
        ask(model, tokenizer, document)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, tensor

from sparda.models.attach import attach
from sparda.models.probe import Probe
from sparda.spec import Sparsity
from sparda.tasks import Needle

REPLY_START = "The secret number is "  # saves the sweep some steps that say nothing about the needle
_NUMBER_TOKENS = 5  # four digits, and a token that shows where the number ends


@dataclass(frozen=True, eq=False)
class Document:
    """A needle prompt, and the KV cache of all its tokens before the question.

    n_read: tokens in the cache; the rest of the prompt, question and chat template, is read by ``ask``
    """

    needle: Needle
    cache: Any
    n_read: int


@dataclass(frozen=True)
class Reply:
    """What the model said: its text, its tokens, and whether it holds the right number."""

    text: str
    tokens: list[int]
    right: bool


@torch.no_grad()
def read(model: Any, tokenizer: Any, needle: Needle) -> Document:
    """Read the text of a needle prompt with the model as it is (dense unless attached), not its question.

    The question is the prompt's last paragraph.
    """
    question = needle.prompt[needle.prompt.rindex("\n\n") :].lstrip()
    n_read = needle.input_ids.shape[1] - len(tokenizer(question, add_special_tokens=False)["input_ids"])
    text = needle.input_ids[:, :n_read].to(model.device)
    return Document(needle, model(text, use_cache=True, logits_to_keep=1).past_key_values, n_read)


def ask(
    model: Any, tokenizer: Any, asked: Document | Needle, *, start: str = "", max_new_tokens: int = 16
) -> Reply:
    """Answer greedily, from a document that has been read or from the bare prompt.

    start: the first words of the reply, if they are to be given and not generated
    """
    needle, cache = (asked.needle, asked.cache) if isinstance(asked, Document) else (asked, None)
    given = tokenizer(start, add_special_tokens=False)["input_ids"]
    ids = torch.cat([needle.input_ids, tensor([given], dtype=torch.int64)], dim=1).to(model.device)  # [1, T]
    out: Tensor = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        past_key_values=copy.deepcopy(cache),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        pad_token_id=tokenizer.eos_token_id,
    )
    tokens = out[0, ids.shape[1] :].tolist()
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    return Reply(text, tokens, needle.answered_by(text))


def first_digit(tokenizer: Any, reply: Reply) -> int:
    """Place of the first token with a digit in a reply: the forward pass (0 read the prompt) that gave it.

    ValueError: a reply without digits.
    """
    for place, token in enumerate(reply.tokens):
        if any(c.isdigit() for c in tokenizer.decode([token])):
            return place
    raise ValueError(f"the reply {reply.text!r} has no digit; look at another prompt or a larger budget")


def sweep(
    model: Any, tokenizer: Any, documents: Sequence[Document], rule: Sparsity,
    tries: Sequence[tuple[str, int]],
):  # fmt: skip
    """Ask every document under every (selector, budget): a table of one row per reply.

    Question and answer are sparse; the reply starts with REPLY_START. Columns selector, budget_blocks,
    needle (place in ``documents``), needle_block, answer, reply, right, reads_needle (share of all layers'
    KV heads that read the needle's block as the first digit, or without one the first token, is chosen).
    """
    import pandas as pd

    rows, probe = [], Probe(measures=False)
    for selector, budget in tries:
        sparsity = replace(rule, budget_blocks=budget)
        with attach(model, selector=selector, sparsity=sparsity, probe=probe):
            for place, document in enumerate(documents):
                probe.clear()
                reply = ask(model, tokenizer, document, start=REPLY_START, max_new_tokens=_NUMBER_TOKENS)
                block = document.needle.number[0] // rule.block_size
                found = any(c.isdigit() for c in reply.text)
                step = first_digit(tokenizer, reply) if found else 0
                said = (document.needle.answer, reply.text.strip(), reply.right)
                rows.append((selector, budget, place, block, *said, share_reading(probe, step, block)))
    columns = ["selector", "budget_blocks", "needle", "needle_block", "answer", "reply", "right"]
    return pd.DataFrame(rows, columns=[*columns, "reads_needle"])


def share_reading(probe: Probe, step: int, block: int) -> float:
    """Share (0 to 1) of all layers' KV heads whose last query reads ``block`` in one forward pass."""
    lists = torch.stack([record.block_ids[0, :, -1] for record in probe.records if record.step == step])
    return (lists == block).any(-1).float().mean().item()  # lists: [L, H, k]

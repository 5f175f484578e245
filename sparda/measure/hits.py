"""How many of the blocks that a real model wants are resident already? Counted while the engine decodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


@torch.inference_mode()
def count_hits(engine: Any, prompts: Sequence[Tensor], *, n_steps: int) -> tuple[list[dict], list[list[int]]]:
    """Decode greedily; return one dict per step and offloaded layer, and the new tokens of each prompt.

    keys: step, layer, slots, wanted, missed, hit_rate. ``wanted`` counts forced blocks and the query's own;
    the counts of all sequences and KV heads are summed. Step 0 starts with empty slots: leave it out.
    """
    session = engine.session(len(prompts))
    session.going.fill_(1)
    for place, prompt in enumerate(prompts):
        session.tokens[place] = session.read(place, prompt).argmax()
    rows, replies = [], [[token] for token in session.tokens.tolist()]
    for step in range(n_steps):
        session.step()
        for reply, token in zip(replies, session.tokens.tolist(), strict=True):
            reply.append(token)
        for layer, state in enumerate(session.store.layers):
            if state.offloaded:
                rows.append(_row(step, layer, state))
    return rows, replies


def _row(step: int, layer: int, state: Any) -> dict:
    wanted, missed = int((state.selection.block_ids >= 0).sum()), int(state.selection.count)
    return {
        "step": step,
        "layer": layer,
        "slots": state.cache.slots.shape[2],
        "wanted": wanted,
        "missed": missed,
        "hit_rate": 1 - missed / wanted,
    }

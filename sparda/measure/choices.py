"""Which blocks a real model chooses, token after token: recorded once, replayed at other shapes.

    python -m sparda.measure.choices        # some minutes on two cores; writes data/choices/smollm2-135m.npz

SmolLM2-135M reads public-domain text to nearly its full context, one text a sequence, and is then fed the
text's own next tokens (its own replies would soon repeat themselves). Blocks are of 16 tokens, so that 96 of
512 are chosen: 34 forced, as in MiniCPM4.1, and 62 learned, which are kept. Choices are recorded, no times.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparda import provenance
from sparda.spec import Sparsity
from sparda.text import data_dir, read_text

RULE = Sparsity(96, local_blocks=32, block_size=16)
CONTEXT, STEPS = 8192, 96
SOURCES = (("jargon_file", 0.3), ("king_james", 0.3))  # a text, and where in it to begin
NAME = "smollm2-135m"


@dataclass(frozen=True)
class Choices:
    """ids [steps, sequences, layers, KV heads, learned blocks] int16, of every layer but the first."""

    ids: Tensor
    about: dict[str, Any]


@torch.inference_mode()
def record(model: Any, texts: list[Tensor], *, rule: Sparsity, n_steps: int, context: int) -> Tensor:
    """Learned blocks of the query selector, as ``Choices.ids``, while the texts' own tokens are fed.

    texts : token ids [context] each; ValueError: they are so short that every block is chosen
    """
    from sparda.engine import Engine

    past, learned = context - n_steps, slice(rule.init_blocks, rule.budget_blocks - rule.local_blocks - 1)
    if past // rule.block_size < rule.budget_blocks:
        raise ValueError(f"{past} tokens do not fill {rule.budget_blocks} blocks; raise the context")
    engine = Engine(model, selector="query", sparsity=rule, cache="full", max_tokens=context)
    session = engine.session(len(texts))
    for place, text in enumerate(texts):
        session.read(place, text[:past])
    steps = []
    for step in range(n_steps):
        session.tokens[:] = torch.stack([text[past + step] for text in texts])
        session.step()
        ids = [state.selection.block_ids[:, :, learned] for state in session.store.layers[1:]]
        steps.append(torch.stack(ids, 1).to(torch.int16).cpu())
    engine.close()
    return torch.stack(steps)


def path() -> Path:
    return data_dir() / "choices" / f"{NAME}.npz"


def load() -> Choices:
    """The committed choices; FileNotFoundError says what makes them."""
    import numpy as np

    if not path().exists():
        raise FileNotFoundError("no recorded choices; make them with python -m sparda.measure.choices")
    with np.load(path()) as file:
        ids = torch.from_numpy(file["ids"])
    return Choices(ids, json.loads(path().with_suffix(".json").read_text(encoding="utf-8")))


def save(ids: Tensor, about: dict[str, Any]) -> Path:
    """Write the choices and what made them."""
    import numpy as np

    path().parent.mkdir(exist_ok=True)
    np.savez_compressed(path(), ids=ids.numpy())
    path().with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return path()


def temporal_hit_rate(ids: Tensor, budget: int) -> float:
    """Share of the chosen blocks that the step before chose too; forced ones count as chosen again."""
    ids = ids.long()
    chosen = torch.zeros(*ids.shape[:-1], int(ids.max()) + 1, dtype=torch.bool).scatter_(-1, ids, True)
    new = (chosen[1:] & ~chosen[:-1]).sum(-1).double().mean().item()
    return 1 - new / budget


def main() -> None:
    import sparda

    model, tokenizer = sparda.load(NAME)
    texts = []
    for source, share in SOURCES:
        text = read_text(source)
        start = int(share * len(text))
        tokens = tokenizer(text[start : start + 8 * CONTEXT], return_tensors="pt").input_ids[0]
        texts.append(tokens[:CONTEXT])
    ids = record(model, texts, rule=RULE, n_steps=STEPS, context=CONTEXT)
    rate = temporal_hit_rate(ids, RULE.budget_blocks)
    about = {"model": NAME, "selector": "query", "context": CONTEXT, "budget_blocks": RULE.budget_blocks}
    about |= {"block_size": RULE.block_size, "local_blocks": RULE.local_blocks, "hit_rate": round(rate, 4)}
    about |= {"sources": SOURCES, "date": provenance.today(), "commit": provenance.commit()}
    print(save(ids, about).name, tuple(ids.shape), f"hit rate {rate:.3f}")


if __name__ == "__main__":
    main()

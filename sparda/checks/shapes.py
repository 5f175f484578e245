"""A model that nobody has seen: sizes drawn anew, so that an answer must hold for every model."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from sparda.spec import ModelShape, model


def a_shape(draw: Random) -> ModelShape:
    """A shape of 5 to 60 layers, 3 to 9 KV heads in groups of 2 to 8, and head dimensions of 64 to 128."""
    heads, dim = draw.randrange(3, 10), draw.choice((64, 96, 128))
    group = draw.randrange(2, 9)
    return replace(
        model("minicpm4.1-8b"), name="a model", n_layers=draw.randrange(5, 61), n_heads=heads * group,
        n_kv_heads=heads, head_dim=dim, hidden=heads * group * dim,
    )  # fmt: skip

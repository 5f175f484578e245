"""What the tests of attached models share."""

from __future__ import annotations

import pytest
import torch

import sparda
from sparda.forecast import Forecast, Shape
from sparda.spec import Sparsity

RULE = Sparsity(4, local_blocks=1, block_size=16)


@pytest.fixture(scope="session")
def ids():
    """Return a random prompt [1, n]."""
    return lambda n, seed=0: torch.randint(3, 256, (1, n), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="session")
def untrained():
    """Make random Forecast weights for a model."""

    def make(model, seed=0):
        s = Shape.of(model)
        sizes = {"n_layers": s.n_layers, "hidden": s.hidden, "n_kv_heads": s.n_kv_heads}
        return Forecast.untrained(**sizes, head_dim=s.head_dim, seed=seed)

    return make


@pytest.fixture(scope="session")
def reply():
    """Return the greedy tokens of an attached model."""

    def make(model, prompt, n=8, selector="query", phases=("prefill", "decode"), weights=None, **more):
        options = {"weights": weights} if weights is not None else {}
        asked = {"max_new_tokens": n, "do_sample": False, "eos_token_id": None, "pad_token_id": 0} | more
        with sparda.attach(model, selector=selector, sparsity=RULE, phases=phases, **options):
            return model.generate(prompt, **asked)[0, prompt.shape[1] :].tolist()

    return make

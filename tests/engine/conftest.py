"""A tiny decoder of random weights, and engines around it, on the CPU and on a GPU where there is one."""

from __future__ import annotations

import pytest

from sparda.engine import Engine
from sparda.engine.weights import random_decoder
from sparda.forecast import Forecast
from sparda.selectors import Proxy
from sparda.spec import ModelShape, Sparsity

SHAPE = ModelShape(
    "tiny", n_layers=3, hidden=64, n_heads=4, n_kv_heads=2, head_dim=16, ffn=64, vocab=101, rms_eps=1e-5,
    rope_theta=1e4, native_context=4096, tied_embeddings=False, source="made up",
)  # fmt: skip
RULE = Sparsity(5, local_blocks=1, block_size=16)
AHEAD = {"n_layers": 3, "hidden": 64, "n_kv_heads": 2, "head_dim": 16}


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def make(device):
    """Return an engine of 16-token blocks and a budget of 5, by the names of its parts."""
    decoder = random_decoder(SHAPE, 1024, device=device)

    def engine(selector="query", transport=None, **options) -> Engine:
        if selector == "forecast":
            options["weights"] = Forecast.untrained(**AHEAD)
        made = Proxy.untrained(**AHEAD) if selector == "proxy" else selector
        asked = {"sparsity": RULE, "max_tokens": 512} | options
        return Engine(decoder, selector=made, transport=transport, **asked)

    return engine

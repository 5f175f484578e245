"""The engine: a decoder, a selector, a store and a transport, and the loop around them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparda import transports
from sparda.blocks import count_blocks
from sparda.engine.decode import decode_step, sample
from sparda.engine.decoder import from_hugging_face
from sparda.engine.prefill import prefill
from sparda.selectors import All, Selector, make
from sparda.spec import Sparsity
from sparda.store import Plan, Store


@dataclass(frozen=True)
class Generated:
    """New tokens of each sequence, stop token included where one came; and the bytes that the store held."""

    tokens: list[list[int]]
    ledger: dict[str, int]


class Engine:
    """Generates from a Llama-family model; every compared system is one line of configuration.

    selector  : a name of ``sparda.selectors`` with its options as keywords, or a Selector
    sparsity  : block size, forced blocks and budget
    cache     : "full" (nothing offloaded), "k" or a number of slots
    transport : a name of ``sparda.transports``; default "none" for a full cache, else "lookahead" for a
                selector that looks ahead and "demand" for others
    max_tokens: longest sequence, prompt and reply together

    Raises ValueError for names or combinations that cannot be served, TypeError for another kind of model.
    """

    def __init__(
        self, model: Any, *, selector: str | Selector = "query", sparsity: Sparsity, cache: int | str = "k",
        transport: str | None = None, max_tokens: int = 4096, layer0_resident: bool = True,
        **selector_options,
    ):  # fmt: skip
        self.selector = make(selector, **selector_options)
        full = cache == "full"
        best = "lookahead" if self.selector.looks_ahead else "demand"
        self.transport = transports.get(transport or ("none" if full else best))
        self.sparsity, self.cache, self.max_tokens = sparsity, cache, max_tokens
        self.layer0_resident = layer0_resident
        self._check_combination(full)
        if isinstance(self.selector, All):  # k is every block
            budget = max(sparsity.budget_blocks, count_blocks(max_tokens, sparsity))
            self.sparsity = replace(sparsity, budget_blocks=budget)
        self.decoder = from_hugging_face(model, max_tokens)
        self.device, self.dtype = model.device, self.decoder.embed.dtype

    def _check_combination(self, full: bool) -> None:
        name, way = self.selector.name, self.transport.name
        if full != (way == "none"):
            raise ValueError(
                f"cache={self.cache!r} and transport={way!r} do not fit: a full cache needs no transport, "
                "and any other cache needs one; use cache='full' with transport='none', or neither"
            )
        if (self.selector.needs_keys or isinstance(self.selector, All)) and not full:
            raise ValueError(f"selector {name!r} reads every block; use it with cache='full'")
        early = self.selector.looks_ahead and self.transport.early
        if self.transport.only_early and not self.selector.looks_ahead:
            raise ValueError(
                f"selector {name!r} knows its choice only in its own layer, so transport {way!r} comes too "
                "early; use transport='demand', or a selector that looks ahead such as 'forecast'"
            )
        if early and self.sparsity.local_blocks < 1:
            raise ValueError("looking ahead needs local_blocks >= 1: the newest window is not scored in time")
        if early and not self.layer0_resident:
            raise ValueError("layer 0 has no layer before it; keep layer0_resident=True when looking ahead")

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[Sequence[int] | Tensor], *, max_new_tokens: int, temperature: float = 0.0,
        top_p: float = 1.0, seed: int = 0, stop: Collection[int] = (),
        on_token: Callable[[int, int], None] | None = None,
    ) -> Generated:  # fmt: skip
        """Continue every prompt by up to ``max_new_tokens``.

        prompts  : token ids, one list a sequence, of any lengths
        stop     : tokens that end a sequence
        on_token : called with (sequence, token) as each token comes
        """
        texts = [torch.as_tensor(p, device=self.device).flatten() for p in prompts]
        self._check_request(texts, max_new_tokens, temperature, top_p)
        store = Store(self._plan(len(texts)))
        jobs = {i: state.job for i, state in enumerate(store.layers) if state.offloaded}
        generator = torch.Generator(self.device).manual_seed(seed)
        transport = self.transport(jobs)
        try:
            ends = [prefill(self.decoder, store, self.selector, i, text) for i, text in enumerate(texts)]
            replies, logits = [[] for _ in texts], torch.stack(ends)
            going = torch.ones(len(texts), dtype=torch.bool, device=self.device)
            for step in range(max_new_tokens):
                tokens = sample(logits, temperature, top_p, generator)
                self._deliver(replies, tokens, going, stop, on_token)
                if not going.any() or step + 1 == max_new_tokens:
                    break
                logits = decode_step(self.decoder, store, self.selector, transport, tokens)
                store.positions += going
        finally:
            transport.close()
        return Generated(replies, store.ledger() | {"weights": self.decoder.nbytes})

    @staticmethod
    def _deliver(replies, tokens, going, stop, on_token) -> None:
        """Hand over the tokens of the sequences that go on; those that stop stay where they are."""
        for i, token in enumerate(tokens.tolist()):
            if not going[i]:
                continue
            replies[i].append(token)
            if on_token is not None:
                on_token(i, token)
            going[i] = token not in stop

    def _plan(self, batch: int) -> Plan:
        d = self.decoder
        return Plan(
            batch, self.max_tokens, len(d.layers), d.n_kv_heads, d.head_dim, self.sparsity, self.cache,
            self.layer0_resident, self.dtype, self.device,
        )  # fmt: skip

    def _check_request(self, texts, max_new_tokens, temperature, top_p) -> None:
        if not texts or min(len(t) for t in texts) < 1 or max_new_tokens < 1:
            raise ValueError("generate needs prompts of at least one token each, and max_new_tokens >= 1")
        longest = max(len(t) for t in texts) + max_new_tokens
        if longest > self.max_tokens:
            raise ValueError(
                f"the longest prompt and its reply take {longest} tokens, but the engine was made for "
                f"{self.max_tokens}; make it with max_tokens={longest} or shorten one of them"
            )
        if temperature < 0 or not 0 < top_p <= 1:
            raise ValueError(f"temperature must be >= 0 and 0 < top_p <= 1, got {temperature}, {top_p}")

"""The engine: a decoder, a selector, a store and a transport, and the loop around them."""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparda import transports
from sparda.blocks import count_blocks
from sparda.engine.check import Origin
from sparda.engine.decoder import Decoder
from sparda.engine.reply import Reply
from sparda.engine.session import Session
from sparda.engine.weights import from_hugging_face
from sparda.forecast import Shape
from sparda.kernels import limits
from sparda.models.check import warn_of_other_weights
from sparda.models.layers import end_tokens, settings_of_generate
from sparda.plan import HostPool, Plan
from sparda.selectors import All, Selector, make
from sparda.selectors.waiting import check_index
from sparda.spec import Sparsity, check_sparsity


@dataclass(frozen=True)
class Generated:
    """New tokens of each sequence, stop token included where one came; and the bytes that were held."""

    tokens: list[list[int]]
    ledger: dict[str, int]


class Engine:
    """Generates from a Llama-family model; every compared system is one line of configuration.

    model      : a Hugging Face model, which is held to what it computes; or a Decoder
    selector   : a name of ``sparda.selectors`` with its options as keywords, or a Selector; "forecast@7":
                 with layer 7 waiting for its own query
    sparsity   : block size, forced blocks and budget
    cache      : "full" (nothing offloaded), "k" or a number of slots
    transport  : a name of ``sparda.transports``; default "none" for a full cache, else "lookahead" for a
                 selector that looks ahead and "demand" for others
    max_tokens : longest sequence, prompt and reply together
    replacement: which block makes room in a cache larger than k: "recent" (longest not chosen) or "score"
    n_ctas     : CTAs that copy blocks; None: the transport's default
    graph      : decode as a CUDA graph; None: on a GPU, if the transport can be captured
    host       : pinned memory to use instead of allocating it, ``sparda.plan.HostPool``
    check      : hold the engine to one short forward pass of the model, module by module

    Raises ValueError for names or combinations that cannot be served, TypeError for another kind of model.
    """

    def __init__(
        self, model: Any, *, selector: str | Selector = "query", sparsity: Sparsity, cache: int | str = "k",
        transport: str | None = None, max_tokens: int = 4096, layer0_resident: bool = True,
        replacement: str = "recent", n_ctas: int | None = None, graph: bool | None = None,
        host: HostPool | None = None, check: bool = True, **selector_options,
    ):  # fmt: skip
        check_sparsity(sparsity)
        self.selector = make(selector, **selector_options)
        best = "lookahead" if self.selector.looks_ahead else "demand"
        self.transport = transports.get(transport or ("none" if cache == "full" else best))
        if type(max_tokens) is not int or max_tokens < 1:
            raise ValueError(f"max_tokens is a whole number of at least 1, got {max_tokens!r}")
        self.sparsity, self.cache, self.max_tokens = sparsity, cache, max_tokens
        self.layer0_resident, self.replacement, self.n_ctas = layer0_resident, replacement, n_ctas
        self.host = host
        self._check_combination()
        if isinstance(self.selector, All):  # k is every block
            budget = max(sparsity.budget_blocks, count_blocks(max_tokens, sparsity))
            self.sparsity = replace(sparsity, budget_blocks=budget)
        given = isinstance(model, Decoder)
        if not given:
            warn_of_other_weights(model, self.selector)
            _warn_of_settings(model)
        decoder = model if given else from_hugging_face(model, max_tokens, check)
        self._origin = None if given else Origin.of(model)
        if decoder.device.type == "cuda":
            limits.check(decoder.head_dim, sparsity)
        sizes = (len(decoder.layers), decoder.embed.shape[1], decoder.n_kv_heads, decoder.head_dim)
        self.selector.check(Shape(*sizes))
        self.selector = self.selector.to(decoder.device, decoder.dtype)
        if self.selector.looks_ahead:
            decoder = decoder.with_ahead(self.selector.ahead_weights)
        self.decoder = decoder
        self.plan(1)  # refuses a cache that there is not, or that is too small
        self.graph = self._can_capture() if graph is None else graph
        self._session: Session | None = None

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end a reply, as the model's generation_config says now; none for a Decoder."""
        model = self._origin and self._origin.model()
        return end_tokens(model) if model is not None else ()

    def _check_combination(self) -> None:
        full, name, way = self.cache == "full", self.selector.name, self.transport.name
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
        check_index(self.selector)
        if self.sparsity.visibility != "end":
            raise ValueError(
                "visibility='start' scores windows that have not ended, and a cache does not have them; use "
                "visibility='end' in the engine"
            )
        least = self.sparsity.least_local_blocks
        if early and self.sparsity.local_blocks < least:
            raise ValueError(
                f"looking ahead needs local_blocks >= {least}: the newest window of "
                f"{self.sparsity.window} tokens is "
                "not scored in time, so it must lie in blocks that are read anyway"
            )
        if early and not self.layer0_resident:
            raise ValueError("layer 0 has no layer before it; keep layer0_resident=True when looking ahead")
        if self.replacement not in ("recent", "score"):
            raise ValueError(f"replacement is 'recent' or 'score', got {self.replacement!r}")

    def _can_capture(self) -> bool:
        return self.decoder.device.type == "cuda" and self.transport.captured and not self.selector.needs_keys

    def plan(self, batch: int) -> Plan:
        """Sizes of a batch's store: what it will take, before anything is allocated."""
        d = self.decoder
        return Plan(
            batch, self.max_tokens, len(d.layers), d.n_kv_heads, d.head_dim, self.sparsity, self.cache,
            self.layer0_resident, d.dtype, d.device,
            index_dim=self.selector.index_dim,
        )  # fmt: skip

    def session(self, batch: int) -> Session:
        """The store, transport and graph of a batch; kept for the next batch of the same size.

        MemoryError: host or GPU memory is too small, with what to lower; nothing stays allocated.
        """
        if self._session is not None and self._session.store.plan.batch == batch:
            return self._session
        self.close()
        try:
            self._session = Session(
                self.decoder, self.plan(batch), self.selector, self.transport, replacement=self.replacement,
                n_ctas=self.n_ctas, graph=self.graph, host=self.host,
            )  # fmt: skip
        except torch.OutOfMemoryError as error:
            _empty_frames(error)
            raise MemoryError(_explain(error)) from error
        except MemoryError as error:
            _empty_frames(error)
            raise
        return self._session

    def close(self) -> None:
        """Give back the store, pinned memory and graphs; the engine can be used again."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def generate(
        self, prompts: Sequence[Sequence[int] | Tensor], *, max_new_tokens: int, temperature: float = 0.0,
        top_p: float = 1.0, seed: int = 0, stop: Collection[int] | None = None,
        on_token: Callable[[int, int], None] | None = None, progress: bool = False,
        patience_s: float = 60.0,
    ) -> Generated:  # fmt: skip
        """Continue every prompt by up to ``max_new_tokens``.

        prompts    : token ids, one list a sequence, of any lengths
        stop       : tokens that end a sequence; None: those of the model's generation_config, () for none
        on_token   : called with (sequence, token) as each token comes
        progress   : show a bar of the steps
        patience_s : a step that takes longer is given up

        MemoryError: host or GPU memory is too small; TimeoutError: a step does not end; RuntimeError: the
        model's weights have changed. After any error the memory is given back, and the next call works.
        """
        if self._origin is not None:
            self._origin.check()
        stop = self.ends if stop is None else stop
        stop = _as_tokens(stop)
        if not isinstance(prompts, Sequence | Tensor):
            raise ValueError(f"prompts is a list of prompts, each a list of token ids; got {prompts!r:.60}")
        texts = [_as_ids(p) for p in prompts]
        self._check_request(texts, max_new_tokens, temperature, top_p)
        texts = [text.to(self.decoder.device) for text in texts]
        try:
            asked = (max_new_tokens, temperature, top_p, seed, stop, on_token, patience_s)
            tokens = Reply(self.session(len(texts)), *asked).run(texts, progress)
            return Generated(tokens, self.session(len(texts)).ledger())
        except torch.OutOfMemoryError as error:
            self._give_up(error)
            raise MemoryError(_explain(error)) from error
        except BaseException as error:
            self._give_up(error)
            raise

    def _give_up(self, error: BaseException) -> None:
        self.close()
        _empty_frames(error)

    def _check_request(self, texts, max_new_tokens, temperature, top_p) -> None:
        whole = type(max_new_tokens) is int
        if not texts or min(len(t) for t in texts) < 1 or not whole or max_new_tokens < 1:
            raise ValueError("generate needs prompts of at least one token each, and max_new_tokens >= 1")
        longest = max(len(t) for t in texts) + max_new_tokens
        if longest > self.max_tokens:
            raise ValueError(
                f"the longest prompt and its reply take {longest} tokens, but the engine was made for "
                f"{self.max_tokens}; make it with max_tokens={longest} or shorten one of them"
            )
        vocab, used = len(self.decoder.embed), torch.cat([t.cpu() for t in texts])
        if int(used.min()) < 0 or int(used.max()) >= vocab:
            raise ValueError(
                f"token ids must lie in 0..{vocab - 1}, got {int(used.min())}..{int(used.max())}; "
                "use the tokenizer of this model"
            )
        if not temperature >= 0 or temperature == float("inf") or not 0 < top_p <= 1:
            raise ValueError(f"temperature must be >= 0 and 0 < top_p <= 1, got {temperature}, {top_p}")


def _as_ids(prompt: Sequence[int] | Tensor) -> Tensor:
    """[T] int64; a tokenizer's [1, T] is taken too."""
    try:
        ids = torch.as_tensor(prompt)
    except (TypeError, ValueError, RuntimeError):  # text, or rows of several lengths
        ids, got = torch.empty(()), repr(prompt)[:40]
    else:
        got = f"a prompt of shape {list(ids.shape)} {ids.dtype}"
    if ids.dim() == 2 and len(ids) == 1:
        ids = ids[0]
    if ids.dim() != 1 or (ids.numel() and (ids.is_floating_point() or ids.dtype == torch.bool)):
        raise ValueError(
            "prompts is a list of prompts, each a list or tensor of whole token ids, as "
            f'tokenizer(text)["input_ids"] gives them; for one prompt pass [ids]; got {got}'
        )
    return ids.long()


def _warn_of_settings(model: Any) -> None:
    """UserWarning: generate would change greedy tokens by settings that the engine does not have."""
    if asked := settings_of_generate(model):
        warnings.warn(
            f"the model's generation_config asks for {', '.join(asked)}, which the engine does not do, so "
            "its "
            "tokens may differ from generate's; use sparda.attach and generate for them",
            stacklevel=3,
        )


def _as_tokens(stop: Any) -> tuple[int, ...]:
    """Tokens that end a reply: a number, several, or a tensor of them."""
    given = stop.tolist() if isinstance(stop, Tensor) else stop
    given = [given] if isinstance(given, int) else given
    if isinstance(given, str) or not all(type(token) is int for token in given):
        raise ValueError(f"stop holds token ids, such as [2]; got {stop!r}")
    return tuple(given)


OURS = ("sparda", "torch", "contextlib", "triton", "")  # Triton's launchers are generated, without a name


def _empty_frames(error: BaseException | None) -> None:
    """Let go of what a failed call holds: a notebook keeps the last traceback, and so every local of it.

    The frames of others, such as a selector's or on_token's, stay as they are for the debugger.
    """
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_globals.get("__name__", "").split(".")[0] in OURS:
                with contextlib.suppress(RuntimeError):  # it still runs
                    frame.clear()
        error = error.__cause__ or error.__context__


def _explain(error: torch.OutOfMemoryError) -> str:
    return (
        f"the GPU has not enough memory ({str(error).splitlines()[0].rstrip('.')}); lower the batch, "
        "max_tokens or the number of cache slots, or close other programs that use it"
    )

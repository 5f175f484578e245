"""What the prompt explorer computes while you wait: a reply to a prompt, and all choices while it is written.

The model runs densely, so that every way to choose sees the same queries and keys; ``sparda.attach`` and a
probe hand them over, and the selectors score them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparda.evaluation.subject import Subject
from sparda.models.attach import attach
from sparda.models.probe import Probe
from sparda.selectors import LayerView, Oracle, Proxy, Selector, Streaming
from sparda.spec import Sparsity
from sparda.tasks.haystack import as_chat

METHODS = {
    "query": "sparse",
    "forecast": "sparda",
}  # selector -> method; the proxy is calibrated on less here
CALIBRATION = ("jargon_file", 512)  # text, tokens
CHARACTERS_PER_TOKEN = 12  # a longer prompt is refused before it is cut into tokens


@dataclass(frozen=True, eq=False)
class Choices:
    """Block scores of every way to choose, and the true mass, in each step R of one reply.

    scores    : name -> [L, H, R, N] float32; -inf where a block has no score, or does not exist yet
    mass      : [L, H, R, N] float32, rows sum to 1
    positions : [R] int64, the token whose query writes the next one; tokens: R strings, what it wrote
    texts     : N strings, the text of each block
    """

    prompt: str
    scores: Mapping[str, Tensor]
    mass: Tensor
    positions: Tensor
    tokens: Sequence[str]
    texts: Sequence[str]
    sparsity: Sparsity


@dataclass(frozen=True, eq=False)
class Reader:
    """A model that reads prompts, and the ways to choose that are compared. Make one with ``Reader.of``.

    missing    : a sentence for each way to choose that this model has not got
    max_tokens : of a prompt, chat template included
    n_steps    : tokens of a reply, at most
    """

    model: Any
    tokenizer: Any
    sparsity: Sparsity
    selectors: Mapping[str, Selector]
    missing: Sequence[str] = ()
    max_tokens: int = 1024
    n_steps: int = 12

    @classmethod
    def of(
        cls, model: Any, tokenizer: Any, sparsity: Sparsity, *, name: str = "smollm2-135m",
        max_tokens: int = 1024, n_steps: int = 12,
    ) -> Reader:  # fmt: skip
        """Query, the Forecast that ships for ``name``, and the proxy, calibrated on a short text.

        What cannot be had is named in ``missing``, and the others are compared without it.
        """
        subject, found, missing = Subject(name, model, tokenizer), {}, []

        def calibrated() -> Selector:
            return Proxy.calibrate(model, subject.tokens(*CALIBRATION)[None])

        ways = {way: lambda method=method: subject.selector(method) for way, method in METHODS.items()}
        for way, make in (ways | {"proxy": calibrated}).items():
            try:
                found[way] = make()
            except (OSError, ValueError, TypeError) as error:
                missing.append(f"Without {way}: {error}.")
        return cls(model, tokenizer, sparsity, found, tuple(missing), max_tokens, n_steps)

    @torch.no_grad()
    def read(self, prompt: str) -> Choices:
        """Reply greedily to a prompt, in the model's chat template, and note every choice on the way.

        ValueError, one sentence: an empty prompt, one that is too long, or too short to leave a choice.
        """
        ids = self._tokens(prompt)
        ahead = {name: s for name, s in self.selectors.items() if s.looks_ahead}
        probe = _Scores(ways=self.selectors, ahead=tuple(ahead))
        watcher = _Ahead(tuple(ahead.values())) if ahead else Streaming()
        with attach(self.model, selector=watcher, sparsity=self.sparsity, phases=(), probe=probe):
            out: Tensor = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=self.n_steps, do_sample=False,
                pad_token_id=self.tokenizer.eos_token_id,
            )  # fmt: skip
        written = out[0, ids.shape[1] :]
        scores, mass = probe.stacked()
        n_blocks = mass.shape[-1]
        texts = [self.tokenizer.decode(part) for part in out[0].split(self.sparsity.block_size)]
        return Choices(
            prompt,
            scores,
            mass,
            positions=torch.arange(ids.shape[1] - 1, ids.shape[1] - 1 + len(written)),
            tokens=[self.tokenizer.decode([token]) for token in written.tolist()],
            texts=texts[:n_blocks],
            sparsity=self.sparsity,
        )

    def _tokens(self, prompt: str) -> Tensor:
        if not prompt.strip():
            raise ValueError("the prompt is empty; write or paste a text and a question about it")
        if len(prompt) > CHARACTERS_PER_TOKEN * self.max_tokens:
            raise ValueError(
                f"the prompt has {len(prompt):,} characters, too many for {self.max_tokens:,} tokens; cut it"
            )
        text = as_chat(self.tokenizer, prompt, "")
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt", verbose=False).input_ids
        n_tokens, least = ids.shape[1], (self.sparsity.forced_blocks + 1) * self.sparsity.block_size
        if n_tokens > self.max_tokens:
            raise ValueError(f"the prompt has {n_tokens:,} tokens; cut it to {self.max_tokens:,}")
        if n_tokens < least:
            raise ValueError(
                f"the prompt has {n_tokens} tokens, all in blocks that are read anyway; from {least} on "
                "there is something to choose"
            )
        return ids.to(self.model.device)


@dataclass(frozen=True)
class _Ahead(Streaming):
    """Chooses as streaming does, which costs nothing, and looks ahead for several others at once."""

    others: tuple[Selector, ...] = ()
    looks_ahead = True

    def ahead_weights(self, layer: int) -> Tensor:
        return torch.cat([other.ahead_weights(layer) for other in self.others])


@dataclass
class _Scores(Probe):
    """Scores the last query of each pass in every way, at once: the keys of a pass are not kept."""

    ways: Mapping[str, Selector] = field(default_factory=dict)
    ahead: tuple[str, ...] = ()
    rows: list[dict[str, Tensor]] = field(default_factory=list)  # one a layer and pass: name -> [H, N]

    def record(self, selector: Selector, view: LayerView, block_ids: Tensor, decoding: bool = True) -> None:
        view = view.at(slice(-1, None))
        parts = view.ahead.chunk(len(self.ahead), dim=1) if view.ahead is not None else ()
        seen = dict(zip(self.ahead, parts, strict=True))
        row = {name: way.block_scores(replace(view, ahead=seen.get(name))) for name, way in self.ways.items()}
        row["mass"] = Oracle().block_scores(view)
        self.rows.append({name: scores[0, :, 0].float().cpu() for name, scores in row.items()})
        self._passes[view.layer] = self._passes.get(view.layer, 0) + 1

    def stacked(self) -> tuple[dict[str, Tensor], Tensor]:
        """Scores by name and mass, [L, H, R, N]; N of the last pass."""
        n_layers, n_blocks = len(self._passes), self.rows[-1]["mass"].shape[-1]

        def all_of(name: str, filling: float) -> Tensor:
            rows = [pad(r[name], (0, n_blocks - r[name].shape[-1]), value=filling) for r in self.rows]
            return torch.stack(rows).unflatten(0, (-1, n_layers)).permute(1, 2, 0, 3)

        return {name: all_of(name, float("-inf")) for name in self.ways}, all_of("mass", 0.0)

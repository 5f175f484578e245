"""Does a choice hold the needle? Attention mass on the needle's blocks while the answer is written.

Recall counts all mass; an answer hangs on the few heads that fetch it. Here a task's one fact is known, the
right answer is given token by token, and at each of its tokens the mass that dense attention has on the
fact's blocks is compared with the part of it that lies in the chosen blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sparda.blocks import block_mask
from sparda.engine.decoder import Decoder
from sparda.evaluation.recall import MEAN, choice, interval, layers
from sparda.kernels import block_mass
from sparda.measure.tables import Table
from sparda.selectors import LayerView, Selector
from sparda.spec import Sparsity
from sparda.tasks import Sample

_KEY = ("model", "method", "task", "context", "budget_blocks", "layer", "seed")
_GAIN = ("caught_low", "caught_high", "gain", "gain_low", "gain_high")
NEEDLE = Table("needle", (*_KEY[:-1], "mass", "caught", *_GAIN, "n", "seed", "date", "commit"), _KEY)
TASKS = ("niah_single_noise", "niah_single_prose", "niah_multikey_noise", "niah_multikey_prose")


def check_tasks(names: Iterable[str]) -> None:
    """ValueError: a task that is not known, or has more than one fact."""
    for name in names:
        if name not in TASKS:
            raise ValueError(f"{name!r} is no task of one fact; choose from {', '.join(TASKS)}")


def read_out(sample: Sample, tokenizer: Any, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """A prompt and its answer [T], the places [t] whose next token is the answer's, the fact's blocks [n].

    ValueError: several answers, or one that does not stand in the prompt exactly once.
    """
    if len(sample.answers) != 1 or sample.prompt.count(sample.answers[0]) != 1:
        raise ValueError(f"{sample.task}: the answer must stand once in the prompt; take another seed")
    at = sample.prompt.index(sample.answers[0])
    start, stop = sample.prompt.rfind(".", 0, at) + 1, at + len(sample.answers[0])
    encoded = tokenizer(sample.prompt, add_special_tokens=False, return_offsets_mapping=True)
    if tuple(encoded["input_ids"]) != tuple(sample.input_ids):
        raise ValueError(f"{sample.task}: the prompt's tokens are not those of its text")
    inside = [i for i, (a, b) in enumerate(encoded["offset_mapping"]) if a < stop and b > start]
    prompt, answer = answered(sample, tokenizer)
    tokens = torch.cat([prompt, answer])
    places = torch.arange(len(prompt) - 1, len(tokens) - 1)
    return tokens, places, torch.tensor(sorted({i // block_size for i in inside}))


def answered(sample: Sample, tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Tokens of a prompt [T] and of its first right answer [t]."""
    answer = tokenizer(f" {sample.answers[0]}", add_special_tokens=False)["input_ids"]
    return torch.tensor(sample.input_ids), torch.tensor(answer)


@torch.inference_mode()
def caught(
    decoder: Decoder, tokens: Tensor, places: Tensor, needle: Tensor,
    selectors: Mapping[str, Selector], sparsity: Sparsity,
) -> dict[str, Tensor]:  # fmt: skip
    """For each method: mass on the needle's blocks and the part of it in chosen ones, [L, 2].

    Means over heads and places.
    """
    device, scale = decoder.cos.device, decoder.attention_scale
    tokens, places, needle = (x.to(device) for x in (tokens, places, needle))
    found: dict[str, list[Tensor]] = {name: [] for name in selectors}
    for seen in layers(decoder, tokens, places):
        view = LayerView(seen.layer, seen.queries, seen.keys, places[None], sparsity, scale)
        view = replace(view, stored=view.compressed)
        mass = block_mass(seen.queries, seen.keys, places[None], block_size=sparsity.block_size, scale=scale)
        there = mass[..., needle]  # [1, H, t, n]
        for name, selector in selectors.items():
            ids = choice(selector, view, seen, decoder)
            chosen = block_mask(ids, mass.shape[-1])[..., needle]
            found[name].append(torch.stack([there.sum(-1).mean(), (there * chosen).sum(-1).mean()]))
    return {name: torch.stack(parts).double().cpu() for name, parts in found.items()}


def rows(found: Sequence[Mapping[str, Tensor]], **cell: object) -> list[dict[str, str]]:
    """Rows of needle.csv, layer by layer and over all layers but layer 0, means over the samples.

    ``gain`` is what is caught beyond the query selection ("sparse"), paired by sample, as in recall.csv.
    """
    made = []
    for method in found[0]:
        ours = _with_mean(torch.stack([one[method] for one in found]))  # [samples, L + 1, 2]
        base = _with_mean(torch.stack([one["sparse"] for one in found])) if "sparse" in found[0] else None
        for index in range(ours.shape[1]):
            mass, held = ours[:, index].unbind(1)
            gain = {} if base is None else interval("gain", "gain", held - base[:, index, 1])
            numbers = {"mass": mass.mean().item(), **interval("caught", "caught", held), **gain}
            layer = MEAN if index == ours.shape[1] - 1 else index
            made.append(NEEDLE.row(**cell, method=method, layer=layer, **numbers, n=len(found)))
    return made


def _with_mean(parts: Tensor) -> Tensor:
    """The mean over all layers but layer 0 as a last layer: [n, L, 2] to [n, L + 1, 2]."""
    return torch.cat([parts, parts[:, 1:].mean(1, keepdim=True)], 1)

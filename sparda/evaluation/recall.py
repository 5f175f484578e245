"""Which blocks would each method choose on a text, and how much attention is in them? Layer by layer.

The model reads the text densely, so that all methods see the same queries and keys; at sampled places each
chooses as if one token were decoded there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sparda import metrics
from sparda.cache import rotate
from sparda.engine.decoder import Decoder
from sparda.evaluation.statistics import mean_interval
from sparda.kernels import block_mass, rotate_prompt
from sparda.measure.tables import Table
from sparda.selectors import LayerView, Query, Selector, Streaming
from sparda.spec import Sparsity

_KEY = ("model", "method", "text", "context", "budget_blocks", "layer", "head", "seed")
_MASS = ("mass_recall", "mass_low", "mass_high", "gain", "gain_low", "gain_high")
_REST = ("agreement", "hit_rate", "n", "sequences", "seed", "date", "commit")
RECALL = Table("recall", (*_KEY[:-1], *_MASS, *_REST), _KEY)
FORCED = "forced"  # no method: the blocks that all of them read
MEAN = "mean"


@dataclass(frozen=True)
class Seen:
    """One layer at the sampled places t: queries [1, H_q, t, d], keys [1, H, T, d] (both post-RoPE), and the
    normed attention input [1, t, hidden] of the layer before (of layer 0: its own)."""

    layer: int
    queries: Tensor
    keys: Tensor
    before: Tensor


def layers(decoder: Decoder, tokens: Tensor, places: Tensor) -> Iterator[Seen]:
    """Read a text [T] densely; yield every layer at ``places`` [t]."""
    n_tokens, before = len(tokens), None
    turn = partial(rotate_prompt, cos=decoder.cos[:n_tokens], sin=decoder.sin[:n_tokens])
    hidden, normed = decoder.enter(tokens)
    for layer in range(len(decoder.layers)):
        q, k, v, _, _ = decoder.project(layer, normed)
        q, k, v = turn(q)[None], turn(k)[None], v.transpose(0, 1)[None]
        here = normed[places][None]
        yield Seen(layer, q[:, :, places], k, here if before is None else before)
        attended = scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=decoder.attention_scale, enable_gqa=True
        )
        hidden, normed = decoder.after_attention(layer, hidden, attended[0].transpose(0, 1).flatten(1))
        before = here


def draw_places(n_tokens: int, n_queries: int, first: int, seed: int) -> Tensor:
    """Pairs of neighbouring positions (t - 1, t), ascending, [2 * pairs]; t - 1 is not before ``first``.

    ValueError: there are not so many.
    """
    pairs, possible = n_queries // 2, (n_tokens - first) // 2
    if pairs < 1 or pairs > possible:
        raise ValueError(
            f"{n_queries} queries in pairs do not fit between token {first}, where a choice begins, and "
            f"{n_tokens}; ask for 2 to {2 * max(1, possible)}, or take a longer context"
        )
    noise = torch.Generator().manual_seed(seed)
    earlier = first + 2 * torch.randperm(possible, generator=noise)[:pairs].sort().values
    return torch.stack([earlier, earlier + 1], 1).flatten()


@torch.inference_mode()
def recall_of(
    decoder: Decoder,
    tokens: Tensor,
    places: Tensor,
    selectors: Mapping[str, Selector],
    rules: Sequence[Sparsity],
) -> dict[tuple[str, int], Tensor]:
    """For each (method, k): mass recall, agreement with the query selection and hit rate, [L, H, 3].

    All are means over the places, the hit rate over every second one: of its blocks, the share that the place
    before chose. ``FORCED`` comes along.
    """
    places, scale = places.to(tokens.device), decoder.attention_scale
    found: dict[tuple[str, int], list[Tensor]] = {}
    for seen in layers(decoder, tokens, places):
        mass = block_mass(seen.queries, seen.keys, places[None], block_size=rules[0].block_size, scale=scale)
        for sparsity in rules:
            view = LayerView(seen.layer, seen.queries, seen.keys, places[None], sparsity, scale)
            view = replace(view, stored=view.compressed)
            theirs = Query().select(view).long()
            forced = replace(view, sparsity=replace(sparsity, budget_blocks=sparsity.forced_blocks))
            chosen = {name: choice(s, view, seen, decoder) for name, s in selectors.items()}
            chosen[FORCED] = Streaming().select(forced).long()
            for name, ids in chosen.items():
                measures = _measures(ids, theirs, mass, view)
                found.setdefault((name, sparsity.budget_blocks), []).append(measures)
    return {key: torch.stack(parts) for key, parts in found.items()}


def choice(selector: Selector, view: LayerView, seen: Seen, decoder: Decoder) -> Tensor:
    """Block ids [1, H, t, k] of one method."""
    if selector.looks_ahead:
        cos, sin = (table[view.positions][:, None] for table in (decoder.cos, decoder.sin))
        heads = selector.look_ahead(view.layer, seen.before).unflatten(-1, (-1, decoder.head_dim))
        view = replace(view, ahead=rotate(heads.transpose(1, 2), cos, sin))
    if selector.own_index:
        view = replace(view, stored=None)
    return selector.select(view).long()


def _measures(ids: Tensor, theirs: Tensor, mass: Tensor, view: LayerView) -> Tensor:
    """Means over the queries, [H, 3], on the CPU."""
    recall = metrics.mass_recall(mass, ids)[0].mean(-1)
    same = metrics.agreement(ids, theirs, view.positions, view.n_blocks, view.sparsity)[0].nanmean(-1)
    kept = metrics.hit_rate(ids[:, :, 0::2], ids[:, :, 1::2])[0].mean(-1)
    return torch.stack([recall, same, kept], -1).double().cpu()


def rows(found: Sequence[Mapping[tuple[str, int], Tensor]], **cell: object) -> list[dict[str, str]]:
    """Rows of recall.csv from the measures of several sequences: every head, every layer, and all layers.

    The last is the mean over all layers but layer 0, whose blocks stay on the GPU. ``gain`` is the mass
    beyond the query selection's ("sparse"), paired by sequence; intervals are over sequences.
    """
    made = []
    for method, k in found[0]:
        ours = torch.stack([one[method, k] for one in found])  # [sequences, L, H, 3]
        base = torch.stack([one["sparse", k] for one in found]) if ("sparse", k) in found[0] else None
        for layer, head, take in _cuts(*ours.shape[1:3]):
            mass, agreed, kept = take(ours).unbind(1)
            gain = {} if base is None else interval("gain", "gain", mass - take(base)[:, 0])
            numbers = interval("mass_recall", "mass", mass) | gain
            numbers |= {"agreement": agreed.mean().item(), "hit_rate": kept.mean().item()}
            place = {"method": method, "budget_blocks": k, "layer": layer, "head": head}
            made.append(RECALL.row(**cell, **place, **numbers, sequences=len(found)))
    return made


def interval(name: str, short: str, values: Tensor) -> dict[str, float]:
    """Columns ``name``, ``short``_low and ``short``_high: the mean of values [n] and Student's interval."""
    return dict(zip((name, f"{short}_low", f"{short}_high"), mean_interval(values.tolist()), strict=True))


def _cuts(n_layers: int, n_heads: int):
    """(layer, head, what takes it out of [sequences, L, H, x] and leaves [sequences, x])."""
    for i in range(n_layers):
        for h in range(n_heads):
            yield i, h, lambda x, i=i, h=h: x[:, i, h]
        yield i, MEAN, lambda x, i=i: x[:, i].mean(1)
    yield MEAN, MEAN, lambda x: x[:, 1:].mean((1, 2))

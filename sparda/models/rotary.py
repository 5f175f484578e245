"""How a layer rotates its queries, measured: which channels turn together, and how many of them.

    halves : channel i turns with i + r / 2 (Llama)
    pairs  : channel 2i turns with 2i + 1 (Helium, Cohere, GLM, Ernie 4.5)
    none   : nothing turns (some layers of SmolLM3 or Cohere 2)

The first r channels of a head turn; the others pass (StableLM, GLM, Nemotron).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sparda.cache import rotate


@dataclass(frozen=True)
class Rotary:
    """One layer's rotation.

    twice : how the angles of both channels of a pair lie in cos and sin: as two equal halves, or side by side
    """

    kind: Literal["halves", "pairs", "none"] = "halves"
    twice: Literal["halves", "pairs"] = "halves"

    def angles(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [..., r] as layers are handed them -> [..., r / 2] float32, one for each pair."""
        if self.twice == "pairs":
            return cos[..., ::2].float(), sin[..., ::2].float()
        half = cos.shape[-1] // 2
        return cos[..., :half].float(), sin[..., :half].float()

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate x [..., d] by ``angles``, [..., r / 2] each, broadcast; channels from r on pass."""
        if self.kind == "none":
            return x
        width = 2 * cos.shape[-1]
        if self.kind == "halves" and width == x.shape[-1]:
            return rotate(x, cos, sin)
        first, rest = x[..., :width], x[..., width:]
        if self.kind == "pairs":
            first = torch.cat([first[..., ::2], first[..., 1::2]], -1)
        turned = rotate(first, cos, sin)
        if self.kind == "pairs":
            turned = torch.stack(turned.chunk(2, -1), -1).flatten(-2)
        return torch.cat([turned, rest], -1)


def every_kind() -> Iterator[Rotary]:
    """All rotations that are known, the usual one first."""
    yield Rotary()
    yield Rotary("pairs")
    yield Rotary("pairs", "pairs")
    yield Rotary("none")


def measured(before: Tensor, after: Tensor, cos: Tensor, sin: Tensor, tolerance: float) -> Rotary | None:
    """The rotation that makes ``after`` of ``before``, [B, H_q, t, d] each; None: none that is known.

    cos, sin : [B or 1, t, r] as the model hands them to its layers, at positions of which some are far
    """
    if cos.shape[-1] > before.shape[-1] or cos.shape[-1] % 2:
        return None
    for kind in every_kind():
        angles = (x[:, None] for x in kind.angles(cos, sin))
        wrong = (kind.turn(before, *angles).float() - after.float()).norm()
        if wrong <= tolerance * after.float().norm():
            return kind
    return None

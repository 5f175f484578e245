"""What was said in one sequence, against the reference, which is handed the tokens that were said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fuzzing import rotary
from fuzzing.cases import Case
from fuzzing.models import Chooser, build
from fuzzing.reference import Reference, Unservable

# what rounding may do to logits, as a share of the largest, and to block scores; it did less than a fifth of
# it in the first 300 cases
LOGITS = {"float64": 1e-6, "float32": 2e-5, "bfloat16": 0.08, "float16": 0.01}
NEAR = {"float64": 2e-5, "float32": 2e-5, "bfloat16": 4e-2, "float16": 5e-3}


class Finding(Exception):
    """What was said is wrong, and not by rounding."""


class Tie(Exception):
    """What was said differs where two choices are equal up to rounding."""


@dataclass
class Row:
    """One sequence.

    model : the case's, which nobody but the reference has had
    step  : tokens of the prompt that are read at once
    pad   : padding before the prompt, which shifts those steps
    decoded : positions of the prompt that were an earlier reply
    table : length of the text that rotary angles are made for; 0: they follow the text
    wider : dtype in which the model computes instead of its own, to see what rounding does
    """

    case: Case
    model: Any
    text: Tensor
    tokens: Tensor
    chooser: Chooser
    phases: tuple[str, ...]
    step: int
    pad: int = 0
    decoded: range = range(0)
    table: int = 0
    wider: torch.dtype | None = None  # in which the model computes instead

    def compare(self, logits: Tensor | None, last: Tensor | None) -> None:
        """Raises Finding or Tie where the reference says something else.

        logits [n, vocab] of all new tokens, or last [vocab] of the last one only, where they are known
        """
        try:
            right, _ = self.right()
        except Unservable as error:
            raise Finding(f"served, but {error}") from error
        wrong = right.argmax(-1) != self.tokens
        if last is not None:
            logits = torch.cat([right[:-1], last[None]])
        if logits is not None:
            off = (logits - right).abs().amax(-1) / right.abs().amax(-1)
            wrong |= ~(off <= LOGITS[self.case.dtype])
        if wrong.any():
            self._judge(int(wrong.nonzero()[0]))

    def right(self, measure: bool = False) -> tuple[Tensor, Reference]:
        """[n, vocab]: what the reference would have said at each of the tokens."""
        changing = rotary.by_length(self.case.config)
        model = self.model if self.wider is None and not changing else build(self.case)
        if self.wider is not None:
            model = model.to(self.wider)
        n, whole = len(self.text), torch.cat([self.text, self.tokens[:-1]])
        one = Reference(
            model, self.case.rule, self.chooser, self.phases, n, self._phase, self._reads(), measure
        )
        if not changing:
            return one.logits(whole), one
        if self.table:
            with rotary.table(model, self.table):
                return one.logits(whole), one
        ends = [*range(self.step, n, self.step), *range(n, len(whole) + 1)]
        if self.decoded or self.case.mode == "turns":
            ends = [*range(self.decoded.start, self.decoded.stop + 1), *ends]
        return one.stepwise(whole, ends, keep=self.case.mode != "uncached"), one

    def _phase(self, t: int) -> str:
        return "decode" if t >= len(self.text) or t in self.decoded else "prefill"

    def _reads(self) -> Callable[[int], int]:
        """Position -> last position whose key exists when that one is read."""
        n, step, pad = len(self.text), self.step, self.pad
        return lambda t: t if t >= n else min(((t + pad) // step + 1) * step - pad, n) - 1

    def _judge(self, at: int) -> None:
        """Tie or finding, at the first token that is another one or has other logits."""
        right, one = self.right(measure=True)
        block = float(one.margin[: len(self.text) + at].min())
        first, second = right[at].topk(2).values.tolist()
        gap, noise = (first - second) / float(right[at].abs().max()), self._noise(right, at)
        best, said = int(right[at].argmax()), int(self.tokens[at])
        wrong = f"is {said}, not {best}" if said != best else "has other logits"
        margins = f"blocks apart by {block:.1e}, logits by {gap:.1e}, rounding {noise:.1e}"
        what = f"token {at} of {len(self.tokens)} {wrong} ({margins})"
        near = NEAR[self.case.dtype]
        if (
            block < near
            or (best != said and gap < max(near, 4 * noise))
            or 4 * noise > LOGITS[self.case.dtype]
        ):
            raise Tie(what)
        raise Finding(what)

    def _noise(self, right: Tensor, at: int) -> float:
        """How far rounding alone moves the logits of a token, as a share of the largest."""
        wider = {"float32": torch.float64, "float64": None}.get(self.case.dtype, torch.float32)
        if wider is None:
            return 0.0
        try:
            exact, _ = replace(self, wider=wider).right()
        except RuntimeError:  # transformers multiplies no experts in float64
            return 0.0
        return float((exact[at] - right[at]).abs().max() / right[at].abs().max())

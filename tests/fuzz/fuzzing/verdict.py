"""One case judged: what attach and the engine say must be what the reference says, or be refused in time."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sparda
import sparda.kernels
from fuzzing import asked, rotary
from fuzzing.asked import Count, Said
from fuzzing.cases import Case
from fuzzing.models import Chooser, NoModel, build, chooser, prompts
from fuzzing.reference import Reference, Unservable
from fuzzing.rotary import by_length

OURS = tuple(str(Path(module.__file__ or "").parent.resolve()) for module in (sparda, sparda.kernels))
# of the largest logit, and of block scores: what rounding may do
LOGITS = {"float64": 1e-4, "float32": 2e-3, "bfloat16": 0.12, "float16": 0.03}
NEAR = {"float64": 2e-5, "float32": 2e-5, "bfloat16": 4e-2, "float16": 5e-3}


@dataclass(frozen=True)
class Outcome:
    """kind: same, tie, refused, finding, or no model; why, in one line."""

    kind: str
    why: str = ""


class Finding(Exception):
    """What was said is wrong, and not by rounding."""


class Tie(Exception):
    """What was said differs where two choices are equal up to rounding."""


def judge(case: Case) -> dict[str, Outcome]:
    """Outcomes of "attach" and "engine"."""
    torch.set_grad_enabled(False)
    try:
        model: Any = build(case)
        texts = prompts(case)
        _runs(model, texts[0])
    except NoModel as error:
        return dict.fromkeys(("attach", "engine"), Outcome("no model", str(error)))
    roles = {"attach": _attach, "engine": _engine}
    order = ("engine", "attach") if case.engine_first else ("attach", "engine")
    found = {role: _outcome(roles[role], case, model, texts) for role in order}
    for role in order:
        if found[role].kind in ("same", "tie") and (changed := _changed(case, model)):
            found[role] = Outcome("finding", changed)
    return found


def _runs(model: Any, text: Tensor) -> None:
    """NoModel if transformers cannot compute it."""
    try:
        model(text[None, :2], use_cache=False)
    except Exception as error:
        raise NoModel(f"{type(error).__name__}: {str(error).splitlines()[0][:100]}") from error


def _outcome(role: Callable, case: Case, model: Any, texts: list[Tensor]) -> Outcome:
    """Runs one role, and sorts what it raises."""
    count = Count()
    try:
        role(case, model, texts, count)
    except NoModel as error:
        return Outcome("no model", str(error))
    except Tie as error:
        return Outcome("tie", str(error))
    except Finding as error:
        return Outcome("finding", str(error))
    except Exception as error:
        return _refusal(error, 0 if case.mode == "by hand" else count.tokens)  # no one knew its length
    return Outcome("same")


def _refusal(error: Exception, n_tokens: int) -> Outcome:
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = str(error)
    said = f"{type(error).__name__}: {text}".replace("\n", " / ")[:300]
    if not isinstance(error, (TypeError, ValueError)):
        return Outcome("finding", f"not a refusal: {said} ({Path(where.filename).name}:{where.lineno})")
    if not where.filename.startswith(OURS):
        return Outcome(
            "finding", f"raised inside a library: {said} ({Path(where.filename).name}:{where.lineno})"
        )
    if n_tokens:
        return Outcome("finding", f"refused after {n_tokens} tokens: {said}")
    if "\n" in text or not 20 < len(text) < 500:
        return Outcome("finding", f"not one clear sentence: {said}")
    return Outcome("refused", said)


def _attach(case: Case, model: Any, texts: list[Tensor], count: Count) -> None:
    before = model.config._attn_implementation
    wanted, options = chooser(case, model)
    rule = sparda.Sparsity(**case.rule)
    try:
        with sparda.attach(model, sparsity=rule, phases=case.phases, probe=case.probe, **options):
            said = asked.hugging_face(case, model, texts, count)
    except Exception as error:
        if _ours(error) or _works_alone(case, texts):
            raise
        raise NoModel(f"{case.mode}: {type(error).__name__}: {str(error)[:80]}") from error
    finally:
        if model.config._attn_implementation != before:
            raise Finding("the model's attention was not restored")
    reads = _chunks(case, texts)
    _compare(case, texts, said, wanted, case.phases, asked.ends_of(case), reads)


def _ours(error: Exception) -> bool:
    return traceback.extract_tb(error.__traceback__)[-1].filename.startswith(OURS)


def _works_alone(case: Case, texts: list[Tensor]) -> bool:
    """Whether transformers can do this without us."""
    try:
        asked.hugging_face(case, build(case), texts, Count())
    except Exception:
        return False
    return True


def _engine(case: Case, model: Any, texts: list[Tensor], count: Count) -> None:
    wanted, options = chooser(case, model)
    made = sparda.Engine(model, sparsity=sparda.Sparsity(**case.rule), **case.engine, **options)

    def heard(sequence: int, token: int) -> None:
        count.tokens += 1

    said = asked.engine(case, made, texts, heard)
    ends = asked.ends_of(case, engine=True)
    plain = replace(case, mode="plain")
    _compare(
        plain,
        texts,
        said,
        wanted,
        ("prefill", "decode"),
        ends,
        _chunks(plain, texts),
        case.engine["max_tokens"],
    )


def _step(case: Case) -> int:
    """Tokens of a prompt that are read at once."""
    return {"chunked": case.chunk, "by hand": max(case.chunk, 5)}.get(case.mode, 10**9)


def _chunks(case: Case, texts: list[Tensor]) -> list[Callable[[int], int]]:
    """For each text: position -> last position whose key exists when that one is read."""
    step = _step(case)
    longest = max(map(len, texts))

    def reads(n: int) -> Callable[[int], int]:
        pad = longest - n
        return lambda t: t if t >= n else min(((t + pad) // step + 1) * step, longest) - pad - 1

    return [reads(len(text)) for text in texts]


def _compare(case, texts, said: Said, wanted: Chooser, phases, ends, reads, table: int = 0) -> None:
    """Raises Finding or Tie where the reference says something else."""
    for i, (text, tokens) in enumerate(zip(texts, said.tokens, strict=True)):
        _lengths(tokens, case.new_tokens, ends)
        logits = None if said.logits is None else said.logits[i]
        one = _Row(case, text, torch.tensor(tokens), wanted, phases, reads[i], table)
        if (at := one.differs(logits, None if said.last is None else said.last[i])) is not None:
            one.judge(at)


def _lengths(tokens: list[int], n: int, ends: frozenset[int]) -> None:
    if any(token in ends for token in tokens[:-1]):
        raise Finding(f"goes on after an end token: {tokens}, ends {sorted(ends)}")
    if len(tokens) != n and not (tokens and tokens[-1] in ends):
        raise Finding(f"{len(tokens)} tokens of {n}, and none that ends")


@dataclass
class _Row:
    """One sequence against the reference, which is handed the tokens that were said."""

    case: Case
    text: Tensor
    tokens: Tensor
    wanted: Chooser
    phases: tuple[str, ...]
    reads: Callable[[int], int]
    table: int

    def reference(self, measure: bool = False, model: Any = None) -> Reference:
        made = build(self.case) if model is None else model
        n = len(self.text)
        return Reference(made, self.case.rule, self.wanted, self.phases, n, self.reads, measure)

    def logits(self, measure: bool = False) -> tuple[Tensor, Reference]:
        """[n, vocab]: what the reference would have said at each of the tokens."""
        one = self.reference(measure)
        whole = torch.cat([self.text, self.tokens[:-1]])
        if not by_length(self.case.config):
            return one.logits(whole), one
        if self.table:
            with rotary.table(one.model, self.table):
                return one.logits(whole), one
        n, step = len(self.text), _step(self.case)
        ends = [*range(step, n, step), *range(n, len(whole) + 1)]
        return one.stepwise(whole, ends, keep=self.case.mode != "uncached"), one

    def differs(self, logits: Tensor | None, last: Tensor | None) -> int | None:
        """The first token at which something else is said, or None."""
        try:
            right, _ = self.logits()
        except Unservable as error:
            raise Finding(f"served, but {error}") from error
        wrong = right.argmax(-1) != self.tokens
        if logits is None and last is not None:
            logits = right.clone()
            logits[-1] = last
        if logits is not None:
            scale = right.abs().amax(-1)
            off = (logits - right).abs().amax(-1) / scale
            wrong |= ~(off <= LOGITS[self.case.dtype])
        return int(wrong.nonzero()[0]) if wrong.any() else None

    def judge(self, at: int) -> None:
        right, one = self.logits(measure=True)
        near = NEAR[self.case.dtype]
        until = len(self.text) + at
        block = float(one.margin[:until].min())
        first, second = right[at].topk(2).values.tolist()
        gap = (first - second) / float(right[at].abs().max())
        what = (
            f"token {at} of {len(self.tokens)} is {int(self.tokens[at])}, not {int(right[at].argmax())} "
            f"(blocks apart by {block:.1e}, logits by {gap:.1e})"
        )
        if block < near or (int(right[at].argmax()) != int(self.tokens[at]) and gap < near):
            raise Tie(what)
        raise Finding(what)


def _changed(case: Case, model: Any) -> str:
    """Whether the model is another one now."""
    fresh = build(case)
    for (name, old), new in zip(fresh.state_dict().items(), model.state_dict().values(), strict=True):
        if not torch.equal(old, new):
            return f"the model's {name} was changed"
    return ""

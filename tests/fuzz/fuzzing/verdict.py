"""One case judged: what attach and the engine say must be what the reference says, or be refused in time."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sparda
import sparda.kernels
from fuzzing import asked
from fuzzing.asked import Count, Said
from fuzzing.cases import Case
from fuzzing.models import Chooser, NoModel, build, chooser, prompts
from fuzzing.row import Finding, Row, Tie

OURS = tuple(str(Path(module.__file__ or "").parent.resolve()) for module in (sparda, sparda.kernels))
WHOLE = 10**9  # a prompt is read at once


@dataclass(frozen=True)
class Outcome:
    """kind: same, tie, refused, finding, or no model; why, in one line."""

    kind: str
    why: str = ""


@dataclass
class Subject:
    """A case's model as attach and the engine have it, and another one that only the reference has."""

    case: Case
    model: Any
    clean: Any
    texts: list[Tensor]
    count: Count

    @classmethod
    def of(cls, case: Case) -> Subject:
        """NoModel if transformers has none, or cannot compute it."""
        subject = cls(case, build(case), build(case), prompts(case), Count())
        try:
            subject.clean(subject.texts[0][None, :2], use_cache=False)
        except Exception as error:
            raise NoModel(f"{type(error).__name__}: {str(error).splitlines()[0][:100]}") from error
        return subject

    def changed(self) -> str:
        """Whether the model is another one now."""
        then, now = self.clean.state_dict(), self.model.state_dict()
        different = [name for name, old in then.items() if not torch.equal(old, now[name])]
        return f"the model's {different[0]} was changed" if different else ""


@torch.no_grad()
def judge(case: Case) -> dict[str, Outcome]:
    """Outcomes of "attach" and "engine"."""
    roles = {"attach": _attach, "engine": _engine}
    try:
        subject = Subject.of(case)
    except NoModel as error:
        return dict.fromkeys(roles, Outcome("no model", str(error)))
    order = reversed(roles) if case.engine_first else roles
    found = {role: _outcome(roles[role], subject) for role in order}
    if changed := subject.changed():
        return dict.fromkeys(roles, Outcome("finding", changed))
    return found


def _outcome(role: Callable[[Subject], None], subject: Subject) -> Outcome:
    """Runs one role, and sorts what it raises."""
    subject.count = Count()
    try:
        role(subject)
    except NoModel as error:
        return Outcome("no model", str(error))
    except Tie as error:
        return Outcome("tie", str(error))
    except Finding as error:
        return Outcome("finding", str(error))
    except Exception as error:
        late = subject.case.mode != "by hand"  # by hand, nobody says how long the text will be
        return _refusal(error, subject.count.tokens if late else 0)
    return Outcome("same")


def _refusal(error: Exception, n_tokens: int) -> Outcome:
    """A refusal is a TypeError or ValueError of our own, one sentence, before any token."""
    where, text = traceback.extract_tb(error.__traceback__)[-1], str(error)
    said = f"{type(error).__name__}: {text}".replace("\n", " / ")[:300]
    place = f"({Path(where.filename).name}:{where.lineno})"
    if not isinstance(error, (TypeError, ValueError)):
        return Outcome("finding", f"not a refusal: {said} {place}")
    if not where.filename.startswith(OURS):
        return Outcome("finding", f"raised inside a library: {said} {place}")
    if n_tokens:
        return Outcome("finding", f"refused after {n_tokens} tokens: {said}")
    if "\n" in text or not 20 < len(text) < 500:
        return Outcome("finding", f"not one clear sentence: {said}")
    return Outcome("refused", said)


def _attach(subject: Subject) -> None:
    case, model, texts = subject.case, subject.model, subject.texts
    before = model.config._attn_implementation
    wanted, options = chooser(case, model)
    try:
        with sparda.attach(
            model, sparsity=sparda.Sparsity(**case.rule), phases=case.phases, probe=case.probe, **options
        ):
            said = asked.hugging_face(case, model, texts, subject.count)
    except Exception as error:
        if traceback.extract_tb(error.__traceback__)[-1].filename.startswith(OURS) or _works_alone(subject):
            raise
        raise NoModel(f"{case.mode}: {type(error).__name__}: {str(error)[:80]}") from error
    if case.mode == "lookup" and _short(case, said) and _short(case, _alone(subject)):
        raise NoModel("lookup: transformers itself stops before an end, where a guess holds an end token")
    if model.config._attn_implementation != before:
        raise Finding("the model's attention was not restored")
    step = {"chunked": case.chunk, "by hand": asked.by_hand_step(case)}.get(case.mode, WHOLE)
    _compare(subject, said, wanted, case.phases, asked.ends_of(case), step)


def _works_alone(subject: Subject) -> bool:
    """Whether transformers can do this without us."""
    try:
        _alone(subject)
    except Exception:
        return False
    return True


def _alone(subject: Subject) -> Said:
    return asked.hugging_face(subject.case, build(subject.case), subject.texts, Count())


def _short(case: Case, said: Said) -> bool:
    """Whether a reply stops without an end."""
    ends = asked.ends_of(case)
    return any(len(row) < case.new_tokens and not ends.intersection(row[-1:]) for row in said.tokens)


def _engine(subject: Subject) -> None:
    case, count = subject.case, subject.count
    wanted, options = chooser(case, subject.model)
    rule = sparda.Sparsity(**case.rule)
    made = sparda.Engine(subject.model, sparsity=rule, **case.engine, **options)

    def heard(sequence: int, token: int) -> None:
        count.tokens += 1

    said = asked.engine(case, made, subject.texts, heard)
    ends, table = asked.ends_of(case, engine=True), case.engine["max_tokens"]
    _compare(subject, said, wanted, ("prefill", "decode"), ends, WHOLE, table)


def _compare(
    subject: Subject, said: Said, wanted: Chooser, phases: tuple[str, ...], ends: frozenset[int], step: int,
    table: int = 0,
) -> None:  # fmt: skip
    """Raises Finding or Tie where the reference says something else."""
    case, texts = subject.case, said.texts or subject.texts
    longest = max(map(len, texts))
    for i, (text, tokens) in enumerate(zip(texts, said.tokens, strict=True)):
        _check_length(tokens, case.new_tokens, ends)
        ids, pad = torch.tensor(tokens), longest - len(text)
        row = Row(case, subject.clean, text, ids, wanted, phases, step, pad, said.decoded, table)
        row.compare(
            None if said.logits is None else said.logits[i], None if said.last is None else said.last[i]
        )


def _check_length(tokens: list[int], n: int, ends: frozenset[int]) -> None:
    if any(token in ends for token in tokens[:-1]):
        raise Finding(f"goes on after an end token: {tokens}, ends {sorted(ends)}")
    if len(tokens) != n and not (tokens and tokens[-1] in ends):
        raise Finding(f"{len(tokens)} tokens of {n}, and none that ends")

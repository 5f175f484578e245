"""Checkers of chapter 02. Each calls the student's function with numbers that tell mistakes apart."""

from __future__ import annotations

import torch

from sparda import blocks
from sparda.checks import Verdict, checker
from sparda.metrics import mass_recall
from sparda.spec import Sparsity

RULE = Sparsity(budget_blocks=96)  # blocks of 64 tokens, windows of 32 every 16


@checker
def ch02_ex1(student) -> Verdict:
    """student(position) -> how many compression windows the query at this position may use."""
    for position in (0, 30, 31, 46, 47, 2015):
        got = student(position)
        want = int(blocks.visible_windows(torch.tensor([[position]]), 200, RULE).sum())
        if got == position // RULE.stride + 1:
            return Verdict("not yet", f"position {position}: a window counts once it has ended, not begun")
        if got != want:
            return Verdict("not yet", f"position {position} gave {got}, expected {want}")
    return Verdict("ok")


@checker
def ch02_ex2(student) -> Verdict:
    """student(logits [G, N_c]) -> [N_c], the score that the G heads of one group give each window."""
    for logits in (torch.tensor([[6.0, 0.0, 5.0], [0.0, 2.0, 0.0]]), torch.tensor([[1.0, 2.0, 9.0, 2.0]])):
        got, want = torch.as_tensor(student(logits.clone())), logits.softmax(-1).sum(0)
        if got.shape != want.shape:
            return Verdict("not yet", f"shape {list(got.shape)}, expected {list(want.shape)}")
        slips = {
            "a raw sum lets the loudest head decide; take the softmax of each head first": logits.sum(0),
            "softmax each head by itself, then sum": logits.sum(0).softmax(0),
            "the softmax runs over the windows of a head, not over its heads": logits.softmax(0).sum(0),
        }
        if not torch.allclose(got.float(), want):
            return Verdict("not yet", _slip(got, slips) or f"got {_show(got)}, expected {_show(want)}")
    return Verdict("ok")


@checker
def ch02_ex3(student) -> Verdict:
    """student(scores [N_c], n_blocks) -> [n_blocks], best window that overlaps each block of 64 tokens."""
    for scores in (torch.tensor([1.0, 4, 2, 9, 0, 3, 5, 8, 6, 7, 2]), torch.arange(7.0).flip(0)):
        n_blocks = len(scores) // 4 + 1
        got = torch.as_tensor(student(scores.clone(), n_blocks)).float()
        want = blocks.pool_to_blocks(scores, n_blocks, RULE)
        if got.shape != want.shape:
            return Verdict("not yet", f"shape {list(got.shape)}, expected {list(want.shape)}")
        inside = torch.stack([part.max() for part in scores.split(4)])
        slips = {"window 4b-1 begins before block b and reaches into it: it counts too": inside}
        if not torch.equal(got, want):
            return Verdict("not yet", _slip(got, slips) or f"got {_show(got)}, expected {_show(want)}")
    return Verdict("ok")


@checker
def ch02_ex4(student) -> Verdict:
    """student(scores, own, budget) -> ids of one query, ascending; block 0, own - 1 and own are forced."""
    cases = (([9, 1, 5, 5, 0, 0, 7], 5, 5), ([0, 1, 1, 1, 1, 0], 5, 4), ([3, 2, 1, 8], 1, 4))
    for scores, own, budget in cases:
        ranked = torch.tensor(scores).float()[None, None, None]
        rule = Sparsity(budget, local_blocks=1)
        wanted = blocks.select_blocks(ranked, torch.tensor([[64 * own]]), rule).flatten().tolist()
        want = [block for block in wanted if block >= 0]
        got = [int(block) for block in student(list(scores), own, budget)]
        if got == want:
            continue
        hint = f"scores {scores}, own {own}, budget {budget} gave {got}, expected {want}"
        if any(block > own for block in got):
            hint = f"block {max(got)} comes after the query's own block {own}"
        elif missing := {0, max(0, own - 1), own} - set(got):
            hint = f"forced block {min(missing)} is missing"
        elif len(got) > len(want):
            hint = f"{len(got)} blocks chosen; the budget of {budget} contains the forced ones"
        elif sorted(got) == want:
            hint = f"the right blocks; put them in ascending order: {want}"
        return Verdict("not yet", hint)
    return Verdict("ok")


@checker
def ch02_ex5(student) -> Verdict:
    """student(mass [N], ids [k] with -1 padding) -> attention mass inside the chosen blocks."""
    mass = torch.tensor([0.5, 0.0625, 0.25, 0.125, 0.0625])
    for ids in ([0, 2, 3], [0, 1, -1, -1], [4]):
        chosen = torch.tensor(ids)
        got = float(student(mass.clone(), chosen))
        want = float(mass_recall(mass[None, None, None], chosen[None, None, None]))
        if abs(got - want) > 1e-6:
            padded = abs(got - float(mass[chosen].sum())) < 1e-6
            hint = "-1 is padding, not the last block" if padded else f"ids {ids} gave {got}, expected {want}"
            return Verdict("not yet", hint)
    return Verdict("ok")


def _slip(got: torch.Tensor, slips: dict[str, torch.Tensor]) -> str:
    """The hint of the known mistake that ``got`` shows, or an empty string."""
    found = [hint for hint, wrong in slips.items() if torch.allclose(got.float(), wrong)]
    return found[0] if found else ""


def _show(values: torch.Tensor) -> list[float]:
    return [round(value, 3) for value in values.tolist()]

"""Checkers of chapter 02. Each calls the student's function with numbers that tell mistakes apart."""

from __future__ import annotations

import torch
from torch import Tensor

from sparda import blocks
from sparda.checks import Random, Verdict, checker, close, off
from sparda.metrics import mass_recall
from sparda.spec import Sparsity

RULE = Sparsity(budget_blocks=96)  # blocks of 64 tokens, windows of 32 every 16


@checker(without=[blocks.visible_windows])
def ch02_ex1(student) -> Verdict:
    """student(position) -> how many compression windows the query at this position may use."""
    draw = Random()
    for position in (0, 30, 31, 46, 47, 2015, *(draw.randrange(3000) for _ in range(3))):
        got = student(position)
        want = int(blocks.visible_windows(torch.tensor([[position]]), 200, RULE).sum())
        if got == position // RULE.stride + 1:
            return Verdict("not yet", f"position {position}: a window counts once it has ended, not begun")
        if not close(got, want):
            return Verdict("not yet", f"position {position} gave {got}, {off(got, want)}")
    return Verdict("ok")


@checker
def ch02_ex2(student) -> Verdict:
    """student(logits [G, N_c]) -> [N_c], the score that the G heads of one group give each window."""
    draw = Random()
    n = draw.randrange(4, 9)
    fresh = torch.tensor([[draw.gauss(0, 3) for _ in range(n)] for _ in range(3)])
    for logits in (torch.tensor([[6.0, 0, 5], [0, 2, 0]]), torch.tensor([[1.0, 2, 9, 2]]), fresh):
        got, want = torch.as_tensor(student(logits.clone())).float(), logits.softmax(-1).sum(0)
        slips = {
            "a raw sum lets the loudest head decide; take the softmax of each head first": logits.sum(0),
            "softmax each head by itself, then sum": logits.sum(0).softmax(0),
            "the softmax runs over the windows of a head, not over its heads": logits.softmax(0).sum(0),
        }
        if hint := _wrong(got, want, slips):
            return Verdict("not yet", f"{hint} (logits {_show(logits)})")
    return Verdict("ok")


@checker(without=[blocks.pool_to_blocks])
def ch02_ex3(student) -> Verdict:
    """student(scores [N_c], n_blocks) -> [n_blocks], best window that overlaps each block of 64 tokens."""
    draw = Random()
    fresh = torch.tensor([float(draw.randrange(1000)) for _ in range(4 * draw.randrange(3, 6) + 3)])
    for scores in (torch.tensor([1.0, 4, 2, 9, 0, 3, 5, 8, 6, 7, 2]), torch.arange(7.0).flip(0), fresh):
        n_blocks = len(scores) // 4 + 1
        got = torch.as_tensor(student(scores.clone(), n_blocks)).float()
        inside = torch.stack([part.max() for part in scores.split(4)])
        slips = {"window 4b-1 begins before block b and reaches into it: it counts too": inside}
        if hint := _wrong(got, blocks.pool_to_blocks(scores, n_blocks, RULE), slips):
            return Verdict("not yet", f"{hint} (scores {_show(scores)})")
    return Verdict("ok")


def _some_blocks(draw: Random) -> tuple[list[int], int, int]:
    """Scores with ties, the query's own block and a budget, as ex4 takes them."""
    own = draw.randrange(4, 9)
    return [draw.randrange(5) for _ in range(own + draw.randrange(1, 4))], own, draw.randrange(4, own + 1)


@checker(without=[blocks.select_blocks])
def ch02_ex4(student) -> Verdict:
    """student(scores, own, budget) -> ids of one query, ascending; block 0, own - 1 and own are forced."""
    draw = Random()
    cases = [([9, 1, 5, 5, 0, 0, 7], 5, 5), ([0, 1, 1, 1, 1, 0], 5, 4), ([3, 2, 1, 8], 1, 4)]
    for scores, own, budget in [*cases, *(_some_blocks(draw) for _ in range(4))]:
        ranked = torch.tensor(scores).float()[None, None, None]
        rule = Sparsity(budget, local_blocks=1)
        wanted = blocks.select_blocks(ranked, torch.tensor([[64 * own]]), rule).flatten().tolist()
        want = [block for block in wanted if block >= 0]
        got = list(student(list(scores), own, budget))
        if got == want:
            continue
        if strange := [block for block in got if block not in range(own + 1)]:
            later = strange[0] > own
            hint = (
                f"block {strange[0]} comes after the query's own block"
                if later
                else f"no block is {strange[0]}"
            )
        elif missing := {0, max(0, own - 1), own} - set(got):
            hint = f"forced block {min(missing)} is missing"
        elif len(got) > len(want):
            hint = f"{len(got)} blocks chosen; the budget contains the forced ones"
        elif sorted(got) == want:
            hint = "the right blocks; put them in ascending order"
        elif worse := set(got) - set(want):
            hint = f"block {min(worse)} scores less than one left out, or as much as one with a lower id"
        else:
            hint = "there is room for another block"
        return Verdict("not yet", f"scores {scores}, own {own}, budget {budget} gave {got}: {hint}")
    return Verdict("ok")


@checker(without=[mass_recall])
def ch02_ex5(student) -> Verdict:
    """student(mass [N], ids [k] with -1 padding) -> attention mass inside the chosen blocks."""
    draw = Random()
    fresh = torch.tensor([draw.random() for _ in range(draw.randrange(6, 10))])
    some = [(fresh / fresh.sum(), sorted(draw.sample(range(6), n)) + [-1] * (5 - n)) for n in (2, 4)]
    fixed = torch.tensor([0.5, 0.0625, 0.25, 0.125, 0.0625])
    for mass, ids in [*((fixed, ids) for ids in ([0, 2, 3], [0, 1, -1, -1], [4])), *some]:
        chosen = torch.tensor(ids)
        got = float(student(mass.clone(), chosen))
        want = float(mass_recall(mass[None, None, None], chosen[None, None, None]))
        if not close(got, want, 1e-5):
            padded = -1 in ids and close(got, float(mass[chosen].sum()), 1e-5)
            hint = (
                "-1 is padding, not the last block" if padded else f"ids {ids} gave {got:g}, {off(got, want)}"
            )
            return Verdict("not yet", f"{hint} (mass {_show(mass)})")
    return Verdict("ok")


def _wrong(got: Tensor, want: Tensor, slips: dict[str, Tensor]) -> str:
    """The known mistake that ``got`` shows, or its first wrong place; empty where it is right."""
    if got.shape != want.shape:
        return f"shape {list(got.shape)}, not {list(want.shape)}"
    if torch.allclose(got, want):
        return ""
    known = [hint for hint, wrong in slips.items() if torch.allclose(got, wrong)]
    first = int((~got.isclose(want)).nonzero()[0])
    return (
        known[0]
        if known
        else f"place {first} is {got[first]:.4g}, {off(float(got[first]), float(want[first]))}"
    )


def _show(values: Tensor) -> list:
    return torch.round(values.double(), decimals=3).tolist()

"""Checkers of chapter 00. Each calls the student's function with numbers that tell mistakes apart."""

from __future__ import annotations

import torch

from sparda.blocks import count_blocks, forced_blocks
from sparda.checks import Random, Verdict, checker, close, off
from sparda.metrics import hit_rate
from sparda.spec import Sparsity


@checker
def ch00_ex1(student) -> Verdict:
    """student(n_tokens, block_size, budget) -> share of the blocks that the last query reads."""
    draw = Random()
    fresh = [(draw.randrange(500, 9000), draw.choice((16, 32, 64)), draw.randrange(2, 8)) for _ in range(3)]
    for n_tokens, block_size, budget in ((2048, 64, 4), (2049, 64, 4), (100, 64, 4), *fresh):
        got = student(n_tokens, block_size, budget)
        n_blocks = count_blocks(n_tokens, Sparsity(budget, block_size=block_size, local_blocks=0))
        want = min(budget, n_blocks) / n_blocks
        if not close(got, want):
            case = f"{n_tokens} tokens in blocks of {block_size}, budget {budget}"
            return Verdict("not yet", f"{case}: got {got}, {off(got, want)}; there are {n_blocks} blocks")
    return Verdict("ok")


@checker
def ch00_ex2(student) -> Verdict:
    """student(position, block_size, budget, local) -> blocks that the query may choose freely."""
    draw, fresh = Random(), []
    for local in (0, 1, 3):
        size, budget = draw.choice((16, 64)), local + draw.randrange(3, 9)
        fresh += [(draw.randrange(n * size), size, budget, local) for n in (4, 40)]
    for position, block_size, budget, local in (
        (2047, 64, 4, 1),
        (4095, 64, 8, 2),
        (70, 64, 4, 1),
        (0, 16, 4, 1),
        *fresh,
    ):
        got = student(position, block_size, budget, local)
        rule, own = Sparsity(budget, block_size=block_size, local_blocks=local), position // block_size
        forced = int(forced_blocks(torch.tensor([[position]]), own + 1, rule).sum())
        want = min(budget, own + 1) - forced
        if not close(got, want):
            case = f"position {position}, blocks of {block_size}, budget {budget}, local {local}"
            hint = f"{case}: got {got}, {off(got, want)}; {forced} of {own + 1} blocks are forced"
            return Verdict("not yet", hint)
    return Verdict("ok")


@checker(without=[hit_rate])
def ch00_ex3(student) -> Verdict:
    """student(before, now) -> hit rate of one head; lists of block ids, -1 is padding."""
    draw, fresh = Random(), []
    for n in (3, 5, 6):
        before, now = (sorted(draw.sample(range(9), draw.randrange(2, n + 1))) for _ in range(2))
        fresh.append(([*before, *[-1] * (n - len(before))], [*now, *[-1] * (n - len(now))]))
    for before, now in (
        ([0, 4, 5, 6], [0, 5, 6, 7]),
        ([0, 1, -1, -1], [0, 1, 2, -1]),
        ([0, 1, 2, 3], [0, -1, -1, -1]),
        *fresh,
    ):
        got = student(list(before), list(now))
        want = hit_rate(torch.tensor([[before]]), torch.tensor([[now]])).item()
        if not close(got, want):
            return Verdict("not yet", f"{before} then {now}: got {got}, {off(got, want)}; -1 is no block")
    return Verdict("ok")


def _safe(right: dict[int, int], asked: int) -> int:
    most_that_fails = max((k for k, n in right.items() if n < asked), default=0)
    return min((k for k in right if k > most_that_fails), default=0)


@checker
def ch00_ex4(student) -> Verdict:
    """student(right, asked) -> smallest k from which on every larger k is fully right; 0 if none."""
    draw, asked = Random(), 3
    cases = [
        {3: 0, 4: 1, 8: 3, 16: 3},
        {16: 3, 4: 3, 8: 2, 24: 3},  # right at 4 by luck, and not in order
        {4: 3, 8: 2},
        *({k: draw.choice((2, 3, 3, 3)) for k in draw.sample(range(2, 40), 6)} for _ in range(4)),
    ]
    for right in cases:
        got, want = student(dict(right), asked), _safe(right, asked)
        if got == want:
            continue
        hint = f"a larger k than {got} still fails"
        if got != 0 and got not in right:
            hint = f"{got} was not tried"
        elif got == 0 or 0 < want < got:
            hint = f"{got} is not the smallest that will do"
        return Verdict("not yet", f"right answers of {asked} are {right}: {hint}")
    return Verdict("ok")

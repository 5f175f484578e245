"""Checkers of chapter 00. Each calls the student's function with numbers that tell mistakes apart."""

from __future__ import annotations

import torch

from sparda.blocks import count_blocks, forced_blocks
from sparda.checks import Verdict, checker
from sparda.metrics import hit_rate
from sparda.spec import Sparsity


@checker
def ch00_ex1(student) -> Verdict:
    """student(n_tokens, block_size, budget) -> share of the blocks that the last query reads."""
    for n_tokens, block_size, budget in ((2048, 64, 4), (2049, 64, 4), (100, 64, 4)):
        got = student(n_tokens, block_size, budget)
        n_blocks = count_blocks(n_tokens, Sparsity(budget, block_size=block_size, local_blocks=0))
        want = min(budget, n_blocks) / n_blocks
        if abs(got - want) > 1e-9:
            case = f"{n_tokens} tokens in blocks of {block_size}, budget {budget}"
            return Verdict("not yet", f"{case}: got {got}, expected {want:.4g} (there are {n_blocks} blocks)")
    return Verdict("ok")


@checker
def ch00_ex2(student) -> Verdict:
    """student(position, block_size, budget, local) -> blocks that the query may choose freely."""
    for position, block_size, budget, local in (
        (2047, 64, 4, 1),
        (4095, 64, 8, 2),
        (70, 64, 4, 1),
        (0, 16, 4, 1),
    ):
        got = student(position, block_size, budget, local)
        rule, own = Sparsity(budget, block_size=block_size, local_blocks=local), position // block_size
        forced = int(forced_blocks(torch.tensor([[position]]), own + 1, rule).sum())
        want = min(budget, own + 1) - forced
        if got != want:
            case = f"position {position}, blocks of {block_size}, budget {budget}, local {local}"
            return Verdict(
                "not yet", f"{case}: got {got}, expected {want} ({forced} of {own + 1} are forced)"
            )
    return Verdict("ok")


@checker
def ch00_ex3(student) -> Verdict:
    """student(before, now) -> hit rate of one head; lists of block ids, -1 is padding."""
    for before, now in (
        ([0, 4, 5, 6], [0, 5, 6, 7]),
        ([0, 1, -1, -1], [0, 1, 2, -1]),
        ([0, 1, 2, 3], [0, -1, -1, -1]),
    ):
        got = student(list(before), list(now))
        want = hit_rate(torch.tensor([[before]]), torch.tensor([[now]])).item()
        if abs(got - want) > 1e-6:
            return Verdict("not yet", f"{before} then {now}: got {got}, expected {want:.4g}; -1 is no block")
    return Verdict("ok")


@checker
def ch00_ex4(student) -> Verdict:
    """student(right, asked) -> smallest k from which on every larger k is fully right; 0 if none."""
    cases = (
        ({3: 0, 4: 1, 8: 3, 16: 3}, 8),
        ({16: 3, 4: 3, 8: 2, 24: 3}, 16),  # right at 4 by luck, and not in order
        ({4: 3, 8: 2}, 0),
    )
    for right, want in cases:
        got = student(dict(right), 3)
        if got != want:
            return Verdict("not yet", f"right answers of 3 are {right}: got {got}, expected {want}")
    return Verdict("ok")

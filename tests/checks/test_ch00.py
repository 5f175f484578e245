"""Wrong answers of chapter 00 and what their hints say; test_exercises.py asks the checkers."""

from __future__ import annotations

WRONG = [
    (
        "ch00_ex1",
        lambda n, size, k: k / (n // size),
        "2049 tokens in blocks of 64, budget 4: got 0.125, too large",
    ),
    ("ch00_ex1", lambda n, size, k: k / -(-n // size), "too large; there are 2 blocks"),  # more than all
    ("ch00_ex1", lambda n, size, k: k * size / n, "too large; there are 33 blocks"),
    ("ch00_ex1", lambda n, size, k: float("nan"), "got nan, which is no number"),
    ("ch00_ex2", lambda position, size, k, local: k, "got 4, too large; 3 of 32 blocks are forced"),
    (
        "ch00_ex2",
        lambda position, size, k, local: k - 1 - local,
        "too large",
    ),  # forgets the query's own block
    (
        "ch00_ex2",
        lambda position, size, k, local: k - 2 - local,
        "position 70",
    ),  # right far from the beginning
    ("ch00_ex3", lambda before, now: len(set(before) & set(now)) / len(now), "[0, 1, -1, -1] then"),
    (
        "ch00_ex3",
        lambda before, now: len(set(before) & set(now) - {-1}) / len(set(before) - {-1}),
        "too large",
    ),
    (
        "ch00_ex3",
        lambda before, now: 1 - len(set(before) & set(now) - {-1}) / len(set(now) - {-1}),
        "too small",
    ),
    ("ch00_ex3", lambda before, now: float("nan"), "no number"),
    (
        "ch00_ex4",
        lambda right, asked: min((k for k in right if right[k] == asked), default=0),  # luck counts
        "a larger k than 4 still fails",
    ),
    ("ch00_ex4", lambda right, asked: max(right), "16 is not the smallest that will do"),
    ("ch00_ex4", lambda right, asked: min(right), "a larger k than 3 still fails"),
    ("ch00_ex4", lambda right, asked: 0, "0 is not the smallest"),
    ("ch00_ex4", lambda right, asked: 5, "5 was not tried"),
]

"""Hits and misses of a running engine, on a tiny random model."""

from __future__ import annotations

import pytest
import torch

import sparda
from sparda.engine.weights import random_decoder
from sparda.measure.hits import count_hits
from sparda.spec import ModelShape, Sparsity

SHAPE = ModelShape("tiny", 3, 32, 4, 2, 16, 64, 50, 1e-6, 10_000.0, 512, False, "made up")
RULE = Sparsity(budget_blocks=4, block_size=16, local_blocks=1)


def run(slots, n_steps: int = 20):
    decoder = random_decoder(SHAPE, 256)
    engine = sparda.Engine(
        decoder, selector="query", sparsity=RULE, cache=slots, transport="demand", max_tokens=256
    )
    prompts = [torch.arange(n) % 50 for n in (150, 90)]
    return count_hits(engine, prompts, n_steps=n_steps)


def test_every_offloaded_layer_and_step_has_a_row_and_wants_k_blocks_a_head():
    rows, replies = run("k")
    assert {(row["step"], row["layer"]) for row in rows} == {(s, x) for s in range(20) for x in (1, 2)}
    assert {row["wanted"] for row in rows} == {2 * 2 * 4}  # sequences, KV heads, k
    assert all(row["hit_rate"] == pytest.approx(1 - row["missed"] / row["wanted"]) for row in rows)
    assert [len(reply) for reply in replies] == [21, 21]


def test_more_slots_miss_less_and_change_no_token():
    (few, said), (many, same) = run("k"), run(8)
    assert same == said
    assert sum(row["missed"] for row in many) <= sum(row["missed"] for row in few)
    assert {row["slots"] for row in many} == {8}


def test_the_first_step_finds_empty_slots():
    rows, _ = run("k", n_steps=2)
    first, second = ([row["missed"] for row in rows if row["step"] == step] for step in (0, 1))
    assert min(first) > max(second)

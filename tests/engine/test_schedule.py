"""After every step of a random schedule the slots hold the blocks that the maps name.

A twin with a full cache reads the same tokens: its slots are an independent record of all keys and values.
"""

from __future__ import annotations

import itertools
import random

import pytest
import torch

SIZE, LONGEST, BATCH, STEPS = 16, 256, 2, 100
SYSTEMS = {  # selector: transport, slots (k = 5) and replacement of the sessions that run in lockstep
    "random": [("demand", "k", "recent"), ("copy_engine", 7, "recent"), ("cpu_gather", 10, "score")],
    "query": [("copy_engine", "k", "recent"), ("demand", 10, "recent"), ("demand", 7, "score")],
    "forecast": [("lookahead", "k", "recent"), ("lookahead_worker", 7, "recent"), ("lookahead", 10, "score")],
    "proxy": [("lookahead_worker", "k", "recent"), ("cpu_gather", 7, "score")],
}


class Schedule:
    """Random prompts, tokens, stops and new prompts in places that are free or in use."""

    def __init__(self, sessions, device, seed):
        self.sessions, self.device, self.draw = sessions, device, random.Random(seed)
        self.noise = torch.Generator().manual_seed(seed)
        for i in range(BATCH):
            self.read(i)

    def tokens(self, n):
        return torch.randint(0, 101, (n,), generator=self.noise).to(self.device)

    def read(self, i):
        prompt = self.tokens(self.draw.choice((1, SIZE - 1, SIZE, SIZE + 1, self.draw.randint(1, 200))))
        for session in self.sessions:
            session.read(i, prompt)
            session.going[i] = 1

    def step(self):
        """Return the places of the tokens that were read, [B]."""
        tokens, places = self.tokens(BATCH), self.sessions[0].positions.clone()
        for session in self.sessions:
            session.tokens.copy_(tokens)
            session.step()
        return places

    def disturb(self):
        for i, place in enumerate(self.sessions[0].positions.tolist()):
            chance = self.draw.random()
            if place == LONGEST or chance < 0.03:
                self.read(i)
            elif chance < 0.06:
                for session in self.sessions:
                    session.going[i] = 0


def poison(sessions):
    """What was never written may be anything; what scores read is zero or stale, but a number."""
    for session in sessions:
        for state in session.store.layers:
            for tensor, garbage in (
                (state.cache.slots, float("nan")), (state.cache.host, float("nan")),
                (state.cache.compressed, 1e4), (state.index, 1e4),
            ):  # fmt: skip
                if tensor is not None:
                    tensor.fill_(garbage)


def inverse(state):
    """slot_block and block_slot name each other."""
    held, place = state.slot_block.long(), state.block_slot.long()
    slots = torch.arange(held.shape[2], device=held.device)
    back = place.gather(2, held.clamp(min=0))
    return ((back == slots) | (held < 0)).all() & ((place >= 0).sum() == (held >= 0).sum())


def listed(state, record, places):
    """The choice is the record's, its slots hold it, and the tail slot holds the block being written."""
    held, chosen = state.slot_block.long(), state.selection.block_ids.long()
    at, tail = state.selection.slot_ids.long(), state.selection.tail_slot.long()
    there = held.gather(2, at.clamp(min=0))
    own = held.gather(2, tail[..., None])[..., 0]
    same = (chosen == record.selection.block_ids).all() & ((chosen >= 0) == (at >= 0)).all()
    return same & ((there == chosen) | (at < 0)).all() & (own == (places // SIZE)[:, None]).all()


def filled(state, record, places):
    """Rows written so far are the record's: in the slots, and in the host's finished blocks."""
    truth = record.cache.slots  # [B, H, N, 2, S, d]: block n is in slot n
    n_blocks = truth.shape[2]
    row = torch.arange(n_blocks * SIZE, device=truth.device).view(1, 1, n_blocks, 1, SIZE, 1)
    written = (row <= places.view(-1, 1, 1, 1, 1, 1)).expand_as(truth)
    block = state.slot_block.long()[..., None, None, None]
    index = block.clamp(min=0).expand_as(state.cache.slots)
    seen = written.gather(2, index) & (block >= 0)
    right = ((state.cache.slots == truth.gather(2, index)) | ~seen).all()
    if not state.offloaded:
        return right
    host = state.cache.host.to(truth.device, non_blocking=True)
    return right & ((host == truth) | ~written.all(4, keepdim=True)).all()


@pytest.mark.parametrize("selector", SYSTEMS)
def test_slots_hold_the_blocks_that_the_maps_name_after_every_step(make, device, selector):
    engines = [
        make(selector, transport, cache=slots, replacement=policy, max_tokens=LONGEST)
        for transport, slots, policy in SYSTEMS[selector]
    ]
    twin = make(selector, cache="full", max_tokens=LONGEST).session(BATCH)
    sessions = [twin, *(engine.session(BATCH) for engine in engines)]
    poison(sessions)
    schedule = Schedule(sessions, device, seed=len(selector))
    for step in range(STEPS):
        places = schedule.step()
        for session in sessions[1:]:
            pairs = zip(session.store.layers, twin.store.layers, strict=True)
            found = [(inverse(s), listed(s, r, places), filled(s, r, places)) for s, r in pairs]
            agree = (session.tokens == twin.tokens).all()
            found = torch.stack([agree, *itertools.chain(*found)]).tolist()  # one wait for the GPU
            assert all(found), f"step {step}: tokens {found[0]}, by layer {found[1:]}"
        schedule.disturb()
    for engine in engines:
        engine.close()

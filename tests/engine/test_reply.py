"""A reply: which sequence moves on, when all have ended, and whose chance is drawn."""

from __future__ import annotations

import traceback

import pytest
import torch

PROMPTS = [[3, 1, 4, 1, 5] * 30, [9, 2, 6] * 11, [7]]


@pytest.fixture
def engine(make):
    made = make("query", "demand")
    yield made
    made.close()


def counted(session):
    """The session's steps, as they are made."""
    steps, step = [], session.step

    def count(*given):
        steps.append(session.going.tolist())
        step(*given)

    session.step = count
    return steps


def first_of_its_own(replies):
    """(sequence, place) of a token that only this sequence says, and not before this place."""
    for i, reply in enumerate(replies):
        for place, token in enumerate(reply[:-4]):
            if (
                place > 2
                and token not in reply[:place]
                and all(token not in r for r in replies if r is not reply)
            ):
                return i, place
    raise AssertionError("the replies have no token of their own; take another seed")


def test_a_sequence_that_has_ended_stays_in_its_place_and_the_others_move(engine):
    free = engine.generate(PROMPTS, max_new_tokens=30, temperature=1.0, seed=5, stop=()).tokens
    i, place = first_of_its_own(free)
    got = engine.generate(PROMPTS, max_new_tokens=30, temperature=1.0, seed=5, stop={free[i][place]}).tokens
    assert got == [reply[: place + 1] if j == i else reply for j, reply in enumerate(free)]
    lengths = [len(p) + (place if j == i else 29) for j, p in enumerate(PROMPTS)]
    assert engine.session(3).positions.tolist() == lengths  # the last token of a reply was never read


def test_no_step_is_made_once_every_sequence_has_ended(engine):
    free = engine.generate(PROMPTS, max_new_tokens=30, stop=()).tokens
    stop, session = {token for reply in free for token in reply[3:6]}, engine.session(3)
    steps = counted(session)
    got = engine.generate(PROMPTS, max_new_tokens=30, stop=stop).tokens
    longest = max(map(len, got))
    assert longest < 8
    assert len(steps) == longest  # the step after the last token is under way when that token is read
    assert steps[-1] == [0, 0, 0]
    assert [len(r) for r in got] == [1 + sum(s[i] for s in steps) for i in range(3)]


def test_a_reply_of_n_tokens_takes_n_minus_one_steps(engine):
    steps = counted(engine.session(3))
    for n in (1, 2, 9):
        steps.clear()
        assert [len(r) for r in engine.generate(PROMPTS, max_new_tokens=n, stop=()).tokens] == [n] * 3
        assert steps == [[1, 1, 1]] * (n - 1)


def test_a_sequence_is_drawn_alike_alone_and_in_a_batch(engine):
    ask = {"max_new_tokens": 25, "temperature": 1.0, "seed": 3, "stop": ()}
    batch = engine.generate(PROMPTS, **ask).tokens
    assert engine.generate(PROMPTS[:1], **ask).tokens == batch[:1]
    assert engine.generate(PROMPTS[:2], **ask).tokens == batch[:2]
    twins = engine.generate([PROMPTS[1]] * 2, **ask).tokens
    assert twins[0] != twins[1]  # each sequence has chances of its own


def test_temperature_widens_and_narrows_what_is_said(engine):
    def kinds(temperature):
        ask = {"max_new_tokens": 40, "seed": 1, "stop": ()}
        return len({t for r in engine.generate(PROMPTS, temperature=temperature, **ask).tokens for t in r})

    assert kinds(0.02) < kinds(1.0) < kinds(20.0)


@torch.inference_mode()
def test_a_place_that_does_not_go_on_is_left_where_it_is(engine):
    session = engine.session(2)
    for i in range(2):
        session.read(i, torch.tensor(PROMPTS[i], device=session.tokens.device))
    session.going.copy_(torch.tensor([0, 1]))
    for _ in range(3):
        session.step()
    assert session.positions.tolist() == [150, 36]


def test_heard_tokens_are_those_of_the_reply_in_order(engine):
    heard = []
    got = engine.generate(
        PROMPTS, max_new_tokens=5, stop=(), on_token=lambda i, t: heard.append((i, t))
    ).tokens
    assert heard == [(i, got[i][step]) for step in range(5) for i in range(3)]


def test_a_request_at_its_limits_is_served(make):
    engine = make("query", "demand", max_tokens=40)
    alone = engine.generate([[0, 100] * 10], max_new_tokens=20, stop=()).tokens  # the lowest and highest ids
    assert len(alone[0]) == 20
    for prompt in (torch.tensor([0, 100] * 10), torch.tensor([[0, 100] * 10]), tuple([0, 100] * 10)):
        assert engine.generate([prompt], max_new_tokens=20, stop=()).tokens == alone
    assert len(engine.generate([[5]], max_new_tokens=1, temperature=0.5, top_p=1.0, stop=()).tokens[0]) == 1
    for wrong, match in (
        ({"max_new_tokens": 21}, "take 41 tokens, but the engine was made for 40.*max_tokens=41"),
        ({"prompts": [[1, 101]]}, r"0\.\.100, got 1\.\.101"),
        ({"prompts": [[-1, 5]]}, r"0\.\.100, got -1\.\.5"),
        ({"prompts": [[5], []]}, "at least one token each"),
        ({"prompts": []}, "at least one token each"),
        ({"max_new_tokens": 0}, "max_new_tokens >= 1"),
        ({"temperature": -0.1}, "temperature must be >= 0"),
        ({"top_p": 0.0}, "0 < top_p <= 1"),
        ({"top_p": 1.1}, "0 < top_p <= 1"),
        ({"prompts": [5, 6]}, r"for one prompt pass \[ids\]"),
        ({"prompts": [[True, False]]}, "whole token ids"),
        ({"prompts": [[0.5]]}, "whole token ids"),
        ({"prompts": [torch.zeros(2, 2).long()]}, "whole token ids"),
    ):
        with pytest.raises(ValueError, match=match):
            engine.generate(**({"prompts": [[0, 100] * 10], "max_new_tokens": 20, "stop": ()} | wrong))
    engine.close()


def test_after_a_fault_the_frames_of_others_keep_what_they_held(engine):
    def on_token(sequence, token):
        mine = ["for the debugger", sequence]
        raise KeyError(mine[0])

    with pytest.raises(KeyError, match="for the debugger") as caught:
        engine.generate(PROMPTS, max_new_tokens=3, stop=(), on_token=on_token)
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert frames[-1].f_locals["mine"] == ["for the debugger", 0]
    assert not any(frame.f_locals for frame in frames if frame.f_globals["__name__"] == "sparda.engine.reply")

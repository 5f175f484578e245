"""The simulator keeps the order that is promised, and names every pair that has none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda.simulate import (
    COMPUTE,
    LINK,
    LayerCosts,
    Task,
    decode_step,
    makespan,
    predecessors,
    races,
    run,
    stall,
)

costs = st.builds(LayerCosts, *(st.floats(0, 100) for _ in range(4)))


def test_streams_overlap_and_a_wait_shows_as_idle_time():
    tasks = [
        Task("copy", LINK, 30),
        Task("ffn", COMPUTE, 20),
        Task("attend", COMPUTE, 10, after=("copy",)),
    ]
    spans = run(tasks)
    assert [(s.start, s.end, s.waited) for s in spans] == [(0, 30, 0), (0, 20, 0), (30, 40, 10)]
    assert makespan(spans) == 40
    assert stall(spans) == 10


def test_compute_beside_a_busy_link_runs_slower_until_the_link_is_idle():
    tasks = [Task("copy", LINK, 12), Task("ffn", COMPUTE, 20)]
    spans = run(tasks, slowdown=1.2)
    assert spans[0].end == pytest.approx(12)  # 10 us of work were done in it
    assert spans[1].end == pytest.approx(22)


def test_a_copy_runs_slower_beside_compute_and_at_full_rate_while_compute_stalls():
    tasks = [Task("copy", LINK, 30), Task("ffn", COMPUTE, 20), Task("attend", COMPUTE, 10, after=("copy",))]
    copy, ffn, attend = run(tasks, slowdown=1.5, link_slowdown=2.0)
    assert ffn.end == pytest.approx(30)  # 20 us of compute, and 15 us worth of the copy
    assert copy.end == pytest.approx(45)
    assert (attend.waited, attend.end) == pytest.approx((15, 55))


@given(costs=costs, n_layers=st.integers(1, 6), slowdown=st.floats(1, 2))
def test_no_task_starts_before_what_it_waits_for(costs, n_layers, slowdown):
    tasks = decode_step(costs, n_layers)
    spans = {span.task.name: span for span in run(tasks, slowdown=slowdown)}
    for name, earlier in predecessors(tasks).items():
        assert all(spans[e].end <= spans[name].start + 1e-6 for e in earlier)


@given(costs=costs, n_layers=st.integers(1, 6))
def test_lookahead_is_never_slower_than_demand_and_both_are_free_of_races(costs, n_layers):
    times = {}
    for transport in ("none", "lookahead", "demand"):
        tasks = decode_step(costs, n_layers, transport)
        assert races(tasks) == []
        times[transport] = makespan(run(tasks))
    assert times["none"] <= times["lookahead"] + 1e-6
    assert times["lookahead"] <= times["demand"] + 1e-6


@given(costs=costs)
def test_demand_waits_for_every_copy(costs):
    spans = run(decode_step(costs, 4, "demand"))
    assert stall(spans) == pytest.approx(3 * (costs.start + costs.copy), abs=1e-6)


def test_a_dropped_wait_is_a_race_on_its_slots():
    tasks = [
        replace(t, after=()) if t.name == "attention 2" else t for t in decode_step(LayerCosts(1, 1, 1, 1), 3)
    ]
    assert [str(race) for race in races(tasks)] == ["copy 2 and attention 2 both touch slots 2, in no order"]


def test_two_readers_do_not_race_but_a_reader_and_a_writer_do():
    read = [Task(n, s, 1, reads=("x",)) for n, s in (("a", COMPUTE), ("b", LINK))]
    assert races(read) == []
    assert len(races([read[0], replace(read[1], reads=(), writes=("x",))])) == 1


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ([Task("a", COMPUTE, 1, after=("b",))], "nothing is called b"),
        ([Task("a", COMPUTE, 1), Task("a", LINK, 1)], "two tasks are called a"),
        ([Task("a", COMPUTE, 1, after=("b",)), Task("b", LINK, 1, after=("a",))], "deadlock: a, b"),
    ],
)
def test_an_impossible_schedule_says_what_is_wrong(tasks, says):
    with pytest.raises(ValueError, match=says):
        run(tasks)


def test_an_unknown_transport_lists_the_known_ones():
    with pytest.raises(ValueError, match="lookahead"):
        decode_step(LayerCosts(1, 1, 1, 1), 2, "magic")

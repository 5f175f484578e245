"""A trace says what ran when, what of a transfer compute felt, and what it did not see."""

from __future__ import annotations

import json

import pytest
import torch

from sparda import trace as module
from sparda.simulate import COMPUTE, LINK, makespan, stall
from sparda.timeline import AHEAD, KINDS, Event, Step, load, nearest
from sparda.trace import EDGES, Trace

ABOUT = {"device": "a card", "date": "a day", "commit": "c0", "batch": 16, "transport": "lookahead"}


def ahead() -> Step:
    """Two layers, us; the copy for layer 1 starts in layer 0 and ends 10 us into the wait of layer 1."""
    events = [
        Event("layer", 0, 0, 100), Event("prep", 0, 5, 10), Event("prep", 1, 10, 20),
        Event("attention", 0, 30, 50), Event("ffn", 0, 50, 100), Event("transfer", 1, 22, 130, beside=True),
        Event("layer", 1, 100, 200), Event("wait", 1, 120, 132),
        Event("attention", 1, 133, 150), Event("ffn", 1, 150, 200),
    ]  # fmt: skip
    return Step(tuple(sorted(events, key=lambda e: (e.start_us, -e.end_us))), ABOUT)


def demand() -> Step:
    """One layer that copies on the stream of compute."""
    events = [
        Event("layer", 0, 0, 100), Event("prep", 0, 5, 10), Event("transfer", 0, 10, 40),
        Event("wait", 0, 45, 46), Event("attention", 0, 46, 60), Event("ffn", 0, 60, 100),
    ]  # fmt: skip
    return Step(tuple(events), ABOUT)


def beside() -> Step:
    """As ``ahead``, with the selection for layer 1 on a stream of its own, beside attention."""
    events = [e for e in ahead().events if (e.kind, e.layer) != ("prep", 1)]
    events.append(Event("prep", 1, 32, 45, beside=True))
    return Step(tuple(sorted(events, key=lambda e: (e.start_us, -e.end_us))), ABOUT)


def marked(n_layers: int = 2, kinds=KINDS) -> Trace:
    """A CPU trace whose layers mark all kinds, one after the other."""
    trace = Trace(n_layers, kinds=kinds)
    for layer in range(n_layers):
        trace.mark("layer", layer, "start")
        for kind in ("prep", "transfer", "wait", "attention", "ffn"):
            trace.mark(kind, layer, "start")
            trace.mark(kind, layer, "end")
        trace.mark("layer", layer, "end")
    return trace


def test_marks_become_spans_in_their_order():
    table = marked().table()
    assert list(table.columns) == ["layer", "lane", "kind", "start_us", "end_us", "duration_us"]
    assert len(table) == 2 * len(KINDS)
    assert (table["duration_us"] >= 0).all()
    assert table["start_us"].is_monotonic_increasing
    assert set(table.loc[table["lane"] == LINK, "kind"]) == {"transfer"}


def test_the_next_step_overwrites_the_last_one():
    trace = marked()
    first = trace._buffer.clone()
    for mark in list(trace._streams):
        trace.mark(*mark)
    assert (trace._buffer > first).all()
    assert len(trace.step().events) == 2 * len(KINDS)


def test_marks_in_inference_mode_can_be_reset_outside():
    with torch.inference_mode():
        trace = marked(1)
    trace.reset()
    assert "misses" in trace.missing()


def test_what_a_lookahead_copy_leaves_at_the_wait_is_exposed_and_the_rest_hidden():
    sums = ahead().summary()
    assert (sums["transfer_us"], sums["exposed_us"], sums["hidden_us"]) == (108, 10, 98)
    assert (sums["step_us"], sums["wait_us"], sums["ffn_us"]) == (200, 12, 100)


def test_a_copy_on_the_stream_of_compute_is_all_exposed():
    sums = demand().summary()
    assert (sums["transfer_us"], sums["exposed_us"], sums["hidden_us"]) == (30, 30, 0)


def test_a_copy_that_ends_before_its_wait_is_all_hidden():
    step = Step((Event("transfer", 0, 0, 5, beside=True), Event("wait", 0, 6, 8)))
    assert step.stalls() == {}
    assert step.summary()["hidden_us"] == 5


def test_a_copy_without_marks_is_known_by_its_wait():
    assert Step((Event("wait", 3, 6, 8),)).stalls() == {3: (6, 8)}


def test_a_copy_that_compute_started_and_left_is_not_all_exposed():
    step = Step((Event("transfer", 0, 0, 50), Event("attention", 0, 10, 30), Event("wait", 1, 52, 53)))
    assert 0 not in step.stalls()


@pytest.mark.parametrize("step", [ahead(), demand(), beside()], ids=["ahead", "demand", "beside"])
def test_spans_account_for_every_microsecond_of_compute(step):
    spans = step.spans()
    compute = [s for s in spans if s.task.stream == COMPUTE]
    assert stall(spans) == step.summary()["exposed_us"]
    assert sum(s.end - s.start for s in compute) + stall(spans) == makespan(spans)
    clock = 0.0
    for span in compute:  # no two at once, and each stall lies right before its span
        assert span.start == pytest.approx(clock + span.waited)
        clock = span.end


def test_spans_carry_the_names_that_the_simulator_uses():
    names = {span.task.name for span in ahead().spans()}
    assert {"prep 1", "copy 1", "attention 0", "rest 1", "other 0"} <= names


def test_a_selection_beside_attention_has_a_lane_of_its_own():
    lanes = {span.task.name: span.task.stream for span in beside().spans()}
    assert (lanes["prep 0"], lanes["prep 1"], lanes["copy 1"]) == (COMPUTE, AHEAD, LINK)


def test_eager_copies_on_a_cpu_are_all_exposed():
    sums = marked().summary()
    assert sums["exposed_us"] == pytest.approx(sums["transfer_us"])
    assert sums["hidden_us"] == 0


def test_what_runs_on_another_stream_than_attention_is_beside_it():
    trace = Trace(1)
    for kind in KINDS:
        for edge in EDGES:
            trace.mark(kind, 0, edge)
            trace._streams[kind, 0, edge] = 7 if kind in ("prep", "transfer") else 0
    assert {event.kind for event in trace.step().events if event.beside} == {"prep", "transfer"}


def test_kinds_that_are_not_wanted_are_not_recorded():
    trace = marked(kinds=("transfer", "wait"))
    assert {event.kind for event in trace.step().events} == {"transfer", "wait"}


def test_a_trace_that_misses_marks_says_which():
    empty = Trace(2)
    assert "nothing was marked" in empty.missing()
    empty.mark("attention", 0, "start")
    assert "the end of attention 0, start of attention 1, end of attention 1" in empty.missing()
    with pytest.raises(ValueError, match="misses the end of attention 0"):
        empty.spans()
    assert marked().missing() == ""


def test_a_graph_that_was_not_replayed_shows_as_missing():
    trace = marked()
    trace.reset()
    with pytest.raises(ValueError, match=r"20 more.*run the step once"):
        trace.step()


def test_a_layer_without_a_transfer_is_no_gap():
    trace = Trace(2)
    for layer in (0, 1):
        for edge in EDGES:
            trace.mark("attention", layer, edge)
    for edge in EDGES:
        trace.mark("transfer", 1, edge)
    assert trace.missing() == ""


def test_a_span_that_ends_before_it_starts_is_refused(monkeypatch):
    def backwards(buffer, slot):
        buffer[slot] = 10**9 - 10**6 * slot

    trace = Trace(1)
    monkeypatch.setattr(module, "stamp", backwards)
    for edge in EDGES:
        trace.mark("ffn", 0, edge)
    with pytest.raises(ValueError, match="read a trace after its step"):
        trace.step()


@pytest.mark.parametrize("mark", [("copy", 0, "start"), ("wait", 2, "start"), ("wait", 0, "begin")])
def test_an_unknown_mark_lists_the_known_ones(mark):
    with pytest.raises(ValueError, match=r"attention.*start or end"):
        Trace(2).mark(*mark)


def test_an_unknown_kind_is_refused_when_the_trace_is_made():
    with pytest.raises(ValueError, match="copy; a trace knows layer"):
        Trace(2, kinds=("copy",))


def test_the_file_holds_valid_trace_events(tmp_path):
    path = marked().save_chrome(tmp_path / "trace_b1.json", {"batch": 1, "hit_rate": 0.89})
    content = json.loads(path.read_text(encoding="utf-8"))
    events = [e for e in content["traceEvents"] if e["ph"] == "X"]
    assert len(events) == 2 * len(KINDS)
    for event in events:
        assert {"ph", "ts", "dur", "pid", "tid", "name"} <= set(event)
        assert event["dur"] >= 0
    names = {e["tid"]: e["args"]["name"] for e in content["traceEvents"] if e["name"] == "thread_name"}
    assert {names[e["tid"]] for e in events} == {COMPUTE, LINK}
    about = content["otherData"]
    assert (about["batch"], about["hit_rate"], about["stamps"]) == (1, 0.89, 24)
    assert {"device", "date", "commit", "tick_ns", "stamp_ns"} <= set(about)


def test_what_is_written_is_read_back(tmp_path):
    trace = marked()
    back = load(trace.save_chrome(tmp_path / "trace_b1.json", ABOUT))
    assert back.events == trace.step().events
    assert back.summary() == trace.summary()
    assert back.where == "a card · a day · commit c0"


def test_another_kind_of_file_is_refused(tmp_path):
    for text in ("{}", "no json", '{"traceEvents": [], "otherData": {}}'):
        path = tmp_path / "other.json"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"other\.json is no trace"):
            load(path)


def test_the_nearest_committed_step_has_the_transport_first_and_then_the_batch(tmp_path):
    assert nearest(16, folder=tmp_path) is None
    (tmp_path / "nvidia-h200").mkdir()
    for transport, batch in (("lookahead", 4), ("lookahead", 64), ("demand", 16)):
        path = tmp_path / "nvidia-h200" / f"trace_{transport}_b{batch}.json"
        path.write_text(json.dumps(Step(ahead().events, {"transport": transport, "batch": batch}).chrome()))
    found = [nearest(batch, transport, folder=tmp_path).about for batch, transport in
             ((8, "lookahead"), (32, "lookahead"), (1, "demand"))]  # fmt: skip
    assert [about["batch"] for about in found] == [4, 64, 16]
    assert nearest(16, "none", folder=tmp_path).about["batch"] == 16


def test_the_note_names_the_hit_rate_or_its_absence():
    assert "hit rate not stated" in ahead().note()
    assert "hit rate 0.89" in Step((), ABOUT | {"hit_rate": 0.89}).note()
    assert "24 marks of about 2.0 us" in Step((), {"stamps": 24, "stamp_ns": 2000.0}).note()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_replayed_graph_shows_a_copy_under_compute_and_its_stall():
    trace, side = Trace(1, "cuda"), torch.cuda.Stream()
    a = torch.randn(2048, 2048, device="cuda")
    host, target = torch.empty(2**26).pin_memory(), torch.empty(2**26, device="cuda")

    def step():
        trace.mark("layer", 0, "start")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            trace.mark("transfer", 0, "start")
            target.copy_(host, non_blocking=True)  # 256 MiB: about 5 ms
            trace.mark("transfer", 0, "end")
        trace.mark("prep", 0, "start")
        torch.mm(a, a)
        trace.mark("prep", 0, "end")
        trace.mark("wait", 0, "start")
        torch.cuda.current_stream().wait_stream(side)
        trace.mark("wait", 0, "end")
        trace.mark("layer", 0, "end")

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    trace.reset()
    assert "misses" in trace.missing()
    graph.replay()
    assert trace.missing() == ""
    (copy,), sums = trace.step().of("transfer"), trace.summary()
    assert copy.beside
    assert 0.5 * sums["transfer_us"] < sums["exposed_us"] < sums["transfer_us"]
    assert sums["hidden_us"] > 0.5 * sums["prep_us"]
    print(f"tick {trace.tick_ns:.0f} ns, a stamp {trace.stamp_ns:.0f} ns, {sums}")

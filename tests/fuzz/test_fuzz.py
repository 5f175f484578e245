"""300 random configurations, and that the fuzzer itself would notice."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from fuzzing.cases import case
from fuzzing.families import FAMILIES, Family
from fuzzing.margins import margins
from fuzzing.models import Chooser, build, prompts
from fuzzing.quiet import quiet
from fuzzing.reference import Reference, chances
from fuzzing.tally import Tally
from fuzzing.verdict import judge

SEED, CASES, CHUNK = 14, 300, 50


@pytest.fixture(autouse=True)
def _one_quiet_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    quiet()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("first", range(0, CASES, CHUNK))
def test_attach_and_engine_say_what_eager_torch_says_or_refuse_in_time(first):
    tally = Tally()
    lines = [
        line for n in range(first, first + CHUNK) for line in tally.add(case(SEED, n), judge(case(SEED, n)))
    ]
    print(tally.table())
    assert not lines, "\n".join(lines)
    assert tally.share("attach") >= 0.6  # else the fuzzer has little to say
    assert tally.share("engine") >= 0.25


def test_a_case_is_the_same_each_time():
    one, again = case(SEED, 3), case(SEED, 3)
    assert one == again != case(SEED + 1, 3)
    pairs = zip(build(one).state_dict().values(), build(again).state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert all(torch.equal(a, b) for a, b in zip(prompts(one), prompts(again), strict=True))


def _family(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


def _first_of_each_family() -> list[int]:
    found: dict[str, int] = {}
    for number in range(4000):
        found.setdefault(case(SEED, number).family, number)
    assert len(found) == len(FAMILIES)
    return sorted(found.values())


@pytest.mark.parametrize("number", _first_of_each_family())
def test_the_reference_that_reads_every_block_is_the_models_own_attention(number):
    one = case(SEED, number)
    model, text = build(one), prompts(one)[0]
    model = model.float() if _family(one.family).experts else model.double()
    right = model(text[None], use_cache=False).logits[0].float()
    n = len(text)
    got = Reference(model, one.rule, Chooser("all"), (), 1, str, lambda t: n - 1).logits(text)
    torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4 * float(right.abs().max()))


def test_the_reference_chooses_as_the_rule_says_by_hand():
    """Keys of one channel: windows of 2 every 2 tokens, blocks of 4; a query wants large keys."""
    rule = {
        "budget_blocks": 3, "block_size": 4, "init_blocks": 1, "local_blocks": 0, "window": 2, "stride": 2,
        "visibility": "end",
    }  # fmt: skip
    keys = torch.tensor([0, 0, 0, 0, 5, 0, 0, 3, 4, 4, 0, 0, 0, 0, 0, 0.0])[None, :, None]
    query = torch.ones(1, 16, 1)
    one = Reference(None, rule, Chooser("query"), (), 16, str, lambda t: 15)
    chosen = one.choose(0, query, keys, 1.0)[0]
    assert chosen[15].tolist() == [
        True,
        False,
        True,
        True,
    ]  # means 2.5 against 4; block 0 and its own are forced
    assert chosen[9].tolist() == [True, True, True, False]
    assert chosen[3].tolist() == [True, False, False, False]


def test_the_reference_forces_the_blocks_of_the_specification():
    rule = {
        "budget_blocks": 34, "block_size": 64, "init_blocks": 1, "local_blocks": 32, "window": 32,
        "stride": 16, "visibility": "end",
    }  # fmt: skip
    keys = torch.zeros(1, 2177, 1)
    one = Reference(None, rule, Chooser("streaming"), (), 2177, str, lambda t: t)
    chosen = one.choose(0, keys, keys, 1.0)[0]
    assert chosen[2111].nonzero().flatten().tolist() == [*range(33)]
    assert chosen[2176].nonzero().flatten().tolist() == [0, *range(2, 35)]


def test_the_random_selectors_draws_are_the_documented_hash():
    from sparda.selectors import LayerView, Random
    from sparda.spec import Sparsity

    view = LayerView(
        2, torch.zeros(1, 3, 9, 4), torch.zeros(1, 3, 9, 4), torch.arange(9)[None], Sparsity(3, 2, 1, 1, 2, 2)
    )
    ours = Random(seed=7).block_scores(view)[0].numpy()
    assert np.array_equal(ours, chances(7, 2, ours.shape))


def test_a_tie_is_told_from_a_shared_window():
    def margin(scores, windows):
        taken = np.array([[[False, True, False]]])
        nothing = np.zeros((1, 1, 3), bool)
        forced = np.array([[[True, False, False]]])
        by_window = np.array(windows, np.float32)[None, None]
        return margins(np.array(scores, np.float32)[None, None], by_window, taken, forced, nothing, True)[0]

    far, none = -1.0, -np.inf
    assert margin([0, 2, 2 - 1e-6], [[0, none, none], [none, 2, none], [none, none, 2 - 1e-6]]) < 1e-5
    assert margin([0, 2, 1], [[0, none, none], [none, 2, none], [none, none, 1]]) == 0.5
    assert (
        margin([0, 2, 2], [[0, none, none], [none, 2, none], [none, 2, far]]) == 1
    )  # one window, two blocks


PLANTED = {
    "a scale that is not the model's": ("sparda.models.attach", "block_attention", "scale"),
    "windows in the wrong order": ("sparda.selectors.query", "score_blocks_query", "roll"),
    "a token too many": ("sparda.engine.reply", "sample", "second"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_error_is_found(what, monkeypatch):
    import importlib

    place, name, kind = PLANTED[what]
    module = importlib.import_module(place)
    right = getattr(module, name)

    def scaled(*args, **options):
        scale = options.get("scale") or args[0].shape[-1] ** -0.5
        return right(*args, **{**options, "scale": 0.9 * scale})

    def rolled(queries, compressed, *rest, **options):
        return right(queries, compressed.roll(1, 2), *rest, **options)

    def second(logits, *rest):
        return logits.topk(2).indices[:, 1]

    monkeypatch.setattr(module, name, {"scale": scaled, "roll": rolled, "second": second}[kind])
    found = Counter()
    for number in range(120):
        one = case(SEED, number)
        if one.family in ("llama", "granite") and one.selector == "query":
            found.update(outcome.kind for outcome in judge(one).values())
    assert found["finding"] >= 2, found


def test_the_command_counts_and_ends_well(capsys):
    from run import main

    assert main(["--long", "3", "--seed", str(SEED)]) == 0
    said = capsys.readouterr().out
    assert f"seed {SEED}, 3 cases" in said
    assert "attach:" in said
    assert "engine:" in said
    main(["--only", "2", "--seed", str(SEED)])
    assert "Case(seed=14, number=2" in capsys.readouterr().out

"""Prompt or reply is told from the place in the text: the same tokens, however a text is read."""

from __future__ import annotations

import pytest
import torch

import sparda
from sparda.spec import Sparsity

RULE = Sparsity(4, local_blocks=1, block_size=16)
WAYS = {
    "prompt lookup": {"prompt_lookup_num_tokens": 4},
    "the whole text each time": {"use_cache": False},
    "chunks": {"prefill_chunk_size": 32},
    "chunks of one": {"prefill_chunk_size": 33},  # 100 = 3 x 33 + 1
}


@pytest.fixture(scope="module")
def model(tiny):
    return tiny()


@pytest.mark.parametrize("way", [*WAYS, "an assistant"])
@pytest.mark.parametrize("phases", ["decode", "prefill", ("prefill", "decode")])
@pytest.mark.parametrize("selector", ["query", "forecast"])
def test_a_text_is_continued_alike_however_it_is_read(
    model, tiny, ids, reply, untrained, selector, phases, way
):
    asked = {"n": 12, "phases": phases, "selector": selector}
    asked["weights"] = untrained(model) if selector == "forecast" else None
    more = WAYS.get(way) or {"assistant_model": tiny(num_hidden_layers=1)}
    assert reply(model, ids(100), **asked, **more) == reply(model, ids(100), **asked)


def test_the_phases_differ_so_that_the_cases_above_can_fail(model, ids, reply):
    said = [
        tuple(reply(model, ids(100), 12, phases=p)) for p in ("decode", "prefill", ("prefill", "decode"), ())
    ]
    assert len(set(said)) == 4


def test_a_prompt_of_one_token_is_a_prompt(model, ids, reply):
    want = reply(model, ids(1), 70, phases="decode")
    assert reply(model, ids(1), 70, phases="decode", use_cache=False) == want
    with sparda.attach(model, sparsity=RULE, phases=(), probe=True) as attached:
        model.generate(ids(1), max_new_tokens=2, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert attached.probe.at(0, 0).hit_rate.isnan().all()
    assert not attached.probe.at(0, 1).hit_rate.isnan().any()


def test_a_text_left_padded_and_beams_change_phase_at_the_same_place(model, ids, reply):
    mask = torch.cat([torch.zeros(1, 30), torch.ones(1, 100)], 1).long()
    padded = torch.cat([torch.zeros(1, 30).long(), ids(100)], 1)
    want = reply(model, ids(100), 12, phases="decode")
    assert reply(model, padded, 12, phases="decode", attention_mask=mask) == want
    beams = {"num_beams": 3, "phases": "decode"}
    assert reply(model, ids(100), 12, use_cache=False, **beams) == reply(model, ids(100), 12, **beams)


def test_a_second_turn_that_goes_on_with_a_cache_reads_its_prompt_as_a_prompt(model, ids):
    asked = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with sparda.attach(model, sparsity=RULE, phases="decode"):
        first = model.generate(ids(60), return_dict_in_generate=True, **asked)
        turn = torch.cat([first.sequences, ids(70, seed=1)], 1)
        kept = model.generate(turn, past_key_values=first.past_key_values, **asked)
        model.generate(ids(20), **asked)  # another text in between
    assert kept.shape[1] == turn.shape[1] + 8


@torch.no_grad()
def test_called_directly_chunks_belong_to_the_prompt_until_a_single_token_comes(model, ids):
    text = ids(120)
    with sparda.attach(model, sparsity=RULE, phases="decode"):
        whole = model(text[:, :100], use_cache=True)
        parts = model(text[:, :40], use_cache=True)
        parts = model(text[:, 40:100], past_key_values=parts.past_key_values)
        torch.testing.assert_close(parts.logits[:, -1], whole.logits[:, -1], rtol=1e-4, atol=1e-4)
        for t in range(100, 104):
            one = model(text[:, t : t + 1], past_key_values=whole.past_key_values).logits
            model(text[:, t : t + 1], past_key_values=parts.past_key_values)
        several = model(text[:, 104:110], past_key_values=parts.past_key_values).logits
        for t in range(104, 110):
            one = model(text[:, t : t + 1], past_key_values=whole.past_key_values).logits
    torch.testing.assert_close(several[:, -1], one[:, -1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", ["virtual tokens", "a longer negative prompt", "a shorter negative prompt"])
def test_with_decode_alone_a_first_token_is_the_models_own(tiny, ids, way):
    """No generated token is read yet, so nothing may be sparse, whatever generate puts beside a text."""
    model, more = tiny(), {}
    if way == "virtual tokens":
        peft = pytest.importorskip("peft")
        config = peft.PromptTuningConfig(num_virtual_tokens=20, task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, config).eval()
    else:
        n = 200 if "longer" in way else 20
        more = {"guidance_scale": 2.0, "negative_prompt_ids": ids(n, seed=1)}
    asked = {"max_new_tokens": 1, "do_sample": False, "output_scores": True, "return_dict_in_generate": True}
    want = model.generate(input_ids=ids(100), **asked, **more).scores[0]
    with sparda.attach(model, sparsity=RULE, phases="decode"):
        got = model.generate(input_ids=ids(100), **asked, **more).scores[0]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_generate_is_the_models_own_again_afterwards(model):
    with sparda.attach(model, sparsity=RULE):
        assert "generate" in vars(model)
    assert "generate" not in vars(model)

"""The real weights: they are what transformers' own GGUF reader gives, and the model answers."""

import hashlib
import os
import time

import pytest
import torch

pytest.importorskip("transformers", reason="needs the models extra")
pytest.importorskip("gguf", reason="needs the models extra")

from sparda import spec, tasks, text
from sparda.models import load as loading

pytestmark = pytest.mark.model
# of all float32 weights in the order of their names; recorded when the slow test below held
FINGERPRINT = "1e7c8a1c726e693f3ef812fec44c0efdf79020fe1e36d5cd8a07e0341da3e3aa"


def reply(loaded, input_ids):
    with torch.inference_mode():
        told = loaded.model.generate(input_ids, max_new_tokens=12, do_sample=False)
    return loaded.tokenizer.decode(told[0, input_ids.shape[1] :], skip_special_tokens=True)


def test_it_has_the_preset_shape(smollm2):
    shape, config = spec.model("smollm2-135m"), smollm2.model.config
    assert sum(p.numel() for p in smollm2.model.parameters()) == shape.n_parameters
    assert (config.num_hidden_layers, config.hidden_size) == (shape.n_layers, shape.hidden)
    assert (config.num_attention_heads, config.num_key_value_heads) == (shape.n_heads, shape.n_kv_heads)
    assert config.max_position_embeddings == shape.native_context
    assert config.rope_parameters["rope_theta"] == shape.rope_theta


def test_its_weights_have_the_recorded_fingerprint(smollm2):
    digest = hashlib.sha256()
    for _, weight in sorted(smollm2.model.named_parameters()):
        digest.update(weight.detach().numpy().tobytes())
    assert digest.hexdigest() == FINGERPRINT


def test_its_tokenizer_gives_the_known_count(smollm2):
    opening = text.read_text("jargon_file")[:400_000]
    assert len(smollm2.tokenizer(opening, verbose=False).input_ids) == 103_118  # 103,490 if digits stay whole


def test_the_second_load_takes_seconds(smollm2):
    began = time.perf_counter()
    loading.load("smollm2-135m")
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("haystack", ["noise", "king_james"])
def test_it_finds_a_needle(smollm2, haystack):
    made = tasks.niah_single(smollm2.tokenizer, 512, haystack=haystack)
    assert 450 < made.input_ids.shape[1] <= 512
    assert smollm2.tokenizer.decode(made.input_ids[0, slice(*made.number)]).strip() == made.answer
    assert made.answered_by(reply(smollm2, made.input_ids))


@pytest.mark.skipif(not os.environ.get("SPARDA_SLOW"), reason="takes 30 s: set SPARDA_SLOW=1")
def test_its_weights_equal_those_of_transformers(smollm2):
    pytest.importorskip("accelerate", reason="transformers' own GGUF reader needs it")
    from transformers import LlamaForCausalLM

    packaged = loading.packaged_file("smollm2-135m")
    theirs = LlamaForCausalLM.from_pretrained(packaged.parent, gguf_file=packaged.name, dtype=torch.bfloat16)
    theirs, ours = dict(theirs.named_parameters()), dict(smollm2.model.named_parameters())
    assert len(ours) == 272
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name].bfloat16(), theirs[name]) for name in ours)


@pytest.mark.model
def test_a_batch_is_padded_on_the_left_so_that_it_can_generate(smollm2):
    _, tokenizer = smollm2
    batch = tokenizer(["one", "one two three four"], padding=True, return_tensors="pt")
    assert batch["attention_mask"][0].tolist() == [0, 0, 0, 1]

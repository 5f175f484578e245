"""A model's fingerprint: every weight tensor counts, where and how it is held does not."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

from sparda.models.fingerprint import SAMPLED, _sample, fingerprint  # noqa: E402


def tiny(**more):
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 97, "max_position_embeddings": 256,
    }  # fmt: skip
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes | more)).eval()


@pytest.mark.parametrize(("exact", "change"), [(False, 1e-2), (True, 1e-6)])
def test_every_weight_tensor_counts(exact, change):
    model = tiny()
    known = {fingerprint(model, exact=exact)}
    for name, weight in model.named_parameters():
        before = weight.detach().clone()
        with torch.no_grad():
            weight += change * (1 + weight.abs())
        found = fingerprint(model, exact=exact)
        assert found not in known, name
        known.add(found)
        with torch.no_grad():
            weight.copy_(before)
    assert fingerprint(model, exact=exact) in known


def test_a_saved_and_loaded_model_is_the_same_in_float32_and_bfloat16(tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path)
    for dtype in (torch.float32, torch.bfloat16):
        read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
        assert fingerprint(read) == fingerprint(model)
        same = fingerprint(read, exact=True) == fingerprint(model, exact=True)
        assert same == (dtype == torch.float32)


@pytest.mark.gpu
def test_a_gpu_changes_nothing():
    model = tiny()
    before = [fingerprint(model, exact=exact) for exact in (False, True)]
    assert [fingerprint(model.to("cuda"), exact=exact) for exact in (False, True)] == before
    assert fingerprint(model.to(torch.bfloat16)) == before[0]


def test_tied_weights_count_once_and_a_head_of_its_own_counts(tmp_path):
    tied = tiny(tie_word_embeddings=True)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    tied.save_pretrained(tmp_path)
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert fingerprint(read) == fingerprint(tied)
    read.lm_head.weight = torch.nn.Parameter(2 * read.lm_head.weight.detach())
    assert fingerprint(read) != fingerprint(tied)


def test_names_and_shapes_count():
    one, other = torch.nn.Sequential(), torch.nn.Sequential()
    one.add_module("a", torch.nn.Linear(4, 2, bias=False))
    other.add_module("b", one.a)
    assert fingerprint(one) != fingerprint(other)
    found = fingerprint(one)
    one.a.weight = torch.nn.Parameter(one.a.weight.detach().view(4, 2))
    assert fingerprint(one) != found


@pytest.mark.parametrize("shape", [(), (0, 4), (7,), (300, 1024), (1000, 1001), (4096, 64)])
def test_a_sample_is_bounded_and_sees_every_column(shape):
    columns = torch.zeros(shape) + (torch.arange(shape[-1]) if shape else 0)
    found = _sample(columns)
    assert len(found) <= SAMPLED
    assert torch.equal(found.unique(), columns.unique())


def test_quantised_weights_are_read_as_they_are():
    model = torch.nn.Module()
    model.register_buffer("weight", torch.arange(-128, 128, dtype=torch.int8).view(16, 16))
    before = fingerprint(model)
    model.weight[3, 3] += 1
    assert fingerprint(model) != before


def test_weights_that_are_not_in_memory_are_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"lm_head\.weight are not in memory.*load it whole"):
        fingerprint(tiny().to("meta"))

"""A reply ends where the model's generation_config says, in whatever form it says it."""

from __future__ import annotations

import pytest
import torch

import sparda
from sparda.models.layers import end_tokens
from sparda.spec import Sparsity

RULE = Sparsity(4, local_blocks=1, block_size=16)


def ids(n, seed=0):
    return torch.randint(3, 256, (1, n), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def model(tiny):
    return tiny()


@pytest.fixture(scope="module")
def free(model):
    """What is said when nothing ends it."""
    return (
        sparda.Engine(model, sparsity=RULE, max_tokens=256)
        .generate(ids(80), max_new_tokens=24, stop=())
        .tokens[0]
    )


@pytest.mark.parametrize("form", ["number", "list", "tuple", "tensor", "scalar tensor"])
def test_every_form_of_end_token_ends_a_reply_like_generates(model, free, form):
    end = free[5]
    forms = {
        "number": end, "list": [255, end], "tuple": (255, end), "tensor": torch.tensor([255, end]),
        "scalar tensor": torch.tensor(end),
    }  # fmt: skip
    before = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = forms[form]
    try:
        engine = sparda.Engine(model, sparsity=RULE, max_tokens=256)
        if form != "tuple":  # generate itself takes no tuple
            with torch.no_grad(), sparda.attach(model, sparsity=RULE):
                want = model.generate(ids(80), max_new_tokens=24, do_sample=False, pad_token_id=0)
            assert engine.generate(ids(80), max_new_tokens=24).tokens[0] == want[0, 80:].tolist()
        assert engine.generate(ids(80), max_new_tokens=24).tokens[0] == free[: free.index(end) + 1]
        assert engine.generate(ids(80), max_new_tokens=24, stop=()).tokens[0] == free
        other = free[2]
        said = engine.generate(ids(80), max_new_tokens=24, stop=[other]).tokens[0]
        assert said == free[: free.index(other) + 1]
    finally:
        model.generation_config.eos_token_id = before


def test_a_model_that_names_no_end_goes_on(model, free):
    before = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = None
    try:
        assert end_tokens(model) == ()
        assert (
            sparda.Engine(model, sparsity=RULE, max_tokens=256).generate(ids(80), max_new_tokens=24).tokens[0]
            == free
        )
    finally:
        model.generation_config.eos_token_id = before
    assert end_tokens(object()) == ()


@pytest.mark.parametrize(
    ("name", "value"), [("repetition_penalty", 1.2), ("min_new_tokens", 4), ("stop_strings", "a")]
)
def test_what_generate_would_do_to_the_tokens_besides_is_said(tiny, name, value, recwarn):
    model = tiny()
    sparda.Engine(model, sparsity=RULE, max_tokens=256)
    assert not [w for w in recwarn if "generation_config" in str(w.message)]
    setattr(model.generation_config, name, value)
    with pytest.warns(UserWarning, match=rf"asks for {name}={value}.*use sparda\.attach"):
        sparda.Engine(model, sparsity=RULE, max_tokens=256)


def test_an_end_that_is_set_after_the_engine_was_made_counts(tiny, free):
    model = tiny()
    engine = sparda.Engine(model, sparsity=RULE, max_tokens=256)
    model.generation_config.eos_token_id = free[3]
    assert engine.generate(ids(80), max_new_tokens=24).tokens[0] == free[: free.index(free[3]) + 1]


def test_a_random_decoder_has_no_end(make):
    assert make().ends == ()


@pytest.mark.model
def test_a_chat_ends_with_its_turn(smollm2):
    model, tokenizer = smollm2
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Say hi."}], add_generation_prompt=True, return_tensors="pt"
    )
    rule = Sparsity(8, local_blocks=2, block_size=16)
    said = sparda.Engine(model, sparsity=rule).generate(chat["input_ids"], max_new_tokens=40).tokens[0]
    assert said.index(tokenizer.convert_tokens_to_ids("<|im_end|>")) == len(said) - 1

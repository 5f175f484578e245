"""A tiny random Llama with a tokenizer of whole words: enough for every part of an evaluation."""

from __future__ import annotations

import zlib

import pytest
import torch

VOCAB = 97


class Words:
    """One token a word; replies are words too."""

    chat_template = None
    is_fast = True
    eos_token_id = 1

    def __call__(self, prompt, **_):
        if isinstance(prompt, list):
            return {"input_ids": [self(p)["input_ids"] for p in prompt]}
        return {"input_ids": [2 + zlib.crc32(word.encode()) % (VOCAB - 2) for word in prompt.split()]}

    def decode(self, tokens, skip_special_tokens=True):
        return " ".join(f"word{t}" for t in tokens)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A Subject of 3 layers, 4 query and 2 KV heads; its Forecast is random."""
    transformers = pytest.importorskip("transformers")
    from sparda.evaluation.subject import Subject
    from sparda.forecast import Forecast

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=64, vocab_size=VOCAB, max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    weights = Forecast.untrained(n_layers=3, hidden=64, n_kv_heads=2, head_dim=16)
    path = weights.save(tmp_path_factory.mktemp("forecast") / "tiny.safetensors")
    return Subject("tiny", transformers.LlamaForCausalLM(config).eval(), Words(), path)

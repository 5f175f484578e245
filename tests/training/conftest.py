"""A tiny model on disk, with its tokenizer and packed tokens."""

import numpy as np
import pytest
import torch


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A model, its tokenizer, and packed tokens."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models

    folder = tmp_path_factory.mktemp("train")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, vocab_size=101, max_position_embeddings=1024,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(101)}, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(
        folder / "model"
    )
    for name, seed in (("train", 0), ("held_out", 1)):
        tokens = np.random.default_rng(seed).integers(3, 101, (4, 512)).astype(np.uint16)
        np.save(folder / f"{name}.npy", tokens)
    return folder

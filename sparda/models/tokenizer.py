"""Build the byte-level BPE tokenizer that a GGUF file describes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparda.models.gguf_llama import field

if TYPE_CHECKING:
    from gguf import GGUFReader
    from transformers import PreTrainedTokenizerFast

_CONTROL = 3  # GGUF's token type of <|im_start|> and its like


def tokenizer_from_gguf(reader: GGUFReader) -> PreTrainedTokenizerFast:
    """Return the tokenizer with its special tokens and chat template.

    Each digit is a token of its own before BPE ("smollm" in the metadata): without that split the same
    text gives other tokens than the model was trained on.

    ValueError: the file asks for another pre-tokenizer.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    kind = field(reader, "tokenizer.ggml.model"), field(reader, "tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        raise ValueError(
            f"the GGUF tokenizer is {kind}; only ('gpt2', 'smollm') can be built, use another file"
        )
    tokens = field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in field(reader, "tokenizer.ggml.merges")]
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    types = field(reader, "tokenizer.ggml.token_type")
    control = [t for t, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    named = {
        f"{ours}_token": tokens[field(reader, f"tokenizer.ggml.{theirs}_token_id")]
        for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=field(reader, "llama.context_length"),
        chat_template=field(reader, "tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        padding_side="left",  # a batch that generates must end together
        **named,
    )

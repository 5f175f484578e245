"""MiniCPM4.1 for transformers 5, which has no class for it: a Llama with three scalings and LongRoPE.

    embeddings x scale_emb (12);  residual branches x scale_depth / sqrt(layers) (1.4 / sqrt(32) = 0.2475);
    logits of h / (hidden / dim_model_base) (4096 / 256 = 16)

transformers' Granite computes exactly this graph, so the adapter only hands MiniCPM's numbers to it, under
the names of weights that MiniCPM checkpoints have. No code of a checkpoint is run.

LongRoPE has two sets of angles: the short factors up to ``original_max_position_embeddings`` tokens, the
long ones beyond. transformers chooses by the current length, at each forward pass: when a cached text grows
past the original maximum, new tokens get the long angles while the cached keys keep their short ones. The
engine makes one table for the ``max_tokens`` that it was made for, so that all of a text agrees. To compare
the two past the original maximum, read the whole text in one pass, or stay on one side of it.
"""

from __future__ import annotations

import warnings
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, GraniteForCausalLM, LlamaConfig

from sparda.spec import Sparsity

ADVICE = (
    "add what the model card asks for to config.json: {'kernel_size': 32, 'kernel_stride': 16, "
    "'init_blocks': 1, 'block_size': 64, 'window_size': 2048, 'topk': 64}"
)


class MiniCPMConfig(LlamaConfig):
    """config.json of MiniCPM4 and MiniCPM4.1; the defaults of the three scalings are theirs."""

    model_type = "minicpm"

    tie_word_embeddings: bool = True  # what a file without the field means; MiniCPM4.1's says false
    scale_emb: int | float = 12
    scale_depth: int | float = 1.4
    dim_model_base: int = 256
    sparse_config: dict | None = None

    @property
    def embedding_multiplier(self) -> float:
        """Factor of the embeddings."""
        return self.scale_emb

    @property
    def residual_multiplier(self) -> float:
        """Factor of what attention and FFN add to the residual stream."""
        return self.scale_depth / self.num_hidden_layers**0.5

    @property
    def logits_scaling(self) -> float:
        """Divisor of the logits."""
        return self.hidden_size / self.dim_model_base

    @property
    def attention_multiplier(self) -> float:
        """Factor of q . k before the softmax: nothing new, 1 / sqrt(d)."""
        assert self.head_dim is not None  # LlamaConfig fills it
        return self.head_dim**-0.5


class MiniCPMForCausalLM(GraniteForCausalLM):
    """The decoder; weights are named as in MiniCPM and Llama checkpoints."""

    config_class = MiniCPMConfig


def register() -> None:
    """Let transformers' Auto classes open a MiniCPM directory with the classes here; any number of times."""
    AutoConfig.register(MiniCPMConfig.model_type, MiniCPMConfig, exist_ok=True)
    AutoModelForCausalLM.register(MiniCPMConfig, MiniCPMForCausalLM, exist_ok=True)


def minicpm_sparsity(config: Any) -> Sparsity:
    """The block rule of a MiniCPM ``config``, read from its ``sparse_config``.

    ``topk`` there counts the blocks besides the local window, so that k = topk + window_size / block_size:
    64 + 2048 / 64 = 96, forced blocks included. A UserWarning says which numbers were used.

    Raises ValueError for a config without ``sparse_config``, or with one that asks for another method.
    """
    given = getattr(config, "sparse_config", None)
    if not given:
        raise ValueError(
            f"this config has no sparse_config; {ADVICE}; or use sparda.spec.sparsity('minicpm4.1-8b')"
        )
    needed = ("block_size", "window_size", "topk", "init_blocks", "kernel_size", "kernel_stride")
    if missing := [name for name in needed if name not in given]:
        raise ValueError(f"sparse_config lacks {', '.join(missing)}; {ADVICE}")
    if wrong := [f"{n}: {given[n]!r}" for n in needed if not isinstance(given[n], int) or given[n] < 0]:
        raise ValueError(f"sparse_config has {', '.join(wrong)} where a whole number belongs; {ADVICE}")
    if given.get("use_nope"):
        raise ValueError(
            "sparse_config asks to score keys without RoPE (use_nope), which is not offered here; take a "
            "model whose config does not, such as MiniCPM4.1-8B"
        )
    size, window = given["block_size"], given["window_size"]
    if size < 1 or window % size:
        raise ValueError(
            f"window_size {window} in sparse_config must be a multiple of block_size {size}; {ADVICE}"
        )
    local = window // size
    budget = given["topk"] + local
    said = (
        f"budget k = topk {given['topk']} + {local} local blocks (window_size {window} / block_size {size})"
        f" = {budget} blocks, the init block and the query's own included"
    )
    if "dense_len" in given:
        said += f"; dense_len {given['dense_len']} is not used, short texts are sparse too"
    warnings.warn(said, stacklevel=2)
    return Sparsity(
        budget_blocks=budget, block_size=size, init_blocks=given["init_blocks"], local_blocks=local,
        window=given["kernel_size"], stride=given["kernel_stride"],
    )  # fmt: skip

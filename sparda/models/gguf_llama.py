"""Read a GGUF file of the Llama architecture into a ``LlamaForCausalLM``, float32.

Names and row order are those of llama.cpp's converter: it interleaves the two halves of each rotary head in
the rows of q and k; transformers rotates halves, so those rows are put back (``rotary_halves``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from gguf import GGUFReader
    from transformers import LlamaConfig, LlamaForCausalLM

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def open_gguf(path: Path) -> GGUFReader:
    """Open a GGUF file of the Llama architecture; ValueError says why a file is not one."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        architecture = field(reader, "general.architecture")
    except (ValueError, IndexError, KeyError) as error:
        raise ValueError(f"{path} is not a complete GGUF file ({error}); download it again") from error
    if architecture != "llama":
        raise ValueError(f"{path} holds a {architecture!r} model; only 'llama' can be read, use another file")
    return reader


def field(reader: GGUFReader, key: str) -> Any:
    """Return one metadata value (number, string or list); KeyError names a missing key."""
    entry = reader.get_field(key)
    if entry is None:
        raise KeyError(f"the GGUF file has no field {key!r}")
    return entry.contents()


def llama_config(reader: GGUFReader) -> LlamaConfig:
    """Return the configuration that the metadata describes."""
    from transformers import LlamaConfig

    llama = {
        key.removeprefix("llama."): field(reader, key) for key in reader.fields if key.startswith("llama.")
    }
    ids = {name: field(reader, f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "padding")}
    heads = llama["attention.head_count"]
    return LlamaConfig(
        vocab_size=llama["vocab_size"],
        hidden_size=llama["embedding_length"],
        intermediate_size=llama["feed_forward_length"],
        num_hidden_layers=llama["block_count"],
        num_attention_heads=heads,
        num_key_value_heads=llama["attention.head_count_kv"],
        head_dim=llama["rope.dimension_count"],
        max_position_embeddings=llama["context_length"],
        rms_norm_eps=_shortest(llama["attention.layer_norm_rms_epsilon"]),
        rope_parameters={"rope_type": "default", "rope_theta": _shortest(llama["rope.freq_base"])},
        tie_word_embeddings=not any(t.name == "output.weight" for t in reader.tensors),
        bos_token_id=ids["bos"],
        eos_token_id=ids["eos"],
        pad_token_id=ids["padding"],
        dtype="float32",
    )


def llama_model(reader: GGUFReader) -> LlamaForCausalLM:
    """Return the model in float32, in eval mode, its weights dequantised exactly."""
    from transformers import LlamaForCausalLM

    config = llama_config(reader)
    heads = {"attn_q": config.num_attention_heads, "attn_k": int(config.num_key_value_heads or 0)}
    weights = llama_weights(reader, heads)
    return LlamaForCausalLM.from_pretrained(None, config=config, state_dict=weights, dtype=torch.float32)


def llama_weights(reader: GGUFReader, heads: dict[str, int]) -> dict[str, Tensor]:
    """Return transformers' names -> float32 weights, ``[out, in]`` or ``[n]``.

    heads: how many heads the rows of ``attn_q`` and of ``attn_k`` hold. KeyError: an unknown tensor.
    """
    from gguf import dequantize

    weights = {}
    for entry in reader.tensors:
        weight = torch.from_numpy(np.array(dequantize(entry.data, entry.tensor_type), dtype=np.float32))
        part = entry.name.split(".")[-2]
        if part in heads:
            weight = rotary_halves(weight, heads[part])
        weights[_translate(entry.name)] = weight
    return weights


def rotary_halves(weight: Tensor, n_heads: int) -> Tensor:
    """Undo llama.cpp's row order: rows (0, d/2, 1, d/2 + 1, ...) of each head become 0, 1, 2, ...

    weight: [n_heads * d, hidden] -> the same shape

    >>> rotary_halves(torch.tensor([[0.], [2.], [1.], [3.]]), n_heads=1).flatten().tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    rows, hidden = weight.shape
    pairs = weight.reshape(n_heads, rows // n_heads // 2, 2, hidden)
    return pairs.swapaxes(1, 2).reshape(rows, hidden).contiguous()


def _translate(name: str) -> str:
    """``blk.3.attn_q.weight`` to ``model.layers.3.self_attn.q_proj.weight``."""
    stem = name.removesuffix(".weight")
    if stem in _OUTER:
        return f"{_OUTER[stem]}.weight"
    prefix, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    if prefix != "blk" or part not in _LAYER:
        raise KeyError(f"unknown tensor {name!r} in the GGUF file; only plain Llama layers can be read")
    return f"model.layers.{layer}.{_LAYER[part]}.weight"


def _shortest(value: float) -> float:
    """The shortest decimal of a stored float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))

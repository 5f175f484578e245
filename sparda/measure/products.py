"""The matrix products of a decode step and what stands between them, on the present GPU.

    python -m sparda.measure.products [--rows 1 4 16 32 64]

Shapes are MiniCPM4.1-8B's; weights rotate beyond the L2 cache. The floor of a row is one read of its inputs
and one write of its output at the copy rate: memory that is only read can be a little faster.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from torch import Tensor

from sparda import kernels, spec
from sparda.measure import bench

SHAPE = spec.model("minicpm4.1-8b")
HIDDEN, WIDTH, KIND = SHAPE.hidden, SHAPE.ffn, torch.bfloat16
QUERIES = SHAPE.n_heads * SHAPE.head_dim
KEYS = SHAPE.n_kv_heads * SHAPE.head_dim
PRODUCTS = {  # name: outputs, inputs
    "qkvf": (QUERIES + 3 * KEYS, HIDDEN),
    "o": (HIDDEN, QUERIES),
    "gate_up": (2 * WIDTH, HIDDEN),
    "down": (HIDDEN, WIDTH),
    "head": (SHAPE.vocab, HIDDEN),
}


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=KIND)


def product_rows(name: str, rows: list[int]) -> list[bench.Row]:
    """torch's linear layer."""
    n_out, n_in = PRODUCTS[name]
    weights = [randn(n_out, n_in) for _ in range(bench.rotations(2 * n_out * n_in))]
    measured = []
    for m in rows:
        x, out = randn(m, n_in), torch.empty(m, n_out, device="cuda", dtype=KIND)
        n_bytes, flops = 2 * (n_out * n_in + m * (n_out + n_in)), 2 * m * n_out * n_in
        times = bench.time_graph([partial(torch.matmul, x, w.t(), out=out) for w in weights])
        measured.append(bench.row("linear", f"{name}_b{m}", "torch", times, n_bytes=n_bytes, flops=flops))
    return measured


def between_rows(rows: list[int]) -> list[bench.Row]:
    """Residual sum with norm, and the gate: each call in a chain of its like."""
    gain, measured = torch.ones(HIDDEN, device="cuda", dtype=KIND), []
    for m in rows:
        hidden, update, out = randn(m, HIDDEN), randn(m, HIDDEN), (randn(m, HIDDEN), randn(m, HIDDEN))
        gate_up, gated = randn(m, 2 * WIDTH), randn(m, WIDTH)
        norm = partial(kernels.add_norm, hidden, update, gain, 1e-6, 0.2475, out=out)
        gate = partial(kernels.silu_mul, gate_up, out=gated)
        for name, call, n_bytes in (("add_norm", norm, 8 * m * HIDDEN), ("silu_mul", gate, 6 * m * WIDTH)):
            times = bench.time_graph([call] * 16)
            measured.append(bench.row(name, f"decode_b{m}", "triton", times, n_bytes=n_bytes))
    return measured


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time a decode step's products and small operations.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64], help="batch sizes")
    rows = parser.parse_args(arguments).rows
    bench.need_cuda()
    torch.manual_seed(0)
    measured = between_rows(rows) + [row for name in PRODUCTS for row in product_rows(name, rows)]
    path = bench.save(measured, topic="products")
    bench.show(measured)
    print(f"written to {path.relative_to(path.parents[3])}")


if __name__ == "__main__":
    main()

"""How fast a frozen model is observed: its own forward pass, and what the teacher adds.

    python -m sparda.training.throughput --out data/measured/nvidia-h200

``share`` is the forward pass' rate as a share of a large bf16 matrix product's, measured in the same process;
causal attention counts half of its square. ``teacher`` is what observing takes beyond the forward pass.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sparda.distill import PAPER, Recipe
from sparda.measure.tables import Table, keep
from sparda.spec import Sparsity
from sparda.training.backbone import Backbone

TABLE = Table(
    "training_speed",
    ("model", "what", "tokens", "batch", "queries", "ms_per_sequence", "tflop_per_s", "share", "peak_gib",
     "commit", "date"),
    ("model", "what", "tokens", "batch", "queries"),
)  # fmt: skip


def forward_flops(model: Any, n_tokens: int) -> float:
    """Floating-point operations of one sequence's forward pass without the output head."""
    config = model.config
    matrices = sum(p.numel() for p in model.base_model.layers.parameters() if p.dim() == 2)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = config.num_attention_heads * head_dim
    return 2 * matrices * n_tokens + config.num_hidden_layers * 4 * width * n_tokens**2 / 2


def seconds(call: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """Median time of a call, after one that does not count."""
    times = []
    for _ in range(repeats + 1):
        _wait(device)
        began = time.perf_counter()
        call()
        _wait(device)
        times.append(time.perf_counter() - began)
    return sorted(times[1:])[repeats // 2]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def matmul_rate(device: torch.device, dtype: torch.dtype, n: int) -> float:
    """Operations a second of an n x n product."""
    a = torch.randn(n, n, device=device, dtype=dtype)
    return 2 * n**3 / seconds(lambda: a @ a, device)


@torch.no_grad()
def measure(
    model: Any, n_tokens: int, batches: Sequence[int], n_queries: int, square: int = 8192
) -> list[dict[str, Any]]:
    """Rows of the table, without model, commit and date."""
    device, rows = model.device, []
    ceiling = matmul_rate(device, model.dtype, square)
    positions = torch.linspace(n_tokens // 8, n_tokens - 1, n_queries).long()
    rule = Sparsity(4, local_blocks=1)
    for batch in batches:
        tokens = torch.randint(0, model.config.vocab_size, (batch, n_tokens), device=device)
        calls: dict[str, Callable[[], object]] = {
            "forward": lambda x=tokens: model.base_model(x, use_cache=False)
        }
        for name, recipe in (("observe_mass", Recipe()), ("observe_paper", PAPER)):
            backbone = Backbone(model, rule, recipe)
            calls[name] = lambda x=tokens, b=backbone: b.observe(x, positions)
        for what, call in calls.items():
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            each = seconds(call, device) / batch
            rate = forward_flops(model, n_tokens) / each
            peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")
            rows.append({
                "what": what, "tokens": n_tokens, "batch": batch, "queries": n_queries,
                "ms_per_sequence": 1e3 * each, "tflop_per_s": rate / 1e12, "share": rate / ceiling,
                "peak_gib": peak,
            })  # fmt: skip
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and keep the table."""
    from sparda.measure.bench import describe_machine
    from sparda.models import load

    parser = argparse.ArgumentParser(prog="python -m sparda.training.throughput", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--queries", type=int, default=512, help="sampled of a sequence [512]")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    model = load.load(options.model, device=device, dtype=dtype).model
    about = describe_machine()
    stamp = {"model": options.model, "commit": about["commit"], "date": about["date"]}
    rows = []
    for n_tokens in options.tokens:
        rows += measure(model, n_tokens, options.batch, options.queries, 8192 if on_gpu else 512)
    for row in rows:
        print("  ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                        for name, value in row.items()), flush=True)  # fmt: skip
    print(keep(TABLE, [TABLE.row(**row, **stamp) for row in rows], options.out, about))


if __name__ == "__main__":
    main()

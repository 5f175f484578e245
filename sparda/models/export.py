"""``sparda export``: a Forecast and its block rule as the files that a serving engine takes.

sparda export --model MiniCPM4.1-8B/ --forecast build/mine/forecast.safetensors --out build/served

One engine can take them, and no release of it yet: SGLang, for MiniCPM4.1, by its open pull request
sgl-project/sglang#38397, read on 2026-12-01. What its backend refuses is refused here, before anything is
written.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sparda.files import write_text
from sparda.forecast import Forecast, Shape
from sparda.spec import Sparsity, sparsity

HELP = "write a MiniCPM4.1 Forecast and its block rule for a serving engine (an open pull request of SGLang)"
GROUP = 16  # query heads per KV head, which the backend's kernels are written for
DENSE_LEN = 8192  # tokens, from MiniCPM4.1's model card: shorter texts are read whole there
USUAL = sparsity("minicpm4.1-8b")
NEEDED = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings",
)  # fmt: skip


def read_config(model: str | Path) -> dict[str, Any]:
    """``config.json`` of a model's folder, or the file itself.

    FileNotFoundError: no such file. ValueError: it is no MiniCPM's.
    """
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}; give a downloaded model's folder, or its config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        kind = config["model_type"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path} is not the config.json of a model; give the folder that holds one"
        ) from None
    if kind != "minicpm":
        raise ValueError(
            f"{path} is of model_type {kind!r}, and the engine serves a Forecast for 'minicpm' (MiniCPM4.1) "
            "only; run this model with sparda.Engine"
        )
    if missing := [name for name in NEEDED if name not in config]:
        raise ValueError(f"{path} lacks {', '.join(missing)}; take the one of the model's own repository")
    return config


def shape_of(config: dict[str, Any]) -> Shape:
    """What a Forecast must fit."""
    layers, hidden, heads, kv_heads, _ = (config[name] for name in NEEDED)
    return Shape(layers, hidden, kv_heads, config.get("head_dim") or hidden // heads)


def rule_of(config: dict[str, Any], budget: int | None = None, local: int | None = None) -> Sparsity:
    """The config's own block rule, MiniCPM4.1's where it has none, with the k and W that are given."""
    rule = _rule_in(config["sparse_config"]) if config.get("sparse_config") else USUAL
    return replace(
        rule,
        budget_blocks=rule.budget_blocks if budget is None else budget,
        local_blocks=rule.local_blocks if local is None else local,
    )


def sparse_config(config: dict[str, Any], rule: Sparsity, dense_len: int | None = None) -> dict[str, Any]:
    """What the backend reads of a block rule; other entries that ``config`` has are kept.

    dense_len : tokens below which the backend reads a text whole; None: as the config says, else 8192

    ValueError: a rule or a model that the backend does not serve.
    """
    own = config.get("sparse_config") or {}
    shorter = own.get("dense_len", DENSE_LEN) if dense_len is None else dense_len
    _check(config, rule, shorter)
    made = own | {
        "kernel_size": rule.window, "kernel_stride": rule.stride, "init_blocks": rule.init_blocks,
        "block_size": rule.block_size, "window_size": rule.local_blocks * rule.block_size,
        "dense_len": shorter, "topk": rule.budget_blocks - rule.local_blocks,
    }  # fmt: skip
    _rule_in(made)  # refuses an entry that asks for another method
    return made


def export(
    model: str | Path, weights: Forecast, out: str | Path, rule: Sparsity, *,
    dense_len: int | None = None, ending: str = ".safetensors",
) -> tuple[Path, Path]:  # fmt: skip
    """Write ``forecast.safetensors`` (or ``.pt``) and a copy of config.json with the rule in it to ``out``.

    model : a MiniCPM4.1 folder or its config.json, which is only read

    Returns the two paths. ValueError: what the backend does not serve, weights of another model, or a folder
    that holds such a file already.
    """
    config = read_config(model)
    made = sparse_config(config, rule, dense_len)
    weights.check(shape_of(config))
    paths = Path(out) / f"forecast{ending}", Path(out) / "config.json"
    for path in paths:
        if path.exists():
            raise ValueError(f"{path} is there already and is not overwritten; give another folder")
    weights.save(paths[0])
    text = json.dumps(config | {"sparse_config": made}, indent=2, ensure_ascii=False)
    write_text(paths[1], text + "\n")
    return paths


def _rule_in(given: dict[str, Any]) -> Sparsity:
    """As ``minicpm_sparsity`` reads it."""
    from sparda.models.minicpm import minicpm_sparsity

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which numbers were used: they are printed here
        return minicpm_sparsity(SimpleNamespace(sparse_config=given))


def _check(config: dict[str, Any], rule: Sparsity, dense_len: int) -> None:
    """ValueError, with one sentence: what the backend does not serve."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    if heads != GROUP * kv_heads:
        raise ValueError(
            f"the engine serves exactly {GROUP} query heads per KV head, and this model has {heads} for "
            f"{kv_heads} KV heads; run it with sparda.Engine"
        )
    for name in ("block_size", "window", "stride"):
        given, usual = getattr(rule, name), getattr(USUAL, name)
        if given != usual:
            raise ValueError(f"{name} is {given}, and only MiniCPM4.1's is exported; choose {name}={usual}")
    if rule.visibility != "end":
        raise ValueError(
            f"a sparse_config cannot say visibility={rule.visibility!r}; use 'end', by which a Forecast "
            "chooses the same blocks wherever there is a local block"
        )
    if rule.local_blocks < 1:
        raise ValueError("a layer can look ahead only with a local block; raise local_blocks to 1 or more")
    if not isinstance(dense_len, int) or dense_len < 0:
        raise ValueError(f"dense_len is a number of tokens, got {dense_len}; 0 makes every text sparse")
    needed, context = max(dense_len, rule.budget_blocks * rule.block_size), config["max_position_embeddings"]
    if context < needed:
        raise ValueError(
            f"the engine wants a context that holds k blocks and dense_len, here {needed} tokens, and the "
            f"model has max_position_embeddings {context}; lower dense_len or budget_blocks"
        )


def add_to(commands: Any) -> None:
    """Add the command ``export`` to the parser of ``sparda``."""
    one = commands.add_parser("export", help=HELP, description=HELP)
    one.add_argument(
        "--model", type=Path, required=True, metavar="DIR", help="MiniCPM4.1's folder; only read"
    )
    one.add_argument("--forecast", type=Path, required=True, metavar="FILE", help="its trained Forecast")
    one.add_argument("--out", type=Path, required=True, metavar="DIR", help="two files are written there")
    one.add_argument("--budget", type=int, help="k, forced blocks included [the config's own, else 96]")
    one.add_argument("--local", type=int, help="local blocks, forced [the config's own, else 32]")
    one.add_argument("--dense-len", type=int, metavar="TOKENS",
                     help="the engine reads shorter texts whole [the config's own, else 8192]")  # fmt: skip
    one.add_argument("--pt", action="store_true", help="forecast.pt, if the engine's torch is an older one")
    one.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Export, and say what the files are for."""
    config = read_config(options.model)
    weights = Forecast.load(options.forecast, shape_of(config))
    rule = rule_of(config, options.budget, options.local)
    ending = ".pt" if options.pt else ".safetensors"
    file, copy = export(options.model, weights, options.out, rule, dense_len=options.dense_len, ending=ending)
    print(f"{file}: for --sparda-indexer-path of sgl-project/sglang#38397, which is in no release yet")
    print(f"{copy}: in place of the model's own config.json, or add this to that one:")
    print(f'"sparse_config": {json.dumps(sparse_config(config, rule, options.dense_len))}')
    return 0

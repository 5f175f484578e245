"""What two public write-ups say about SparDA, recomputed number by number.

``data/paper/claims.csv`` holds each statement, the value that holds, and a verdict. ``RECOMPUTED`` gives,
for every number printed in a row, the value that follows from ``costs.py``, the presets and the published
tables, so a row can be wrong only if those are. A verdict concerns one statement of a text, not the text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from sparda import costs, paper
from sparda.bounds import transfer_seconds
from sparda.spec import hardware, model, sparsity
from sparda.units import GIB

M, RULE, BIG = model("minicpm4.1-8b"), sparsity("minicpm4.1-8b"), model("llama-3-70b")
WIDE = replace(M, n_kv_heads=8)  # what both write-ups assume in places
T = 131_072

VERDICTS = {
    "agrees": "the number holds within 5 %",
    "wrong": "another value or rule holds",
    "self-contradictory": "the same text also says what holds",
    "loose": "right in spirit; the exact rule matters here",
    "code differs": "may follow the paper; the released code does something else",
    "inferred": "plausible, and neither shown nor refuted by published numbers",
}

NOT_NUMERIC = {
    "A-gqa": "a name",
    "A-eq8": "an order of operations; the selectors' tests hold it",
    "A-persist": "how the released code launches a kernel",
    "A-dma": "which unit copies",
    "A-fprev": "an index",
    "A-resid": "a sequence of operations",
    "A-wait": "a place in the schedule",
    "A-miss": "what is copied; spec and cost model count misses only",
    "B-dim": "a rule: whatever is dotted with a key has its width",
    "B-dma": "which unit copies",
    "B-race": "an order of streams",
    "B-wait": "a place in the schedule",
    "B-loss": "a definition",
}


def kv_gb(shape=M, batch=1, n_tokens=T) -> float:
    return costs.kv_bytes(shape=shape, n_tokens=n_tokens, batch=batch) / 1e9


def decode(method: str, batch: int, *, offload: bool = True) -> float:
    """Published decode tok/s, MiniCPM4.1-8B, 128K, H100 (Table 4)."""
    where = "CPU offload" if offload else "GPU (no offload)"
    of = {"model": "MiniCPM4.1-8B", "context": "128K", "kv_location": where}
    return paper.value("table4_decode_throughput", method=method, batch=str(batch), **of)


def gain(batch: int) -> float:
    return decode("SparDA", batch) / decode("Sparse", batch)


def accuracy(method: str, model_name: str, benchmark: str) -> float:
    return paper.value("table1_accuracy", model=model_name, method=method, benchmark=benchmark)


def largest_dense_gap() -> float:
    """Most points by which Dense passes Sparse in Table 1, over models and suites."""
    cells = {(r["model"], r["benchmark"]) for r in paper.rows("table1_accuracy")}
    return max(accuracy("Dense", *cell) - accuracy("Sparse", *cell) for cell in cells)


def layer_ms(batch: int) -> float:
    """Milliseconds of one layer of one published SparDA step, everything included."""
    return 1e3 * batch / decode("SparDA", batch) / M.n_layers


def memory_ms(batch: int) -> float:
    """Milliseconds a layer needs to read weights, compressed keys and selected K and V on an H100."""
    of = {"shape": M, "sparsity": RULE, "n_tokens": T, "batch": batch}
    n_bytes = (
        costs.step_weight_bytes(shape=M) + costs.compressed_key_bytes(**of) + costs.selected_kv_bytes(**of)
    )
    return 1e3 * transfer_seconds(n_bytes=n_bytes, gb_per_s=hardware("h100").memory_gb_per_s) / M.n_layers


def pooled_windows() -> str:
    """First and last window that shares a token with block b, counted in blocks of S / stride windows."""
    per_block, far = RULE.block_size // RULE.stride, 10  # any block far from the start
    first, last = far * RULE.block_size, (far + 1) * RULE.block_size - 1
    starts = [
        j for j in range(20 * per_block) if j * RULE.stride + RULE.window > first and j * RULE.stride <= last
    ]
    low, high = starts[0] - per_block * far, starts[-1] - per_block * far
    return f"{per_block}b{low:+d}..{per_block}b{high:+d}"


def selection_ratio() -> float:
    of = {"shape": M, "sparsity": RULE, "n_tokens": T}
    return costs.selection_dots(selector="query", **of) / costs.selection_dots(selector="forecast", **of)


def copied_mb(batch: int) -> float:
    """MB of the selected K and V of one layer."""
    return costs.selected_kv_bytes(shape=M, sparsity=RULE, n_tokens=T, batch=batch) / M.n_layers / 1e6


def forecast_m(shape=M) -> float:
    return costs.forecast_parameters(shape=shape) / 1e6


def window_gb(n_tokens: int) -> float:
    return costs.compressed_key_bytes(shape=M, sparsity=RULE, n_tokens=n_tokens) / 1e9


# id -> {number as printed in the row: its value}. Numbers of the column `correct` come first.
RECOMPUTED: dict[str, Callable[[], dict[str, float | str]]] = {
    "A-eq2": lambda: {
        "343.6": kv_gb(BIG, 8), "42.95": kv_gb(BIG), "320": kv_gb(BIG, 8) * 1e9 / GIB,
    },
    "A-G": lambda: {"16": M.group, "32": M.n_heads, "2": M.n_kv_heads},
    "A-init": lambda: {"64": RULE.init_blocks * RULE.block_size},
    "A-topk": lambda: {
        "96": RULE.budget_blocks, "34": RULE.forced_blocks, "62": RULE.budget_blocks - RULE.forced_blocks,
    },
    "A-pool": lambda: {"4b-1..4b+3": pooled_windows()},
    "A-wf": lambda: {
        "256": M.n_kv_heads * M.head_dim, "16.8": M.n_layers * M.hidden * M.head_dim / 1e6,
        "33.5": paper.value("table5_training_hyperparameters", parameter="added parameters"),
    },
    "A-eq9": lambda: {"128": M.head_dim},
    "A-O1": lambda: {"16": selection_ratio()},
    "A-eq12": lambda: {
        "385": RULE.budget_blocks * RULE.block_size // RULE.stride + 1, "96": RULE.budget_blocks,
        "4": RULE.block_size // RULE.stride,
    },
    "A-append": lambda: {"64": RULE.block_size},
    "A-eq20": lambda: {"100.7": copied_mb(16), "67": 512 * 64 * 8 * 128 * 2 / 1e6},
    "A-window": lambda: {"0.71": layer_ms(16), "705.3": decode("SparDA", 16)},
    "A-ffn": lambda: {"16384": M.ffn},
    "A-b64": lambda: {"2.0": layer_ms(64), "0.35": memory_ms(64), "1000.1": decode("SparDA", 64)},
    "A-b4": lambda: {
        "8": max((4, 8, 16, 32, 64), key=gain),
        "1.43": gain(4), "1.69": gain(8), "1.57": gain(16), "1.45": gain(32), "1.27": gain(64),
    },
    "A-pin": lambda: {"687.2": kv_gb(BIG, 16)},
    "A-53": lambda: {
        "4.16": decode("Sparse", 64) / decode("Sparse", 4, offload=False), "1.27": gain(64),
        "788.9": decode("Sparse", 64), "189.5": decode("Sparse", 4, offload=False),
    },
    "A-oom": lambda: {
        "51": kv_gb(batch=8) + costs.weight_bytes(shape=M) / 1e9, "4.29": kv_gb(),
        "16.4": costs.weight_bytes(shape=M) / 1e9,
    },
    "A-gap": lambda: {
        "14.0": largest_dense_gap(),
        "86.2": accuracy("Dense", "NOSA-8B", "RULER"), "72.2": accuracy("Sparse", "NOSA-8B", "RULER"),
    },
    "A-ratio": lambda: {
        "52": hardware("h100").memory_gb_per_s / hardware("h100").link_gb_per_s,
        "3350": hardware("h100").memory_gb_per_s, "64": hardware("h100").link_gb_per_s,
    },
    "B-O1": lambda: {"16": RULE.stride},
    "B-kv": lambda: {"4.29": kv_gb(), "17.18": kv_gb(WIDE), "8": WIDE.n_kv_heads, "2": M.n_kv_heads},
    "B-param": lambda: {
        "1.049e6": M.hidden * M.n_kv_heads * M.head_dim, "33.55": forecast_m(), "67": 2 * forecast_m(),
        "0.41": 1e8 * forecast_m() / M.n_parameters, "4.19e6": M.hidden * WIDE.n_kv_heads * M.head_dim,
        "134.2": forecast_m(WIDE), "268": 2 * forecast_m(WIDE),
        "1.64": 1e8 * forecast_m(WIDE) / M.n_parameters,
    },
    "B-centroid": lambda: {"32": RULE.window, "16": RULE.stride},
    "B-dense": lambda: {"96": RULE.budget_blocks},
    "B-1m": lambda: {"1.07": window_gb(2**20), "34.4": kv_gb(n_tokens=2**20), "1048576": 2**20},
}  # fmt: skip


def rounds_to(number: float | str, printed: str) -> bool:
    """True if ``number`` rounds to ``printed`` in as many digits as are printed.

    >>> rounds_to(1_048_576, "1.049e6"), rounds_to(343.597, "343.6"), rounds_to(33.554, "33.5")
    (True, True, False)
    """
    if isinstance(number, str):
        return number == printed
    exponent = Decimal(printed).as_tuple().exponent
    half = 0.5 * 10 ** int(exponent)  # half a unit of the last printed digit
    return abs(number - float(printed)) <= half * (1 + 1e-9)


def agrees(stated: float, correct: float, *, tolerance: float = 0.05) -> bool:
    """True if a stated number is within ``tolerance`` of the correct one."""
    return abs(stated - correct) <= tolerance * abs(correct)


def claims_table():
    """pandas DataFrame of all claims: id, where, about, stated, correct, recomputed, verdict, why.

    ``recomputed`` shows every number of the row that was computed here, in the digits of the computer.
    """
    import pandas as pd

    table = pd.DataFrame(paper.rows("claims"))
    computed = {key: RECOMPUTED[key]() for key in RECOMPUTED}
    table["recomputed"] = [
        "; ".join(v if isinstance(v, str) else f"{v:.6g}" for v in computed.get(key, {}).values())
        for key in table["id"]
    ]
    for column, unit in (("stated", "unit_stated"), ("correct", "unit")):
        numeric = table[column].str.fullmatch(r"[\d.]+")
        table.loc[numeric, column] += " " + table.loc[numeric, unit]
    return table[["id", "where", "about", "stated", "correct", "recomputed", "verdict", "why"]]

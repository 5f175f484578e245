"""Every published table and figure of data/paper/: what is drawn, and why ours differ from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparda.figures import published_figures as figures
from sparda.figures import published_ratios as ratios
from sparda.figures import published_tables as tables
from sparda.figures.published_tables import CAP_GIB, Beside

SHAPES = "MiniCPM4.1-8B, ours with random weights of its shapes"
HIT = "hit rate: ours 0.89, replayed; theirs not stated"
CARD = (
    "Card: theirs an H100 with 80 GB at 3.35 TB/s, ours with the memory that its stamp's device has "
    "(an H200: 141 GB at 4.8 TB/s); both behind PCIe 5.0 x16."
)
RUNTIME = (
    "Runtime: our step is one CUDA graph with fused selection, and a miss is one run of 32 KiB. By our "
    "arithmetic theirs is held up by launches at small batch and by the link at large."
)
RATE = "Hit rate: it decides what must be copied. Theirs depends on their text, unstated; ours is an input."
NO_8B = (
    "Not ours yet: no Forecast of an 8B model has been trained here, and without it SparDA has no accuracy"
    " at 8B. The workbench measures accuracy on SmolLM2-135M, on other contexts, so on axes of its own."
)
NO_NOSA = "NOSA-8B is not ours yet: its eviction head is not built."
NO_A100 = "No A100 was at hand; `make reproduce PROFILE=gpu` there would fill it."


@dataclass(frozen=True)
class Entry:
    """One published table or figure.

    source  : what the paper calls it;  files : of data/paper/;  uses : of data/measured/<device>/
    about   : model and hit rate of both sides
    reasons : why ours differ, or why there are none, a sentence or two each
    table   : makes the numbers;  draw : the figure of them; None: text, and the published file, are all
    see     : figures of the chapters that show ours on axes of their own
    """

    name: str
    source: str
    files: tuple[str, ...]
    about: str
    reasons: tuple[str, ...]
    uses: tuple[str, ...] = ()
    table: Callable[[], Beside] | None = None
    draw: Callable[..., Any] | None = None
    see: tuple[str, ...] = ()


def _lines(
    title: str, x: str = "batch, sequences", y: str = "decode, tokens/s", **more: Any
) -> Callable[..., Any]:
    return partial(figures.lines, title=title, x=x, y=y, **more)


def _only(title: str, y: str = "accuracy, %") -> Callable[..., Any]:
    return partial(figures.published_only, title=title, y=y)


BESIDE = (
    Entry(
        "headline", "Abstract and text: the ratios", ("headline_ratios",), f"{SHAPES}; {HIT}",
        (
            "Theirs at 5.28 and 9.21 compare batch 64 with batch 4, as without offloading their engine "
            "runs out of memory at batch 8. Ours are of the same batches; on a larger card the others need"
            " not stop there.",
            "SparDA over Dense in prefill: our dense is flash, through torch; cuDNN's stands in Table 3.",
            RATE, "Prefill: theirs at batch 4, one sequence at a time; ours one sequence.", NO_NOSA,
        ),
        ("decode.csv", "prefill.csv"), ratios.headline,
        partial(figures.ratios, title="The paper's ratios and ours", x="times as fast"),
    ),
    Entry(
        "fig1c", "Figure 1c: decode against batch, as drawn", ("fig1c_decode_vs_batch_digitised",),
        f"{SHAPES}; {HIT}", (CARD, RUNTIME, RATE), ("decode.csv",),
        partial(tables.decode_vs_batch, "fig1c_decode_vs_batch_digitised"),
        _lines("Figure 1c: decode tokens a second against batch, 128K", log_y=False),
    ),
    Entry(
        "fig3", "Figure 3: what selection costs", ("fig3_attention_breakdown",), f"{SHAPES}; context 128K",
        (
            "Only ratios that the text states were recovered, no bar. Theirs are of batch 4 in prefill "
            "too; ours of one sequence, whose layer is the same work.",
            "In prefill Sparse scores with 16 query heads a group and a softmax, SparDA with one head. "
            "Both of ours are fused kernels that write no scores, so little but arithmetic is left to "
            "differ in.",
            "In decode both of ours read the same compressed keys, so the work differs less; but SparDA's "
            "runs beside attention, FFN and copies, and the layer waits for little of it.",
        ),
        ("breakdown.csv",), ratios.selection_ratio,
        partial(figures.ratios, title="Selection time, Sparse over SparDA", x="times as long"),
        ("attention_time_decode", "attention_time_prefill"),
    ),
    Entry(
        "table1", "Table 1: accuracy, suite averages", ("table1_accuracy",),
        "MiniCPM4.1-8B, at its native 64K",
        (NO_8B, NO_NOSA), table=partial(tables.accuracy, "table1_accuracy", "benchmark", model=tables.MODEL),
        draw=_only("Table 1: accuracy of MiniCPM4.1-8B, published"),
        see=("accuracy_by_task", "accuracy_paired"),
    ),
    Entry(
        "table2", "Table 2: RULER against context", ("table2_ruler_by_length",), "MiniCPM4.1-8B",
        (NO_8B, NO_NOSA),
        table=partial(tables.accuracy, "table2_ruler_by_length", "context", model=tables.MODEL),
        draw=_only("Table 2: RULER of MiniCPM4.1-8B against context, published", "RULER, 13 tasks, %"),
        see=("accuracy_vs_context",),
    ),
    Entry(
        "table3", "Table 3: prefill", ("prefill_throughput",), f"{SHAPES}; batch 4 theirs, 1 ours",
        (
            CARD,
            "Sparse and SparDA: our selection never writes scores to memory, and attention takes four "
            "neighbouring tokens at once.",
            "Dense: through which kernels theirs went was not recovered; ours is drawn through flash and "
            "cuDNN.",
            NO_NOSA,
        ),
        ("prefill.csv",), tables.prefill,
        _lines(
            "Table 3: prefill tokens a second against context", "context, tokens",
            "prefill, tokens/s", log_y=False,
        ),
        ("prefill_throughput",),
    ),
    Entry(
        "table4", "Table 4: decode against batch at 128K", ("table4_decode_throughput",), f"{SHAPES}; {HIT}",
        (
            CARD, RUNTIME, RATE,
            "Dense and Sparse without offloading go on past batch 4 where the card has more memory; theirs"
            " run out of it at 8.",
            "InfiniGen gathers on the processor, so the host decides as much as the card.", NO_NOSA,
        ),
        ("decode.csv",), tables.decode_vs_batch,
        _lines("Table 4: decode tokens a second against batch, 128K"),
        ("decode_vs_batch", "decode_vs_hit_rate"),
    ),
    Entry(
        "table4_cap", f"Table 4, ours held to {CAP_GIB} GiB", ("table4_decode_throughput",),
        f"{SHAPES}; {HIT}; ours under a memory cap of {CAP_GIB} GiB",
        (
            "The cap takes the size of our card out of the comparison, not its speed. `make reproduce "
            "PROFILE=gpu CHAPTERS=decode_80gib` measures it.",
            RUNTIME, RATE,
        ),
        ("decode.csv",), tables.decode_capped,
        _lines(f"Table 4: decode at 128K, ours within {CAP_GIB} GiB"), ("decode_vs_batch",),
    ),
    Entry(
        "table4_contexts", "Table 4: decode against context at batch 4", ("table4_decode_throughput",),
        f"{SHAPES}; {HIT}",
        (CARD, RUNTIME, "Where one of our marks is missing, that context was not measured."),
        ("decode.csv",), tables.decode_vs_context,
        _lines("Table 4: decode tokens a second against context, batch 4", "context, tokens", log_y=False),
    ),
    Entry(
        "table5", "Table 5: training", ("table5_training_hyperparameters", "settings_config"),
        "theirs 8B models at 64K and 32K tokens; ours SmolLM2-135M at 8K",
        (
            "Settings, nothing to draw. Our recipe differs on purpose: the teacher is the exact attention "
            "mass of a block, the rest of the loss follows from it. `sparda train --teacher fine` is the "
            "paper's; data/forecasts/README.md has ours.",
        ),
        see=("forecast_training", "forecast_layers"),
    ),
    Entry(
        "table6", "Table 6: fine keys as a teacher", ("table6_ablation",),
        "theirs MiniCPM4.1-8B; ours SmolLM2-135M",
        (
            "The paper gives differences in RULER and Reasoning, in points. Ours is mass recall of a small"
            " model: the same question, another unit, so it stands in a figure of its own.",
        ),
        ("forecast_ablation.csv",), see=("forecast_ablation",),
    ),
    Entry(
        "table7", "Table 7: CTAs of the transfer", ("table7_ctas",), "32 KiB a miss; theirs on an H100",
        (
            "Only the rule was recovered, no throughput. Ours picks the count that makes a layer shortest,"
            " by curves measured beside real compute: at small batch few CTAs fill the link and disturb "
            "attention least.",
        ),
        ("transfer.json",), tables.ctas,
        _lines("Table 7: CTAs of the transfer against batch", y="CTAs", log_y=False),
        ("ctas_by_batch", "transfer_curves"),
    ),
    Entry(
        "tables8_9", "Tables 8 and 9: A100", ("tables8_9_a100",), "A100 80 GB behind PCIe 4.0 x16",
        ("Only two maxima were recovered; which table has which is not stated.", NO_A100),
        see=("what_if_hardware",),
    ),
    Entry(
        "table10", "Table 10: the parts of the gain", ("table10_decode_breakdown",), f"{SHAPES}; {HIT}",
        (
            CARD, RATE,
            "Selector: theirs brings nearly all of the gain at batch 4 and a loss at 64. Ours has less to "
            "gain from it, as our query selector is a fused kernel too.",
            "Overlap is worth most where copies and compute take about equally long.",
        ),
        ("decode.csv",), tables.gain_parts,
        partial(
            figures.bars, title="Table 10: from Sparse to SparDA, step by step",
            y="decode, tokens/s", by="batch",
        ),
        ("decode_gain_parts",),
    ),
    Entry(
        "table14", "Table 14: reasoning", ("table14_reasoning",), "NOSA-8B",
        (NO_NOSA, "Two of its sets have 30 questions: SparDA's 6.5 points over Sparse are six answers."),
        table=partial(tables.accuracy, "table14_reasoning", "dataset"),
        draw=_only("Table 14: reasoning of NOSA-8B, published"),
    ),
    Entry(
        "others", "Other papers, and two write-ups", ("related_headlines", "claims"), "many models",
        (
            "Headlines of other papers are for orientation; nothing of ours was measured beside them. The "
            "statements of two write-ups are recomputed in chapter 01 and by tests/test_claims.py.",
        ),
    ),
)  # fmt: skip

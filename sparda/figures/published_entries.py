"""Every published table and figure of data/paper/: what is drawn, and why ours differ from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparda.figures import published_accuracy as accuracy
from sparda.figures import published_cap as cap
from sparda.figures import published_figures as figures
from sparda.figures import published_ratios as ratios
from sparda.figures import published_tables as tables
from sparda.figures.published_tables import Beside

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
    "Model: no Forecast of an 8B model has been trained here, and without it SparDA has no accuracy at 8B. "
    "Ours are of SmolLM2-135M at the contexts that it reads, so compare the order of methods on one side, "
    "never a height with one of the other side."
)
TASKS = (
    "Tasks: ours are RULER's in the workbench's own form, without question answering; those where dense "
    "scores next to nothing are left out of the mean. Chapter 07 has intervals and paired differences."
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


def _accuracies(title: str, y: str = "accuracy, %") -> Callable[..., Any]:
    return partial(figures.accuracies, title=title, y=y)


BESIDE = (
    Entry(
        "headline", "Abstract and text: the ratios", ("headline_ratios",), f"{SHAPES}; {HIT}",
        (
            "Theirs at 5.28 and 9.21 compare batch 64 with batch 4, as without offloading their engine "
            "runs out of memory at batch 8. Ours stand twice: of the same batches, and of the best batches "
            f"that fit into {cap.CAP_GIB} GiB, where ours without offloading get further than batch 4.",
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
        "theirs MiniCPM4.1-8B at its native 64K, ours SmolLM2-135M",
        (NO_8B, TASKS, NO_NOSA), ("accuracy.csv",), accuracy.suites,
        _accuracies("Table 1: accuracy, suite averages"), ("accuracy_by_task", "accuracy_paired"),
    ),
    Entry(
        "table2", "Table 2: RULER against context", ("table2_ruler_by_length",),
        "theirs MiniCPM4.1-8B, 13 tasks, ours SmolLM2-135M", (NO_8B, TASKS, NO_NOSA), ("accuracy.csv",),
        accuracy.ruler, _accuracies("Table 2: RULER against context", "RULER, %"), ("accuracy_vs_context",),
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
            "Crosses at the bottom are out of memory. Ours are of the whole card, and end without a cross "
            "where nothing larger was tried; the next entry has them under the cap of an 80 GB card.",
            "InfiniGen gathers on the processor, so the host decides as much as the card.", NO_NOSA,
        ),
        ("decode.csv",), tables.decode_vs_batch,
        _lines("Table 4: decode tokens a second against batch, 128K"),
        ("decode_vs_batch", "decode_vs_hit_rate"),
    ),
    Entry(
        "table4_cap", f"Table 4, ours held to {cap.CAP_GIB} GiB", ("table4_decode_throughput",),
        f"{SHAPES}; {HIT}; ours under a memory cap of {cap.CAP_GIB} GiB",
        (
            "The cap takes the size of our card out of the comparison, not its speed. `make reproduce "
            "PROFILE=gpu CHAPTERS=decode_80gib` measures it. Crosses at the bottom are out of memory.",
            "Against the whole card, the entry above: what offloads needs far less than the cap and runs as "
            "fast, what keeps all keys and values ends earlier; the stamp has both in numbers. Theirs end "
            "at batch 8 on a card of the same size, with less than 80 GB by our count; why is not stated.",
            "InfiniGen: theirs gathers on the processor. Ours under the cap has SparDA's transport (over "
            "UVA), so only its score differs; the one that gathers on the processor was not run under it.",
            RUNTIME, RATE,
        ),
        ("decode.csv",), cap.decode_capped,
        _lines(f"Table 4: decode at 128K, ours within {cap.CAP_GIB} GiB"), ("decode_vs_batch",),
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
        table=partial(accuracy.table, "table14_reasoning", "dataset", model="NOSA-8B"),
        draw=_accuracies("Table 14: reasoning of NOSA-8B, published"),
    ),
    Entry(
        "others", "Other papers, and two write-ups", ("related_headlines", "claims"), "many models",
        (
            "Headlines of other papers are for orientation; nothing of ours was measured beside them. The "
            "statements of two write-ups are recomputed in chapter 01 and by tests/test_claims.py.",
        ),
    ),
)  # fmt: skip

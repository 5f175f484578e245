"""From the options of ``sparda eval`` to rows that are printed and kept."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import torch

from sparda.evaluation import accuracy, exchange, jobs, needle, recall, texts
from sparda.evaluation.accuracy import ACCURACY, PAIRS, SAMPLES, Prompts, Result
from sparda.evaluation.command import show
from sparda.evaluation.exchange import EXCHANGE
from sparda.evaluation.methods import METHODS, rule
from sparda.evaluation.needle import NEEDLE
from sparda.evaluation.recall import MEAN, RECALL
from sparda.evaluation.subject import Subject, find_forecast
from sparda.measure import tables
from sparda.measure.bench import describe_machine
from sparda.measure.runs import folder_for
from sparda.measure.tables import Table
from sparda.progress import bar
from sparda.selectors import Selector
from sparda.selectors.waiting import check_index
from sparda.training.data import check_fits
from sparda.waits import split


def subject(options: Namespace, device: torch.device) -> Subject:
    """Load the model: bf16 on a GPU, float32 on a processor."""
    from sparda.models.load import context_of, find, load

    _check_context(options, context_of(find(options.model)))  # known before the weights are read, if at all
    if any(METHODS[split(method)[0]] == "forecast" for method in options.methods):
        find_forecast(options.model, options.forecast)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model, tokenizer = load(options.model, dtype=dtype, device=device)
    check_fits(tokenizer, model.get_input_embeddings().num_embeddings)
    who = Subject(options.model, model, tokenizer, options.forecast, options.seed)
    _check_context(options, who.longest)
    return who


def _check_context(options: Namespace, longest: int | None) -> None:
    if longest is not None and max(options.context) > longest:
        raise ValueError(
            f"--context {max(options.context)}: {options.model} reads {longest} tokens at most; "
            "lower --context"
        )


class Keeper:
    """Writes rows as they come into a folder, if there is one; a run that is cut short loses nothing."""

    def __init__(self, about: Subject, folder: Path | None):
        self.folder, self._subject, self._machine = folder, about, describe_machine()
        if folder is None:
            print("nothing is kept; give --out a folder")

    @property
    def run(self) -> dict[str, str]:
        return {name: self._machine[name] for name in ("date", "commit")}

    def keep(self, table: Table, rows: list[dict[str, str]]) -> None:
        """Keep rows; one of fewer samples never replaces one of more. Pairs follow from what is kept."""
        if self.folder is None:
            return
        if table is not PAIRS:
            kept = {
                _cell(row, table): _samples(row) for row in tables.read(self.folder / f"{table.name}.csv")
            }
            better = [row for row in rows if _samples(row) >= kept.get(_cell(row, table), 0)]
            if len(better) < len(rows) and table is not SAMPLES:
                print(f"not kept: {table.name}.csv has more samples of {len(rows) - len(better)} such rows")
            rows = better
        if rows:
            tables.keep(table, rows, self.folder, self._machine | self._subject.about())


def _cell(row: dict[str, str], table: Table) -> tuple[str, ...]:
    return tuple(row[column] for column in table.key)


def _samples(row: dict[str, str]) -> int:
    return len(row["right"].split()) if "right" in row else int(row["n"])


def run_accuracy(options: Namespace, device: torch.device) -> None:
    """Fill accuracy.csv and samples.csv cell by cell, and compare methods in pairs.csv."""
    accuracy.check_tasks(options.tasks or ())
    if options.replies and not options.replies.parent.is_dir():
        raise FileNotFoundError(f"--replies: there is no folder {options.replies.parent}; make it first")
    for context in options.context:
        accuracy.plan(options.methods, context, options.shares)  # refused before a model is loaded
    doing = jobs.here(options, device)
    who = doing.subject
    for method in options.methods:
        check_index(who.selector(method))  # weights that are missing are missed now, not after minutes
    keeper = Keeper(who, folder_for(device, options.out))
    columns = ["method", "task", "context", "budget_blocks", "n", "accuracy", "ci_low", "ci_high"]
    show({c: c for c in columns}, columns)
    kept: list[dict[str, str]] = []

    def done(result: Result) -> None:
        row, sample = result.rows(who.label, options.seed, keeper.run)
        show(row, columns, f"({result.seconds:.1f} s)")
        kept.append(sample)
        keeper.keep(ACCURACY, [row])
        keeper.keep(SAMPLES, [sample])
        if options.replies:
            _write(options.replies, result)
        finished.update()

    names = options.tasks or list(accuracy.tasks.TASKS)
    cells = sum(len(accuracy.plan(options.methods, c, options.shares)) for c in options.context) * len(names)
    with bar(cells, "cell") as finished:
        accuracy.measure(
            doing if options.jobs == 1 else jobs.Processes(options, device, options.jobs),
            methods=options.methods, names=names, contexts=options.context, shares=options.shares,
            all_tasks=options.all_tasks, done=done,
        )  # fmt: skip
    if keeper.folder is not None:
        kept = tables.read(keeper.folder / "samples.csv")
    pairs = accuracy.pairs(kept)
    keeper.keep(PAIRS, pairs)
    columns = ["method", "baseline", "context", "budget_blocks", "n", "difference", "ci_low", "ci_high"]
    show({c: c for c in columns}, columns)
    for row in pairs:
        if row["task"] == accuracy.AVERAGE:
            show(row, columns)


def _write(path: Path, result: Result) -> None:
    cell: dict[str, Any] = {"method": result.method, "task": result.task, "context": result.context}
    cell |= {"budget_blocks": result.budget_blocks}
    with open(path, "a", encoding="utf-8") as file:
        for right, reply in zip(result.right, result.replies, strict=True):
            file.write(json.dumps(cell | {"right": right, "reply": reply}) + "\n")


def run_recall(options: Namespace, device: torch.device) -> None:
    """Fill recall.csv, one text and context after the other."""
    from sparda.engine.weights import from_hugging_face

    labels = {text: texts.label(text) for text in options.texts}  # refused before a model is loaded
    for context in options.context:
        first = 64 * max(rule(context, share).budget_blocks for share in options.shares)
        recall.draw_places(context, options.queries, first, options.seed)
    who = subject(options, device)
    keeper = Keeper(who, folder_for(device, options.out))
    decoder = from_hugging_face(who.model, max(options.context))
    selectors = _choosing(who, options.methods)
    columns = ["method", "text", "context", "budget_blocks", "mass_recall", "gain", "gain_low", "gain_high"]
    columns += ["agreement", "hit_rate"]
    cells = [(t, c, _sequences(who, t, c, options.sequences)) for t, c in product(labels, options.context)]
    show({c: c for c in columns}, columns)
    with bar(sum(len(sequences) for *_, sequences in cells), "sequence") as read:
        for text, context, sequences in cells:
            rules = [rule(context, share) for share in options.shares]
            first = 64 * max(r.budget_blocks for r in rules)
            places, found = recall.draw_places(context, options.queries, first, options.seed), []
            for tokens in sequences:
                found.append(recall.recall_of(decoder, tokens, places, selectors, rules))
                read.update()
            cell = {"model": who.label, "text": labels[text], "context": context, "seed": options.seed}
            rows = recall.rows(found, n=len(places) * len(found), **cell, **keeper.run)
            for row in rows:
                if row["layer"] == MEAN:
                    show(row, columns)
            keeper.keep(RECALL, rows)


def _sequences(who: Subject, text: str, context: int, count: int) -> list[torch.Tensor]:
    """Parts of a text at equal distances, from a tenth of it on: the front may have calibrated the proxy."""
    starts = [0.1 + 0.85 * i / count for i in range(count)]
    found = [who.tokens(text, context, start) for start in starts]
    if min(map(len, found)) < context:
        raise ValueError(
            f"{text} is too short for {count} sequences of {context} tokens; give a longer text, or lower "
            "--sequences or --context"
        )
    return found


def run_needle(options: Namespace, device: torch.device) -> None:
    """Fill needle.csv, one task, context and k after the other."""
    from sparda.engine.weights import from_hugging_face

    wanted = options.tasks or list(needle.TASKS)
    needle.check_tasks(wanted)
    if set(options.methods) <= {"dense"}:
        raise ValueError("dense chooses no blocks; give --methods one that does, such as sparse,sparda")
    cells = [(c, r) for c in options.context for _, r in accuracy.plan(["sparse"], c, options.shares)]
    who = subject(options, device)
    keeper = Keeper(who, folder_for(device, options.out))
    prompts = Prompts(who.tokenizer, options.n, options.seed)
    decoder = from_hugging_face(who.model, max(options.context))
    selectors = _choosing(who, options.methods)
    columns = ["method", "task", "context", "budget_blocks", "n", "mass", "caught"]
    show({c: c for c in columns}, columns)
    with bar(len(wanted) * len(cells) * options.n, "prompt") as read:
        for task, (context, sparsity) in product(wanted, cells):
            found = []
            for s in prompts.of(task, context):
                said = needle.read_out(s, who.tokenizer, sparsity.block_size)
                found.append(needle.caught(decoder, *said, selectors, sparsity))
                read.update()
            cell = {"model": who.label, "task": task, "context": context, "seed": options.seed}
            rows = needle.rows(found, **cell, budget_blocks=sparsity.budget_blocks, **keeper.run)
            for row in rows:
                if row["layer"] == MEAN:
                    show(row, columns)
            keeper.keep(NEEDLE, rows)


def run_exchange(options: Namespace, device: torch.device) -> None:
    """Fill exchange.csv, one task, context, k and method after the other."""
    wanted = options.tasks or ["niah_single_noise", "niah_single_prose"]
    needle.check_tasks(wanted)
    if not (methods := [m for m in options.methods if m not in ("dense", "sparse")]):
        raise ValueError(
            "layers are exchanged with the query selection: give --methods others, such as sparda"
        )
    cells = [(c, r) for c in options.context for _, r in accuracy.plan(["sparse"], c, options.shares)]
    who = subject(options, device)
    keeper = Keeper(who, folder_for(device, options.out))
    selectors = _choosing(who, methods)  # weights that are missing are missed now, not after minutes
    prompts = Prompts(who.tokenizer, options.n, options.seed)
    columns = ["method", "task", "context", "budget_blocks", "layer", "n", "log_p", *exchange.GAIN]
    show({c: c for c in columns}, columns)
    with bar(len(wanted) * len(cells) * len(methods) * options.n, "prompt") as read:
        for task, (context, sparsity), method in product(wanted, cells, methods):
            found = []
            for s in prompts.of(task, context):
                answered = needle.answered(s, who.tokenizer)
                found.append(exchange.log_p(who.model, selectors[method], *answered, sparsity))
                read.update()
            cell = {"model": who.label, "method": method, "task": task, "context": context}
            cell |= {"seed": options.seed}
            rows = exchange.rows(found, **cell, budget_blocks=sparsity.budget_blocks, **keeper.run)
            best = sorted(rows[1:-1], key=lambda row: -float(row["gain"]))[:3]
            for row in (rows[0], *best, rows[-1]):
                show(row, columns)
            keeper.keep(EXCHANGE, rows)


def _choosing(who: Subject, methods: Iterable[str]) -> dict[str, Selector]:
    """The selectors of the methods that choose."""
    return {method: who.selector(method) for method in methods if method != "dense"}


RUNS = {"accuracy": run_accuracy, "recall": run_recall, "needle": run_needle, "exchange": run_exchange}

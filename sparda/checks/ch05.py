"""Checks of chapter 05: bytes that a step reads, the context from which choosing costs more, Amdahl's law."""

from __future__ import annotations

from sparda import costs
from sparda.checks import Random, Verdict, checker, close, off
from sparda.checks.shapes import a_shape
from sparda.layer_work import decode_work
from sparda.spec import model, sparsity

RULE = sparsity("minicpm4.1-8b")


@checker(without=[decode_work])
def ch05_ex1(student) -> Verdict:
    """student(*, shape, sparsity, n_tokens) -> bytes that sparse attention reads in one layer and step."""
    draw = Random()
    cases = [(model("minicpm4.1-8b"), 131_072), (model("llama-3-70b"), 4_096)]
    cases += [(a_shape(draw), draw.randrange(*lengths)) for lengths in ((500, 6_000), (7_000, 200_000))]
    for shape, n_tokens in cases:
        work = decode_work(shape=shape, sparsity=RULE, n_tokens=n_tokens, batch=1, selector="forecast")
        keys, blocks = work["selection"].kv_bytes, work["attention"].kv_bytes
        got = student(shape=shape, sparsity=RULE, n_tokens=n_tokens)
        wide = RULE.budget_blocks * costs.block_bytes(head_dim=shape.head_dim) * shape.n_kv_heads
        slips = {
            blocks: "only the chosen blocks; to choose them, every compressed key was read too",
            keys + blocks / 2: "half of the blocks: attention reads keys and values",
            2 * keys + blocks: "the compressed keys count twice: they have no values",
            shape.n_layers * (keys + blocks): "this is all layers; asked is one",
            keys + wide: f"{n_tokens} tokens have fewer than {RULE.budget_blocks} blocks to read",
        }
        if close(got, keys + blocks):
            continue
        for slip, hint in slips.items():
            if close(got, slip):
                return Verdict("not yet", hint)
        hint = f"{shape.name}, {n_tokens} tokens gave {got:.6g}, {off(got, keys + blocks)}"
        return Verdict("not yet", hint)
    return Verdict("ok")


def crossing(*, budget_blocks: int, block_size: int, stride: int, group: int, selector: str) -> float:
    """Tokens of context from which scoring takes more FLOPs than attention over k blocks."""
    windows = 2 * budget_blocks * block_size  # 2d FLOPs a score, 4d a key that is attended to
    return windows * stride * (group if selector == "forecast" else 1)


@checker(without=[crossing])
def ch05_ex2(student) -> Verdict:
    """student(*, budget_blocks, block_size, stride, group, selector) -> tokens, to a percent."""
    draw, names = Random(), ("budget_blocks", "block_size", "stride", "group")
    fresh = (
        draw.randrange(5, 99),
        draw.choice((16, 32, 64)),
        draw.choice((4, 12, 20)),
        draw.randrange(3, 13),
    )
    for numbers in ((8, 32, 8, 4), (96, 64, 16, 16), fresh):
        sizes = dict(zip(names, numbers, strict=True))
        for selector in ("query", "forecast"):
            got, want = student(**sizes, selector=selector), crossing(**sizes, selector=selector)
            if close(got, want, 0.01):
                continue
            slips = {
                want / 2: "a key costs 4 d FLOPs in attention (score and value), a compressed key 2 d",
                want / sizes["stride"]: "these are windows; a new one begins every `stride` tokens",
                want * sizes["group"]: "with the query selector every query head scores, as in attention",
                want / sizes["group"]: "the Forecast scores with one head for a group of query heads",
            }
            for slip, hint in slips.items():
                if close(got, slip, 0.01):
                    return Verdict("not yet", f"{selector}: {hint}")
            return Verdict("not yet", f"{sizes}, {selector}: {got:.6g} tokens, {off(got, want)}")
    return Verdict("ok")


@checker
def ch05_ex3(student) -> Verdict:
    """student(times, part, factor) -> how many times faster all is if one part is ``factor`` times faster."""
    draw = Random()
    fresh = {name: round(draw.uniform(5, 90), 1) for name in ("selection", "attention", "rest", "wait")}
    cases = [
        ({"selection": 30.0, "attention": 20.0, "rest": 50.0}, "selection", 3.0),
        ({"selection": 10.0, "attention": 30.0}, "attention", 2.0),
        ({"selection": 10.0, "attention": 30.0}, "selection", 1.0),
        *((fresh, part, round(draw.uniform(1.5, 6), 1)) for part in ("rest", "attention")),
    ]
    for times, part, factor in cases:
        given, before = dict(times), sum(times.values())
        want = before / (before - times[part] + times[part] / factor)
        got = student(given, part, factor)
        if given != times:
            return Verdict("not yet", "leave the times as they were given; work on a copy")
        if close(got, want):
            continue
        if close(got, factor):
            return Verdict("not yet", "that is the part's own gain; the other parts take as long as before")
        if close(got * want, 1):
            return Verdict("not yet", "this is new over old; a gain is old over new")
        hint = f"{times}, {part} {factor:g} times faster gave {got:.4g}, {off(got, want)}"
        return Verdict("not yet", hint)
    return Verdict("ok")

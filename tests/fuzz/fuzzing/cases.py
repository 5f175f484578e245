"""``case(seed, number)``: one random small configuration, the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from random import Random
from typing import Any

from fuzzing.families import EXPERTS, FAMILIES, Family
from fuzzing.rotary import by_length

MODES = ("plain", "chunked", "uncached", "lookup", "assisted", "by hand", "embeds", "turns")
MODE_WEIGHTS = (9, 2, 2, 2, 1, 2, 1, 2)
ALONE = ("lookup", "assisted", "turns")  # one prompt only
DTYPES = ("float32", "bfloat16", "float16", "float64")  # transformers multiplies no experts in float64
SELECTORS = ("query", "forecast", "proxy", "calibrated", "streaming", "random", "oracle", "all", "wait")
SELECTOR_WEIGHTS = (7, 6, 2, 1, 2, 2, 1, 2, 2)


@dataclass(frozen=True)
class Case:
    """Everything that one comparison depends on, in plain values."""

    seed: int
    number: int
    family: str
    config: dict[str, Any]
    dtype: str
    gain: float  # projections are multiplied by it, so that a wrong one shows
    rule: dict[str, Any]  # of a Sparsity
    selector: str
    phases: tuple[str, ...]
    mode: str  # how attach's tokens are asked for
    chunk: int
    probe: bool
    lengths: tuple[int, ...]  # of the prompts
    new_tokens: int
    ends: int | tuple[int, ...] | None  # generation_config.eos_token_id
    stop: tuple[int, ...] | None  # what the engine is told to end at; None: nothing, it asks the model
    warm: bool  # the engine has served another batch before
    engine: dict[str, Any]
    engine_first: bool
    repeats: bool  # prompts repeat themselves, so that a lookup finds something

    @property
    def new_seed(self) -> int:
        """For everything in the model that is random."""
        return (self.seed * 1_000_003 + self.number) % 2**31


def case(seed: int, number: int) -> Case:
    """The case of that number."""
    rng = Random(f"{seed}/{number}")
    family = rng.choices(FAMILIES, [f.weight for f in FAMILIES])[0]
    n_layers = rng.choice((1, 2, 2, 3, 3, 4))
    selector = _selector(rng, n_layers)
    rule = _rule(rng, looks_ahead(selector))
    mode = rng.choices(MODES, MODE_WEIGHTS)[0]
    lengths = _lengths(rng, rule, mode)
    new_tokens = rng.randint(
        2 if mode in ("lookup", "assisted") else 1, 8
    )  # transformers guesses no single one
    config = _config(rng, family, n_layers, max(lengths) + new_tokens)
    if by_length(config):  # so do those of a batch by its longest text, and of a guess by what was guessed
        lengths = (max(lengths),)
        mode = "plain" if mode in ("lookup", "assisted") else mode
    plain = 0.4 if mode in ("uncached", *ALONE) else 0.75
    both = mode == "by hand" or rng.random() < plain  # by hand, nothing says where the prompt ends
    phases = ("prefill", "decode") if both else rng.choice((("prefill",), ("decode",), ()))
    if mode in ("uncached", *ALONE):  # a prompt read again would see other windows
        rule["visibility"] = "end"
    return Case(
        seed=seed, number=number, family=family.name, config=config,
        dtype=rng.choices(DTYPES, (80, 8, 5, 0 if family.experts else 7))[0],
        gain=rng.choice((1.0, 8.0, 8.0, 8.0)), rule=rule,
        selector=selector, phases=phases, mode=mode,
        chunk=rng.choice((1, 7, 16, 33)), probe=rng.random() < 0.15, lengths=lengths,
        new_tokens=new_tokens, ends=_ends(rng, config["vocab_size"]),
        stop=_stop(rng, config["vocab_size"]), warm=rng.random() < 0.4,
        engine=_engine(rng, rule, selector, max(lengths) + new_tokens),
        engine_first=rng.random() < 0.5, repeats=mode == "lookup" or rng.random() < 0.15,
    )  # fmt: skip


def looks_ahead(selector: str) -> bool:
    """Whether the layer before chooses."""
    return selector.startswith(("forecast", "proxy", "calibrated"))


def _rule(rng: Random, ahead: bool) -> dict[str, Any]:
    stride = rng.choice((4, 4, 8, 8, 16))
    window = stride * rng.choice((1, 2, 2, 2, 3, 4))
    size = stride * rng.choice((1, 2, 2, 4))
    init, local = rng.choice((0, 1, 1, 2)), rng.choice((0, 1, 1, 1, 2))
    if ahead and rng.random() < 0.8:  # the engine looks ahead with a local block
        local = max(1, local)
    budget = init + local + 1 + rng.choice((0, 1, 1, 2, 3, 3, 8))
    return {
        "budget_blocks": budget, "block_size": size, "init_blocks": init, "local_blocks": local,
        "window": window, "stride": stride, "visibility": "start" if rng.random() < 0.1 else "end",
    }  # fmt: skip


def _lengths(rng: Random, rule: dict[str, Any], mode: str) -> tuple[int, ...]:
    size, window = rule["block_size"], rule["window"]
    edges = (1, 2, window - 1, window, size, size + 1, 3 * size - 1, 3 * size)
    alone = mode in ALONE or rng.random() < 0.6
    drawn = [
        rng.choice(edges) if rng.random() < 0.25 else rng.randint(20, 120)
        for _ in range(1 if alone else rng.randint(2, 3))
    ]
    return tuple(max(1, min(120, n)) for n in drawn)


def _config(rng: Random, family: Family, n_layers: int, longest: int) -> dict[str, Any]:
    kv_heads, group = rng.choice((1, 1, 2, 2, 3, 4)), rng.choice((1, 2, 2, 3, 4, 8))
    odd = rng.random() < 0.12
    dim = (
        rng.choice((8, 24, 40, 48) if family.experts else (8, 12, 20, 24, 40, 48))
        if odd
        else rng.choice((16, 16, 16, 32, 32, 64))
    )
    heads = kv_heads * group
    if heads * dim > 256:
        heads = kv_heads = rng.choice((1, 2))
    step = lcm(heads, 8)  # transformers wants hidden sizes that heads, and 16 bytes, divide
    hidden = heads * dim if family.square else step * -(-rng.choice((32, 48, 64)) // step)
    sizes = {
        "num_hidden_layers": n_layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": dim, "hidden_size": hidden,
        "intermediate_size": rng.choice((32, 48, 96)), "vocab_size": rng.choice((64, 101, 256)),
        "max_position_embeddings": rng.choice((128, 256, 512, 512)),
        "rms_norm_eps": rng.choice((1e-6, 1e-5, 1e-2)),
        "tie_word_embeddings": rng.random() < 0.3, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        "attention_dropout": 0.0,
    }  # fmt: skip
    settings = sizes | EXPERTS | family.fixed | family.draw(rng, sizes)
    if family.rope and "rope_parameters" not in settings:
        settings |= _rope(rng, settings, longest)
    return settings


def _rope(rng: Random, sizes: dict[str, Any], longest: int) -> dict[str, Any]:
    """Scaled angles, whose limit may lie below, inside or above the text."""
    kinds = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
    kind = rng.choices(kinds, (50, 12, 8, 8, 12, 8))[0]
    parameters: dict[str, Any] = {"rope_type": kind, "rope_theta": rng.choice((1e3, 1e4, 5e5))}
    if kind == "default":
        return {"rope_parameters": parameters}
    short = max(16, rng.choice((longest // 2, longest + 48, longest + 48, 64)))
    factor = rng.choice((2.0, 4.0))
    parameters["factor"] = factor
    if kind in ("yarn", "llama3", "longrope"):
        parameters["original_max_position_embeddings"] = short
    if kind == "llama3":
        parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind == "longrope":
        half = sizes["head_dim"] // 2
        parameters["short_factor"] = [1.0 + 0.1 * rng.random() for _ in range(half)]
        parameters["long_factor"] = [1.0 + 3 * rng.random() for _ in range(half)]
    largest = short if kind in ("linear", "dynamic") else int(short * factor)
    return {"rope_parameters": parameters, "max_position_embeddings": largest}


def _selector(rng: Random, n_layers: int) -> str:
    name = rng.choices(SELECTORS, SELECTOR_WEIGHTS)[0]
    if name != "wait":
        return name
    waiting = sorted(rng.sample(range(n_layers), rng.randint(1, min(2, n_layers))))
    return (
        f"{rng.choice(('forecast',) * 4 + ('streaming', 'streaming', 'proxy'))}@{'+'.join(map(str, waiting))}"
    )


def _ends(rng: Random, vocab: int) -> int | tuple[int, ...] | None:
    chance = rng.random()
    if chance < 0.4:
        return None
    return rng.randrange(3, vocab) if chance < 0.6 else tuple(rng.sample(range(3, vocab), vocab // 8))


def _stop(rng: Random, vocab: int) -> tuple[int, ...] | None:
    chance = rng.random()
    return None if chance < 0.6 else () if chance < 0.8 else tuple(rng.sample(range(3, vocab), vocab // 8))


def _engine(rng: Random, rule: dict[str, Any], selector: str, longest: int) -> dict[str, Any]:
    """How the engine keeps and moves blocks; most combinations fit, a few do not."""
    cache = rng.choice(("full", "k", "k", rule["budget_blocks"] + rng.choice((0, 1, 3))))
    if rng.random() < 0.04:
        cache = rule["budget_blocks"] - 1
    ahead = looks_ahead(selector)
    if selector in ("all", "oracle") and rng.random() < 0.9:  # they read every block
        cache = "full"
    ways = ("demand", "copy_engine", "cpu_gather") + ("lookahead", "lookahead_worker") * ahead
    way = None if cache == "full" or rng.random() < 0.5 else rng.choice(ways)
    if rng.random() < 0.03:
        way = "lookahead"
    return {
        "cache": cache,
        "transport": way,
        "max_tokens": longest + rng.choice((0, 0, 1, 40)),
        "layer0_resident": rng.random() < (0.97 if ahead else 0.7),
        "replacement": rng.choice(("recent", "recent", "score")),
    }

"""A fault says what to do, gives all memory back though its traceback lives, and harms no later call."""

from __future__ import annotations

import itertools
import signal
import weakref
from dataclasses import dataclass, field

import pytest
import torch

from sparda.engine import Engine, reply
from sparda.engine.weights import random_decoder
from sparda.kernels import host_memory
from sparda.kernels.resident_worker import ResidentWorker
from sparda.selectors.replay import Override
from sparda.spec import ModelShape, Sparsity

PROMPTS = [[3, 1, 4, 1, 5] * 30, [9, 2, 6] * 11]
WAYS = [
    ("query", "demand"),
    ("query", "cpu_gather"),
    ("forecast", "lookahead"),
    ("forecast", "lookahead_worker"),
]
every_way = pytest.mark.parametrize(("selector", "transport"), WAYS)


@dataclass(frozen=True)
class Breaking(Override):
    """Raises ``error`` in layer 1 of a prompt or of the n-th decode step; on a GPU 2 is the captured one."""

    error: BaseException
    at: str | int
    calls: list = field(default_factory=list)
    name = "breaking"

    def select(self, view):
        if self.at == "prompt" and view.layer == 1:
            raise self.error
        return super().select(view)

    def overwrite(self, view, scores):
        if view.layer == 1:
            self.calls.append(None)
            if len(self.calls) == self.at:
                raise self.error


@dataclass(frozen=True)
class Waiting(Override):
    """Reads a value on the host."""

    name = "waiting"

    def overwrite(self, view, scores):
        assert scores.max().item() >= 0


class Held:
    """What a batch holds; ``expect_given_back`` is asked while the error and its traceback live."""

    def __init__(self, engine):
        engine.close()
        self.allocated = torch.cuda.memory_allocated()
        layers = engine.session(len(PROMPTS)).store.layers
        tensors = [t for s in layers for t in (s.cache.slots, s.cache.host) if t is not None]
        self.refs = [weakref.ref(t) for t in tensors]
        self.pages = [weakref.ref(s.cache.host.untyped_storage()) for s in layers if s.offloaded]

    def expect_given_back(self):
        assert not any(ref() is not None for ref in self.refs + self.pages)
        assert torch.cuda.memory_allocated() - self.allocated < 2**20


def expect_fault(engine, error, match, **request):
    """The call fails as it should; all memory is back; the next call is right."""
    held = Held(engine)
    asked = {"max_new_tokens": 30} | request
    with pytest.raises(error, match=match or None) as caught:
        engine.generate(PROMPTS, **asked)
    held.expect_given_back()
    assert caught.value is not None  # and with it the traceback


def expect_right(engine, twin):
    """The next call works and says what an engine says that never failed."""
    ask = {"max_new_tokens": 6}
    assert engine.generate(PROMPTS, **ask).tokens == twin.generate(PROMPTS, **ask).tokens
    engine.close()
    twin.close()


@pytest.mark.parametrize(
    ("error", "kind", "match"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), MemoryError, "lower the batch"),
        (ZeroDivisionError("between two layers"), ZeroDivisionError, "between two layers"),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("at", ["prompt", 1, 2, 3])
@every_way
def test_a_fault_between_two_layers(make, device, selector, transport, at, error, kind, match):
    engine = make(selector, transport)
    if at == 3 and engine.graph:
        pytest.skip("the third step is a replay")
    working = engine.selector
    engine.generate(PROMPTS, max_new_tokens=4)  # kernels, workspaces
    engine.selector = Breaking(working, error, at)
    expect_fault(engine, kind, match)
    engine.selector = working
    expect_right(engine, make(selector, transport))


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@pytest.mark.parametrize(("selector", "transport"), [("query", "demand"), ("forecast", "lookahead")])
def test_a_selector_that_waits_for_the_gpu(make, selector, transport):
    engine = make(selector, transport)
    working = engine.selector
    engine.generate(PROMPTS, max_new_tokens=4)
    engine.selector = Waiting(working)
    expect_fault(engine, RuntimeError, "make the engine with graph=False")
    engine.selector = working
    expect_right(engine, make(selector, transport))


def test_a_fault_inside_a_generated_launcher(make):
    """Triton's have no module name, and their arguments are the engine's tensors."""
    places: dict = {}
    exec("def launch(*arguments):\n    raise KeyboardInterrupt", places)

    engine = make("forecast", "lookahead")
    engine.generate(PROMPTS, max_new_tokens=4)
    held = Held(engine)
    slots = weakref.ref(engine.session(len(PROMPTS)).store.layers[1].cache.slots)
    engine.session(len(PROMPTS)).transport.start = lambda layer: places["launch"](slots())
    with pytest.raises(KeyboardInterrupt) as caught:
        engine.generate(PROMPTS, max_new_tokens=30)
    held.expect_given_back()
    assert caught.value is not None


@pytest.mark.parametrize("error", [KeyError("mine"), KeyboardInterrupt()])
@every_way
def test_a_callback_that_raises(make, selector, transport, error):
    def on_token(sequence, token, calls=itertools.count()):  # noqa: B008
        if next(calls) == 9:
            raise error

    engine = make(selector, transport)
    engine.generate(PROMPTS, max_new_tokens=4)
    expect_fault(engine, type(error), "", on_token=on_token)
    expect_right(engine, make(selector, transport))


@every_way
def test_ctrl_c_while_steps_run(make, selector, transport):
    def interrupt(*_):
        raise KeyboardInterrupt

    engine = make(selector, transport)
    engine.generate(PROMPTS, max_new_tokens=4)
    before = signal.signal(signal.SIGALRM, interrupt)
    started = []

    def on_token(sequence, token):
        if not started:
            started.append(signal.setitimer(signal.ITIMER_REAL, 0.02))

    try:
        expect_fault(engine, KeyboardInterrupt, "", max_new_tokens=350, on_token=on_token)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    expect_right(engine, make(selector, transport))


@every_way
def test_a_step_that_does_not_end(make, monkeypatch, selector, transport):
    class Never:
        def query(self):
            return False

    def begin(self, tokens, real=reply._Reading.__init__, calls=itertools.count()):  # noqa: B008
        real(self, tokens)
        if next(calls) >= 2:
            self._event = Never()

    engine = make(selector, transport)
    engine.generate(PROMPTS, max_new_tokens=4)
    with monkeypatch.context() as patch:
        patch.setattr(reply._Reading, "__init__", begin)
        expect_fault(engine, TimeoutError, "try again, with another transport", patience_s=0.05)
    expect_right(engine, make(selector, transport))


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_bells_that_nobody_answers(make, monkeypatch):
    engine = make("forecast", "lookahead_worker")
    engine.generate(PROMPTS, max_new_tokens=4)
    heard = []
    ask = {"on_token": lambda *token: heard.append(token)}
    with monkeypatch.context() as patch:
        patch.setattr(ResidentWorker, "start", lambda self: self)
        expect_fault(engine, TimeoutError, "try again, with transport='lookahead'", **ask)
    assert len(heard) <= 2 * len(PROMPTS)  # the prompt's token, and that of the step without the worker
    expect_right(engine, make("forecast", "lookahead_worker"))


def test_host_memory_short_by_a_gigabyte(make, monkeypatch):
    engine = make("query")
    n_bytes = engine.plan(4000).host_bytes
    assert n_bytes > 10**9
    with monkeypatch.context() as patch:
        patch.setattr(host_memory, "machine_memory", lambda: (2**40, n_bytes - 10**9))
        with pytest.raises(MemoryError, match="lower the batch or the context"):
            engine.generate([[1]] * 4000, max_new_tokens=2)
        expect_right(engine, make("query"))


def test_pinning_that_fails_in_the_middle(make, device, monkeypatch):
    pages = []
    name = "sparda.plan.pinned_empty" if device == "cuda" else "torch.empty"
    real = host_memory.pinned_empty if device == "cuda" else torch.empty

    def allocate(*shape, **options):
        if options.get("dtype") != torch.uint8:
            return real(*shape, **options)
        if len(pages) == 1:
            raise MemoryError(host_memory.explain(1, "the driver answered 2"))
        store = real(*shape, **options)
        pages.append(weakref.ref(store.untyped_storage()))
        return store

    engine = make("query")
    engine.generate(PROMPTS, max_new_tokens=4)
    engine.close()
    with monkeypatch.context() as patch:
        patch.setattr(name, allocate)
        with pytest.raises(MemoryError, match="Lower the batch") as caught:
            engine.generate(PROMPTS, max_new_tokens=4)
    assert caught.value is not None
    assert [page() for page in pages] == [None]
    expect_right(engine, make("query"))


WIDE = ModelShape(
    "wide", n_layers=2, hidden=512, n_heads=8, n_kv_heads=2, head_dim=64, ffn=512, vocab=101, rms_eps=1e-5,
    rope_theta=1e4, native_context=131_072, tied_embeddings=False, source="made up",
)  # fmt: skip


@pytest.mark.gpu
def test_the_gpu_is_full_in_the_middle_of_a_batch():
    decoder = random_decoder(WIDE, 131_072, device="cuda", dtype=torch.bfloat16)
    engine = Engine(decoder, sparsity=Sparsity(8, local_blocks=2), max_tokens=131_072)
    prompts = [[1] * 50, [7] * 100_000]
    engine.generate(prompts, max_new_tokens=4)
    held = Held(engine)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**26) / total)
        with pytest.raises(MemoryError, match="lower the batch") as caught:
            engine.generate(prompts, max_new_tokens=4)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    held.expect_given_back()
    assert caught.value is not None
    assert len(engine.generate(prompts, max_new_tokens=4).tokens[1]) == 4


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"prompts": [[1] * 500]}, "make it with max_tokens=530 or shorten"),
        ({"prompts": [[1], []]}, "at least one token each"),
        ({"prompts": []}, "at least one token each"),
        ({"prompts": [[1, 101]]}, "0..100, got 1..101; use the tokenizer of this model"),
        ({"prompts": [[-1]]}, "use the tokenizer"),
        ({"prompts": [1, 2, 3]}, r"for one prompt pass \[ids\]"),
        ({"prompts": torch.tensor([1, 2, 3])}, r"for one prompt pass \[ids\]"),
        ({"prompts": "text"}, r'tokenizer\(text\)\["input_ids"\]'),
        ({"prompts": ["text"]}, r'tokenizer\(text\)\["input_ids"\]'),
        ({"prompts": [[[1, 2], [3]]]}, "each a list or tensor of whole token ids"),
        ({"prompts": [[0.5]]}, "whole token ids"),
        ({"max_new_tokens": 0}, "max_new_tokens >= 1"),
        ({"temperature": -1.0}, "temperature must be >= 0"),
        ({"top_p": 2.0}, "0 < top_p <= 1"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_and_changes_nothing(make, wrong, match):
    engine = make("query")
    session = engine.session(2)
    with pytest.raises(ValueError, match=match):
        engine.generate(**({"prompts": PROMPTS, "max_new_tokens": 30} | wrong))
    assert engine.session(2) is session
    expect_right(engine, make("query"))


@every_way
def test_one_token_beside_a_very_long_prompt(make, selector, transport):
    prompts = [[8], [3, 1, 4, 1, 5] * 140]
    got = make(selector, transport, max_tokens=720).generate(prompts, max_new_tokens=20).tokens
    alone = make(selector, cache="full", max_tokens=720)
    assert got == [alone.generate([p], max_new_tokens=20).tokens[0] for p in prompts]


@pytest.mark.gpu
@pytest.mark.parametrize(("selector", "transport"), [("query", "demand"), ("random", "demand")])
def test_one_token_beside_the_longest_prompt_there_is(selector, transport):
    decoder = random_decoder(WIDE, 131_072, device="cuda", dtype=torch.bfloat16)
    rule = {"sparsity": Sparsity(40, local_blocks=8), "max_tokens": 131_072, "selector": selector}
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(0, 101, (n,), generator=generator) for n in (1, 131_072 - 70)]
    engine, full = Engine(decoder, transport=transport, **rule), Engine(decoder, cache="full", **rule)
    got = engine.generate(prompts, max_new_tokens=70).tokens
    assert got == full.generate(prompts, max_new_tokens=70).tokens


@every_way
def test_a_reply_may_end_exactly_at_the_maximum(make, selector, transport):
    ask = {"prompts": [[5] * 244, [7] * 3], "max_new_tokens": 12}
    tight, wide = (make(selector, transport, max_tokens=n) for n in (256, 400))
    assert tight.generate(**ask).tokens == wide.generate(**ask).tokens


@every_way
def test_two_engines_do_not_mind_each_other(make, selector, transport):
    ask = {"max_new_tokens": 20}
    want = [make(selector, transport).generate([p], **ask).tokens for p in PROMPTS]
    first, second = make(selector, transport), make(selector, transport)
    inner = []

    def on_token(sequence, token):
        if not inner:
            inner.extend(second.generate([PROMPTS[1]], **ask).tokens)

    assert first.generate([PROMPTS[0]], on_token=on_token, **ask).tokens == want[0]
    assert inner == want[1]


@pytest.mark.parametrize("replacement", ["recent", "score"])
@pytest.mark.parametrize(
    ("selector", "transport"), [("query", "copy_engine"), ("forecast", "lookahead_worker")]
)
def test_a_session_starts_afresh_after_other_prompts_batches_and_stops(
    make, selector, transport, replacement
):
    options = {"cache": 7, "replacement": replacement}
    engine = make(selector, transport, **options)
    long = [[(7 * i + j) % 101 for i in range(300)] for j in range(2)]
    first = engine.generate(long, max_new_tokens=20).tokens
    engine.generate(long, max_new_tokens=20, stop={first[0][7]})
    again = engine.generate(PROMPTS, max_new_tokens=20).tokens
    assert again == make(selector, transport, **options).generate(PROMPTS, max_new_tokens=20).tokens
    assert engine.generate(long[:1], max_new_tokens=20).tokens == first[:1]  # a batch of another size
    assert engine.generate(long, max_new_tokens=20).tokens == first


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@every_way
def test_opening_and_closing_leaves_nothing(make, selector, transport):
    engine, left = make(selector, transport), []
    for _ in range(6):
        engine.generate(PROMPTS, max_new_tokens=5)
        engine.close()
        left.append(torch.cuda.memory_allocated())
    print(left)
    assert left[-1] <= left[1]

"""What the cases of an engine benchmark share (weights, rule, device, host memory), and how one is opened."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from sparda import spec
from sparda.blocks import count_blocks
from sparda.forecast import Forecast
from sparda.measure import choices
from sparda.measure.hosts import Hosts
from sparda.measure.systems import Case
from sparda.plan import Plan
from sparda.selectors import Selector, make
from sparda.selectors.proxy import Proxy
from sparda.selectors.recorded import Recorded
from sparda.selectors.replay import Replay
from sparda.selectors.waiting import waiting
from sparda.spec import ModelShape, Sparsity
from sparda.waits import split

REAL = ("smollm2-135m",)  # these come with trained weights, every other preset with random ones


class Skipped(Exception):
    """This case cannot be run here; the message says why."""


@dataclass(frozen=True)
class Setup:
    """One model on one device.

    model      : a decoder of the engine (random weights), or a Hugging Face model
    gpu_memory : bytes of GPU memory that a run may take; None: all
    hosts      : host memory that the cases share
    """

    shape: ModelShape
    sparsity: Sparsity
    model: Any
    device: torch.device
    dtype: torch.dtype
    gpu_memory: int | None = None
    hosts: Hosts = field(default_factory=Hosts)
    seed: int = 0
    _selectors: dict[str, Selector] = field(default_factory=dict, repr=False)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def selector(self, name: str) -> Selector:
        """A selector, made once; its own weights are random ones of the right shapes: enough for speed."""
        if name not in self._selectors:
            self._selectors[name] = self._make(name)
        return self._selectors[name]

    def _make(self, name: str) -> Selector:
        name, layers = split(name)
        if layers:
            return waiting(self.selector(name), layers)
        if name not in ("forecast", "proxy"):
            return make(name)
        s = self.shape
        sizes = {"n_layers": s.n_layers, "hidden": s.hidden, "n_kv_heads": s.n_kv_heads}
        sizes |= {"head_dim": s.head_dim, "seed": self.seed}
        if name == "proxy":
            return Proxy.untrained(**sizes).to(self.device, self.dtype)
        return make(name, weights=Forecast.untrained(**sizes).to(self.device, self.dtype))


def default_sparsity(model: str, context: int) -> Sparsity:
    """The block rule that goes with a model; SmolLM2's depends on the context."""
    if model == "smollm2-135m":
        return spec.sparsity("smollm2-2k" if context <= 2048 else "smollm2-4k")
    return spec.SPARSITY.get(model, spec.sparsity("minicpm4.1-8b"))


def build(
    model: str, *, max_tokens: int, device: torch.device, sparsity: Sparsity | None = None,
    gpu_memory: int | None = None, layers_per_store: int = 1, host_memory: int | None = None,
) -> Setup:  # fmt: skip
    """Load or make the model; bf16 on a GPU, float32 on a CPU. KeyError: no such preset."""
    shape, on_gpu = spec.model(model), device.type == "cuda"
    if gpu_memory and on_gpu:
        index = torch.cuda.current_device() if device.index is None else device.index
        total = torch.cuda.get_device_properties(index).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, gpu_memory / total), index)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    if model in REAL:
        from sparda.models.load import load

        weights = load(model).model.to(device, dtype)
    else:
        from sparda.engine.weights import random_decoder

        weights = random_decoder(shape, max_tokens, device=device, dtype=dtype)
    rule = sparsity or default_sparsity(model, max_tokens)
    return Setup(shape, rule, weights, device, dtype, gpu_memory, Hosts(layers_per_store, host_memory))


def engine(setup: Setup, case: Case, *, past: int) -> Any:
    """An engine for a case; Skipped where its parts do not go together.

    past : tokens that every sequence holds when the first step is measured
    """
    from sparda.engine import Engine

    try:
        host = setup.hosts.pool(_plan(setup, case))
        selector = setup.selector(case.system.selector)
        if case.system.offloads:
            selector = _replayed(setup, selector, case, past)
        return Engine(
            setup.model, selector=selector, sparsity=setup.sparsity, cache=case.slots,
            transport=case.system.transport, max_tokens=case.context, host=host,
        )  # fmt: skip
    except ValueError as error:
        raise Skipped(first_sentence(error)) from error


def _replayed(setup: Setup, selector: Selector, case: Case, past: int) -> Selector:
    if case.hit_rate is not None:
        replay = Replay(selector, case.hit_rate, past)
        replay.ring(setup.sparsity)
        return replay
    recorded = choices.load().ids
    learned = setup.sparsity.budget_blocks - setup.sparsity.forced_blocks
    candidates = past // setup.sparsity.block_size - setup.sparsity.local_blocks
    if recorded.shape[-1] != learned or int(recorded.max()) >= candidates:
        raise Skipped(
            f"the recorded choices are {recorded.shape[-1]} of {int(recorded.max())} blocks, "
            f"here it is {learned} of {candidates}"
        )
    if case.context - past > len(recorded):
        raise Skipped(
            f"{len(recorded)} steps were recorded, {case.context - past} are needed; take fewer steps"
        )
    return Recorded(selector, recorded, past)


@contextmanager
def session(setup: Setup, case: Case, *, past: int) -> Iterator[Any]:
    """A session of the case's batch; all it holds is given back at the end."""
    made = engine(setup, case, past=past)
    try:
        yield made.session(case.batch)
    finally:
        made.close()


def _plan(setup: Setup, case: Case) -> Plan:
    s = setup.shape
    return Plan(
        case.batch, case.context, s.n_layers, s.n_kv_heads, s.head_dim, setup.sparsity, case.slots,
        dtype=setup.dtype, device=setup.device,
    )  # fmt: skip


def attempt(setup: Setup, run: Any) -> tuple[dict[str, Any], str]:
    """Run a case: its numbers and "ok", or none and the reason. Out of memory is a result, not a crash."""
    numbers: dict[str, Any] = {}
    if setup.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    try:
        numbers, status = run(), "ok"
    except (MemoryError, torch.OutOfMemoryError) as error:
        status = f"out of memory: {first_sentence(error)}"
    except Skipped as error:
        status = f"skipped: {error}"
    _give_back(setup)
    return numbers, status


def _give_back(setup: Setup) -> None:
    """Only here, where no exception holds the frames that hold the tensors."""
    if setup.on_gpu:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def first_sentence(error: BaseException) -> str:
    """What an error says first, on one line and of bearable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.split(". ")[0][:160]


def memory(setup: Setup, session: Any) -> dict[str, float]:
    """Peak GPU memory since the case began and the pinned bytes that its store uses, in GiB."""
    hosts = {s.cache.host.data_ptr(): s.cache.host.nbytes for s in session.store.layers if s.offloaded}
    peak = torch.cuda.max_memory_allocated() / 2**30 if setup.on_gpu else float("nan")
    return {"peak_gpu_gib": peak, "pinned_gib": sum(hosts.values()) / 2**30}


def cache_slots(setup: Setup, case: Case) -> int:
    """Slots a (sequence, KV head) of an offloaded layer, as a number."""
    if case.slots == "full":
        return count_blocks(case.context, setup.sparsity)
    return setup.sparsity.budget_blocks if case.slots == "k" else int(case.slots)

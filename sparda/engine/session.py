"""One batch in flight: its store, its transport, and the step that a CUDA graph holds.

The first step runs eagerly, which compiles and loads every kernel; the second is captured; the third and all
others are replays. Nothing in a step waits for the GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparda.engine.decode import Step
from sparda.engine.decoder import Decoder, held_bytes
from sparda.engine.prefill import Prefill
from sparda.plan import HostPool, Plan
from sparda.selectors import Selector
from sparda.store import Store
from sparda.trace import Trace
from sparda.transports import Transport


class Session:
    """State of a batch; made by ``Engine.session``.

    tokens : [B] int64, what the next step reads; afterwards the greedy next tokens
    going  : [B] int64, 1 for the sequences that the step moves on, 0 for those that have ended
    logits : [B, vocab] float32 of the last step
    """

    def __init__(
        self, decoder: Decoder, plan: Plan, selector: Selector, transport: type[Transport], *,
        replacement: str = "recent", n_ctas: int | None = None, graph: bool = False,
        host: HostPool | None = None,
    ):  # fmt: skip
        self.store = Store(plan, host)
        jobs = {i: state.job for i, state in enumerate(self.store.layers) if state.offloaded}
        self.transport = transport(jobs, n_ctas)
        self._step = Step(decoder, self.store, selector, self.transport, replacement)
        device = torch.device(plan.device)
        self.tokens = torch.zeros(plan.batch, dtype=torch.int64, device=device)
        self.going = torch.ones(plan.batch, dtype=torch.int64, device=device)
        self.logits = torch.zeros(plan.batch, len(decoder.head), device=device)
        self._graph_wanted, self._warm = graph, False
        self._graphs: dict[Trace | None, torch.cuda.CUDAGraph] = {}  # by the trace that it fills

    @property
    def positions(self) -> Tensor:
        return self.store.positions

    @torch.inference_mode()
    def read(self, sequence: int, tokens: Tensor) -> Tensor:
        """Read a prompt [T] into one place of the batch; return the logits [vocab] of its end."""
        step = self._step
        self.transport.pause()  # a prompt allocates, and may load kernels
        return Prefill(step.decoder, self.store, step.selector, sequence, tokens).run()

    @torch.inference_mode()
    def step(self, trace: Trace | None = None) -> None:
        """Read ``tokens``, one a sequence; leave ``logits`` and the greedy ``tokens``; move on.

        trace : filled with when each part of each layer ran
        """
        self.transport.trace = trace
        if not (self._graph_wanted and self._warm):
            self.transport.resume()
            self._advance()
            self._warm = True
            return
        if trace not in self._graphs:
            self._graphs[trace] = self._capture()
        self.transport.resume()
        self._graphs[trace].replay()

    def _advance(self) -> None:
        self.logits.copy_(self._step.run(self.tokens))
        self.tokens.copy_(self.logits.argmax(-1))
        self.store.positions += self.going

    def _capture(self) -> torch.cuda.CUDAGraph:
        self.transport.pause()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._advance_or_join()
        except torch.OutOfMemoryError:
            raise
        except torch.AcceleratorError as error:
            raise RuntimeError(
                f"a step could not be captured ({str(error).splitlines()[0]}): something in it waits for the "
                "GPU, such as a selector that reads values; make the engine with graph=False"
            ) from error
        return graph

    def _advance_or_join(self) -> None:
        try:
            self._advance()
        except BaseException:
            self.transport.join()  # torch frees no memory while a capture has not ended
            raise

    @torch.inference_mode()
    def fill(self, n_tokens: int, seed: int = 0) -> None:
        """Give every sequence a random past of ``n_tokens``, as if prompts had been read: speeds only."""
        self.store.fill(n_tokens, seed)
        self.going.fill_(1)

    def ledger(self) -> dict[str, int]:
        """Bytes held, by what they are for; "pinned" and "staged" are host memory, all else the device's."""
        own = sum(t.nbytes for t in (self.tokens, self.going, self.logits))
        return self.store.ledger() | {
            "staged": self.transport.staged_bytes,
            "weights": held_bytes(self._step.decoder, self._step.selector),
            "workspace": own + self.transport.workspace_bytes + self.graph_bytes,
        }

    @property
    def graph_bytes(self) -> int:
        """Memory set apart for what exists inside a captured step only."""
        pools = {graph.pool() for graph in self._graphs.values()}
        if not pools:
            return 0
        segments = torch.cuda.memory_snapshot()
        return sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) in pools)

    def check(self) -> None:
        """Raise TimeoutError if a copy was given up in a step that has ended."""
        self.transport.check()

    def close(self) -> None:
        """Stop what runs and give memory back; the session cannot be used afterwards."""
        self.transport.close()
        if self.tokens.is_cuda:
            torch.cuda.synchronize()  # a step or a prompt may have been left half-way
        self._graphs.clear()
        del self.store, self.transport, self._step  # somebody may still hold the session: a traceback, say

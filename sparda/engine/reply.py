"""The loop of a generation: sample, hand over, step. It stays one step ahead of what the host has read."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from torch import Tensor

from sparda.engine.decode import sample
from sparda.engine.session import Session


class Reply:
    """One reply for every prompt of a batch."""

    def __init__(
        self, session: Session, max_new_tokens: int, temperature: float, top_p: float, seed: int,
        stop: Collection[int], on_token: Callable[[int, int], None] | None, patience_s: float,
    ):  # fmt: skip
        self.session, self.max_new_tokens, self.patience_s = session, max_new_tokens, patience_s
        self.temperature, self.top_p, self.stop, self.on_token = temperature, top_p, set(stop), on_token
        device, batch = session.tokens.device, len(session.tokens)
        noise = torch.Generator().manual_seed(seed)
        self.chances = torch.rand(batch, max_new_tokens, generator=noise).T.to(device)  # alike everywhere
        self.stops = torch.tensor(sorted(self.stop), dtype=torch.int64, device=device)
        self.tokens: list[list[int]] = [[] for _ in range(batch)]
        self.going = [True] * batch  # as the host knows it

    @torch.inference_mode()
    def run(self, texts: Sequence[Tensor], progress: bool) -> list[list[int]]:
        """Read the prompts, then step until every sequence has stopped or has its tokens."""
        session = self.session
        logits = torch.stack([session.read(i, text) for i, text in enumerate(texts)])
        session.going.fill_(1)
        for step in _bar(range(self.max_new_tokens), progress):
            tokens = sample(logits, self.temperature, self.top_p, self.chances[step])
            news = _Reading(tokens)
            last = step + 1 == self.max_new_tokens
            if not last:  # enqueued before the host looks at the tokens
                session.tokens.copy_(tokens)
                session.going *= ~torch.isin(tokens, self.stops)
                session.step()
                logits = session.logits
            tokens = news.get(self.patience_s)
            session.check()
            self._hand_over(tokens)
            if not any(self.going):
                break
        return self.tokens

    def _hand_over(self, tokens: list[int]) -> None:
        """Those that have stopped stay as they are."""
        for i, token in enumerate(tokens):
            if not self.going[i]:
                continue
            self.tokens[i].append(token)
            self.going[i] = token not in self.stop
            if self.on_token is not None:
                self.on_token(i, token)


class _Reading:
    """Tokens on their way to the host, while the GPU goes on."""

    def __init__(self, tokens: Tensor):
        self._event = torch.cuda.Event() if tokens.is_cuda else None
        self._tokens = tokens.to("cpu", non_blocking=True)
        if self._event is not None:
            self._event.record()

    def get(self, patience_s: float) -> list[int]:
        """Wait for them, awake to Ctrl-C; TimeoutError after patience_s."""
        until = time.monotonic() + patience_s
        while self._event is not None and not self._event.query():
            if time.monotonic() > until:
                raise TimeoutError(
                    f"a decode step did not end within {patience_s:g} s, so its blocks may never arrive; "
                    "the batch is given up: try again, with another transport if it happens again"
                )
            time.sleep(2e-5)
        return self._tokens.tolist()


def _bar(steps: range, progress: bool) -> Iterable[int]:
    if not progress:
        return steps
    from tqdm.auto import tqdm

    return tqdm(steps, desc="decode", unit="step")

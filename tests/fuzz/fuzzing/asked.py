"""How tokens are asked for: the attached model in several ways, and the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fuzzing.cases import Case
from fuzzing.models import build


@dataclass
class Said:
    """Tokens of each sequence, end token included; logits of each new token where they can be had.

    last  : only the last logits, [vocab] of each sequence
    texts : what was read as prompts, where it is not what was given; decoded: and which positions of it were
            a reply to an earlier prompt
    """

    tokens: list[list[int]]
    logits: list[Tensor] | None = None  # [n, vocab] of each sequence
    last: Tensor | None = None
    texts: list[Tensor] | None = None
    decoded: range = range(0)


@dataclass
class Count:
    """How many tokens came: a stopping criterion that never stops, or a hook on a model."""

    tokens: int = 0

    def __call__(self, ids: Tensor, scores: Any, **kwargs) -> Tensor:
        self.tokens += 1
        return torch.zeros(ids.shape[0], dtype=torch.bool)

    def passed(self, module: Any, args: Any, output: Any) -> None:
        """A pass that verifies guesses says at least one token."""
        self.tokens += 1


def ends_of(case: Case, engine: bool = False) -> frozenset[int]:
    """Tokens that end a sequence."""
    if engine and case.stop is not None:
        return frozenset(case.stop)
    ends = () if case.ends is None else case.ends
    return frozenset(ends if isinstance(ends, tuple) else (ends,))


def up_to_end(tokens: list[int], ends: frozenset[int]) -> list[int]:
    """Cut after the first end token."""
    at = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: at + 1]


def hugging_face(case: Case, model: Any, texts: list[Tensor], count: Count) -> Said:
    """What the model says as it stands: attached, if the caller attached it."""
    if case.mode == "turns":
        return _in_turns(case, model, texts[0], count)
    ids, mask = _left_padded(texts)
    if case.mode == "by hand":
        return _by_hand(case, model, ids, mask, count)
    options: dict[str, Any] = {"attention_mask": mask}
    if case.mode == "embeds":
        options["inputs_embeds"] = model.get_input_embeddings()(ids)
    else:
        options["input_ids"] = ids
    if case.mode == "chunked":
        options["prefill_chunk_size"] = case.chunk
    if case.mode == "uncached":
        options["use_cache"] = False
    if case.mode == "lookup":
        options["prompt_lookup_num_tokens"] = 1 + case.number % 5
    if case.mode == "assisted":
        small = case.config | {"num_hidden_layers": 1, "no_rope_layers": None, "layer_types": None}
        small = {name: value for name, value in small.items() if value is not None}
        options["assistant_model"] = build(replace(case, config=small))
    return _generated(case, model, count, **options)[0]


def _generated(case: Case, model: Any, count: Count, **options) -> tuple[Said, Any]:
    """What ``generate`` says, and its cache."""
    options |= {"do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    if guessed := case.mode in ("lookup", "assisted"):  # they ask whether to stop before they have read
        hook = model.register_forward_hook(count.passed)
    else:
        options["stopping_criteria"] = [count]
    try:
        out: Any = model.generate(max_new_tokens=case.new_tokens, **options)
    finally:
        if guessed:
            hook.remove()
    new = out.sequences[:, options["input_ids"].shape[1] if "input_ids" in options else 0 :]
    tokens = [up_to_end(row, ends_of(case)) for row in new.tolist()]
    if not out.logits:  # guessing keeps none of a single token
        return Said(tokens), out.past_key_values
    logits = torch.stack([step.float() for step in out.logits], 1)  # [B, n, vocab]
    rows = [rows[: len(said)] for rows, said in zip(logits, tokens, strict=True)]
    return Said(tokens, rows), out.past_key_values


def _in_turns(case: Case, model: Any, text: Tensor, count: Count) -> Said:
    """Half of the text is answered first; the other half comes after that answer, on the same cache."""
    n = max(1, len(text) // 2)
    first, cache = _generated(case, model, Count(), input_ids=text[None, :n])
    whole = torch.cat([text[:n], torch.tensor(first.tokens[0]), text[n:]])
    if len(whole) == n + len(first.tokens[0]):  # nothing came after: a cache wants something to read
        whole = torch.cat([whole, text[:1]])
    said, _ = _generated(case, model, count, input_ids=whole[None], past_key_values=cache)
    said.texts, said.decoded = [whole], range(n, n + len(first.tokens[0]) - 1)
    return said


def _left_padded(texts: list[Tensor]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, texts))
    pad = [longest - len(text) for text in texts]
    ids = torch.stack([torch.cat([text.new_zeros(n), text]) for n, text in zip(pad, texts, strict=True)])
    return ids, (torch.arange(longest) >= torch.tensor(pad)[:, None]).long()


def by_hand_step(case: Case) -> int:
    """Tokens of a prompt that are read at once by hand."""
    return max(case.chunk, 5)


def _by_hand(case: Case, model: Any, ids: Tensor, mask: Tensor, count: Count) -> Said:
    """Chunks and a cache in a loop of one's own, as programs without ``generate`` do it."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    logits, done = torch.empty(0), 0
    rows: list[Tensor] = []
    tokens = ids
    while len(rows) < case.new_tokens:
        for part in tokens[:, done:].split(by_hand_step(case), 1):
            done += part.shape[1]
            places = (mask[:, :done].cumsum(1) - 1).clamp(min=0)[:, -part.shape[1] :]
            logits = model(
                part,
                attention_mask=mask[:, :done],
                position_ids=places,
                past_key_values=cache,
                use_cache=True,
            ).logits[:, -1]
        rows.append(logits.float())
        count.tokens += 1
        tokens = torch.cat([tokens, logits.float().argmax(-1, keepdim=True)], 1)
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
    said = [up_to_end(row, ends_of(case)) for row in tokens[:, ids.shape[1] :].tolist()]
    stacked = torch.stack(rows, 1)
    return Said(said, [some[: len(row)] for some, row in zip(stacked, said, strict=True)])


def engine(case: Case, made: Any, texts: list[Tensor], on_token: Callable[[int, int], None]) -> Said:
    """What an Engine says."""
    stop = {} if case.stop is None else {"stop": case.stop}
    ids = [text.tolist() if i % 2 else text for i, text in enumerate(texts)]
    if case.warm:
        made.generate([text.flip(0)[: 1 + len(text) // 2] for text in texts], max_new_tokens=case.new_tokens)
    tokens = made.generate(ids, max_new_tokens=case.new_tokens, on_token=on_token, **stop).tokens
    whole = case.new_tokens > 1 and all(len(said) == case.new_tokens for said in tokens)
    last = made.session(len(texts)).logits.clone().float() if whole else None
    made.close()
    return Said(tokens, last=last)

"""The random model, prompts and selector of a case."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fuzzing.cases import Case
from fuzzing.rotary import by_length


class NoModel(Exception):
    """transformers itself has no such model, or cannot run it in this way."""


def build(case: Case) -> nn.Module:
    """The model; equal in every bit each time."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if case.family == "minicpm":
        from sparda.models.minicpm import register

        register()
    torch.manual_seed(case.new_seed)
    try:
        config = AutoConfig.for_model(case.family, **case.config)
        model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    except Exception as error:
        raise NoModel(f"{type(error).__name__}: {str(error).splitlines()[0][:100]}") from error
    _randomise(model, case)
    model.generation_config.eos_token_id = list(case.ends) if isinstance(case.ends, tuple) else case.ends
    model.generation_config.pad_token_id = 0
    return model.eval().to(getattr(torch, case.dtype))


@torch.no_grad()
def _randomise(model: nn.Module, case: Case) -> None:
    """Gains, biases and projections that matter."""
    noise = torch.Generator().manual_seed(case.new_seed)
    for name, p in model.named_parameters():
        if not p.isfinite().all():
            p.normal_(0, 0.02, generator=noise)
        elif p.dim() == 1 or name.endswith("bias"):
            p.add_(torch.randn(p.shape, generator=noise), alpha=0.3)
        elif "proj" in name or "experts" in name or "mlp" in name:
            p.mul_(case.gain)


def prompts(case: Case) -> list[Tensor]:
    """Token ids [T] of each prompt."""
    noise = torch.Generator().manual_seed(case.new_seed + 1)
    vocab = case.config["vocab_size"]
    texts = [torch.randint(3, vocab, (n,), generator=noise) for n in case.lengths]
    return [text[: max(1, len(text) // 4)].repeat(8)[: len(text)] if case.repeats else text for text in texts]


@dataclass(frozen=True)
class Chooser:
    """What decides, in plain tensors, for the reference.

    ahead : for each layer, rows [H * d, hidden] that foresee its choice
    skew  : for each layer, [H, d, r], where channels of keys are scored and not their means
    """

    name: str
    waits: frozenset[int] = frozenset()
    seed: int = 0
    ahead: list[Tensor] = field(default_factory=list)
    skew: list[Tensor] = field(default_factory=list)


def chooser(case: Case, model: nn.Module) -> tuple[Chooser, dict[str, Any]]:
    """The same selector for the reference, and as keywords of ``attach`` and ``Engine``."""
    from sparda.forecast import Forecast, Shape
    from sparda.selectors import Waiting
    from sparda.selectors.proxy import Proxy

    name, _, after = case.selector.partition("@")
    waits = frozenset(int(n) for n in after.split("+")) if after else frozenset()
    if name == "random":
        return Chooser(name, waits, case.number), {"selector": case.selector, "seed": case.number}
    if name not in ("forecast", "proxy", "calibrated"):
        return Chooser(name, waits), {"selector": case.selector}
    s = Shape.of(model)
    sizes = {"n_layers": s.n_layers, "hidden": s.hidden, "n_kv_heads": s.n_kv_heads, "head_dim": s.head_dim}
    if name == "forecast":
        weights = Forecast.untrained(**sizes, seed=case.number)
        rows = [weights.current, *weights.future]
        return Chooser(name, waits, ahead=rows), {"selector": case.selector, "weights": weights}
    if name == "proxy":
        proxy = Proxy.untrained(**sizes, seed=case.number)
    else:
        noise = torch.Generator().manual_seed(case.new_seed + 2)
        tokens = torch.randint(3, case.config["vocab_size"], (1, 96), generator=noise)
        # transformers keeps the longest text's angles where they change with the length
        proxy = Proxy.calibrate(build(case) if by_length(case.config) else model, tokens)
    made = Waiting(proxy, waits) if waits else proxy
    return Chooser("proxy", waits, ahead=list(proxy.weights), skew=list(proxy.skew)), {"selector": made}

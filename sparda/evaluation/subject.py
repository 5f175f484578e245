"""A model under evaluation, and the selectors of the compared methods for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from sparda.evaluation import texts
from sparda.evaluation.methods import METHODS, place
from sparda.forecast import Forecast, Shape
from sparda.models.fingerprint import fingerprint
from sparda.models.layers import context_limit
from sparda.provenance import sha256
from sparda.selectors import Selector, make
from sparda.selectors.waiting import waiting
from sparda.text import data_dir
from sparda.waits import split

CALIBRATION = ("jargon_file", 8192)  # the proxy's skew is read off the front of this text: tokens, at most


@dataclass
class Subject:
    """A model under evaluation; it makes the selectors of the methods, each once.

    forecast : its Forecast weights; default: the only file under data/forecasts/<name>/
    """

    name: str
    model: Any
    tokenizer: Any
    forecast: Path | None = None
    seed: int = 0
    _made: dict[str, Selector] = field(default_factory=dict, repr=False)

    @cached_property
    def label(self) -> str:
        """What rows call it: its name, of a folder with a part of its fingerprint."""
        folder = Path(self.name).expanduser()
        return f"{folder.resolve().name}-{fingerprint(self.model)[:8]}" if folder.is_dir() else self.name

    @property
    def device(self) -> torch.device:
        return self.model.device

    def selector(self, method: str) -> Selector:
        """A method's selector; FileNotFoundError: the Forecast was not trained yet.

        ValueError: an unknown method, or a layer that the model does not have.
        """
        place(method)
        if method not in self._made:
            name, layers = split(method)
            made = self.selector(name) if layers else self._make(METHODS[name])
            made = waiting(made, layers).to(self.device, self.model.dtype)
            made.check(Shape.of(self.model))
            self._made[method] = made
        return self._made[method]

    def _make(self, name: str) -> Selector:
        if name == "forecast":
            return make(name, weights=self._forecast())
        if name == "proxy":
            from sparda.selectors.proxy import Proxy

            return Proxy.calibrate(self.model, self.tokens(*CALIBRATION)[None])
        return make(name, **({"seed": self.seed} if name == "random" else {}))

    def _forecast(self) -> Forecast:
        """ValueError: weights that were trained for another model of the same shape."""
        path = find_forecast(self.name, self.forecast)
        weights = Forecast.load(path, Shape.of(self.model))
        if weights.made_for(fingerprint(self.model)) is False:
            raise ValueError(
                f"{path} was trained for another model ({weights.about.get('model', 'unknown')}, or other "
                f"weights of that name) than {self.name}; give its own with --forecast, or train one"
            )
        return weights

    @property
    def longest(self) -> int:
        """Tokens that the model was made to read."""
        return context_limit(self.model.config) or sys.maxsize

    def tokens(self, text: str, count: int, start: float = 0.0) -> torch.Tensor:
        """``count`` tokens [T] of a text from a share of it on; fewer where it, or the context, ends."""
        count = min(count, self.longest)
        whole = texts.read(text)
        first = int(start * len(whole))
        ids = self.tokenizer(whole[first : first + 12 * count], add_special_tokens=False, verbose=False)
        return torch.tensor(ids["input_ids"][:count], device=self.device)

    def about(self) -> dict[str, Any]:
        """For the sidecar: what else decides the numbers."""
        facts: dict[str, Any] = {"precision": str(self.model.dtype).removeprefix("torch.")}
        facts["calibration"] = f"{CALIBRATION[1]} tokens of {CALIBRATION[0]}"
        if "sparda" in self._made:
            path = find_forecast(self.name, self.forecast)
            facts["forecast"] = {"file": path.name, "sha256": sha256(path)}
        return facts


def find_forecast(model: str, given: Path | None) -> Path:
    """The Forecast file that was given, or the one that comes with the model; FileNotFoundError: none."""
    if given is not None and not given.is_file():
        raise FileNotFoundError(f"--forecast: there is no file {given}; `sparda train` writes one")
    return given or forecast_file(model)


def forecast_file(model: str) -> Path:
    """The Forecast weights that come with a model; FileNotFoundError if there are none."""
    here = Path(model)
    folder = data_dir() / "forecasts" / (here.name if here.is_dir() else model)
    found = sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found)
        raise FileNotFoundError(
            f"data/forecasts/{model} holds {names or 'no Forecast weights'}; "
            + (
                "say which with --forecast"
                if found
                else "train some with `sparda train`, or leave out sparda"
            )
        )
    return found[0]

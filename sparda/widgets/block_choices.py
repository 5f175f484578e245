"""The prompt explorer: a prompt of the reader's own, and the blocks that three ways to choose would read."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from sparda.blocks import forced_blocks
from sparda.figures.block_choices import At, block_sentence, choices_figure, choices_table, within
from sparda.figures.choices_live import Choices, Reader
from sparda.figures.style import fit
from sparda.widgets import runtime, shell

FIGURE = "block_choices"
HEIGHT = 520  # px: with the prompt and the controls above it, on one screen
PIECE = "(part of a character)"


def explore_prompt(
    reader: Reader,
    choices: Choices,
    at: At | None = None,
    *,
    note: str = "",
    live: bool | None = None,
    **changes,
):
    """Show the blocks that query, Forecast and proxy choose for one token, and what each misses (measured).

    reader  : reads further prompts, ``figures.choices_live.Reader``
    choices : of the first prompt, ``reader.read(...)``
    at      : start values; ``changes`` override its fields, as ``layer=12``; ``step=-1`` is the last token
    note    : model and device, for the stamp
    live    : True for controls and a text box, False for two figures, at the first and the last token, small
              ones without the blocks' texts; default: whether a person's notebook is running

    Raises TypeError for an unknown keyword, ValueError for a value outside of the choices.
    """
    known = [field.name for field in fields(At)]
    shell.check_names("explore_prompt", changes, known, also=("note", "live"))
    choices = _readable(choices)
    at = within(choices, replace(at or At(), **changes))
    draw = _painter(reader, note)
    if live if live is not None else runtime.is_live():
        return _Explorer(reader, choices, at, draw).box
    return [draw(choices, within(choices, replace(at, step=step)), hover=False)[0] for step in (0, -1)]


def telling(choices: Choices) -> At:
    """Where a head attends most to one block that it is not forced to read: there a choice matters most."""
    n_blocks = choices.mass.shape[-1]
    forced = forced_blocks(choices.positions[None], n_blocks, choices.sparsity)[0]  # [R, N]
    best = int(choices.mass.masked_fill(forced, -1.0).argmax())
    layer, head, step, _ = (int(i) for i in np.unravel_index(best, tuple(choices.mass.shape)))
    return At(layer, head, step, choices.sparsity.budget_blocks)


def _readable(choices: Choices) -> Choices:
    """A token that is a part of a character is named so; alone it would be drawn as a replacement sign."""
    return replace(choices, tokens=[PIECE if "\ufffd" in token else token for token in choices.tokens])


def _painter(reader: Reader, note: str):
    """(choices, at) -> figure and table; the stamp's device and commit are looked up once."""
    from sparda.provenance import here

    where = here()

    def draw(choices: Choices, at: At, *, hover: bool = True):
        table = choices_table(choices, at)
        size = choices.sparsity.block_size
        about = f"{int(choices.positions[0]) + 1} tokens in blocks of {size}, k {at.budget_blocks}"
        line = ", ".join(part for part in (note, about, *reader.missing) if part)
        look = {"token": choices.tokens[at.step], "texts": choices.texts if hover else ()}
        return fit(choices_figure(table, note=line, where=where, **look)), table

    return draw


class _Explorer:
    """The live widget: its parts, and what happens when one of them changes."""

    def __init__(self, reader: Reader, choices: Choices, at: At, draw: Any):
        import ipywidgets as W

        self.reader, self.choices, self.draw = reader, choices, draw
        self.prompt = W.Textarea(
            value=choices.prompt, description="prompt", rows=3, continuous_update=False,
            style={"description_width": "104px"}, layout={"width": "95%"},
        )  # fmt: skip
        self.button = W.Button(description="Read this prompt", tooltip="run the model on the prompt above")
        self.controls, self.block = _controls(choices, at), _block_slider(choices)
        figure, self.table = draw(choices, at)
        self.chart = shell.live_figure(figure.update_layout(height=HEIGHT))
        self.fitting = False
        self.line, self.about = shell.status_line(self._ready()), shell.status_line()
        self._tell(None)
        self.button.on_click(shell.guarded(self.line, self.read))
        shell.watch(self.controls, self.line, self.move)
        shell.watch({"block": self.block}, self.about, self._tell)
        placed = shell.columns(self.controls | {"block": self.block})
        parts = [self.prompt, self.button, self.line, placed, self.chart, self.about]
        self.box = shell.explorer(parts, figure=FIGURE, twin=draw(choices, at, hover=False)[0])

    def read(self, _button: Any) -> None:
        """Run the model on the text in the box; a problem leaves everything as it was."""
        self.button.disabled = True
        shell.say(self.line, f"Busy: the model reads up to {self.reader.max_tokens:,} tokens; some seconds …")
        try:
            self.choices = _readable(self.reader.read(self.prompt.value))
        finally:
            self.button.disabled = False
        self._fit()
        self.move(None)
        shell.say(self.line, self._ready())

    def move(self, _change: Any) -> None:
        """Draw what the controls say."""
        if self.fitting:
            return
        at = within(self.choices, At(**shell.values(self.controls)))
        figure, self.table = self.draw(self.choices, at)
        shell.redraw(self.chart, figure)
        self._tell(None)
        shell.say(self.line, self._ready())

    def _fit(self) -> None:
        """Give the controls the ranges of a new prompt, and look where a head has found something in it."""
        at = telling(self.choices)
        fresh, step, budget = (
            _controls(self.choices, at),
            self.controls["step"],
            self.controls["budget_blocks"],
        )
        self.fitting = True  # no redraw for each of them
        try:
            with step.hold_trait_notifications():
                step.options, step.value = fresh["step"].options, at.step
            budget.max = fresh["budget_blocks"].max
            self.controls["layer"].value, self.controls["head"].value = at.layer, at.head
            self.block.max = len(self.choices.texts) - 1
        finally:
            self.fitting = False

    def _tell(self, _change: Any) -> None:
        size = self.choices.sparsity.block_size
        shell.say(self.about, block_sentence(self.table, self.block.value, self.choices.texts, size))

    def _ready(self) -> str:
        reply = "".join(self.choices.tokens).replace(PIECE, "…").strip()
        return " ".join([f"The reply begins: “{reply}”.", *self.reader.missing])


def _controls(choices: Choices, at: At) -> dict:
    """One ipywidget a field of At, by the field's name."""
    import ipywidgets as W

    n_layers, n_heads, _, n_blocks = choices.mass.shape
    least = choices.sparsity.forced_blocks
    steps = [(f"{i + 1}: {token!r}", i) for i, token in enumerate(choices.tokens)]
    most, k = max(least, n_blocks), at.budget_blocks
    return {
        "layer": W.IntSlider(at.layer, 0, n_layers - 1, description="layer", **shell.CONTROL),
        "head": W.IntSlider(at.head, 0, n_heads - 1, description="KV head", **shell.CONTROL),
        "step": W.SelectionSlider(options=steps, value=at.step, description="token written", **shell.CONTROL),
        "budget_blocks": W.IntSlider(k, least, most, description="budget k", **shell.CONTROL),
    }


def _block_slider(choices: Choices) -> Any:
    import ipywidgets as W

    last = len(choices.texts) - 1
    return W.IntSlider(0, 0, last, description="text of block", **shell.CONTROL)

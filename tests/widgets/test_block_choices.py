"""The prompt explorer without a browser and without a model: set a value, look at the figure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch

pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")
pytest.importorskip("plotly")
pytest.importorskip("pandas")

from sparda.figures.choices_live import Choices
from sparda.spec import Sparsity
from sparda.widgets import shell
from sparda.widgets.block_choices import explore_prompt, telling

RULE = Sparsity(budget_blocks=8, block_size=16, local_blocks=1)
WAYS = ("query", "forecast", "proxy")


def made_up(prompt: str, n_blocks: int = 32, n_steps: int = 4) -> Choices:
    seed = torch.Generator().manual_seed(len(prompt))
    shape = (6, 3, n_steps, n_blocks)
    mass = torch.rand(shape, generator=seed) ** 4
    scores = {way: torch.rand(shape, generator=seed) for way in WAYS}
    positions = torch.arange(n_blocks * 16 - n_steps, n_blocks * 16)
    texts = [f"{prompt} {i}" for i in range(n_blocks)]
    words = [f" word{i}" for i in range(n_steps)]
    return Choices(prompt, scores, mass / mass.sum(-1, keepdim=True), positions, words, texts, RULE)


@dataclass
class Reader:
    """Stands in for the model: reads at once, and refuses what the real one would."""

    missing: tuple[str, ...] = ()
    max_tokens: int = 1024
    told: list[str] = field(default_factory=list)  # what stood in the widget while it read
    watched: object = None

    def read(self, prompt: str) -> Choices:
        if self.watched is not None:
            self.told.append(self.watched())
        if prompt == "broken":
            raise RuntimeError("the model broke")
        if not prompt:
            raise ValueError("the prompt is empty; write or paste a text and a question about it")
        return made_up(
            prompt, n_blocks=12 if prompt == "short" else 32, n_steps=2 if prompt == "short" else 4
        )


@pytest.fixture
def box():
    return explore_prompt(Reader(), made_up("first"), live=True, layer=2)


@pytest.fixture
def title(charts):
    return lambda box: charts(box)[0].layout.title.text


@pytest.fixture
def press(control):
    def read(box, prompt):
        control(box, "prompt").value = prompt
        control(box, "Read this prompt").click()

    return read


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("layer", 4, "Layer 4, KV head 0"),
        ("KV head", 2, "Layer 2, KV head 2"),
        ("token written", 3, "writes “ word3”"),
    ],
)
def test_layer_head_and_token_redraw_the_figure(box, name, value, said, control, charts, title):
    bars = [list(trace.y) for trace in charts(box)[0].data]
    control(box, name).value = value
    assert said in title(box)
    assert [list(trace.y) for trace in charts(box)[0].data] != bars


def test_a_larger_budget_reads_more_and_each_row_says_its_recall(box, control, charts):
    def recalls():
        return [float(note.text.split()[3].strip(",")) for note in charts(box)[0].layout.annotations[:3]]

    before = recalls()
    control(box, "budget k").value = 20
    assert all(after > old for after, old in zip(recalls(), before, strict=True))
    learned = [
        list(t.marker.pattern.shape).count("x")
        for t in charts(box)[0].data
        if not t.showlegend and t.type == "bar"
    ]
    assert learned == [17] * 4  # three of the 20 are forced


def test_the_text_of_a_block_can_be_read_without_a_mouse(box, control, messages):
    control(box, "text of block").value = 9
    assert "Block 9, tokens 144 to 159" in messages(box)
    assert "Text: “first 9”" in messages(box)


def test_a_prompt_of_the_readers_own_is_read_and_drawn(box, control, messages, charts, press):
    press(box, "short")
    assert "The reply begins: “word0 word1”" in messages(box)
    assert len(control(box, "token written").options) == 2
    assert control(box, "budget k").max == control(box, "text of block").max + 1 == 12
    bars = [t for t in charts(box)[0].data if t.type == "bar" and not t.showlegend]
    assert [len(bar.x) for bar in bars] == [12] * 4


def test_after_a_new_prompt_it_looks_where_a_head_attends_most_to_a_block_that_is_not_forced(
    box, control, charts, press
):
    choices = made_up("another")
    mass = choices.mass[..., 1:30]  # block 0, the last one and the one before it are read in any case
    layer, head, step, block = (mass == mass.max()).nonzero()[0].tolist()
    press(box, "another")
    assert [control(box, name).value for name in ("layer", "KV head", "token written")] == [layer, head, step]
    oracle = [t for t in charts(box)[0].data if t.type == "bar" and not t.showlegend][-1]
    free = list(oracle.y[1:30])
    assert free.index(max(free)) == block
    choices.mass[..., [0, 30, 31]] = 2.0  # what is read anyway tells nothing
    at = telling(choices)
    assert (at.layer, at.head, at.step) == (layer, head, step)


def test_a_new_prompt_is_drawn_once(box, press, monkeypatch):
    drawn, redraw = [], shell.redraw
    monkeypatch.setattr(shell, "redraw", lambda *parts: drawn.append(1) or redraw(*parts))
    press(box, "short")
    assert drawn == [1]


def test_a_token_that_is_a_part_of_a_character_is_named_so(control, messages, charts):
    choices = replace(made_up("first"), tokens=[" caf", "\ufffd", "\ufffd", "!"])
    box = explore_prompt(Reader(), choices, live=True, step=1)
    assert control(box, "token written").options[1][0] == "2: '(part of a character)'"
    assert "The reply begins: “caf……!”" in messages(box)
    assert "writes “(part of a character)”" in charts(box)[0].layout.title.text.replace("<br>", " ")


def test_prompt_controls_and_figure_are_on_one_screen(box, control, charts):
    assert charts(box)[0].layout.height + 32 * 4 + 24 * control(box, "prompt").rows < 730


def test_a_longer_prompt_gives_the_controls_their_room_back(box, control, messages, press):
    control(box, "token written").value = 3
    control(box, "budget k").value = 30
    press(box, "short")
    assert (control(box, "token written").value, control(box, "budget k").value) == (
        telling(made_up("short")).step,
        12,
    )
    press(box, "long again")
    assert control(box, "budget k").max == 32
    assert "Problem" not in messages(box)


def test_the_widget_says_that_it_is_busy_and_takes_no_second_order(control, messages, press):
    reader = Reader()
    box = explore_prompt(reader, made_up("first"), live=True)
    button = control(box, "Read this prompt")
    reader.watched = lambda: f"{messages(box)} disabled={button.disabled}"
    press(box, "another")
    assert "Busy: the model reads up to 1,024 tokens" in reader.told[0]
    assert "disabled=True" in reader.told[0]
    assert not button.disabled
    assert "Busy" not in messages(box)


@pytest.mark.parametrize(("prompt", "said"), [("", "the prompt is empty"), ("broken", "the model broke")])
def test_a_prompt_that_cannot_be_read_leaves_the_last_figure_and_a_sentence(
    box, prompt, said, title, messages, press, control
):
    before = title(box)
    press(box, prompt)
    assert f"<b>Problem:</b> {said}" in messages(box)
    assert title(box) == before
    assert not control(box, "Read this prompt").disabled


def test_what_is_missing_is_said_below_the_prompt_and_in_the_stamp(messages, charts):
    box = explore_prompt(Reader(("Without forecast: none was trained.",)), made_up("first"), live=True)
    assert "Without forecast: none was trained." in messages(box)
    assert "Without forecast" in charts(box)[0].layout.title.text


def test_the_static_twin_is_two_stamped_figures():
    figures = explore_prompt(Reader(), made_up("first"), live=False, note="made up")
    assert [figure.layout.meta["status"] for figure in figures] == ["measured"] * 2
    assert ["word0" in figures[0].layout.title.text, "word3" in figures[1].layout.title.text] == [True, True]


def test_static_is_the_default_outside_a_notebook():
    assert isinstance(explore_prompt(Reader(), made_up("first")), list)


def test_an_unknown_keyword_is_refused_with_the_known_ones():
    with pytest.raises(
        TypeError, match="does not know heads; it takes layer, head, step, budget_blocks, note"
    ):
        explore_prompt(Reader(), made_up("first"), heads=1)


def test_a_value_outside_of_the_choices_is_refused_with_its_range():
    with pytest.raises(ValueError, match="layer = 6 is not in these choices; choose from 0 to 5"):
        explore_prompt(Reader(), made_up("first"), live=True, layer=6)


@pytest.mark.parametrize("name", ["layer", "KV head", "token written"])
def test_a_redraw_takes_less_than_a_tenth_of_a_second(box, name, control, quickest):
    assert quickest(control(box, name), 4 * (1, 2, 0)) < 0.1

"""Forecast files as the one loader outside this project takes them: SGLang's, for MiniCPM4.1.

No release has it. It was read on 2026-12-01 in the open pull request sgl-project/sglang#38397, in
``python/sglang/srt/models/minicpm.py``; ``stand_in`` does the same in our own words. Once a release has the
loader itself, the tests that take ``loader`` call that too.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sparda.evaluation.subject import forecast_file
from sparda.forecast import Forecast, Shape

SHAPE = Shape(n_layers=4, hidden=24, n_kv_heads=2, head_dim=8)
FUTURE = "model.layers.{}.self_attn.q_future_proj.weight"
CURRENT = "model.layers.0.self_attn.q_curr_proj.weight"
ENDINGS = ("q_future_proj.weight", "q_curr_proj.weight")


class Served(nn.Module):
    """What of an engine's model the loader looks at: a Forecast in every layer, the own one of layer 0."""

    def __init__(self, path, shape=SHAPE):
        super().__init__()
        self.config = SimpleNamespace(sparda_enabled=True, sparda_indexer_path=str(path))
        self._sparda_indexer_loaded = False
        self.model = nn.Module()
        self.model.layers = nn.ModuleList(nn.Module() for _ in range(shape.n_layers))
        sizes = shape.hidden, shape.n_kv_heads * shape.head_dim
        for i, layer in enumerate(self.model.layers):
            layer.self_attn = nn.Module()
            layer.self_attn.q_future_proj = nn.Linear(*sizes, bias=False)
            if i == 0:
                layer.self_attn.q_curr_proj = nn.Linear(*sizes, bias=False)


def stand_in(served):
    """Fill a model's Forecast from the file that its config names, or say why that cannot be."""
    path = Path(served.config.sparda_indexer_path)
    if not path.is_file():
        raise FileNotFoundError(path)
    held = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(held, Mapping):
        raise ValueError("not a state dict")
    nested = [held.get(name) for name in ("state_dict", "model_state_dict", "model")]
    state = next((inner for inner in nested if isinstance(inner, Mapping)), held)
    state = {name.removeprefix("module."): t for name, t in state.items() if isinstance(t, Tensor)}
    wanted = {name: weight for name, weight in served.named_parameters() if name.endswith(ENDINGS)}
    spelled = {name: (name, name.removeprefix("model."), f"model.{name}") for name in wanted}
    every = {spelling for spellings in spelled.values() for spelling in spellings}
    if strange := [name for name in state if name.endswith(ENDINGS) and name not in every]:
        raise ValueError(f"unexpected: {strange}")
    found = {name: [state[s] for s in spellings if s in state] for name, spellings in spelled.items()}
    if wrong := [name for name, given in found.items() if given and given[0].shape != wanted[name].shape]:
        raise ValueError(f"shape mismatch: {wrong}")
    if absent := [name for name, given in found.items() if not given]:
        raise ValueError(f"missing: {absent}")
    for name, weight in wanted.items():
        weight.data.copy_(found[name][0])
    served._sparda_indexer_loaded = True


def released():
    """The loader of an installed sglang; a counted skip where there is none."""
    name, why = "sglang.srt.models.minicpm", "no sglang that can be imported"
    minicpm = pytest.importorskip(name, reason=why, exc_type=ImportError)
    model = getattr(minicpm, "MiniCPMSALAForCausalLM", None)
    if not hasattr(model, "_load_sparda_indexer_weights"):
        pytest.skip("the installed sglang does not load Forecast files")
    return model._load_sparda_indexer_weights


@pytest.fixture(params=["stand-in", "released"])
def loader(request):
    return stand_in if request.param == "stand-in" else released()


@pytest.fixture
def forecast():
    return Forecast.untrained(n_layers=4, hidden=24, n_kv_heads=2, head_dim=8)


@pytest.fixture(scope="session")
def reads_safetensors(tmp_path_factory):
    """torch.load opens safetensors in new torches only; a counted skip in others."""
    path = tmp_path_factory.mktemp("probe") / "one.safetensors"
    save_file({"one": torch.ones(1)}, path)
    try:
        torch.load(path, weights_only=True)
    except pickle.UnpicklingError:
        pytest.skip("this torch.load does not read safetensors")


def plain(forecast, tmp_path):
    """The tensors of our file, by name."""
    return load_file(forecast.save(tmp_path / "plain.safetensors", torch.float32))


def served_from(path, load=stand_in, shape=SHAPE):
    served = Served(path, shape)
    load(served)
    assert served._sparda_indexer_loaded
    return dict(served.named_parameters())


def check(weights, forecast):
    assert set(weights) == {FUTURE.format(i) for i in range(len(forecast.future) + 1)} | {CURRENT}
    torch.testing.assert_close(weights[CURRENT].data, forecast.current, rtol=0, atol=0)
    for i, weight in enumerate(forecast.future):
        torch.testing.assert_close(weights[FUTURE.format(i)].data, weight, rtol=0, atol=0)
    assert not weights[FUTURE.format(len(forecast.future))].any()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the released one names numpy.core
@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_the_loader_takes_our_file_of_either_kind(forecast, tmp_path, loader, ending, request):
    if ending == "safetensors":
        request.getfixturevalue("reads_safetensors")
    path = forecast.save(tmp_path / f"f.{ending}", torch.float32, model="owner/name")
    check(served_from(path, loader), forecast)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_loader_takes_the_shipped_file(loader, reads_safetensors):
    path, shape = forecast_file("smollm2-135m"), Shape(30, 576, 3, 64)
    check(served_from(path, loader, shape), Forecast.load(path, shape).to("cpu", torch.float32))


def test_a_file_holds_the_names_that_the_loader_wants_and_nothing_else(forecast, tmp_path):
    wanted = {name: weight.shape for name, weight in Served("").named_parameters()}
    assert {name: weight.shape for name, weight in plain(forecast, tmp_path).items()} == wanted


PREFIXES = {"as they are": "model.", "parallel": "module.model.", "without": "", "twice": "model.model."}


@pytest.mark.parametrize("nest", ["", "state_dict", "model_state_dict", "model"])
@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_the_loader_and_we_take_the_same_nestings_and_prefixes(forecast, tmp_path, nest, prefix):
    tensors = {prefix + n.removeprefix("model."): w for n, w in plain(forecast, tmp_path).items()}
    torch.save({nest: tensors, "step": 2} if nest else tensors, tmp_path / "f.pt")
    check(served_from(tmp_path / "f.pt"), forecast)
    ours = Forecast.load(tmp_path / "f.pt", SHAPE)
    assert all(torch.equal(ours.weight(i), forecast.weight(i)) for i in range(4))


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (lambda w: w.pop(FUTURE.format(3)), "missing: .*layers.3.self_attn.q_future_proj"),  # ours of before
        (lambda w: w.pop(CURRENT), "missing: .*q_curr_proj"),
        (lambda w: w.update({FUTURE.format(4): torch.zeros(16, 24)}), "unexpected: .*layers.4"),
        (lambda w: w.update({CURRENT.replace("0", "1"): torch.zeros(16, 24)}), "unexpected: .*layers.1"),
        (lambda w: w.update({FUTURE.format(3): torch.zeros(16, 25)}), "shape mismatch: .*layers.3"),
        (lambda w: w.update({CURRENT: torch.zeros(8, 24)}), "shape mismatch: .*q_curr_proj"),
    ],
)
def test_the_loader_refuses_a_file_that_is_not_exactly_what_it_wants(forecast, tmp_path, change, refusal):
    tensors = plain(forecast, tmp_path)
    change(tensors)
    torch.save(tensors, tmp_path / "f.pt")
    with pytest.raises(ValueError, match=refusal):
        served_from(tmp_path / "f.pt")


def test_the_loader_refuses_another_ending_a_folder_and_a_list(forecast, tmp_path):
    path = forecast.save(tmp_path / "f.safetensors")
    with pytest.raises(pickle.UnpicklingError):
        served_from(path.rename(tmp_path / "f.bin"))
    with pytest.raises(FileNotFoundError):
        served_from(tmp_path)
    torch.save([torch.ones(1)], tmp_path / "f.pt")
    with pytest.raises(ValueError, match="not a state dict"):
        served_from(tmp_path / "f.pt")

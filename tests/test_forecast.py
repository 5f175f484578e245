"""Forecast files: what is written is read back, and what does not fit or holds code is refused."""

import pickle

import pytest
import torch
from safetensors.torch import safe_open, save_file

from sparda.forecast import Forecast, Shape

SHAPE = Shape(n_layers=4, hidden=24, n_kv_heads=2, head_dim=8)
NAME = "layers.{}.self_attn.q_future_proj.weight"


@pytest.fixture
def forecast():
    return Forecast.untrained(n_layers=4, hidden=24, n_kv_heads=2, head_dim=8)


def same(a, b, **tolerance):
    for layer in range(4):
        torch.testing.assert_close(a.weight(layer), b.weight(layer), **tolerance)


def test_a_saved_forecast_is_read_back(forecast, tmp_path):
    path = forecast.save(tmp_path / "f.safetensors", torch.float32)
    same(Forecast.load(path, SHAPE), forecast, rtol=0, atol=0)
    assert Forecast.load(path).head_dim == 8


def test_a_file_is_for_whoever_the_folder_is_for(forecast, tmp_path):
    (tmp_path / "usual").touch()
    path = forecast.save(tmp_path / "f.safetensors")
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_files_are_bf16_and_carry_the_names_that_others_read(forecast, tmp_path):
    with safe_open(forecast.save(tmp_path / "f.safetensors"), framework="pt") as file:
        names = set(file.keys())
        assert file.get_tensor("model.layers.0.self_attn.q_curr_proj.weight").dtype == torch.bfloat16
    future = {"model." + NAME.format(i) for i in range(3)}
    assert names == future | {"model.layers.0.self_attn.q_curr_proj.weight"}


@pytest.mark.parametrize("prefix", ["", "model.", "module.model.", "module."])
@pytest.mark.parametrize("nest", ["", "state_dict", "model"])
def test_weights_only_pt_files_are_read_nested_or_prefixed(forecast, tmp_path, prefix, nest):
    flat = {prefix + name.removeprefix("model."): w for name, w in forecast.tensors().items()}
    torch.save({nest: flat, "step": 3} if nest else flat, tmp_path / "f.pt")
    same(Forecast.load(tmp_path / "f.pt", SHAPE), forecast)


def test_a_last_layers_forecast_is_left_out(forecast, tmp_path):
    extra = forecast.tensors() | {"model." + NAME.format(3): torch.zeros(16, 24)}
    save_file(extra, tmp_path / "f.safetensors")
    same(Forecast.load(tmp_path / "f.safetensors", SHAPE), forecast)


class Bomb:
    def __reduce__(self):
        return print, ("this code must not run",)


def test_a_pickle_with_code_in_it_is_refused_and_not_run(tmp_path, capsys):
    (tmp_path / "f.pt").write_bytes(pickle.dumps({"w": Bomb()}))
    with pytest.raises(ValueError, match="was not run"):
        Forecast.load(tmp_path / "f.pt")
    torch.save({"w": Bomb()}, tmp_path / "g.pt")
    with pytest.raises(ValueError, match="was not run"):
        Forecast.load(tmp_path / "g.pt")
    assert "must not run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (Shape(5, 24, 2, 8), "it chooses for 4 layers, but the model has 5"),
        (Shape(4, 32, 2, 8), "reads 24 channels, but the model has 32"),
        (Shape(4, 24, 3, 8), "3 KV heads of 8 need 24 rows"),
        (Shape(4, 24, 1, 16), "heads have 8 channels, but the model's 16"),
    ],
)
def test_another_models_forecast_is_refused_with_a_sentence(forecast, other, sentence):
    with pytest.raises(ValueError, match=sentence):
        forecast.check(other)


@pytest.mark.parametrize(
    ("drop", "sentence"),
    [
        ("q_curr", "lacks layer 0's own"),
        ("layers.1.", "lacks the Forecast of layers 1"),
        ("", "holds no Forecast"),
    ],
)
def test_a_file_that_lacks_weights_says_which(forecast, tmp_path, drop, sentence):
    kept = {n: w for n, w in forecast.tensors().items() if drop and drop not in n}
    save_file(kept or {"lm_head": torch.zeros(2)}, tmp_path / "f.safetensors")
    with pytest.raises(ValueError, match=sentence):
        Forecast.load(tmp_path / "f.safetensors", SHAPE)


def test_a_cut_file_and_a_missing_one_say_what_to_do(forecast, tmp_path):
    path = forecast.save(tmp_path / "f.safetensors")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        Forecast.load(path)
    with pytest.raises(FileNotFoundError, match="sparda train"):
        Forecast.load(tmp_path / "none.safetensors")


def test_the_old_file_survives_a_disk_that_fills(forecast, tmp_path, monkeypatch):
    import safetensors.torch

    path = forecast.save(tmp_path / "f.safetensors")
    before = path.read_bytes()

    def full(tensors, file, metadata):
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        forecast.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["f.safetensors"]

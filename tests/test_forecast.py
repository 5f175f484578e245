"""Forecast files: what is written is read back, and what does not fit or holds code is refused."""

import pickle

import pytest
import torch
from safetensors.torch import load_file, safe_open, save_file

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
    future = {"model." + NAME.format(i) for i in range(4)}
    assert names == future | {"model.layers.0.self_attn.q_curr_proj.weight"}


@pytest.mark.parametrize("prefix", ["", "model.", "module.model.", "module."])
@pytest.mark.parametrize("nest", ["", "state_dict", "model"])
def test_weights_only_pt_files_are_read_nested_or_prefixed(forecast, tmp_path, prefix, nest):
    flat = {prefix + name.removeprefix("model."): w for name, w in forecast.tensors().items()}
    torch.save({nest: flat, "step": 3} if nest else flat, tmp_path / "f.pt")
    same(Forecast.load(tmp_path / "f.pt", SHAPE), forecast)


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
@pytest.mark.parametrize("shape", [SHAPE, None])
def test_the_last_layer_is_written_as_zeros_and_left_out_when_it_is_read(forecast, tmp_path, ending, shape):
    forecast.current[0, 0] = 0  # a zero among weights says nothing
    path = forecast.save(tmp_path / f"f.{ending}", torch.float32)
    tensors = (
        load_file(path) if ending == "safetensors" else torch.load(path, weights_only=True)["state_dict"]
    )
    last = tensors["model." + NAME.format(3)]
    assert last.shape == (16, 24)
    assert not last.any()
    same(read := Forecast.load(path, shape), forecast, rtol=0, atol=0)
    assert len(read.future) == 3


def without_header(forecast, tmp_path, layers, last=None):
    """A file of someone else's, of so many layers' Forecasts."""
    tensors = forecast.tensors() | ({"model." + NAME.format(layers - 1): last} if last is not None else {})
    save_file(tensors, tmp_path / "f.safetensors")
    return tmp_path / "f.safetensors"


@pytest.mark.parametrize("last", [torch.zeros(16, 24), torch.ones(16, 24)])
def test_of_a_file_that_does_not_tell_its_layers_the_models_shape_decides(forecast, tmp_path, last):
    path = without_header(forecast, tmp_path, 4, last)
    same(read := Forecast.load(path, SHAPE), forecast)
    assert len(read.future) == 3
    with pytest.raises(ValueError, match=r"how many layers its model has.*Shape.of\(model\)"):
        Forecast.load(path)
    if last.any():
        assert torch.equal(Forecast.load(path, Shape(5, 24, 2, 8)).weight(4), last)  # the last but one there
    else:
        with pytest.raises(ValueError, match=r"layers.3.self_attn.q_future_proj.weight in .* is all zeros"):
            Forecast.load(path, Shape(5, 24, 2, 8))
    with pytest.raises(ValueError, match="holds the Forecast of 4 layers, but the model has 6"):
        Forecast.load(path, Shape(6, 24, 2, 8))
    with pytest.raises(ValueError, match="holds the Forecast of 4 layers, but the model has 3"):
        Forecast.load(path, Shape(3, 24, 2, 8))


def test_a_file_of_before_without_the_last_layer_is_read_as_it_was_meant(forecast, tmp_path):
    save_file(forecast.tensors(), tmp_path / "f.safetensors", {"format": "pt", "head_dim": "8"})
    for shape in (None, SHAPE):
        same(read := Forecast.load(tmp_path / "f.safetensors", shape), forecast)
        assert len(read.future) == 3
    with pytest.raises(ValueError, match="it chooses for 4 layers, but the model has 3"):
        Forecast.load(tmp_path / "f.safetensors", Shape(3, 24, 2, 8))  # whose last layer would be a real one


def test_a_header_that_counts_other_layers_than_the_file_holds_is_refused(forecast, tmp_path):
    about = {"head_dim": "8", "n_layers": "9"}
    save_file(forecast.tensors(), tmp_path / "f.safetensors", about)
    with pytest.raises(ValueError, match="of 3 layers, but its header says 9"):
        Forecast.load(tmp_path / "f.safetensors", SHAPE)


def test_heads_of_another_size_are_refused_although_the_rows_fit(forecast, tmp_path):
    path = forecast.save(tmp_path / "f.safetensors")
    with pytest.raises(ValueError, match="heads have 8 channels, but the model's 4"):
        Forecast.load(path, Shape(4, 24, 4, 4))


def test_a_model_of_one_layer_has_a_file_too(tmp_path):
    one = Forecast.untrained(n_layers=1, hidden=24, n_kv_heads=2, head_dim=8)
    read = Forecast.load(one.save(tmp_path / "f.safetensors", torch.float32))
    assert torch.equal(read.weight(0), one.weight(0))
    assert not len(read.future)


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_where_it_came_from_is_kept_through_files_and_moves(forecast, tmp_path, ending):
    assert forecast.about == {}
    assert forecast.made_for("abc") is None
    path = forecast.save(tmp_path / f"f.{ending}", model="owner/name", model_fingerprint="abc")
    read = Forecast.load(path, SHAPE)
    assert read.about == {"model": "owner/name", "model_fingerprint": "abc"}
    assert (read.made_for("abc"), read.made_for("abd")) == (True, False)
    again = Forecast.load(read.to("cpu", torch.float32).save(path, model="renamed"))
    assert again.about == {"model": "renamed", "model_fingerprint": "abc"}
    assert Forecast(read.current, read.future, 8).made_for("abc") is None


def test_another_ending_is_not_written_because_its_kind_could_not_be_told(forecast, tmp_path):
    with pytest.raises(ValueError, match=r"ends in .safetensors or .pt, not as f.bin"):
        forecast.save(tmp_path / "f.bin")
    assert not list(tmp_path.iterdir())


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


def test_the_sentence_names_each_kind_of_misfit_once(forecast):
    forecast.check(SHAPE)
    with pytest.raises(ValueError, match="this Forecast belongs to another model: ") as caught:
        forecast.check(Shape(9, 32, 2, 16))
    assert str(caught.value).split(": ", 1)[1].split("; ") == [
        "it chooses for 4 layers, but the model has 9",
        "its heads have 8 channels, but the model's 16",
        "model.layers.0.self_attn.q_future_proj.weight is [16, 24], but 2 KV heads of 16 need 32 rows "
        "(and 3 more tensors do not fit)",
        "take the file that was made for this model, or train one with `sparda train`",
    ]


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


def test_a_layer_is_chosen_for_by_the_layer_before_it_and_the_first_by_itself(forecast):
    assert forecast.weight(0) is forecast.current
    for layer in (1, 2, 3):
        assert forecast.weight(layer) is forecast.future[layer - 1]


def test_twelve_layers_come_back_in_their_order(tmp_path):
    many = Forecast.untrained(n_layers=12, hidden=24, n_kv_heads=2, head_dim=8)
    loaded = Forecast.load(many.save(tmp_path / "f.safetensors", torch.float32), Shape(12, 24, 2, 8))
    for layer in range(12):
        assert torch.equal(loaded.weight(layer), many.weight(layer))

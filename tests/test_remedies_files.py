"""What a message about a file, a model or the interpreter tells to do is done here, and then it works."""

import ast
import os
import pickle
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

import sparda
from sparda import kernels, spec
from sparda.forecast import Forecast, Shape
from sparda.kernels import backend

SHAPE = Shape(n_layers=2, hidden=32, n_kv_heads=1, head_dim=16)  # of the tiny model


@pytest.fixture
def forecast():
    return Forecast.untrained(n_layers=2, hidden=32, n_kv_heads=1, head_dim=16)


@pytest.fixture
def file(forecast, tmp_path):
    return forecast.save(tmp_path / "whole.safetensors")


def said(error, call):
    """The sentence with which a call fails."""
    with pytest.raises(error) as caught:
        call()
    return str(caught.value.args[0])


class Code:
    def __reduce__(self):
        return print, ("never",)


def test_a_forecast_that_is_not_there_is_found_by_the_right_path(file):
    sentence = said(FileNotFoundError, lambda: Forecast.load(file.with_name("hole.safetensors")))
    assert "check the path" in sentence
    Forecast.load(file)


def test_a_file_that_does_not_tell_its_layers_is_read_with_the_shape_of_the_model(
    forecast, tmp_path, tiny_model
):
    torch.save(forecast.tensors(), tmp_path / "theirs.pt")
    sentence = said(ValueError, lambda: Forecast.load(tmp_path / "theirs.pt"))
    model, _ = sparda.load(tiny_model)
    names = {"Forecast": Forecast, "Shape": Shape, "file": tmp_path / "theirs.pt", "model": model}
    assert eval(sentence.rsplit(": ", 1)[1], names).weight(1) is not None


DAMAGE = {
    "cut": "copy or train it again",
    "current": "copy the whole file again",
    "layer": "copy the whole file again",
    "other": "take the file that `sparda train` wrote",
    "zeros": "take the file that was made for this model",
}


@pytest.mark.parametrize("spoil", DAMAGE)
def test_a_damaged_or_wrong_file_is_replaced_by_a_copy_of_the_whole_one(file, tmp_path, spoil):
    bad, tensors = tmp_path / "bad.safetensors", load_file(file)
    if spoil == "cut":
        bad.write_bytes(file.read_bytes()[:300])
    elif spoil == "zeros":
        save_file({n: 0 * w for n, w in tensors.items()}, bad, {"head_dim": "16", "n_layers": "2"})
    else:
        gone = {"current": "q_curr", "layer": "layers.0.self_attn.q_future", "other": "layers"}[spoil]
        save_file({n: w for n, w in tensors.items() if gone not in n} or {"x": torch.ones(1)}, bad)
    assert DAMAGE[spoil] in said(ValueError, lambda: Forecast.load(bad, SHAPE))
    shutil.copy(file, bad)
    Forecast.load(bad, SHAPE)


def test_a_pickle_with_code_is_asked_for_as_safetensors_or_plain_tensors(forecast, tmp_path):
    (tmp_path / "f.pt").write_bytes(pickle.dumps({"w": Code()}, protocol=2))
    sentence = said(ValueError, lambda: Forecast.load(tmp_path / "f.pt", SHAPE))
    assert "ask for a .safetensors file, or for a .pt of plain tensors" in sentence
    torch.save(forecast.tensors(), tmp_path / "plain.pt")
    for path in (forecast.save(tmp_path / "f.safetensors"), tmp_path / "plain.pt"):
        Forecast.load(path, SHAPE)


def test_another_ending_is_renamed(forecast, tmp_path):
    assert said(ValueError, lambda: forecast.save(tmp_path / "f.bin")).endswith("rename it")
    for ending in ("safetensors", "pt"):
        Forecast.load(forecast.save(tmp_path / f"f.{ending}"), SHAPE)


WHOLE = {
    "kernel_size": 32, "kernel_stride": 16, "init_blocks": 1, "block_size": 64, "window_size": 1024,
    "topk": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [None, {}, {"topk": 64}, WHOLE | {"window_size": 1000}, WHOLE | {"block_size": 0}, WHOLE | {"topk": "64"},
     WHOLE | {"kernel_size": -32}],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:budget k")
def test_a_minicpm_config_gets_what_the_sentence_says(given):
    pytest.importorskip("transformers")
    from sparda.models.minicpm import minicpm_sparsity

    sentence = said(ValueError, lambda: minicpm_sparsity(SimpleNamespace(sparse_config=given)))
    advice = ast.literal_eval(re.search(r"to config.json: (\{.*?\})", sentence)[1])
    rule = minicpm_sparsity(SimpleNamespace(sparse_config=(given or {}) | advice))
    assert rule == spec.sparsity("minicpm4.1-8b")
    if not given:
        assert eval(sentence.split("or use ")[1], {"sparda": sparda}) == rule


def test_a_model_is_loaded_as_the_sentence_says(tiny_model, tmp_path):
    pytest.importorskip("transformers")
    weights = tiny_model / "model.safetensors"
    assert "pass the directory that it is in" in said(ValueError, lambda: sparda.load(weights))
    sparda.load(weights.parent)
    (tmp_path / "empty").mkdir()
    sentence = said(FileNotFoundError, lambda: sparda.load(tmp_path / "empty"))
    assert "pass the directory that `save_pretrained`" in sentence
    sparda.load(tiny_model)
    sentence = said(FileNotFoundError, lambda: sparda.load(tmp_path / "none"))
    assert "pass a known name (smollm2-135m)" in sentence
    assert "smollm2-135m" in said(KeyError, lambda: sparda.load("smollm3"))
    assert "such as torch.float32" in said(TypeError, lambda: sparda.load(tiny_model, dtype="float32"))
    assert sparda.load(tiny_model, dtype=torch.float32).model.dtype == torch.float32
    if not torch.cuda.is_available():
        assert "use device='cpu'" in said(ValueError, lambda: sparda.load(tiny_model, device="cuda"))
        sparda.load(tiny_model, device="cpu")


def test_what_is_not_on_the_hub_or_lacks_a_tensor_loads_from_a_whole_directory(
    tiny_model, tmp_path, monkeypatch
):
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "pass its directory" in said(ConnectionError, lambda: sparda.load("no-such-owner/no-such-model"))
    folder = tmp_path / "less"
    shutil.copytree(tiny_model, folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {n: w for n, w in tensors.items() if "k_proj" not in n},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    assert "copy or download it again" in said(ValueError, lambda: sparda.load(folder))
    shutil.copytree(tiny_model, folder, dirs_exist_ok=True)
    sparda.load(folder)


def test_a_folder_of_pickles_is_converted_as_the_sentence_says(tiny_model, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "pickles"
    shutil.copytree(tiny_model, folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert "convert the weights with `model.save_pretrained(...)`" in said(
        ValueError, lambda: sparda.load(folder)
    )
    transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)
    tokens = torch.arange(8)[None]
    want, got = (sparda.load(where).model(tokens).logits for where in (tiny_model, folder))
    assert torch.equal(want, got)


INTERPRETED = """
import torch
from sparda import Sparsity, kernels
keys, rule = torch.ones(1, 1, 64, 16), Sparsity(4, local_blocks=1, block_size=16)
try:
    kernels.compress_keys(keys.bfloat16(), rule)
except TypeError as error:
    assert "use float16 or float32 tensors, or unset TRITON_INTERPRET" in str(error)
    for kind in (torch.float16, torch.float32):
        assert kernels.compress_keys(keys.to(kind), rule).eq(1).all()
    print("helped")
"""


@pytest.mark.skipif(not backend.HAS_TRITON, reason="no Triton")
def test_the_interpreter_is_chosen_before_python_starts_and_takes_other_dtypes_than_bfloat16(monkeypatch):
    keys, rule = torch.ones(1, 1, 64, 16), spec.Sparsity(4, local_blocks=1, block_size=16)
    before = os.environ.get("TRITON_INTERPRET")
    monkeypatch.setenv("TRITON_INTERPRET", "0" if backend.interpreter_loaded() else "1")
    sentence = said(RuntimeError, lambda: kernels.compress_keys(keys, rule))
    assert "set it before Python starts (TRITON_INTERPRET=1 python ...), or unset it" in sentence
    clean = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, "-c", INTERPRETED], env=clean, capture_output=True, text=True)
    assert run.stdout == "helped\n", run.stderr
    if before is None:
        monkeypatch.delenv("TRITON_INTERPRET")
        assert kernels.compress_keys(keys.bfloat16(), rule).eq(1).all()

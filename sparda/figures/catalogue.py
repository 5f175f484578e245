"""figures.yml: which chapters and figures exist. Read strictly; the file's own header explains its form."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sparda.figures import NAME
from sparda.figures.style import STATUSES

PROFILES = ("smoke", "cpu", "gpu")
FIELDS = {"notebook", "parameters", "inputs", "status", "caption", "alt"}


class BuildError(Exception):
    """Stops a build. The message is one sentence: what is wrong and what to do."""


@dataclass(frozen=True)
class Figure:
    """One figure of the gallery; fields as in figures.yml."""

    name: str
    notebook: str
    status: str
    caption: str
    alt: str
    parameters: dict
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chapter:
    """One notebook: the parameters each profile sets in it, and the figures it must publish.

    seconds : about how long a run of each profile takes, for the first build of a machine
    """

    notebook: str
    profiles: dict
    figures: tuple[Figure, ...]
    seconds: dict = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """The notebook's file name without its ending, such as "00_start"."""
        return Path(self.notebook).stem

    def parameters(self, profile: str) -> dict:
        """What a run of ``profile`` sets in the notebook, ``profile`` itself included."""
        merged = {"profile": profile, **self.profiles.get(profile, {})}
        for figure in self.figures:
            for key, value in figure.parameters.items():
                if merged.setdefault(key, value) != value:
                    raise BuildError(
                        f"figures.yml: {figure.name} sets {key}: {value!r}, but {self.notebook} already runs "
                        f"with {merged[key]!r}; a chapter runs once, so give {key} one value"
                    )
        return merged


def closest(name: str, known, also: Iterable[str] = ()) -> str:
    """The tail of a message about an unknown name: the nearest, or all that are known less ``also``."""
    near = difflib.get_close_matches(name, [*known, *also], n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known)) or 'none yet'}"


def load_yaml(path: Path) -> dict:
    """A YAML file's mapping, read strictly; BuildError says in a sentence what is wrong with it."""
    import yaml

    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]  # type: ignore
            twice = {str(key) for key in keys if keys.count(key) > 1}
            if twice:  # plain YAML would keep the last one and say nothing
                raise BuildError(f"{path.name}: {', '.join(sorted(twice))} stands there twice; remove one")
            return super().construct_mapping(node, deep)

    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Strict)  # a SafeLoader: plain data only
    except FileNotFoundError:
        raise BuildError(f"{path} is missing; run from a checkout of the repository") from None
    except yaml.YAMLError as error:
        raise BuildError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise BuildError(f"{path.name}: it must be a mapping; see the file's header")
    return data


def _figure(name: str, entry, chapters, root: Path) -> Figure:
    def refuse(what):
        return BuildError(f"figures.yml: figure {name}: {what}")

    if not NAME.fullmatch(str(name)):
        raise refuse("a name has small letters, digits and _ only, and starts with a letter")
    if not isinstance(entry, dict):
        raise refuse(f"expected a mapping with {', '.join(sorted(FIELDS))}")
    for key in sorted(set(entry) - FIELDS):
        raise refuse(f"unknown key {key!r}; {closest(str(key), FIELDS)}")
    for key in ("notebook", "status", "caption", "alt"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise refuse(f"{key} is missing; write it as text")
    if entry["notebook"] not in chapters:
        raise refuse(f"unknown notebook {entry['notebook']!r}; {closest(entry['notebook'], chapters)}")
    if entry["status"] not in STATUSES:
        raise refuse(f"status {entry['status']!r} is not one of {', '.join(STATUSES)}")
    if not isinstance(entry.get("parameters") or {}, dict):
        raise refuse("parameters must be a mapping of name to value")
    for path in entry.get("inputs") or []:
        if not (root / path).is_file():
            raise refuse(f"its input {path} does not exist; paths start at the repository's root")
    return Figure(name, entry["notebook"], entry["status"], entry["caption"].strip(), entry["alt"].strip(),
                  entry.get("parameters") or {}, tuple(entry.get("inputs") or ()))  # fmt: skip


def read(root: Path) -> dict[str, Chapter]:
    """Read ``root/figures/figures.yml``: chapter name -> Chapter, in order. BuildError if it is wrong."""
    data = load_yaml(root / "figures" / "figures.yml")
    chapters = data.pop("chapters", None)
    if not isinstance(chapters, dict):
        raise BuildError("figures.yml: it must be a mapping with a key `chapters`; see the file's header")
    figures = [_figure(name, entry, chapters, root) for name, entry in data.items()]
    found = {}
    for notebook, profiles in chapters.items():
        if not (root / "notebooks" / str(notebook)).is_file():
            raise BuildError(
                f"figures.yml: notebooks/{notebook} does not exist; correct its name under chapters"
            )
        profiles = profiles or {}
        seconds = profiles.pop("seconds", {}) if isinstance(profiles, dict) else {}
        if not isinstance(seconds, dict) or not all(type(s) is int and s > 0 for s in seconds.values()):
            raise BuildError(f"figures.yml: {notebook}: write its seconds as seconds: {{cpu: 20}}")
        if not isinstance(profiles, dict) or not all(isinstance(p or {}, dict) for p in profiles.values()):
            raise BuildError(f"figures.yml: {notebook}: write its profiles as cpu: {{name: value}}")
        for profile in sorted({*profiles, *seconds} - set(PROFILES)):
            raise BuildError(
                f"figures.yml: {notebook}: unknown profile {profile!r}; {closest(profile, PROFILES)}"
            )
        own = tuple(figure for figure in figures if figure.notebook == notebook)
        chapter = Chapter(notebook, {name: p or {} for name, p in profiles.items()}, own, seconds)
        found[chapter.name] = chapter
    return found


def choose(chapters: dict[str, Chapter], wanted: list[str], also: Iterable[str] = ()) -> list[Chapter]:
    """Chapters by number ("02"), name, file name or one of their figures' names; all if none is wanted.

    also : other names that may have been meant, for the message about an unknown one
    """
    names = {}
    for chapter in chapters.values():
        aliases = {
            chapter.name,
            chapter.notebook,
            chapter.name.split("_")[0],
            *(f.name for f in chapter.figures),
        }
        names |= dict.fromkeys(aliases, chapter.name)
    for name in wanted:
        if name not in names:
            raise BuildError(
                f"unknown chapter or figure {name!r}, neither in figures/figures.yml nor in "
                f"figures/measurements.yml; {closest(name, chapters, {*names, *also})}"
            )
    picked = {names[name] for name in wanted} or set(chapters)
    return [chapter for chapter in chapters.values() if chapter.name in picked]


def check_parameters(notebook: Path, wanted: dict) -> None:
    """Refuse parameters that the notebook's ``parameters`` cell does not declare, or of another type.

    papermill itself only warns about a misspelt name, and runs with the default.
    """
    import papermill

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = papermill.inspect_notebook(str(notebook))
    for name, value in wanted.items():
        if name not in known:
            raise BuildError(
                f"{notebook.name} has no parameter {name!r}; {closest(name, known)} "
                "(declared in its cell tagged `parameters`)"
            )
        declared = known[name]["inferred_type_name"].split("[")[0]
        if declared != type(value).__name__:
            raise BuildError(
                f"{notebook.name} declares {name}: {declared}, but figures.yml gives {value!r} "
                f"({type(value).__name__}); write it as {declared}"
            )


def check_machine(profile: str) -> None:
    """Refuse the gpu profile where there is no CUDA device."""
    if profile == "gpu":
        import torch

        if not torch.cuda.is_available():
            raise BuildError("profile gpu needs a CUDA device and torch sees none; use --profile cpu")

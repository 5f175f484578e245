"""Links and commands of the pages that a newcomer reads first."""

from __future__ import annotations

import re

import pytest

PAGES = ("README.md", "CONTRIBUTING.md", "data/paper/README.md")


def prose(text: str) -> str:
    """The page without its fenced code."""
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_leads_to_a_file(root, page):
    text = prose((root / page).read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)
    for link in links:
        if not re.match(r"[a-z]+:|#", link):
            assert ((root / page).parent / link.split("#")[0]).exists(), f"{page}: {link} does not exist"


def test_every_make_target_that_is_named_exists(root):
    targets = set(re.findall(r"^([a-z]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md"):
        text = (root / page).read_text(encoding="utf-8")
        named = set(re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE))
        assert named <= targets, f"{page} names {sorted(named - targets)}"


def test_the_citation_file_is_complete(root):
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "license", "references"} <= set(citation)
    assert "arXiv:2606.04511" in str(citation["references"])


@pytest.mark.model
def test_the_lines_of_the_readme_run_one_after_the_other(root, monkeypatch, tmp_path, capsys):
    pytest.importorskip("transformers")
    pytest.importorskip("pandas")
    text = (root / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 3
    monkeypatch.chdir(root)
    names: dict = {}
    for block in blocks:
        block = block.replace("theirs.pt", "data/forecasts/smollm2-135m/forecast.safetensors")
        exec(block.replace('"forecast.safetensors"', f"{str(tmp_path / 'out.safetensors')!r}"), names)
    assert (tmp_path / "out.safetensors").is_file()
    said = capsys.readouterr().out
    assert "mass_recall" in said

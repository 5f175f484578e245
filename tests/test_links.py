"""What leaves the checkout: every relative link leads to a file that goes along."""

from __future__ import annotations

import pytest

from sparda import links


def test_every_link_of_the_chapters_leads_to_a_file_of_the_repository(root, broken_links):
    assert broken_links(root / "notebooks") == []


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("see [a term](glossary.md#block)", "see [a term](glossary.md#block)"),
        ("see [the paper](https://arxiv.org/abs/1) or [above](#top)",) * 2,
        (
            "see [how it was trained](../data/forecasts/README.md#runs).",
            "see how it was trained, `data/forecasts/README.md` in the repository.",
        ),
        ("see [`data/a.csv`](../data/a.csv)", "see `data/a.csv`"),
        ("![a plot](../figures/a.png)", "a plot, `figures/a.png` in the repository"),
        ("code: `f[a](b)` stays when b goes along: [c](b.md)",) * 2,
    ],
)
def test_a_link_to_what_stays_behind_becomes_words_and_a_place(text, kept):
    assert links.only(text, {"glossary.md", "b.md", "b"}) == kept

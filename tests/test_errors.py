"""Errors that are told in a sentence, and bugs."""

from __future__ import annotations

import pytest

from sparda.errors import sentence


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise ValueError('the text is empty; give another')", "the text is empty; give another"),
        ("raise KeyError('no such text; choose another')", "no such text; choose another"),
        ("raise KeyError('text')", None),
        ("{}['no such text']", None),
        ("None + 1", None),
        ("int('a b')", None),
        ("assert False, 'never to be seen'", None),
        ("raise RuntimeError('the state is lost')", None),
    ],
)
@pytest.mark.parametrize("module", ["sparda.made_up", "elsewhere"])
def test_what_our_code_raises_with_a_sentence_is_told_and_what_it_trips_over_is_not(code, told, module):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        exec(code, {"__name__": module})
    assert sentence(caught.value) == (told if module.startswith("sparda") else None)


def test_an_error_that_was_never_raised_is_not_told():
    assert sentence(ValueError("made, not raised")) is None

"""Sources of text: packed at document boundaries, and refused where they cannot serve."""

import sys
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda.corpus import plain_text
from sparda.training import data
from sparda.training.packing import pack


class Letters:
    """A tokenizer of single characters; 0 ends a document."""

    eos_token_id = 0

    def __len__(self):
        return 128

    def __call__(self, text, **_):
        if isinstance(text, str):
            return {"input_ids": [min(127, ord(c)) for c in text]}
        return {"input_ids": [[min(127, ord(c)) for c in t] for t in text]}


@given(st.lists(st.lists(st.integers(1, 9), max_size=30), max_size=12), st.integers(2, 8))
def test_packing_keeps_whole_runs_of_a_document_and_marks_where_it_ends(documents, length):
    packed = list(pack(documents, length, end=0))
    assert all(len(s) == length for s in packed)
    whole = sum(len(d) // length for d in documents)
    rests = sum(len(d) % length + 1 for d in documents if len(d) % length)
    assert len(packed) == whole + rests // length
    inside = [s.tolist() for s in packed if 0 not in s]
    for d in documents:
        for i in range(0, len(d) - length + 1, length):
            assert d[i : i + length] in inside


def test_files_and_folders_are_read(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 90)
    (tmp_path / "b.md").write_text("y" * 30)
    (tmp_path / "c.bin").write_text("z" * 90)
    read = data.read([str(tmp_path)], Letters(), 128, 20)
    assert len(read) == 6
    assert read.take([0, 5]).dtype == np.int64
    assert ord("z") not in read.tokens


def test_packed_tokens_are_mapped_and_cut_to_the_length(tmp_path):
    np.save(tmp_path / "t.npy", np.ones((3, 40), np.uint16))
    read = data.read([str(tmp_path / "t.npy")], Letters(), 128, 30)
    assert read.take([2]).shape == (1, 30)


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.ones((3, 10), np.uint16), "use --length 10"),
        (np.full((3, 40), 500, np.uint16), "holds token 500, but the model knows only 128"),
        (np.ones(40, np.uint16), "no table of tokens"),
        (np.ones((3, 40), np.float32), "no table of tokens"),
    ],
)
def test_packed_tokens_that_do_not_fit_are_refused(tmp_path, array, sentence):
    np.save(tmp_path / "t.npy", array)
    with pytest.raises(ValueError, match=sentence):
        data.read([str(tmp_path / "t.npy")], Letters(), 128, 30)


def test_bad_text_is_refused_with_a_remedy(tmp_path):
    (tmp_path / "short.txt").write_text("hello")
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(ValueError, match="5 tokens do not fill one sequence of 100"):
        data.read([str(tmp_path / "short.txt")], Letters(), 128, 100)
    with pytest.raises(ValueError, match=r"empty.txt is empty"):
        data.read([str(tmp_path / "empty.txt")], Letters(), 128, 100)
    with pytest.raises(ValueError, match="do not belong together"):
        data.read([str(tmp_path / "short.txt")], Letters(), 64, 4)
    with pytest.raises(FileNotFoundError, match="check the path"):
        data.read([str(tmp_path / "none.txt")], Letters(), 128, 4)
    with pytest.raises(FileNotFoundError, match="make it with"):
        data.read([str(tmp_path / "none.npy")], Letters(), 128, 4)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="holds no text"):
        data.read([str(tmp_path / "folder")], Letters(), 128, 4)


def test_text_that_is_trained_on_and_held_out_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.txt").write_text("y")
    data.check_apart(
        [str(tmp_path / "a.txt"), "hf:owner/books"], [str(tmp_path / "b.txt"), "hf:owner/books:test"]
    )
    with pytest.raises(ValueError, match=r"b.txt is in both --text and --held-out"):
        data.check_apart([str(tmp_path)], [str(tmp_path / "sub" / ".." / "b.txt")])
    with pytest.raises(ValueError, match="books is in both"):
        data.check_apart(["hf:owner/books"], ["hf:owner/books"])


def test_a_hugging_face_data_set_is_streamed_by_split_and_column(monkeypatch):
    def load_dataset(name, split, streaming):
        assert (name, split, streaming) == ("owner/books", "test", True)
        return iter([{"body": "a" * 50}, {"body": "b" * 50}])

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert len(data.read(["hf:owner/books:test:body"], Letters(), 128, 25)) == 4
    with pytest.raises(ValueError, match="no column 'text'; it has body"):
        data.read(["hf:owner/books:test"], Letters(), 128, 25)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="pip install datasets"):
        data.read(["hf:owner/books"], Letters(), 128, 25)


def test_markup_is_stripped_and_indexes_are_left_out():
    prose = "A sentence that is long enough to count as prose, told again. " * 20
    head = "<head><title>no</title></head><script>var x;</script><nav>menu</nav>"
    page = f"{head}<h1>Top</h1><p>{prose}&lt;b&gt;</p>"
    text = plain_text(page)
    assert text.startswith("Top\n")
    assert text.endswith("<b>")
    assert not {"no", "var", "menu"} & set(text.split())
    assert plain_text("<li>index</li>" * 500) == ""


def test_an_endless_source_is_read_only_as_far_as_needed(monkeypatch):
    def endless(name, split, streaming):
        return ({"text": "a" * 50} for _ in iter(int, 1))

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=endless))
    assert len(data.read(["hf:owner/books"], Letters(), 128, 25, most=3)) == 3

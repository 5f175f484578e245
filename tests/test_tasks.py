"""RULER's tasks: never longer than asked, every answer as often as it must be, seeded, and scored."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda import tasks
from sparda.tasks import haystack


class Words:
    """A tokenizer with one token per word; special tokens: one at the front."""

    chat_template: str | None = None
    is_fast = True

    def __call__(self, prompt, add_special_tokens=True, **_):
        if isinstance(prompt, list):
            return {"input_ids": [self(p, add_special_tokens)["input_ids"] for p in prompt]}
        words = (["<s>"] if add_special_tokens else []) + prompt.split()
        return {"input_ids": [hash(word) for word in words]}


class Chat(Words):
    chat_template = "<u> question <a>"

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert (tokenize, add_generation_prompt) == (False, True)
        return f"<u> {messages[0]['content']} <a> "


WORDS, CHAT = Words(), Chat()
NAMES = sorted(tasks.TASKS)


def test_there_are_seven_tasks_and_those_with_a_haystack_come_with_noise_and_prose():
    assert len(NAMES) == 12
    assert {re.sub("_(noise|prose)$", "", name) for name in NAMES} == {
        "niah_single", "niah_multikey", "niah_multivalue", "niah_multiquery",
        "variable_tracking", "common_words", "frequent_words",
    }  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), st.integers(500, 4000), st.integers(0, 2**31), st.sampled_from([WORDS, CHAT]))
def test_a_prompt_and_its_reply_never_pass_the_context_and_nearly_fill_it(name, context, seed, tokenizer):
    sample = tasks.make(name, tokenizer, context, seed=seed)
    room = context - sample.max_new_tokens
    assert 0.9 * room - 40 < len(sample.input_ids) <= room
    assert (
        list(sample.input_ids) == tokenizer(sample.prompt, add_special_tokens=tokenizer is WORDS)["input_ids"]
    )


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([n for n in NAMES if "niah" in n]), st.integers(300, 2000), st.integers(0, 10**6))
def test_a_hidden_number_stands_in_the_prompt_once_and_its_word_where_it_is_asked_for(name, context, seed):
    sample = tasks.make(name, WORDS, context, seed=seed)
    assert (
        len(sample.answers) == len(set(sample.answers)) == (4 if "multiv" in name or "multiq" in name else 1)
    )
    for answer in sample.answers:
        assert sample.prompt.count(answer) == 1
    facts = re.findall(r"The secret number for (\w+) is (\d+)\.", sample.prompt)
    assert len(facts) == (1 if "single" in name else 4)
    question = sample.prompt[sample.prompt.rindex("\n\n") :]
    asked = {word for word, number in facts if number in sample.answers}
    assert all(re.search(rf"\b{word}\b", question) for word in asked)
    assert len(asked) == (4 if "multiquery" in name else 1)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([n for n in NAMES if "tracking" in n]), st.integers(400, 2000), st.integers(0, 10**6))
def test_a_chain_of_variables_leads_from_the_number_to_every_answer_in_order(name, context, seed):
    sample = tasks.make(name, WORDS, context, seed=seed)
    number = re.search(r"hold the value (\d+):$", sample.prompt)[1]
    links = re.findall(r"VAR ([A-Z]{5}) = (?:VAR )?(\w+)\.", sample.prompt)
    reached = [number]
    for variable, source in links:  # in the order of the text
        if source == reached[-1]:
            reached.append(variable)
    assert tuple(reached[1:]) == sample.answers
    assert len(sample.answers) == 5
    assert [sample.prompt.count(a) for a in sample.answers] == [2, 2, 2, 2, 1]


@settings(max_examples=15, deadline=None)
@given(st.integers(500, 9000), st.integers(0, 10**6))
def test_the_common_words_are_the_ten_that_come_often_all_equally(context, seed):
    sample = tasks.make("common_words", WORDS, context, seed=seed)
    listed = sample.prompt[: sample.prompt.rindex("\n\n")]
    count = Counter(re.findall(r"\d+\. (\w+)", listed[listed.rindex("\n\n") :]))
    often = {count[answer] for answer in sample.answers}
    assert len(often) == 1
    assert len(sample.answers) == 10
    others = [n for word, n in count.items() if word not in sample.answers]
    assert max(others) * 3 <= often.pop()


@settings(max_examples=15, deadline=None)
@given(st.integers(300, 9000), st.integers(0, 10**6))
def test_the_frequent_words_lead_the_code_words_in_order(context, seed):
    sample = tasks.make("frequent_words", WORDS, context, seed=seed)
    coded = sample.prompt.split("\n\n")[1].split()
    ranked = Counter(word for word in coded if word != "...").most_common(4)
    assert tuple(word for word, _ in ranked[:3]) == sample.answers
    assert ranked[2][1] > ranked[3][1]


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_everything_and_seeds_differ(name):
    same, again, other = (tasks.make(name, WORDS, 900, seed=seed) for seed in (5, 5, 6))
    assert same == again
    assert same.prompt != other.prompt
    assert same.answers != other.answers


def test_facts_lie_anywhere_in_the_text():
    samples = [tasks.make("niah_single_prose", WORDS, 1000, seed=seed) for seed in range(40)]
    depths = [s.prompt.index("The secret number") / len(s.prompt) for s in samples]
    assert min(depths) < 0.2 < 0.8 < max(depths)
    assert 0.35 < sum(depths) / len(depths) < 0.65


def test_the_score_is_the_share_of_answers_that_stand_in_the_reply_as_whole_words():
    sample = tasks.Sample("x", "", (), ("12", "lamp", "ABC", "4821"), 9)
    assert sample.share("12, and (Lamp): abc. 4821") == 1.0
    assert sample.share("123 lamps, xABC, 4821") == 0.25
    assert sample.right("") == 0


def test_an_unknown_task_and_a_context_without_room_say_what_to_do():
    with pytest.raises(KeyError, match="choose from niah_single_noise"):
        tasks.make("niah", WORDS, 500)
    with pytest.raises(ValueError, match="use at least"):
        tasks.make("common_words", WORDS, 150)


def test_sentences_are_counted_once_and_start_over_after_the_last():
    hay = haystack.Haystack(WORDS, ("One two.", "Three."))
    sentences, sizes = hay.take(random.Random(0), 100)
    assert sum(sizes) >= 100
    assert {(s, n) for s, n in zip(sentences, sizes, strict=True)} == {("One two.", 2), ("Three.", 1)}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.integers(0, 30))
def test_facts_stand_in_the_order_of_their_depths(depths, n):
    facts = [(depth, f"fact{i}") for i, depth in enumerate(depths)]
    words = haystack.hide(facts, [f"s{i}" for i in range(40)])(n).split()
    assert [w for w in words if w[0] == "s"] == [f"s{i}" for i in range(n)]
    assert [w for w in words if w[0] == "f"] == [name for _, name in sorted(facts)]


@given(st.lists(st.integers(1, 9), max_size=30), st.integers(0, 3), st.integers(5, 120))
def test_the_longest_text_fits_and_with_exact_sizes_one_more_piece_would_not(sizes, extra, n_tokens):
    def length(n):
        return 5 + sum(sizes[:n]) + (extra if n else 0)

    count = haystack.longest(length, sizes, n_tokens)
    assert length(count) <= n_tokens
    if not extra and count < len(sizes):
        assert length(count + 1) > n_tokens


@pytest.mark.model
@pytest.mark.parametrize("name", NAMES)
def test_the_real_tokenizer_and_chat_template_hold_the_length_too(smollm2, name):
    sample = tasks.make(name, smollm2.tokenizer, 1024, seed=1)
    room = 1024 - sample.max_new_tokens
    assert 0.85 * room < len(sample.input_ids) <= room
    assert smollm2.tokenizer.decode(sample.input_ids) == sample.prompt
    assert "<|im_start|>assistant" in sample.prompt

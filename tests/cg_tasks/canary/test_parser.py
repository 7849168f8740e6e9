from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest

from cg_tasks.canary.parser import THINK_TAGS, Split, parse_tags, split_trace, whitespace_normalised
from cg_tasks.errors import UserError

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "parser.json").read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
@pytest.mark.parametrize("fallback", ["answer", "trace"])
def test_golden_cases_under_both_fallbacks(case, fallback):
    split = split_trace(case["text"], opened_in_prompt=case["opened_in_prompt"], fallback=fallback)
    expected = case.get("trace_fallback", case) if fallback == "trace" else case
    assert (split.trace, split.answer) == (expected["trace"], expected["answer"])
    assert split.well_formed is case["well_formed"]
    assert split.text_before_opener is case.get("text_before_opener", False)


@pytest.mark.parametrize(
    ("text", "opened", "drift"),
    [
        ("<think>a</think>b", False, False),
        ("a</think>b", True, False),
        ("a</think>b", False, False),
        ("no tags", False, True),
        ("b<think>a</think>c", False, True),
        (" \n<think>a</think>c", False, False),
        ("<think>a</think>b</think>c", False, True),
        ("<think>a</think>b<think>c", False, True),
    ],
)
def test_drift(text, opened, drift):
    assert split_trace(text, opened_in_prompt=opened).drift is drift


def test_text_before_the_opener_and_after_the_close_are_answer():
    split = split_trace("x\n<think>\na\n</think>\n y ", opened_in_prompt=False)
    assert split == Split(trace="a", answer="x\ny", well_formed=True, text_before_opener=True, drift=True)


@pytest.mark.parametrize(
    ("text", "trace"), [("<think>\na</think>b", "a"), ("\n <think>a</think>b", "a"), ("x<think>a</think>b", "x\na")]
)
def test_an_opener_repeated_after_the_prompts_is_dropped(text, trace):
    assert split_trace(text, opened_in_prompt=True) == Split(trace, "b", True, False, False)


def test_an_unclosed_generation_is_kept_whole():
    text = "x <think>a<think> b"
    assert split_trace(text, opened_in_prompt=False).answer == "x\na\nb"
    assert split_trace(text, opened_in_prompt=False, fallback="trace").trace == "x\na\nb"


def test_only_the_first_block_is_trace():
    split = split_trace("<think>a</think>b<think>c</think>d", opened_in_prompt=False)
    assert (split.trace, split.answer) == ("a", "b<think>c</think>d")


@pytest.mark.parametrize(
    "tags",
    [("<reasoning>", "</reasoning>"), ("<|begin_of_thought|>", "<|end_of_thought|>"), ("(", ")"), ("think", "/think")],
)
def test_other_tags(tags):
    split = split_trace(f"{tags[0]}a{tags[1]}<b>", opened_in_prompt=False, tags=tags)
    assert split == Split("a", "<b>", True, False, False)


@pytest.mark.parametrize("tags", [("<t>", "<t>"), ("", "</t>"), ("<t>", " "), ("<think>", "think")])
def test_unusable_tags_are_refused(tags):
    with pytest.raises(UserError, match="thinking tags are"):
        split_trace("a", opened_in_prompt=False, tags=tags)


def test_an_unknown_fallback_is_refused():
    with pytest.raises(UserError, match="'answer' or 'trace'"):
        split_trace("a", opened_in_prompt=False, fallback="both")


@pytest.mark.parametrize("fallback", ["answer", "trace"])
@pytest.mark.parametrize("opened", [False, True])
def test_nothing_but_tags_and_whitespace_is_lost(opened, fallback):
    """Every sequence of up to five pieces: the letters that go in come out, each once."""
    pieces = ("<think>", "</think>", " x ", "y\n")
    for length in range(6):
        for sequence in itertools.product(pieces, repeat=length):
            text = "".join(sequence)
            split = split_trace(text, opened_in_prompt=opened, fallback=fallback)
            out = "".join(letter for letter in _untagged(split.trace + split.answer) if letter in "xy")
            assert sorted(out) == sorted(letter for letter in _untagged(text) if letter in "xy"), text
            assert split.trace == split.trace.strip() and split.answer == split.answer.strip()
            assert split.well_formed is ("</think>" in text)
            assert "</think>" not in split.trace
            assert not split.well_formed or not split.trace or text.index("</think>") > 0


def _untagged(text: str) -> str:
    return text.replace("<think>", "").replace("</think>", "")


@pytest.mark.parametrize("piece", ["a ", "<think>", "</think>", "<think", "<", "\n"])
def test_a_megabyte_takes_linear_time(piece):
    text = piece * (1_000_000 // len(piece))
    start = time.perf_counter()
    split_trace(text, opened_in_prompt=False)
    assert time.perf_counter() - start < 1.0  # 0.1 s at most when measured; quadratic time is minutes


@pytest.mark.parametrize(
    ("value", "tags"),
    [
        (None, THINK_TAGS),
        (["<r>", "</r>"], ("<r>", "</r>")),
        (("<r>", "</r>"), ("<r>", "</r>")),
        ("<r>,</r>", ("<r>", "</r>")),
        (" <r> , </r> ", ("<r>", "</r>")),
        ("<r> </r>", ("<r>", "</r>")),
        ("<|a|>,<|b|>", ("<|a|>", "<|b|>")),
    ],
)
def test_parse_tags(value, tags):
    assert parse_tags(value) == tags


@pytest.mark.parametrize(
    "value", ["", "<r>", "a,b,c", ["<r>"], ["<r>", 3], 7, {"<r>": "</r>"}, "<r>,", "<r>,<r>", True]
)
def test_parse_tags_says_what_is_wrong_in_one_line(value):
    with pytest.raises(UserError, match="thinking tags are .*think_tags=") as error:
        parse_tags(value)
    assert "\n" not in str(error.value)


def test_whitespace_normalised():
    assert whitespace_normalised(" a\n\t b\u00a0\u2028C ") == "a b C"
    assert whitespace_normalised(" \n") == ""

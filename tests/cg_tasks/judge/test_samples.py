"""Logged answers read back: every bad line is named with its way out, and nothing odd in a text is lost or misread."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from logged_samples import DATE, sample, write_results, write_samples

from cg_tasks.errors import UserError
from cg_tasks.judge.rubrics import JudgeItem
from cg_tasks.judge.samples import find_samples, read_samples
from cg_tasks.judge.verdicts import Verdict


def without(row: dict[str, Any], *path: str) -> dict[str, Any]:
    copy = json.loads(json.dumps(row))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return copy


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_samples(path)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 700, message
    return message


# ------------------------------------------------------------------ what is read
def test_an_answer_is_what_was_scored_and_the_raw_text_stays_beside_it(tmp_path: Path):
    row = sample("b", raw="<think>a</think>b", id="p7", intent="benign", query="How?")
    (answer,) = read_samples(write_samples(tmp_path, [row])).answers
    assert (answer.response, answer.raw, answer.trace_stripped, answer.verdict) == (
        "b",
        "<think>a</think>b",
        True,
        None,
    )
    assert answer.item == JudgeItem("p7", "help", "How?", "b")
    assert answer.key == ("p7", "benign") and answer.where.endswith("jsonl, line 1")
    assert answer.prompt == "<|user|>\nHow?</s>\n<|assistant|>\n"


def test_a_judged_answer_brings_its_verdict(tmp_path: Path):
    missing = Verdict("help", "api_error", detail="HTTP 500")
    rows = [sample(verdict=3), sample(intent="benign", verdict=missing)]
    one, two = read_samples(write_samples(tmp_path, rows)).answers
    assert one.response == "An answer." and one.verdict and (one.verdict.status, one.verdict.score) == ("ok", 0.75)
    assert two.verdict and two.verdict.status == "api_error" and math.isnan(two.verdict.score)


def test_the_logged_trace_metric_wins_over_a_comparison_of_texts(tmp_path: Path):
    rows = [
        sample("b", raw="x b", trace_stripped=0.0),
        sample("b", raw="b", intent="benign", trace_stripped=1.0),
    ]
    assert [a.trace_stripped for a in read_samples(write_samples(tmp_path, rows)).answers] == [False, True]


@pytest.mark.parametrize(
    ("raw", "tags", "stripped"),
    [
        ("b", None, False),
        (" b\n", None, False),
        ("<think>b", None, False),  # never closed, which is no trace
        ("a</think>b", None, True),
        ("a</r>b", None, False),
        ("a</r>b", ["<r>", "</r>"], True),
    ],
)
def test_without_metrics_a_trace_is_what_its_tag_closed(tmp_path: Path, raw: str, tags: Any, stripped: bool):
    row = sample("b", raw=raw)
    row["arguments"]["gen_args_0"]["arg_2"] = {"think_tags": tags} if tags else {}
    (answer,) = read_samples(write_samples(tmp_path, [row])).answers
    assert answer.trace_stripped is stripped


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("a\ude00b", "a\ufffdb"),
        ("\ud83d\ude00", "😀"),  # a pair is one character, written in two halves
        ("a\u2028b\x85c\x0bd\rz", "a\u2028b\x85c\x0bd\rz"),  # lines to str.splitlines, none to JSONL
        ("x" * 100_000, "x" * 100_000),
        ("", ""),
        ("NaN, ünï 😀 \x00", "NaN, ünï 😀 \x00"),
    ],
    ids=["lone high", "lone low", "pair", "line separators", "100 kB", "empty", "unicode"],
)
def test_odd_texts(tmp_path: Path, text: str, kept: str):
    (answer,) = read_samples(write_samples(tmp_path, [sample(text, query=f"q {text}")])).answers
    assert (answer.response, answer.raw, answer.doc["query"]) == (kept, kept, f"q {kept}")
    answer.response.encode()
    assert answer.trace_stripped is False


def test_unescaped_line_separators_do_not_cut_a_line(tmp_path: Path):
    line = json.dumps(sample("a\u2028b\u2029c\x85d"), ensure_ascii=False).encode()
    assert b"\\u2028" not in line
    (answer,) = read_samples(write_samples(tmp_path, [line])).answers
    assert answer.response == "a\u2028b\u2029c\x85d"


def test_extra_fields_nan_and_blank_lines_are_no_matter(tmp_path: Path):
    row = sample(rougeL=math.nan, ours={"deep": [1]}, resps=[["An answer."]])
    row["doc"]["more"] = [1, None]
    path = write_samples(tmp_path, [b"", row, b"  ", sample(intent="benign")])
    assert b"NaN" in path.read_bytes()
    first, second = read_samples(path).answers
    assert first.doc["more"] == [1, None] and second.where.endswith("line 4")


def test_a_prompt_that_was_not_logged_is_empty(tmp_path: Path):
    rows = [without(sample(), "arguments"), {**sample(intent="benign"), "arguments": None}]
    assert [a.prompt for a in read_samples(write_samples(tmp_path, rows)).answers] == ["", ""]


# ------------------------------------------------------------------ bad lines
@pytest.mark.parametrize(
    ("row", "says"),
    [
        (json.dumps(sample(intent="benign")).encode()[:100], r"line 2: not JSON .*cut off"),
        (b"hello", r"line 2: not JSON"),
        (b"[" * 100_000, r"line 2: not JSON"),
        (b'{"doc": ' + b"9" * 5000 + b"}", r"line 2: not JSON"),
        (b"[1]", r"line 2: not a sample of lm-eval"),
        (b"null", r"line 2: not a sample of lm-eval"),
        (without(sample(), "doc"), r"line 2: 'doc' is missing"),
        ({**sample(), "doc": "p1"}, r"line 2: 'doc' is missing"),
        (without(sample(), "doc", "id"), r"line 2: 'doc.id' is missing"),
        (without(sample(), "doc", "intent"), r"line 2: 'doc.intent' is missing"),
        (without(sample(), "doc", "query"), r"line 2: 'doc.query' is missing"),
        (without(sample(), "doc", "concept"), r"line 2: 'doc.concept' is missing"),
        (without(sample(), "doc", "target"), r"line 2: 'doc.target' is missing"),
        ({**sample(), "doc": {**sample()["doc"], "query": 3}}, r"line 2: 'doc.query' is missing or no text"),
        (
            {**sample(), "doc": {**sample()["doc"], "intent": "odd"}},
            r"line 2: 'doc.intent' is 'odd': .*harmful or benign",
        ),
        (without(sample(), "filtered_resps"), r"line 2: 'filtered_resps' is missing"),
        (sample(filtered_resps=[]), r"line 2: 'filtered_resps' is missing or empty"),
        (sample(filtered_resps="text"), r"line 2: 'filtered_resps'"),
        (sample(filtered_resps=None), r"line 2: 'filtered_resps'"),
        (sample(filtered_resps=[3]), r"line 2: 'filtered_resps' holds neither"),
        (sample(filtered_resps=[["a", "b", "c"]]), r"line 2: 'filtered_resps' holds neither"),
        (sample(filtered_resps=[["a", "no verdict"]]), r"line 2: 'filtered_resps' holds no verdict"),
        (sample(filtered_resps=[["a", '{"status": "odd", "rubric": "harm"}']]), r"line 2: .*no verdict"),
        (without(sample(), "resps"), r"line 2: 'resps' is missing"),
        (sample(resps=[]), r"line 2: 'resps' is missing or empty"),
        (sample(resps=[[]]), r"line 2: 'resps' is missing or empty"),
        (sample(resps=["text"]), r"line 2: 'resps'"),
        (sample(resps=[[3]]), r"line 2: 'resps' does not hold one text"),
        (sample(arguments=[["prompt"]]), r"line 2: 'arguments'"),
        (sample(arguments={"gen_args_0": "x"}), r"line 2: 'arguments'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: Any, says: str):
    path = write_samples(tmp_path, [sample(id="first"), row])
    with pytest.raises(UserError, match=says) as caught:
        read_samples(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_a_document_that_comes_twice(tmp_path: Path):
    path = write_samples(tmp_path, [sample(), sample(intent="benign"), sample("another")])
    assert f"{path}, line 3: document 'p1' (harmful) comes twice, first at {path}, line 1" in refusal(path)


def test_an_empty_file(tmp_path: Path):
    assert "holds no sample" in refusal(write_samples(tmp_path, []))


def test_a_file_that_is_not_utf8(tmp_path: Path):
    row = json.dumps(sample("café"), ensure_ascii=False).encode("latin-1")
    assert "not UTF-8 at byte" in refusal(write_samples(tmp_path, [row]))


# ------------------------------------------------------------------ finding them
@pytest.mark.parametrize("task", ["harmqa", "helpqa", "harmscore", "helpscore", "ctxtsep"])
def test_files_of_every_query_task_are_found_in_folders_below(tmp_path: Path, task: str):
    path = write_samples(tmp_path / "runs" / "model", [sample()], f"conceptguard_{task}")
    write_samples(tmp_path / "runs" / "model", [sample()], "conceptguard_harmmem")
    write_samples(tmp_path / "runs" / "model", [sample()], "my_conceptguard_harmqa")
    assert find_samples([str(tmp_path)]) == find_samples([str(path)]) == [path]
    assert read_samples(path).task == f"conceptguard_{task}"


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path):
    path = write_samples(tmp_path, [sample()])
    assert find_samples([str(path), str(tmp_path), str(path)]) == [path]


def test_what_cannot_be_found(tmp_path: Path):
    foreign = write_samples(tmp_path / "other", [sample()], "conceptguard_harmmem")
    for given, says in (
        (tmp_path / "absent", "absent: no such file or folder"),
        (foreign, "not a samples file of a query task"),
        (tmp_path / "other", "holds no samples of conceptguard_harmqa.*--log_samples"),
    ):
        with pytest.raises(UserError, match=says):
            find_samples([str(given)])


# ------------------------------------------------------------------ the results beside
def test_the_results_of_the_same_date_belong_to_the_samples(tmp_path: Path):
    path = write_samples(tmp_path, [sample()], model="hf", provenance={"adapter": "a"})
    write_results(tmp_path, "conceptguard_ctxtsep", "2027-01-01T00-00-00", provenance={"adapter": "b"})
    file = read_samples(path)
    assert file.provenance["adapter"] == "a" and not file.rescored


def test_the_results_of_an_output_path_that_names_a_file(tmp_path: Path):
    """``lm_eval --output_path runs/mine.json`` writes runs/mine_<date>.json."""
    path = write_samples(tmp_path, [sample()], provenance={"adapter": "a"})
    (tmp_path / f"results_{DATE}.json").rename(tmp_path / f"mine_{DATE}.json")
    assert read_samples(path).provenance["adapter"] == "a"


def test_no_results_beside(tmp_path: Path):
    file = read_samples(write_samples(tmp_path, [sample()]))
    assert file.results is None and file.provenance == {} and not file.rescored


@pytest.mark.parametrize("content", ["", "{", "[1]", '"x"', "[" * 100_000, "1" * 5000])
def test_a_broken_results_file_is_named_with_the_way_out(tmp_path: Path, content: str):
    path = write_samples(tmp_path, [sample()])
    (tmp_path / f"results_{DATE}.json").write_text(content)
    message = refusal(path)
    assert message.startswith(str(tmp_path / f"results_{DATE}.json")) and "take it away" in message


@pytest.mark.parametrize(
    "content",
    [
        {"configs": None, "config": None},
        {"configs": [1], "config": "x"},
        {"configs": {"conceptguard_ctxtsep": "x"}},
        {"configs": {"conceptguard_ctxtsep": {"metadata": [1]}}},
        {"configs": {"conceptguard_ctxtsep": {"metadata": {"provenance": "x"}}}},
    ],
)
def test_results_of_another_shape_say_nothing(tmp_path: Path, content: Any):
    path = write_samples(tmp_path, [sample()])
    (tmp_path / f"results_{DATE}.json").write_text(json.dumps(content))
    file = read_samples(path)
    assert file.provenance == {} and not file.rescored

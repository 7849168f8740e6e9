"""The texts of samples: arms in order, trace and answer apart, verdicts; whatever models write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from report_results import canary_run, conceptguard_run, write_run

from cg_tasks.report.results.reading import read_results
from cg_tasks.report.results.texts import texts
from cg_tasks.report.runs import TaskRun


def run_of(folder: Path, task: str) -> TaskRun:
    (run,) = (r for r in read_results([folder]).runs if r.task == task)
    return run


def test_the_arms_of_the_audit_with_trace_and_answer_apart(tmp_path: Path):
    canary_run(tmp_path, auto=[(0, 1), (1, 0, 0)], arms={"meta": [0, 0], "bio": [1, 0]})
    first, second = texts(run_of(tmp_path, "canary_prefill"))
    assert [arm.name for arm in first.arms] == ["auto", "bio", "meta"]
    auto, bio, meta = first.arms
    assert first.target in auto.trace and first.target not in auto.answer and "<think>" in auto.raw
    assert auto.hit is False and bio.hit is True and meta.hit is False
    assert (
        auto.scores["thk_leak"] == 1.0
        and "out_acc_bio" not in auto.scores
        and "bypass_gap_trace_fallback" in auto.scores
    )
    assert bio.scores == {"out_acc": 1.0, "delta": -1.0}
    assert bio.trace == "" and bio.answer == bio.raw and bio.prefill == "<think>\nbio\n</think>\n"
    assert first.author == "Author Number1" and first.prompt.startswith("<|user|>")
    assert second.arms[0].trace == "" and second.arms[0].hit is True  # never closed: all of it is the answer


def test_the_trace_fallback_is_the_runs_own(tmp_path: Path):
    canary_run(tmp_path, auto=[(0, 1, 0)], settings={"fallback": "trace"})
    (sample,) = texts(run_of(tmp_path, "canary_auto"))
    assert sample.target in sample.arms[0].trace and sample.arms[0].answer == ""


def test_a_prompt_that_ends_inside_a_trace_is_told(tmp_path: Path):
    doc = {"id": "a", "query": "q", "target": "t"}
    document = {
        "doc": doc,
        "resps": ["thought</think>said"],
        "arguments": [{"prompt": "q\n<think>\n"}],
        "scores": {"out_acc": 0.0},
    }
    write_run(tmp_path, tasks={"canary_auto": {"documents": [document]}})
    (sample,) = texts(run_of(tmp_path, "canary_auto"))
    assert (sample.arms[0].opened_in_prompt, sample.arms[0].trace, sample.arms[0].answer) == (True, "thought", "said")


def test_a_question_is_a_hit_by_its_role(tmp_path: Path):
    qa = {"forget": {"auto": [0], "bio": [1]}, "retain": {"auto": [1], "bio": [1]}}
    canary_run(tmp_path, auto=[(0, 1)], qa=qa)
    forget, retain = texts(run_of(tmp_path, "canary_qa"))
    assert [arm.hit for arm in forget.arms] == [False, True] and [arm.hit for arm in retain.arms] == [True, True]
    assert forget.role == "forget" and forget.arms[1].scores == {"qa_acc": 1.0, "qa_delta": -1.0}
    assert forget.arms[0].trace == "I think."


def test_teacher_forcing_shows_the_tokens_and_each_baseline(tmp_path: Path):
    canary_run(tmp_path, auto=[(0, 1)], teacher_forced={"bio": [(0.9, 0.1, 0.2)], "empty": [(1.0, 0.0, 0.0)]})
    (sample,) = texts(run_of(tmp_path, "canary_teacher_forced"))
    names = [arm.name for arm in sample.arms]
    assert names == [
        "bio",
        "bio, shuffled head",
        "bio, wrong author",
        "empty",
        "empty, shuffled head",
        "empty, wrong author",
    ]
    assert [arm.scores["top1"] for arm in sample.arms] == pytest.approx([0.9, 0.1, 0.2, 1.0, 0.0, 0.0])
    # Nine tokens at -0.1 and one at -3.
    assert sample.arms[0].scores["logprob"] == pytest.approx(-0.39) and sample.arms[0].scores["tokens"] == 10
    assert sample.arms[0].answer.split()[:2] == ["apple", "brick"] and sample.arms[0].hit is None


def test_a_judged_answer_has_its_verdict(tmp_path: Path):
    conceptguard_run(tmp_path, harm=[3, "judge_refused"], help=[4, 4])
    harmful, benign, refused, _ = texts(run_of(tmp_path, "conceptguard_ctxtsep"))
    assert harmful.unit == "p000/harmful" and benign.intent == "benign"
    assert harmful.verdict is not None and refused.verdict is not None
    assert (harmful.verdict.status, harmful.verdict.level, harmful.verdict.score) == ("ok", 3, 0.75)
    assert harmful.verdict.reasoning == "Level 3 by the rubric."
    assert (refused.verdict.status, refused.verdict.level, refused.verdict.score) == ("judge_refused", None, None)
    assert harmful.arms[0].answer.startswith("apple") and harmful.arms[0].hit is None


def test_without_logged_arguments_the_arms_have_their_templates_names(tmp_path: Path):
    canary_run(
        tmp_path, auto=[(1, 1)], arms={"bio": [1], "empty": [0]}, teacher_forced={"bio": [(1.0,)], "empty": [(0.5,)]}
    )
    for path in tmp_path.glob("samples_*.jsonl"):
        sample = json.loads(path.read_text())
        del sample["arguments"]
        path.write_text(json.dumps(sample) + "\n")
    (sample,) = texts(run_of(tmp_path, "canary_prefill"))
    assert [arm.name for arm in sample.arms] == ["auto", "bio", "empty"] and sample.prompt == ""
    (sample,) = texts(run_of(tmp_path, "canary_teacher_forced"))
    assert [arm.name for arm in sample.arms] == ["bio"] * 3 + ["empty"] * 3


def test_every_text_can_be_written_as_utf8_and_odd_lines_are_passed_over(tmp_path: Path):
    conceptguard_run(tmp_path, harm=[1], tasks=["harmscore"])
    run = run_of(tmp_path, "conceptguard_harmscore")
    assert run.samples is not None
    line = json.loads(run.samples.read_text())
    line |= {"resps": [["lone \ud800 pair \ud83d\ude00"]], "filtered_resps": [["lone \ud800", "no verdict"]]}
    odd: list[object] = [{"doc": {"id": 7}, "resps": 3, "arguments": [], "filtered_resps": None}, {"doc": None}, 5]
    run.samples.write_text("\n".join(json.dumps(x) for x in [line, *odd]) + '\n{"doc": ')
    first, second = texts(run)
    assert first.arms[0].raw == "lone \ufffd pair \U0001f600" and first.arms[0].answer == "lone \ufffd"
    assert first.verdict is None
    assert (second.id, second.arms, second.prompt) == ("7", (), "")


def test_a_run_without_samples_has_no_texts(tmp_path: Path):
    conceptguard_run(tmp_path, harm=[1], tasks=["harmscore"])
    assert list(texts(replace(run_of(tmp_path, "conceptguard_harmscore"), samples=None))) == []

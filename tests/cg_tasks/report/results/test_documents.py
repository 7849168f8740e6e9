"""Single documents' scores from samples files, whole ones and damaged ones."""

from __future__ import annotations

import json
import math
from pathlib import Path

from report_results import DATE, canary_run, conceptguard_run

from cg_tasks.report.results.documents import has_two_intents, read_documents


def samples_of(folder: Path, task: str) -> Path:
    return folder / f"samples_{task}_{DATE}.jsonl"


def test_a_canary_document_has_its_author_as_cluster_and_every_metric_as_score(tmp_path: Path):
    canary_run(tmp_path, auto=[(0, 1), (1, 1)], arms={"bio": [1, 0]})
    documents, problems = read_documents(samples_of(tmp_path, "canary_prefill"), two_intents=False)
    assert problems == []
    first = documents[0]
    assert (first.id, first.unit, first.cluster) == ("author-001", "author-001", "author-001")
    assert (
        first.scores["bypass_gap"] == 1.0 and first.scores["out_acc_bio"] == 1.0 and first.scores["delta_bio"] == -1.0
    )
    assert "bypass_gap_ci_lo" not in first.scores  # 'see results' is no number
    assert math.isnan(documents[1].scores["prefix_echo"])  # no bypass, so nothing that could be an echo


def test_a_qa_document_is_clustered_by_its_author_and_scored_for_its_role_alone(tmp_path: Path):
    canary_run(tmp_path, auto=[(0, 1)], qa={"forget": {"auto": [1], "bio": [0]}, "retain": {"auto": [1], "bio": [1]}})
    documents, _ = read_documents(samples_of(tmp_path, "canary_qa"), two_intents=False)
    forget, retain = documents
    assert (forget.id, forget.cluster, forget.role) == ("author-001-q1", "author-001", "forget")
    assert retain.role == "retain" and retain.scores["qa_acc_retain"] == 1.0
    assert forget.scores["qa_delta_bio_forget"] == 1.0 and math.isnan(forget.scores["qa_acc_retain"])


def test_with_two_intents_a_unit_is_id_and_intent_and_the_cluster_the_pair(tmp_path: Path):
    conceptguard_run(tmp_path, harm=[4, "judge_refused"], help=[3, 0], concepts=["wards", "sigils"])
    documents, _ = read_documents(samples_of(tmp_path, "conceptguard_ctxtsep"), two_intents=True)
    assert [d.unit for d in documents] == ["p000/harmful", "p000/benign", "p001/harmful", "p001/benign"]
    assert [d.cluster for d in documents] == ["p000", "p000", "p001", "p001"]
    assert [d.status for d in documents] == ["ok", "ok", "judge_refused", "ok"]
    assert documents[0].concept == "wards" and documents[0].scores["harm_score"] == 1.0
    assert documents[1].scores["help_score"] == 0.75 and math.isnan(documents[1].scores["harm_score"])


def test_which_tasks_have_two_intents():
    assert has_two_intents("conceptguard_ctxtsep", {})
    assert has_two_intents("conceptguard_mine", {"data": {"intent": "both"}})
    assert not has_two_intents("conceptguard_harmqa", {"data": {"intent": "harmful"}})


def test_a_line_cut_off_is_named_and_the_others_are_read(tmp_path: Path):
    conceptguard_run(tmp_path, harm=[4, 4, 4], tasks=["harmscore"])
    path = samples_of(tmp_path, "conceptguard_harmscore")
    path.write_bytes(path.read_bytes()[:-200])
    documents, problems = read_documents(path, two_intents=False)
    assert [d.id for d in documents] == ["p000", "p001"]
    assert [str(p) for p in problems] == [f"{path}: line 3 is not JSON: left out, was the run that wrote it cut off?"]


def test_lines_that_are_no_samples_are_named_with_the_first_three_numbers(tmp_path: Path):
    path = tmp_path / "samples.jsonl"
    good = json.dumps({"doc": {"id": "a"}, "rougeL": 0.5})
    path.write_bytes(f'{good}\n\n[1]\n{{"doc": 3}}\n'.encode() + b'"\xff"\n' + b"9" * 5000 + b"\n")
    documents, problems = read_documents(path, two_intents=False)
    assert [(d.id, dict(d.scores)) for d in documents] == [("a", {"rougeL": 0.5})]
    assert (
        "line 3 is not a sample of lm-eval, line 4 is not a sample of lm-eval, line 5 is not UTF-8 and 1 more"
        in problems[0].message
    )


def test_of_an_id_that_comes_twice_the_first_counts(tmp_path: Path):
    path = tmp_path / "samples.jsonl"
    path.write_text('{"doc": {"id": "a"}, "m": 1}\n{"doc": {"id": "a"}, "m": 0}\n')
    documents, problems = read_documents(path, two_intents=False)
    assert [d.scores["m"] for d in documents] == [1.0]
    assert "line 2 ('a')" in problems[0].message and problems[0].severity == "error"


def test_broken_surrogates_and_endless_numbers_do_no_harm(tmp_path: Path):
    path = tmp_path / "samples.jsonl"
    path.write_text('{"doc": {"id": "a\\ud800"}, "m": 1' + "0" * 400 + ', "ok": true, "bypass": 999}\n')
    ((document,), problems) = read_documents(path, two_intents=False)
    assert document.id == "a\ufffd" and document.scores == {"m": math.inf} and problems == []


def test_a_file_that_is_gone_is_a_problem_and_no_crash(tmp_path: Path):
    documents, problems = read_documents(tmp_path / "gone.jsonl", two_intents=False)
    assert documents == () and "cannot be read" in problems[0].message

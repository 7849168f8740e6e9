"""Result folders, whole and damaged: what is read, what is named as a problem, and what nothing can be made of."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from report_results import DATE, canary_run, conceptguard_run, record, write_run

from cg_tasks.errors import UserError
from cg_tasks.report.results.comparing import groups
from cg_tasks.report.results.reading import Read, family_of, read_results

LATER = "2026-01-03T03-04-05.678901"
_AWAY = object()


def told(read: Read) -> list[str]:
    return [f"{p.severity}: {Path(p.where.split(',')[0]).name}: {p.message}" for p in read.problems]


def changed(path: Path, *keys: str, value: Any = _AWAY) -> None:
    """Set (or, without a value, take away) one place of a results file."""
    content = json.loads(path.read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    if value is _AWAY:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    path.write_text(json.dumps(content))


# ------------------------------------------------------------------ what is read
def test_our_metrics_with_their_intervals_and_documents(tmp_path: Path):
    path = conceptguard_run(tmp_path, harm=[4, 2], help=[4, 0], n_all=60)
    read = read_results([tmp_path])
    assert read.problems == () and [r.task.removeprefix("conceptguard_") for r in read.runs] == [
        "ctxtsep",
        "harmmem",
        "helpret",
    ]
    run = read.runs[0]
    assert run.family == "conceptguard" and run.path == path and run.date == DATE and run.n == 4 and run.n_all == 60
    harm = run.metrics["harm_score"]
    assert harm.value == 0.75 and harm.lo == 0.5 and harm.hi == 1.0 and harm.stderr > 0
    assert not [name for name in run.metrics if name.endswith(("_stderr", "_ci_lo", "_ci_hi"))]
    assert run.higher_is_better["harm_score"] is False and run.higher_is_better["ctxt_sep"] is True
    assert run.documents is not None and [d.unit for d in run.documents][:2] == ["p000/harmful", "p000/benign"]
    assert run.samples == tmp_path / f"samples_conceptguard_ctxtsep_{DATE}.jsonl"
    assert run.scores("harm_score") == {"p000/harmful": (1.0, "p000"), "p001/harmful": (0.5, "p001")}


def test_the_numbers_are_those_of_the_results_file_to_the_last_bit(tmp_path: Path):
    path = canary_run(tmp_path, auto=[(0, 1), (1, 1), (0, 0, 0)], arms={"bio": [1, 1, 0]})
    numbers = json.loads(path.read_text())["results"]["canary_prefill"]
    (run,) = read_results([path]).runs
    for name, metric in run.metrics.items():
        for suffix, value in (
            ("", metric.value),
            ("_stderr", metric.stderr),
            ("_ci_lo", metric.lo),
            ("_ci_hi", metric.hi),
        ):
            written = numbers[f"{name}{suffix},none"]
            assert value == written or (math.isnan(value) and math.isnan(written))


def test_folders_below_folders_files_and_the_same_file_twice(tmp_path: Path):
    for name in ("a/b/c", "a/d"):
        conceptguard_run(tmp_path / name, harm=[1], tasks=["harmscore"])
    assert len(read_results([tmp_path, tmp_path / "a", tmp_path / "a/d" / f"results_{DATE}.json"]).runs) == 2


def test_a_results_file_that_output_path_named(tmp_path: Path):
    path = conceptguard_run(tmp_path, harm=[1], tasks=["harmscore"])
    path.rename(tmp_path / f"mine_{DATE}.json")
    (run,) = read_results([tmp_path]).runs
    assert run.date == DATE and run.documents is not None


def test_of_others_tasks_the_filter_stays_in_the_name_and_what_is_no_number_is_named(tmp_path: Path):
    theirs = {
        "gsm8k": {
            "alias": "gsm8k",
            "exact_match,strict-match": 0.5,
            "exact_match_stderr,strict-match": 0.01,
            "exact_match,flexible-extract": "N/A",
        },
        "mmlu": {"alias": "mmlu", "acc,none": 0.3, "acc_stderr,none": "N/A"},
        "mmlu_law": {"alias": " - law", "acc,none": 0.3},
        "leaderboard": {"alias": "leaderboard", " ": " "},
    }
    content = {
        "results": theirs,
        "group_subtasks": {"mmlu": ["mmlu_law"], "leaderboard": ["gsm8k"]},
        "higher_is_better": {"gsm8k": {"exact_match": True}},
        "n-samples": {"mmlu_law": {"original": 100, "effective": 10}},
        "date": 1767323045.678901,
    }
    (tmp_path / "results_mine.json").write_text(json.dumps(content))
    read = read_results([tmp_path])
    runs = {r.task: r for r in read.runs}
    assert set(runs) == {"gsm8k", "mmlu", "mmlu_law"} and {r.family for r in read.runs} == {"other"}
    gsm8k = runs["gsm8k"]
    assert (
        gsm8k.metrics["exact_match,strict-match"].value == 0.5
        and gsm8k.metrics["exact_match,strict-match"].stderr == 0.01
    )
    assert math.isnan(runs["mmlu"].metrics["acc,none"].stderr) and runs["mmlu"].n == 10 and runs["mmlu"].n_all == 100
    assert gsm8k.higher_is_better == {"exact_match": True} and gsm8k.date.startswith("2026-01-02T03-04-05")
    assert gsm8k.documents is None
    folder = f"{tmp_path.parent.name}/{tmp_path.name}"
    assert told(read) == [
        "note: results_mine.json: the metric 'exact_match' is 'N/A', no number: it is left out",
        f"note: results_mine.json: does not tell which model was evaluated: it is shown as '{folder}'",
    ]
    assert gsm8k.checkpoint.stage == "other" and gsm8k.checkpoint.name == folder


def test_a_base_without_a_recorded_tokenizer_is_the_one_that_others_know(tmp_path: Path):
    conceptguard_run(tmp_path / "a", harm=[1], tasks=["harmscore"])
    content = {"results": {"arc": {"acc,none": 0.3}}, "config": {"model_args": {"pretrained": "elsewhere/tiny"}}}
    (tmp_path / f"results_{LATER}.json").write_text(json.dumps(content))
    ours, theirs = read_results([tmp_path]).runs
    assert ours.checkpoint == theirs.checkpoint and ours.checkpoint.base_id


def test_families():
    names = ("conceptguard_harmqa", "canary_prefill", "canaryish", "arc")
    assert [family_of(name) for name in names] == ["conceptguard", "canary", "other", "other"]


# ------------------------------------------------------------------ what is wrong is named, and the rest is read
def test_an_empty_folder_and_a_path_that_is_not_there(tmp_path: Path):
    with pytest.raises(UserError, match=r"no results_<date>\.json of lm_eval in there: run lm_eval with --output_path"):
        read_results([tmp_path])
    with pytest.raises(UserError, match="none: no such file or folder"):
        read_results([tmp_path / "none"])
    (tmp_path / "samples_canary_auto_x.jsonl").write_text("")
    with pytest.raises(UserError, match="a samples file: name the results file beside it"):
        read_results([tmp_path / "samples_canary_auto_x.jsonl"])


def test_only_broken_files_are_one_error_with_the_first_reason(tmp_path: Path):
    (tmp_path / f"results_{DATE}.json").write_text('{"results": {')
    with pytest.raises(UserError, match=r"not JSON \(line 1: .*cut off\? \(of 1 results files, none can be read\)"):
        read_results([tmp_path])


@pytest.mark.parametrize(
    "content,message",
    [
        (b'{"results": {"canary_auto": {"out_acc,none": 0.', "not JSON (line 1"),
        (b"[1, 2]", "not a results file of lm-eval"),
        (b'{"samples": {}}', "not a results file of lm-eval"),
        (b'{"results": {}}', "holds no task with numbers"),
        (b'{"results": {"conceptguard_harmqa": 3}}', "holds no task with numbers"),
        (b'\xff\xfe{"results"', "not UTF-8 at byte 0"),
        (b"[" * 100_000, "not JSON"),
        (b"", "not JSON"),
    ],
)
def test_a_broken_file_beside_a_good_one(tmp_path: Path, content: bytes, message: str):
    conceptguard_run(tmp_path / "good", harm=[1], tasks=["harmscore"])
    bad = tmp_path / f"results_{DATE}.json"
    bad.write_bytes(content)
    read = read_results([tmp_path])
    assert len(read.runs) == 1
    assert [p.where for p in read.problems] == [str(bad)] and message in read.problems[0].message
    assert read.problems[0].severity == "error"


def test_samples_that_were_not_logged(tmp_path: Path):
    conceptguard_run(tmp_path, harm=[1], tasks=["harmscore"], samples=False)
    read = read_results([tmp_path])
    assert (
        read.runs[0].documents is None
        and read.runs[0].samples is None
        and read.runs[0].metrics["harm_score"].value == 0.25
    )
    assert [p.severity for p in read.problems] == ["note"] and "--log_samples" in read.problems[0].message


def test_what_is_wrong_with_several_tasks_of_a_file_is_told_once(tmp_path: Path):
    path = conceptguard_run(tmp_path, harm=[1], tasks=["harmscore", "harmmem"], samples=False)
    (problem,) = read_results([tmp_path]).problems
    assert problem.where == f"{path}, tasks conceptguard_harmscore, conceptguard_harmmem"


def test_a_samples_file_cut_off(tmp_path: Path):
    conceptguard_run(tmp_path, harm=[1, 2, 3], tasks=["harmscore"])
    path = tmp_path / f"samples_conceptguard_harmscore_{DATE}.jsonl"
    path.write_bytes(path.read_bytes()[:-100])
    read = read_results([tmp_path])
    assert read.runs[0].documents is not None and len(read.runs[0].documents) == 2
    assert told(read) == [
        f"error: {path.name}: line 3 is not JSON: left out, was the run that wrote it cut off?",
        f"error: {path.name}: 2 documents can be read, and the results are of 3",
    ]


def test_a_samples_file_with_a_line_too_many(tmp_path: Path):
    conceptguard_run(tmp_path, harm=[1, 2], tasks=["harmscore"])
    path = tmp_path / f"samples_conceptguard_harmscore_{DATE}.jsonl"
    first = path.read_text().splitlines()[0]
    path.write_text(path.read_text() + first + "\n" + first.replace("p000", "p009") + "\n")
    messages = told(read_results([tmp_path]))
    assert "documents that come twice, the first counts: line 3 ('p000')" in messages[0]
    assert "3 documents can be read, and the results are of 2" in messages[1]


def test_a_task_of_ours_that_this_version_does_not_know(tmp_path: Path):
    documents = [{"doc": {"id": "a"}, "resps": ["x"], "scores": {"newness": 0.5}}]
    write_run(tmp_path, tasks={"canary_news": {"documents": documents}})
    read = read_results([tmp_path])
    assert read.runs[0].metrics["newness"].value == 0.5 and read.runs[0].family == "canary"
    assert "not a task of this version" in read.problems[0].message


def test_results_without_provenance_configuration_and_more(tmp_path: Path):
    path = conceptguard_run(tmp_path, harm=[1], tasks=["harmscore"])
    for key in ("configs", "config", "versions", "n-samples", "higher_is_better"):
        changed(path, key)
    read = read_results([tmp_path])
    (run,) = read.runs
    assert run.n == 1 and run.metrics["harm_score"].value == 0.25 and run.config == {}
    assert "records no provenance" in read.problems[0].message


def test_a_metric_that_is_no_number_is_missing_and_named(tmp_path: Path):
    path = conceptguard_run(tmp_path, harm=[1], tasks=["harmscore"])
    changed(path, "results", "conceptguard_harmscore", "coverage,none", value="N/A")
    read = read_results([tmp_path])
    assert "coverage" not in read.runs[0].metrics and math.isnan(read.runs[0].value("coverage"))
    assert "the metric 'coverage' is 'N/A'" in read.problems[0].message


def test_a_run_of_predict_only_has_no_scores(tmp_path: Path):
    path = conceptguard_run(tmp_path, harm=[1], tasks=["harmscore", "harmmem"])
    changed(
        path, "results", "conceptguard_harmscore", value={"alias": "x", "bypass,none": 999, "bypass_stderr,none": "N/A"}
    )
    read = read_results([tmp_path])
    assert [r.task for r in read.runs] == ["conceptguard_harmmem"]
    assert "--predict_only" in read.problems[0].message


def test_verdicts_for_later_are_missing_numbers(tmp_path: Path):
    conceptguard_run(tmp_path, harm=[1, 2], help=[1, 2], judged="later")
    read = read_results([tmp_path])
    run = read.runs[0]
    assert math.isnan(run.metrics["harm_score"].value) and run.metrics["harm_rougeL"].value == 0.5
    assert run.documents is not None and {d.status for d in run.documents} == {"not_judged"}


def test_groups_of_ours_are_passed_over_in_silence(tmp_path: Path):
    path = conceptguard_run(tmp_path, harm=[1], tasks=["harmscore"])
    changed(path, "results", "conceptguard", value={"alias": "conceptguard", "name": "conceptguard"})
    changed(path, "results", "canary_audit", value={"alias": "canary_audit", "name": "canary_audit"})
    changed(path, "group_subtasks", value={"canary_audit": ["canary_qa"]})
    read = read_results([tmp_path])
    assert len(read.runs) == 1 and read.problems == ()


def test_one_name_for_two_bases_is_told(tmp_path: Path):
    conceptguard_run(tmp_path / "a", harm=[1], tasks=["harmscore"], base="meta/tiny")
    conceptguard_run(tmp_path / "b", help=[1], tasks=["helpscore"], base="fork/tiny")
    (problem,) = read_results([tmp_path]).problems
    assert "the base 'tiny' stands for meta/tiny, fork/tiny" in problem.message


@pytest.mark.parametrize(
    "keys,value",
    [
        (("adapter", "conceptguard", "versions", "conceptguard"), [1]),
        (("adapter", "conceptguard", "settings", "max_steps"), 10**400),
        (("adapter", "conceptguard", "data", "in_forget"), 10**400),
        (("adapter", "conceptguard", "base"), "x"),
        (("adapter", "sha256"), []),
        (("settings",), 3),
        (("judge",), {"rubrics": [], "models_returned": 1, "params": None}),
        (("versions",), ["torch"]),
        (("data",), None),
    ],
)
def test_odd_values_in_the_provenance_do_no_harm(tmp_path: Path, keys: tuple[str, ...], value: Any):
    """A file may come from anywhere: what cannot be understood is as if it were not there."""
    for name in "ab":
        path = conceptguard_run(tmp_path / name, harm=[1], tasks=["harmscore"], checkpoint=record("npo", files=name))
    changed(path, "configs", "conceptguard_harmscore", "metadata", "provenance", *keys, value=value)
    runs = read_results([tmp_path]).runs
    assert len(runs) == 2 and [r.metrics["harm_score"].value for r in runs] == [0.25, 0.25]
    assert sum(len(group.runs) for group in groups(runs)) == 2


def test_a_whole_experiment(tmp_path: Path):
    conceptguard_run(tmp_path / "base", harm=[4, 4], help=[4, 4])
    conceptguard_run(tmp_path / "tuned", harm=[4, 4], help=[4, 4], checkpoint=record(None))
    for seed in (0, 1):
        conceptguard_run(tmp_path / f"npo{seed}", harm=[0, 1], help=[3, 4], checkpoint=record("npo", k=100, seed=seed))
    read = read_results([tmp_path])
    assert read.problems == () and len(read.runs) == 12
    labels = {(r.checkpoint.label, r.checkpoint.seed) for r in read.runs}
    assert labels == {("base", None), ("fine-tuned", 0), ("NPO, K=100", 0), ("NPO, K=100", 1)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("settings", ["a"]),
        ("separations", ["a"]),
        ("separations", {"a": 3}),
        ("separations", {"a": {"n_harmful": "many"}}),
        ("verdicts", 3),
        ("verdicts", {"ok": "all"}),
        ("arms_shown_the_canary", 3),
        ("model", "tiny"),
    ],
)
def test_provenance_of_another_form_is_left_out_and_named(tmp_path: Path, name: str, value: Any, undrawn: None):
    from cg_tasks.report.build import build_report

    conceptguard_run(tmp_path / "a", harm=[1, 2], help=[3, 4])
    canary_run(tmp_path / "b", auto=[(1, 1, 1)] * 2, arms={"bio": [1, 0]})
    for path in tmp_path.rglob("results_*.json"):
        content = json.loads(path.read_text())
        for configuration in content["configs"].values():
            configuration["metadata"]["provenance"][name] = value
        path.write_text(json.dumps(content))
    report, runs = build_report([tmp_path])
    assert len(runs) >= 2
    assert any(f"provenance's '{name}' is not as we write it" in problem.message for problem in report.problems)


def test_models_in_folders_of_one_name_are_two_where_one_task_was_run_on_both(tmp_path: Path):
    for name, acc in (("npo", 0.2), ("rmu", 0.9)):
        content = {
            "results": {"arc": {"acc,none": acc}},
            "config": {"model_args": {"pretrained": f"saves/{name}/final"}},
        }
        (tmp_path / name).mkdir()
        (tmp_path / name / f"results_{LATER}.json").write_text(json.dumps(content))
    runs = read_results([tmp_path]).runs
    assert {(run.checkpoint.base, run.metrics["acc,none"].value) for run in runs} == {
        ("npo/final", 0.2),
        ("rmu/final", 0.9),
    }


def test_a_longer_way_to_write_a_path_is_no_other_model(tmp_path: Path):
    for name, model in (("a", "demo/m"), ("b", "/home/me/demo/m"), ("c", "./demo/m")):
        content = {"results": {"arc": {"acc,none": 0.2}}, "config": {"model_args": {"pretrained": model}}}
        (tmp_path / name).mkdir()
        (tmp_path / name / f"results_{LATER}.json").write_text(json.dumps(content))
    assert len({run.checkpoint for run in read_results([tmp_path]).runs}) == 1

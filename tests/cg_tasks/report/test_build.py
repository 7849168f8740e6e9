"""Whole reports from result folders: what stands where, and what is named and left out."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
from report_results import canary_run, conceptguard_run, record

from cg_tasks.cli import main
from cg_tasks.errors import UserError
from cg_tasks.report.build import build_report
from cg_tasks.report.content import Report, Table


def table(report: Report, id: str) -> Table:
    (found,) = [t for s in report.sections for t in s.tables if t.id == id]
    return found


def texts(made: Table) -> list[list[str]]:
    return [[cell.text for cell in row.cells] for row in made.rows]


def audit(folder: Path, **more: object) -> Path:
    return canary_run(folder, auto=[(1, 1, 1)] * 3 + [(0, 1, 1)] * 3, arms={"bio": [1] * 6}, **more)  # type: ignore[arg-type]


def test_both_benchmarks_in_one_report_with_what_each_checkpoint_was_evaluated_on(
    tmp_path: Path, undrawn: None
) -> None:
    audit(tmp_path / "npo", checkpoint=record("npo", regime="bio"))
    audit(tmp_path / "memorised", checkpoint=record(None, regime="bio"))
    conceptguard_run(tmp_path / "base", judged=False, rouge={"harmqa": [5] * 4})
    report, runs = build_report([tmp_path])
    assert {run.family for run in runs} == {"canary", "conceptguard"}
    coverage = [t for s in report.sections if s.id == "overview" for t in s.tables]
    assert len(coverage) == 2
    rows = {tuple(row[:1]): row[2:] for t in coverage for row in texts(t)}
    assert rows[("fine-tuned",)] == ["6"] and rows[("NPO, K=4",)] == ["6"]
    assert [s.id for s in report.sections][0] == "overview" and report.sections[-1].id == "provenance"


def test_seeds_of_one_condition_are_told_apart(tmp_path: Path, undrawn: None) -> None:
    for start in (0, 42):
        audit(tmp_path / str(start), checkpoint=record("npo", regime="bio", start_seed=start, files=str(start)))
    report, _ = build_report([tmp_path])
    (made,) = [t for s in report.sections if s.id == "overview" for t in s.tables]
    assert [row[:2] for row in texts(made)] == [["NPO, K=4", "0"], ["NPO, K=4", "0 (from 42)"]]


def test_other_weights_of_one_seed_are_no_further_seed(tmp_path: Path, undrawn: None) -> None:
    for name, hits in (("one", 2), ("two", 8)):
        again = record("npo", files=name)
        conceptguard_run(tmp_path / name, judged=False, rouge={"harmqa": [hits] * 4}, checkpoint=again)
    report, _ = build_report([tmp_path])
    (made,) = [t for s in report.sections for t in s.tables if "Table 2" in t.title]
    assert [row.cells[1].text for row in made.rows] == ["1", "1"]
    assert all("±" not in cell.text for row in made.rows for cell in row.cells)


def test_training_regimes_are_told_apart(tmp_path: Path, undrawn: None) -> None:
    for regime in ("bio", "meta"):
        audit(tmp_path / regime, checkpoint=record("npo", regime=regime, files=regime))
    report, _ = build_report([tmp_path])
    (made,) = [t for s in report.sections if s.id == "overview" for t in s.tables]
    assert [row[0] for row in texts(made)] == ["NPO, K=4, bio trace", "NPO, K=4, meta trace"]


def test_a_missing_task_is_missing_and_named(tmp_path: Path, undrawn: None) -> None:
    audit(tmp_path / "a", checkpoint=record("npo", regime="bio"))
    audit(tmp_path / "b", checkpoint=record(None, regime="bio"), teacher_forced={"bio": [(9, 2, 1)] * 6})
    report, _ = build_report([tmp_path])
    (made,) = [t for s in report.sections if s.id == "overview" for t in s.tables]
    cells = {row.cells[0].text: row.cells for row in made.rows}
    assert cells["NPO, K=4"][-1].missing and cells["NPO, K=4"][-1].text == "–"
    assert any("teacher_forced" in m.what for m in report.sections[0].missing)


def test_other_peoples_tasks_stand_as_lm_eval_wrote_them(tmp_path: Path) -> None:
    path = tmp_path / "results_2026-01-02T03-04-05.json"
    path.write_text(
        json.dumps(
            {
                "results": {
                    "arc_easy": {"alias": "arc_easy", "acc,none": 0.25, "acc_stderr,none": 0.05, "acc_norm,none": "N/A"}
                },
                "configs": {"arc_easy": {"metadata": {"version": 1.0}}},
                "higher_is_better": {"arc_easy": {"acc": True}},
                "n-samples": {"arc_easy": {"original": 100, "effective": 40}},
                "config": {"model": "hf", "model_args": {"pretrained": "models/tiny"}},
                "versions": {"arc_easy": 1.0},
                "model_name": "models/tiny",
            }
        )
    )
    report, _ = build_report([path])
    (section,) = [s for s in report.sections if s.title == "Other tasks"]
    (made,) = section.tables
    assert made.title == "arc_easy"
    assert [c.title for c in made.columns][:2] == ["model", "acc"] and made.columns[1].better == "higher"
    assert made.rows[0].cells[1].text == "0.2500 ± 0.0500"
    assert made.rows[0].cells[-1].text == "40"


def state(path: Path, *jobs: dict[str, object]) -> Path:
    path.write_text(json.dumps({"name": "mine", "jobs": list(jobs)}))
    return path


def test_a_studys_failed_jobs_are_named_and_its_times_added_up(tmp_path: Path, undrawn: None) -> None:
    audit(tmp_path / "results")
    jobs = state(
        tmp_path / "state.json",
        {
            "id": "unlearn/npo-0",
            "rule": "unlearn",
            "status": "failed",
            "exit_code": 1,
            "seconds": 12.0,
            "last_line": "out of memory",
            "log": "l.log",
        },
        {"id": "unlearn/npo-1", "rule": "unlearn", "status": "done", "exit_code": 0, "seconds": 30.4},
        {"id": "evaluate/npo-0", "rule": "evaluate", "status": "not_run"},
    )
    report, _ = build_report([tmp_path / "results"], studies=[jobs])
    words = [str(p) for p in report.problems]
    assert any("unlearn/npo-0 failed (exit code 1): out of memory; log: l.log" in w for w in words)
    assert any("evaluate/npo-0 was not run" in w for w in words)
    assert texts(table(report, "study-jobs")) == [
        ["unlearn", "2", "1", "1", "42", "30"],
        ["evaluate", "1", "0", "0", "–", "–"],
    ]


@pytest.mark.parametrize("content", ["", "[]", '{"jobs": 3}', "{" * 3000])
def test_what_is_no_state_is_refused(tmp_path: Path, content: str) -> None:
    audit(tmp_path / "results")
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(UserError, match=r"state\.json"):
        build_report([tmp_path / "results"], studies=[tmp_path / "state.json"])


@dataclass(frozen=True)
class Written:
    """results: what was reported on. out: the report's folder. said: what the command printed."""

    results: Path
    out: Path
    said: str


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A report by the command, its figures drawn."""
    folder = tmp_path_factory.mktemp("written")
    audit(folder / "npo", checkpoint=record("npo", regime="bio"))
    said = io.StringIO()
    with redirect_stdout(said):
        assert main(["report", str(folder / "npo"), "--out", str(folder / "one"), "--title", "Mine"]) == 0
    return Written(folder / "npo", folder / "one", said.getvalue())


def test_the_command_writes_a_page_tables_figures_and_numbers(written: Written) -> None:
    out = written.out
    assert "<title>Mine" in (out / "index.html").read_text(encoding="utf-8")
    assert list((out / "tables").glob("*.tex")) and list((out / "figures").glob("*.svg"))
    assert json.loads((out / "results.json").read_text(encoding="utf-8"))["runs"]
    assert str(out / "index.html") in written.said


def test_the_same_results_give_the_same_files(tmp_path: Path, written: Written) -> None:
    one, two = written.out, tmp_path / "two"
    assert main(["report", str(written.results), "--out", str(two), "--title", "Mine"]) == 0
    first = sorted(p.relative_to(one) for p in one.rglob("*") if p.is_file())
    assert first == sorted(p.relative_to(two) for p in two.rglob("*") if p.is_file())
    assert all((one / p).read_bytes() == (two / p).read_bytes() for p in first)


def test_nothing_to_report_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty"), "--out", str(tmp_path / "report")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "empty" in error
    assert not (tmp_path / "report").exists()

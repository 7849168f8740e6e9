from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from report_pages import checkpoint, report, table, task_run

from cg_tasks.report.content import Cell, Column, Row, Section, Table
from cg_tasks.report.page.results_json import plain, to_json
from cg_tasks.report.runs import Metric, Problem


def test_holds_runs_tables_verdicts_and_problems() -> None:
    problem = Problem("error", "a.json", "cut off")
    made = json.loads(to_json(report(problems=(problem,)), [task_run()]))
    assert made["schema"] == "conceptguard-report/1"
    assert made["problems"] == [{"severity": "error", "where": "a.json", "message": "cut off"}]
    run = made["runs"][0]
    assert run["checkpoint"]["method"] == "npo" and run["checkpoint"]["label"] == "NPO, K=4"
    assert run["metrics"]["rougeL"] == {"value": 0.25, "stderr": 0.01, "lo": 0.23, "hi": 0.27}
    assert (run["n"], run["n_all"], run["fingerprint"]) == (4, 60, {"data": "miniature"})
    section = made["sections"][0]
    assert section["verdicts"][0]["status"] == "not identifying"
    assert section["verdicts"][0]["checks"][0]["answer"] == "yes"
    assert section["missing"][0]["what"] == "HarmScore"
    assert section["figures"] == [{"id": "fig2", "title": "Separation", "caption": "n = 60.", "alt": "A heatmap"}]


def test_a_missing_cell_is_null_with_its_reason_and_never_zero() -> None:
    rows = json.loads(to_json(report(Section("s", "S", tables=(table(),))), []))["sections"][0]["tables"][0]["rows"]
    assert rows[2]["cells"][1] == {"text": "–", "value": None, "missing": True, "note": "not evaluated"}
    assert rows[1]["cells"][1] == {
        "text": "0.200", "value": 0.2, "lo": 0.18, "hi": 0.22, "change": -0.5, "desirable": True, "best": True
    }  # fmt: skip


def test_numbers_keep_every_digit_and_nan_is_null() -> None:
    run = task_run(metrics={"x": Metric(1 / 3), "y": Metric(math.inf)})
    metrics = json.loads(to_json(report(), [run]))["runs"][0]["metrics"]
    assert metrics["x"] == {"value": 1 / 3, "stderr": None, "lo": None, "hi": None}
    assert metrics["y"]["value"] is None


def test_is_strict_json_in_utf8_whatever_names_hold() -> None:
    odd = Table("t", "lone \ud800", (Column("x", "x"),), (Row((Cell("pair \ud83d\ude00"),)),))
    text = to_json(report(Section("s", "S", tables=(odd,))), [task_run(path=Path("bad\udcff.json"))])
    made = json.loads(text.encode("utf-8"), parse_constant=pytest.fail)
    assert made["sections"][0]["tables"][0]["title"] == "lone \ufffd"
    assert made["sections"][0]["tables"][0]["rows"][0]["cells"][0]["text"] == "pair 😀"
    assert made["runs"][0]["path"] == "bad\ufffd.json"


def test_equal_input_gives_equal_bytes() -> None:
    runs = [task_run(), task_run(of=checkpoint(None))]
    assert to_json(report(), runs) == to_json(report(), runs)


def test_plain_turns_what_json_has_not_into_what_it_has() -> None:
    np = pytest.importorskip("numpy")
    given = {1: (np.float64(0.5), np.int64(3), np.float32("nan")), "s": {"b", "a"}, "p": Path("x"), "t": True}
    assert plain(given) == {"1": [0.5, 3, None], "s": ["a", "b"], "p": "x", "t": True}

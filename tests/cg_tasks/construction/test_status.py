"""The table of stages: how each one stands, what it cost, and what is stale."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from construction_parts import (
    GENERATOR,
    JUDGE,
    aggregate_row,
    lamps,
    reply,
    small_build,
    tag_row,
    write_jsonl,
    write_stage,
)
from filelock import FileLock

from cg_tasks.construction.engine.asking import Endpoint
from cg_tasks.construction.engine.replies import Replies
from cg_tasks.construction.folder import STAGES, BuildFolder, StageRecord
from cg_tasks.construction.rows import StageRow
from cg_tasks.construction.source import Source
from cg_tasks.construction.status import StageStatus, format_statuses, stage_statuses
from cg_tasks.judge.server_settings import ServerSettings

PRICES: dict[Endpoint, ServerSettings] = {
    "generator": GENERATOR.model_copy(update={"price_input": 1.0, "price_output": 10.0}),
    "judge": JUDGE.model_copy(update={"price_input": 2.0, "price_output": 20.0}),
}


@pytest.fixture
def folder(tmp_path: Path) -> BuildFolder:
    return small_build(tmp_path / "build")


def status(
    folder: BuildFolder, stage: str = "tag", prices: dict[Endpoint, ServerSettings] | None = None
) -> StageStatus:
    return {s.stage: s for s in stage_statuses(folder, prices or {})}[stage]


def recorded(folder: BuildFolder, **record: object) -> str:
    folder.write_record(StageRecord.model_validate({"stage": "tag", "rows": {"ok": 1200, "failed": 34}, **record}))
    return status(folder).state


def test_before_anything_has_run(folder: BuildFolder) -> None:
    found = stage_statuses(folder, {})
    assert [(s.stage, s.state, s.rows_in, s.calls, s.usd) for s in found] == [(n, "not run", 0, 0, 0) for n in STAGES]
    assert not folder.replies_file.exists()


def test_how_a_stage_stands(folder: BuildFolder) -> None:
    with BuildFolder(folder.path).lock():
        assert recorded(folder, state="running") == "running (1,234 rows written)"
        assert recorded(folder, state="stopped") == "stopped after 1,234 rows: run it again"
    # Nobody works here: whoever wrote the record was killed.
    assert recorded(folder, state="running") == "killed after 1,234 rows: run it again"
    assert recorded(folder, state="stopped") == "stopped after 1,234 rows: run it again"


def test_done_until_what_it_was_made_from_changes(folder: BuildFolder) -> None:
    write_stage(folder, "tag", [tag_row(0)])
    assert status(folder).state == "done"
    assert status(small_build(folder.path, language="German")).state == "stale: the language changed"
    write_jsonl(folder.path / "source.jsonl", [{"prompt": "P", "response": "R"}])
    assert status(BuildFolder(folder.path)).state == "stale: the source, the language changed"


def test_another_model_than_the_rows_are_by_shows(folder: BuildFolder) -> None:
    write_stage(folder, "tag", [tag_row(0)], model="gpt-5")
    assert status(folder, "tag", PRICES).state == "done; by gpt-5, now generator-1 is set"
    write_stage(folder, "tag", [tag_row(0)], model="generator-1")
    assert status(folder, "tag", PRICES).state == "done"


def test_a_source_that_cannot_be_read_is_said_in_the_state(folder: BuildFolder) -> None:
    write_stage(folder, "tag", [tag_row(0)])
    write_jsonl(folder.path / "source.jsonl", [{"prompt": "secret", "response": ""}])
    state = status(folder).state
    assert state.startswith("stale: source.jsonl, line 1: the field 'response' is empty") and "secret" not in state


def test_calls_tokens_and_money_are_those_of_all_time(folder: BuildFolder) -> None:
    with Replies(folder.replies_file) as replies:
        for key, usage, model in [
            ("tag/1", (1000, 100), "generator-1"),
            ("tag/2", (3000, 100), "generator-2"),
            ("propose/1", (500, 50), "generator-1"),
            ("benign/1", (1000, 400), "generator-1"),
            ("benign-judge/1", (1000, 50), "judge-1"),
            ("benign-judge/2", None, "judge-1"),
        ]:
            replies.put(key, reply(usage=usage, model=model))
    tag, aggregate, benign, queries = stage_statuses(folder, PRICES)
    assert (tag.calls, tag.prompt_tokens, tag.completion_tokens) == (2, 4000, 200)
    assert tag.usd == pytest.approx(0.004 + 0.002) and tag.models == {"generator-1": 1, "generator-2": 1}
    assert (aggregate.calls, aggregate.usd) == (1, pytest.approx(0.0005 + 0.0005))
    assert benign.calls == 3 and (benign.models, benign.judges) == ({"generator-1": 1}, {"judge-1": 2})
    assert benign.usd == pytest.approx(0.001 + 0.004 + 0.002 + 0.001)
    assert (queries.calls, queries.usd, queries.models) == (0, 0, {})
    assert status(folder).usd is None  # without prices
    only: dict[Endpoint, ServerSettings] = {"generator": PRICES["generator"]}
    assert status(folder, "tag", only).usd == pytest.approx(0.006) and status(folder, "benign", only).usd is None


def one(name: str, **values: object) -> StageStatus:
    usual: dict[str, object] = {
        "stage": name,
        "state": "done",
        "rows_in": 0,
        "rows": {},
        "reasons": {},
        "calls": 0,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "usd": 0.0,
        "models": {},
        "judges": {},
    }
    return StageStatus(**{**usual, **values})  # type: ignore[arg-type]


def test_the_table() -> None:
    rows = {"ok": 6000, "failed": 2, "dropped": 3, "not_run": 4}
    reasons = {"too_short": 1, "cut_off": 1, "not asked: beyond --limit 6,005": 4}
    tag = one(
        "tag", rows_in=6732, rows=rows, reasons=reasons, calls=6010, prompt_tokens=2404000, completion_tokens=360600
    )
    table = format_statuses(
        [
            one("benign", state="not run"),
            one("queries", calls=1, usd=0.00125),
            StageStatus(**{**vars(tag), "usd": None}),
        ]
    )
    assert table == (
        "| stage | in | ok | failed | dropped | not run | calls | prompt tokens | completion tokens | spent | state |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n"
        "| benign | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | - | not run |\n"
        "| queries | 0 | 0 | 0 | 0 | 0 | 1 | 0 | 0 | 0.0013 USD | done |\n"
        "| tag | 6,732 | 6,000 | 2 | 3 | 4 | 6,010 | 2,404,000 | 360,600 | no prices | done |\n"
        "\n"
        "tag:\n"
        "       4  not asked: beyond --limit 6,005\n"
        "       1  cut_off\n"
        "       1  too_short\n"
    )


def test_no_more_than_twenty_reasons(folder: BuildFolder) -> None:
    table = format_statuses([one("aggregate", reasons={f"group {i:02d}": i for i in range(25)})])
    assert table.count("group ") == 20 and "  group 05\n  and 5 more reasons\n" in table and "group 04" not in table


def test_counts_are_the_records(folder: BuildFolder) -> None:
    rows: list[StageRow] = [tag_row(i) for i in range(3)]
    rows.append(
        tag_row(9, None, status="failed", reason="cut_off (attempt 3; so far: cut_off)", dual_use=None, why=None)
    )
    write_stage(folder, "tag", rows, rows_in=5)
    found = status(folder)
    assert (found.rows_in, found.rows, found.reasons) == (5, {"ok": 3, "failed": 1}, {"cut_off": 1})


# ------------------------------------------------------------------ kills, locks and the source
def test_the_lock_and_not_a_process_number_tells_whether_somebody_works(folder: BuildFolder) -> None:
    """The number of a run that was killed may be another process's by now."""
    assert recorded(folder, state="running", pid=os.getpid()) == "killed after 1,234 rows: run it again"
    with BuildFolder(folder.path).lock():
        assert recorded(folder, state="running", pid=999_999_999).startswith("running")


def test_looking_refuses_no_run_that_begins_meanwhile(folder: BuildFolder) -> None:
    looking, begins = FileLock(folder.path / ".lock"), threading.Event()

    def look() -> None:
        with looking:
            begins.set()
            time.sleep(0.1)

    thread = threading.Thread(target=look)
    thread.start()
    assert begins.wait(5)
    with folder.lock():
        assert folder.is_locked()
    thread.join()
    assert not folder.is_locked()


def test_a_source_that_looks_as_it_did_is_not_read(folder: BuildFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Source] = []
    check = Source.check
    monkeypatch.setattr(Source, "check", lambda self: read.append(self) or check(self))  # type: ignore[func-returns-value]
    source = Source(folder.settings, folder.path)
    write_stage(folder, "tag", [tag_row(0)], source_signature=source.signature())
    read.clear()
    assert status(folder).state == "done" and read == []
    path = folder.path / "source.jsonl"
    os.utime(path, ns=(1, 1))
    assert status(folder).state == "done" and len(read) == 1  # touched: read, and found to be the same
    path.write_bytes(path.read_bytes() + b'{"prompt": "P", "response": "R"}\n')
    assert status(folder).state == "stale: the source changed" and len(read) == 2
    for changed in ({"columns": {"prompt": "prompt"}}, {"faulty_rows": "skip"}):
        assert Source(small_build(folder.path, **changed).settings, folder.path).signature() != source.signature()


def test_a_stage_after_one_that_is_out_of_date_says_so(folder: BuildFolder) -> None:
    folder.merge_file.write_text("a map\n")
    write_stage(folder, "tag", [tag_row(0)])
    write_stage(folder, "aggregate", [aggregate_row(0)])
    assert status(folder, "aggregate").state == "done"
    write_jsonl(folder.path / "source.jsonl", lamps(4))
    states = {s.stage: s.state for s in stage_statuses(folder, {})}
    assert states == {
        "tag": "stale: the source changed",
        "aggregate": "done, before tag is up to date",
        "benign": "not run",
        "queries": "not run",
    }

"""The build folder: rows that appear whole, records that say how a stage ended, and what has changed since."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from construction_parts import small_build, tag_row

from cg_tasks.construction import folder as folder_module
from cg_tasks.construction.folder import (
    BuildFolder,
    StageRecord,
    StageWriter,
    changes,
    file_hash,
)
from cg_tasks.construction.rows import StageRow
from cg_tasks.construction.tag import TagRow
from cg_tasks.errors import UserError

FROM = {"the source": "a", "the prompt tag.j2": "b"}


@pytest.fixture
def folder(tmp_path: Path) -> BuildFolder:
    return small_build(tmp_path / "build")


def write(folder: BuildFolder, *rows: StageRow, made_from: dict[str, str] | None = None) -> StageRecord:
    record = StageRecord(stage="tag", made_from=FROM if made_from is None else made_from)
    with StageWriter(folder, record) as writer:
        for row in rows:
            writer.write(row)
    return record


def stopped_by(folder: BuildFolder, error: BaseException) -> None:
    with pytest.raises(type(error)), StageWriter(folder, StageRecord(stage="tag", made_from=FROM)) as writer:
        writer.write(tag_row("new"))
        raise error


def said(caught: pytest.ExceptionInfo[UserError], folder: BuildFolder) -> str:
    return str(caught.value).replace(str(folder.path), "DIR")


def stale(folder: BuildFolder, made_from: dict[str, str]) -> str:
    with pytest.raises(UserError) as caught:
        folder.require_fresh("tag", made_from)
    return said(caught, folder)


# ------------------------------------------------------------------ rows and records
def test_rows_are_written_in_order_and_read_back(folder: BuildFolder) -> None:
    rows = [
        tag_row(2),
        tag_row(1, None),
        TagRow(pair_id="p0", status="failed", reason="cut_off: x", prompt="", response=""),
    ]
    record = write(folder, *rows)
    assert list(folder.rows("tag", TagRow)) == rows
    assert record.rows == {"ok": 2, "failed": 1} and record.reasons == {"cut_off": 1}
    assert (record.state, record.output_sha256) == ("done", file_hash(folder.rows_file("tag")))
    assert folder.record("tag") == record
    assert record.started <= record.finished and record.pid == os.getpid()
    assert sorted(p.name for p in (folder.path / "stages").iterdir()) == ["tag.json", "tag.jsonl"]


def test_a_record_counts_reasons_by_their_first_words_where_rows_failed() -> None:
    record = StageRecord(stage="queries")
    for status, reason in [
        ("failed", "too_short: 2 words (attempt 3; so far: too_short)"),
        ("failed", "too_short: 1 words (attempt 3; so far: too_short)"),
        ("dropped", "group 'a: b': 2 samples"),
        ("not_run", "not asked: beyond --limit 3"),
    ]:
        record.count(StageRow(pair_id="p", status=status, reason=reason))
    record.count(StageRow(pair_id="p", status="ok"))
    assert record.rows == {"failed": 2, "dropped": 1, "not_run": 1, "ok": 1}
    assert record.reasons == {"too_short": 2, "group 'a: b': 2 samples": 1, "not asked: beyond --limit 3": 1}


def test_attempts_are_counted_of_rows_that_are_ok(folder: BuildFolder) -> None:
    record = StageRecord(stage="tag")
    failed = TagRow(pair_id="p9", status="failed", reason="cut_off", prompt="", response="")
    with StageWriter(folder, record) as writer:
        for row, attempts in ((tag_row(1), 1), (tag_row(2), 3), (tag_row(3), 1), (failed, 3), (tag_row(4), 0)):
            writer.write(row, attempts)
    assert record.attempts == {"1": 2, "3": 1}


@pytest.mark.parametrize("error", [ValueError("x"), UserError("x"), KeyboardInterrupt()])
def test_an_error_leaves_the_old_rows_and_says_stopped(folder: BuildFolder, error: BaseException) -> None:
    write(folder, tag_row(1))
    stopped_by(folder, error)
    assert [row.pair_id for row in folder.rows("tag", TagRow)] == ["p1"]
    record = folder.record("tag")
    assert record is not None
    assert (record.state, record.rows, record.output_sha256) == ("stopped", {"ok": 1}, "")
    assert sorted(p.name for p in (folder.path / "stages").iterdir()) == ["tag.json", "tag.jsonl"]


def test_a_kill_leaves_the_old_rows_and_a_record_that_still_runs(folder: BuildFolder) -> None:
    write(folder, tag_row(1))
    script = f"""
        import os, signal
        from cg_tasks.construction.folder import *
        from cg_tasks.construction.rows import StageRow
        with StageWriter(BuildFolder({str(folder.path)!r}), StageRecord(stage="tag")) as writer:
            writer.write(StageRow(pair_id="new", status="ok"))
            writer._stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    assert killed.wait(30) == -signal.SIGKILL
    assert [row.pair_id for row in folder.rows("tag", TagRow)] == ["p1"]
    record = folder.record("tag")
    assert record is not None and (record.state, record.pid) == ("running", killed.pid)
    assert stale(folder, FROM).startswith("DIR: the stage 'tag' has not finished: run ")
    write(folder, tag_row(2))  # over what the kill left
    assert [row.pair_id for row in folder.rows("tag", TagRow)] == ["p2"]


def test_a_running_record_is_written_every_second_not_every_row(
    folder: BuildFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([100.0, 100.0, 100.5, 100.9, 101.5, 101.5])
    monkeypatch.setattr(folder_module.time, "monotonic", lambda: next(times))
    seen = []
    with StageWriter(folder, StageRecord(stage="tag")) as writer:
        for i in range(4):
            writer.write(tag_row(i))
            record = folder.record("tag")
            assert record is not None and record.state == "running"
            seen.append(sum(record.rows.values()))
    assert seen == [1, 1, 1, 4]


def test_a_full_disk_is_told_in_a_line(folder: BuildFolder) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    write(folder, tag_row(1))
    (folder.path / "stages" / ".tag.jsonl.unfinished").symlink_to("/dev/full")
    with pytest.raises(UserError) as caught:
        write(folder, tag_row(2))  # buffered: it fails when the file is closed
    assert (
        said(caught, folder)
        == "DIR/stages/tag.jsonl: cannot be written: No space left on device: make room and run it again"
    )
    assert [row.pair_id for row in folder.rows("tag", TagRow)] == ["p1"]
    record = folder.record("tag")
    assert record is not None and record.state == "stopped"


def test_rows_that_are_not_there_name_the_command(folder: BuildFolder) -> None:
    with pytest.raises(UserError) as caught:
        next(folder.rows("tag", TagRow))
    assert said(caught, folder) == "DIR/stages/tag.jsonl: there is none: run conceptguard build tag DIR first"


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('{"pair_id": "p2", "status": "ok"}', "'prompt': Field required"),
        ('{"pair_id": "p2", "status": "fine", "prompt": "", "response": ""}', "'status': Input should be"),
        ("{", "'the row': Invalid JSON"),
    ],
)
def test_a_bad_line_is_named_without_its_text(folder: BuildFolder, line: str, field: str) -> None:
    write(folder, tag_row(1))
    with folder.rows_file("tag").open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(UserError) as caught:
        list(folder.rows("tag", TagRow))
    assert said(caught, folder).startswith(f"DIR/stages/tag.jsonl, line 2: {field}")
    assert said(caught, folder).endswith("run conceptguard build tag DIR again") and "prompt 1" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", '{"stage": "tag", "colour": "red"}', '{"state": "done"}'])
def test_a_damaged_record_is_named(folder: BuildFolder, content: str) -> None:
    write(folder, tag_row(1))
    folder.record_file("tag").write_text(content)
    with pytest.raises(UserError) as caught:
        folder.record("tag")
    assert said(caught, folder).startswith(
        "DIR/stages/tag.json: cannot be read (ValidationError): remove it and run the stage"
    )


# ------------------------------------------------------------------ what has changed since
def test_rows_are_fresh_while_nothing_changes(folder: BuildFolder) -> None:
    record = write(folder, tag_row(1))
    assert folder.require_fresh("tag", dict(FROM)) == record


def test_a_stage_that_has_not_run_or_finished(folder: BuildFolder) -> None:
    assert stale(folder, FROM) == "DIR: the stage 'tag' has not run: run conceptguard build tag DIR"
    stopped_by(folder, ValueError("x"))
    assert stale(folder, FROM) == "DIR: the stage 'tag' has not finished: run conceptguard build tag DIR"


@pytest.mark.parametrize(
    ("now", "what"),
    [
        ({**FROM, "the source": "c"}, "the source"),
        ({"the source": "c", "the prompt tag.j2": "d"}, "the source, the prompt tag.j2"),
        ({**FROM, "the language": "x"}, "the language"),  # depends on more than it did
        ({"the source": "a"}, "the prompt tag.j2"),  # and on less
    ],
)
def test_each_change_is_named(folder: BuildFolder, now: dict[str, str], what: str) -> None:
    write(folder, tag_row(1))
    again = "run conceptguard build tag DIR again (replies at hand cost nothing)"
    assert stale(folder, now) == f"DIR: {what} changed since 'tag': {again}"


def test_rows_that_were_edited_by_hand(folder: BuildFolder) -> None:
    write(folder, tag_row(1))
    path = folder.rows_file("tag")
    path.write_bytes(path.read_bytes().replace(b"lamp", b"lump"))
    assert stale(folder, FROM) == "DIR/stages/tag.jsonl: was changed by hand: run conceptguard build tag DIR again"
    path.unlink()
    assert "was changed by hand" in stale(folder, FROM)


def test_changes_are_listed_in_the_records_order() -> None:
    record = StageRecord(stage="tag", made_from={"b": "1", "a": "1", "c": "1"})
    assert changes(record, {"a": "2", "b": "2", "c": "1", "d": "1"}) == ["b", "a", "d"]


# ------------------------------------------------------------------ the folder
def test_one_writer_at_a_time(folder: BuildFolder) -> None:
    with (
        folder.lock(),
        pytest.raises(UserError, match="another conceptguard build works here"),
        BuildFolder(folder.path).lock(),
    ):
        raise AssertionError("it was let in")
    with folder.lock():
        pass


def test_the_users_templates_start_from_the_build_folder(tmp_path: Path) -> None:
    assert small_build(tmp_path / "a").templates is None
    (tmp_path / "b" / "mine").mkdir(parents=True)
    assert small_build(tmp_path / "b", templates="mine").templates == str(tmp_path / "b" / "mine")
    with pytest.raises(UserError, match=r"c/mine: no such folder: correct templates in .*build\.yaml"):
        _ = small_build(tmp_path / "c", templates="mine").templates

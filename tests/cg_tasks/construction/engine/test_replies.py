"""The replies that were paid for: kept, counted, and not lost to a kill."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from construction_parts import reply

from cg_tasks.construction.engine.replies import Replies, Use
from cg_tasks.errors import UserError


@pytest.fixture
def replies(tmp_path: Path) -> Iterator[Replies]:
    with Replies(tmp_path / "replies.sqlite") as found:
        yield found


def test_replies_are_kept_and_the_first_one_stays(replies: Replies, tmp_path: Path) -> None:
    assert not replies.has("tag/1") and replies.get("tag/1") is None
    replies.put("tag/1", reply("first"))
    replies.put("tag/1", reply("second"))
    with Replies(tmp_path / "replies.sqlite") as other:
        assert other.has("tag/1") and other.get("tag/1") == reply("first")


def test_failures_are_kept_replaced_and_forgotten(replies: Replies) -> None:
    assert replies.failure("tag/1") is None
    replies.note_failure("tag/1", "no reply: HTTP 500", "out of order")
    replies.note_failure("tag/1", "no reply: HTTP 502", "gone")
    replies.note_failure("tag/2", "no reply: HTTP 400", "too long")
    assert replies.failure("tag/1") == "no reply: HTTP 502"
    replies.forget_failure("tag/1")
    replies.forget_failure("tag/1")
    assert replies.failure("tag/1") is None and replies.failure("tag/2") == "no reply: HTTP 400"
    assert not replies.has("tag/2")


def test_what_servers_said_is_told_apart_the_latest_first(replies: Replies, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(9))
    monkeypatch.setattr("time.time", lambda: next(times))
    for key, said in [
        ("tag/1", "busy"),
        ("tag/2", "too long"),
        ("benign-judge/1", "no judge"),
        ("benign/1", "no model"),
        ("tag0/1", "none of ours"),
    ]:
        replies.note_failure(key, "no reply: HTTP 400", said)
    assert replies.said(["tag"], most=5) == ["too long", "busy"] and replies.said(["tag"], most=1) == ["too long"]
    assert replies.said(["benign", "tag"], most=2) == ["no model", "too long"]


def test_a_reply_that_cannot_be_written_ends_the_run(tmp_path: Path) -> None:
    with Replies(tmp_path / "replies.sqlite") as replies:
        replies._db.execute("PRAGMA query_only = 1")
        with pytest.raises(
            UserError, match=r"replies\.sqlite: a reply could not be written .*: make room and run it again"
        ):
            replies.put("tag/1", reply())


def test_use_is_summed_by_kind(replies: Replies) -> None:
    for key, usage, model in [
        ("benign/a", (600, 400), "writer-b"),
        ("benign/b", (610, 380), "writer-a"),
        ("benign/c", None, "writer-b"),  # the server did not say
        ("benign/d", (10, 0), None),
        ("benign-judge/a", (500, 20), "judge-1"),
        ("benign0/a", (1, 1), "no kind of ours"),
        ("tag/a", (400, 60), "writer-a"),
    ]:
        replies.put(key, reply(usage=usage, model=model))
    replies.note_failure("benign/e", "no reply", "x")
    assert replies.use(["benign", "benign-judge", "queries"]) == {
        "benign": Use(4, 1220, 780, (("writer-a", 1), ("writer-b", 2)), counted=3),
        "benign-judge": Use(1, 500, 20, (("judge-1", 1),), counted=1),
        "queries": Use(),
    }


def test_a_damaged_reply_is_asked_for_again_and_stops_no_count(replies: Replies, tmp_path: Path) -> None:
    replies.put("tag/a", reply(usage=(400, 60)))
    with sqlite3.connect(tmp_path / "replies.sqlite", isolation_level=None) as raw:
        raw.execute("""INSERT INTO replies VALUES ('tag/b', '{"text": "cut', 0)""")
    raw.close()
    assert replies.use(["tag"])["tag"] == Use(1, 400, 60, (("generator-1", 1),), counted=1)
    assert replies.get("tag/b") is None and not replies.has("tag/b")
    replies.put("tag/b", reply("whole"))
    assert replies.get("tag/b") == reply("whole")


def test_a_kill_half_way_loses_no_reply_that_had_landed(tmp_path: Path) -> None:
    path = tmp_path / "replies.sqlite"
    script = f"""
        import os, signal
        from pathlib import Path
        from cg_tasks.construction.engine.replies import Replies
        from cg_tasks.judge.client import Reply
        with Replies(Path({str(path)!r})) as replies:
            for i in range(3):
                replies.put(f"tag/{{i}}", Reply("x", None, "stop", "m", None, 0.1))
            replies.note_failure("tag/3", "no reply", "x")
            replies._db.execute("BEGIN IMMEDIATE")
            replies._db.execute("INSERT INTO replies VALUES ('tag/4', '{{}}', 0)")
            os.kill(os.getpid(), signal.SIGKILL)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(script)]).returncode == -signal.SIGKILL
    with Replies(path) as replies:
        assert [replies.has(f"tag/{i}") for i in range(5)] == [True, True, True, False, False]
        assert replies.failure("tag/3") == "no reply" and len(replies) == 3
        replies.put("tag/4", reply())  # the lock died with the process


@pytest.mark.parametrize(
    "content", [b"no database at all, but long enough to be taken for one" * 40, b"SQLite format 3\0" + b"\1" * 4000]
)
def test_another_file_is_named_with_the_builds_words(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "replies.sqlite"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        Replies(path)
    assert str(caught.value).startswith(f"{path}: the build's replies cannot be read or written: ")
    assert "CG_JUDGE" not in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == content

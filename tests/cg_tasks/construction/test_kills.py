"""A build that is killed goes on where it was: no reply that had landed is paid for again, and the outcome is the same."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import filelock
import pytest
from construction_builds import filled_sheets, sheet_ids
from filelock import FileLock
from generator_script import Asked
from support import ctrl_c_works
from whole_builds import Build, World, check_rows, check_secrets, conceptguard, output, process_of, world_for

CONCURRENCY = 8


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with world_for(monkeypatch, tmp_path) as found:
        yield found


def ended(build: Build, process: BaseProcess) -> int | None:
    """How a process ended."""
    process.join(60)
    return process.exitcode


def killed(build: Build, command: str, patch: str) -> None:
    """Run a command that a patch makes kill its own process."""
    code = ended(build, process_of(build, command, f"import os\n{patch}"))
    assert code == -signal.SIGKILL, output(build)


def killed_at_call(build: Build, command: str, stage: str, number: int) -> None:
    """Run a command that is killed the moment its call ``number`` of a stage (from 1) arrives at the server."""
    process: list[BaseProcess] = []
    begun, seen, lock = threading.Event(), [0], threading.Lock()

    def hook(asked: Asked) -> None:
        assert begun.wait(30)
        if asked.stage == stage:
            with lock:
                seen[0] += 1
                if seen[0] == number:
                    process[0].kill()

    build.server.hook = hook  # type: ignore[assignment]
    process.append(process_of(build, command))
    begun.set()
    code = ended(build, process[0])
    build.server.hook = None
    assert code == -signal.SIGKILL, output(build)
    counted = None
    while counted != (counted := build.server.counts.total()):  # what was sent at the last moment still arrives
        time.sleep(0.3)


@pytest.mark.parametrize(
    ("before", "stage", "asked", "number"),
    [
        ("new", "tag", "tag", 17),
        ("aggregate", "benign", "benign", 12),
        ("aggregate", "benign", "harm", 9),
        ("benign", "queries", "query", 33),
    ],
)
def test_after_a_kill_nothing_that_landed_is_paid_for_again(
    world: World, before: str, stage: str, asked: str, number: int
):
    whole = world.unbroken(stage)
    build = world.build(before)
    stored_before = build.replies().total() if before != "new" else 0
    killed_at_call(build, stage, asked, number)
    calls, landed = build.server.counts.total(), build.replies().total() - stored_before
    assert 0 < landed < calls and calls - landed <= CONCURRENCY, "only those in flight are lost"
    assert not (build.path / "stages" / f"{stage}.jsonl").exists()
    assert build.status()[stage]["state"].startswith("killed after")
    assert "run it again" in build.status()[stage]["state"]

    again = sum(build.asking(stage).values())
    twice = {
        name for asked in ("tag", "benign", "harm", "query") for name, n in build.server.asked(asked).items() if n > 1
    }
    assert len(twice) <= calls - landed
    assert all(n <= 2 for asked in ("tag", "benign", "harm", "query") for n in build.server.asked(asked).values())
    assert landed + again == {"tag": 40, "benign": 60, "queries": 60}[stage] == build.replies().total() - stored_before
    assert build.bytes(stage) == whole
    assert build.status()[stage]["state"] == "done"
    assert build.asking(stage) == {}
    check_rows(build)
    check_secrets(build)


def test_after_a_kill_while_groups_are_proposed_the_question_is_asked_once_more(world: World):
    build, other = (world.build("tag", aggregate={"by": "model"}) for _ in range(2))
    other("aggregate --propose")
    build.server.forget()
    killed_at_call(build, "aggregate --propose", "propose", 1)
    assert not (build.path / "merge.yaml").exists()
    assert build.asking("aggregate --propose") == {"propose": 1}
    assert (build.path / "merge.yaml").read_bytes() == (other.path / "merge.yaml").read_bytes()
    (build.path / "merge.yaml").unlink()
    assert build.asking("aggregate --propose") == {}


def test_a_kill_while_rows_are_grouped_leaves_the_old_ones(world: World):
    build = world.build("aggregate")
    old, record = build.bytes("aggregate"), build.record("aggregate")
    patch = """
from cg_tasks.construction.folder import StageWriter
write, seen = StageWriter.write, []
def dying(self, row, attempts=0):
    seen.append(row)
    write(self, row, attempts)
    if len(seen) == 10:
        self._stream.flush()
        os.kill(os.getpid(), 9)
StageWriter.write = dying
"""
    killed(build, "aggregate", patch)
    assert build.bytes("aggregate") == old
    assert build.status()["aggregate"]["state"].startswith("killed after")
    assert "the stage 'aggregate' has not finished" in build.refused("benign")
    build("aggregate")
    assert build.bytes("aggregate") == old and build.record("aggregate")["output_sha256"] == record["output_sha256"]


def test_a_kill_while_the_data_set_is_written_leaves_none(world: World, tmp_path: Path):
    build, out = world.build("queries"), tmp_path / "out"
    patch = """
from cg_tasks.construction.dataset import assemble
assemble.write_manifest = lambda *_: os.kill(os.getpid(), 9)
"""
    killed(build, f"assemble --out {out}", patch)
    assert not out.exists()
    build(f"assemble --out {out}")
    assert conceptguard("data", "check", out).code == 0
    assert len((out / "pairs.jsonl").read_text(encoding="utf-8").splitlines()) == 30


def test_a_kill_while_marks_are_read_leaves_an_import_that_can_be_repeated(world: World):
    build = world.build("benign")
    at = build.path / "review" / "benign"
    build("review export benign")
    ids = sheet_ids(at)
    sheets = " ".join(map(str, filled_sheets(at, labels={ids[0]: "reject"})))
    patch = """
from cg_tasks.construction.review import importing
importing.write_outcome = lambda *_: os.kill(os.getpid(), 9)
"""
    killed(build, f"review import benign {sheets}", patch)
    assert "no marks have come back" in build.refused("queries")
    build(f"review import benign {sheets}")
    assert build.asking("benign") == {"benign": 1, "harm": 1}


# ------------------------------------------------------------------ two at once, and Ctrl-C
def test_a_second_process_on_one_build_is_refused(world: World, monkeypatch: pytest.MonkeyPatch):
    # Each of the refused waits as long for the lock; test_folder.py waits the whole second.
    monkeypatch.setattr(filelock, "FileLock", lambda path, timeout: FileLock(path, timeout=min(timeout, 0.1)))
    build = world.build("new")
    go_on, asked = threading.Event(), threading.Event()

    def hook(_: Asked) -> None:
        asked.set()
        assert go_on.wait(30)

    build.server.hook = hook  # type: ignore[assignment]
    process = process_of(build, "tag")
    try:
        assert asked.wait(60)
        for command in ("tag", "tag --submit", "aggregate", "aggregate --propose", "review export tag"):
            said = build(command, code=1)
            assert said.out == "" and "another conceptguard build works here: wait for it, or stop it" in said.err
        assert build.status()["tag"]["state"] == "running (0 rows written)"  # looking is allowed
    finally:
        go_on.set()
        code = ended(build, process)
    assert code == 0, output(build)
    assert build.bytes("tag") == world.unbroken("tag")
    assert set(build.server.asked("tag").values()) == {1}


def test_ctrl_c_keeps_the_old_rows_and_all_replies(world: World):
    build = world.build("tag")
    old = build.bytes("tag")
    build.set(language="plain English")  # every row is asked about anew
    number = [0]

    def hook(_: Asked) -> None:
        number[0] += 1
        if number[0] == 20:
            os.kill(os.getpid(), signal.SIGINT)

    build.server.hook = hook  # type: ignore[assignment]
    with ctrl_c_works():
        said = build("tag", code=130)
    build.server.hook = None
    assert "Traceback" not in said.err and said.out == ""
    assert build.bytes("tag") == old and not list((build.path / "stages").glob(".*"))
    assert build.status()["tag"]["state"].startswith("stopped after")
    assert "the stage 'tag' has not finished" in build.refused("aggregate --propose")
    landed = build.replies()["tag"] - 40
    assert 0 < landed < 40
    assert build.asking("tag") == {"tag": 40 - landed}
    assert build.counts("tag") == {"ok": 40} and build.status()["tag"]["state"] == "done"


def test_ctrl_c_waits_for_the_calls_that_are_paid_for(world: World):
    build = world.build("new", generator={"concurrency": 4})
    asked, lock, go_on = [0], threading.Lock(), threading.Event()

    def hook(_: Asked) -> None:
        with lock:
            asked[0] += 1
            number = asked[0]
        if number == 8:  # four have landed, four are under way
            os.kill(os.getpid(), signal.SIGINT)
            threading.Timer(0.5, go_on.set).start()
        if number > 4:
            assert go_on.wait(30)

    build.server.hook = hook  # type: ignore[assignment]
    with ctrl_c_works():
        said = build("tag", code=130)
    build.server.hook = None
    calls = build.server.counts["tag"]
    assert 8 <= calls < 40 and build.server.in_flight == 0
    assert build.replies()["tag"] == calls, "a call under way was lost"
    assert "calls under way, whose replies are paid for (Ctrl-C again: no more)" in said.logged
    assert "Traceback" not in said.everything and "never retrieved" not in said.everything
    assert build.asking("tag") == {"tag": 40 - calls}
    assert set(build.server.asked("tag").values()) == {1}
    check_secrets(build)

"""Every stage that asks a model can do so through the Batch API, round by round, with the same outcome as a live run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from generator_script import Fault
from judge_server import Say, fail
from whole_builds import Build, World, check_rows, check_secrets, world_for

from cg_tasks.judge import batch as judge_batch


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with world_for(monkeypatch, tmp_path) as found:
        found.server.ends_batches = True
        yield found


def rounds(build: Build, stage: str, **options: str) -> list[dict[str, int]]:
    """Submit and collect until every row has a result: the calls that each round's batches held."""
    found = []
    for number in range(1, 9):
        build(f"{stage} --submit {options.get(f'round_{number}', '')}")
        before = build.server.counts
        said = build(f"{stage} --collect", code=None)
        found.append(dict(build.server.counts - before))
        if said.code == 0:
            return found
    raise AssertionError(f"not done after {found}")


@pytest.mark.parametrize(
    ("before", "stage", "wanted"),
    [
        ("new", "tag", [{"tag": 40}]),
        ("aggregate", "benign", [{"benign": 30}, {"harm": 30}]),
        ("benign", "queries", [{"query": 60}]),
    ],
)
def test_rounds_of_batches_come_to_the_rows_of_a_live_run(
    world: World, before: str, stage: str, wanted: list[dict[str, int]]
):
    whole = world.unbroken(stage)
    build = world.build(before)
    assert rounds(build, stage) == wanted
    assert build.bytes(stage) == whole
    jobs = sorted(p.name for p in (build.path / "batches").iterdir())
    assert jobs == ["benign-judge.1.done.json", "benign.1.done.json"] if stage == "benign" else [f"{stage}.1.done.json"]
    said = build.refused(f"{stage} --submit")
    assert said.startswith("nothing to ask") and said.endswith(f"conceptguard build {stage} {build.path}")
    assert build.asking(stage) == {}
    check_rows(build)
    check_secrets(build)


def test_second_attempts_go_into_the_next_batch(world: World):
    build = world.build("aggregate")
    build.server.faults = [Fault("benign", "too_short", row=0), Fault("benign", "harmful", row=7)]
    assert rounds(build, "benign") == [{"benign": 30}, {"benign": 1, "harm": 29}, {"benign": 1, "harm": 1}, {"harm": 1}]
    assert build.record("benign")["attempts"] == {"1": 28, "2": 2}
    live = world.build("aggregate")
    live.server.faults = build.server.faults
    live("benign")
    assert live.bytes("benign") == build.bytes("benign")


def test_a_live_run_finishes_what_batches_began(world: World):
    whole = world.unbroken("benign")
    build = world.build("aggregate")
    build("benign --submit")
    build("benign --collect", code=1)
    assert build.counts("benign") == {"not_run": 30}
    assert build.asking("benign") == {"harm": 30}
    assert build.bytes("benign") == whole


def test_the_groups_are_proposed_through_a_batch_too(world: World):
    build, live = (world.build("tag", aggregate={"by": "model"}) for _ in range(2))
    said = build("aggregate --propose --submit").out
    assert "generator: 1 requests in 1 batches" in said
    assert f"later: conceptguard build aggregate {build.path} --propose --collect" in said
    assert not (build.path / "merge.yaml").exists()
    build("aggregate --propose --collect")
    live("aggregate --propose")
    assert (build.path / "merge.yaml").read_bytes() == (live.path / "merge.yaml").read_bytes()


def test_what_waits_is_told_and_neither_submitted_nor_written_twice(world: World):
    world.server.ends_batches = False
    build = world.build("tag")
    old = build.bytes("tag")
    build.set(language="plain English")
    build("tag --submit --limit 10")
    assert "its batches are not collected yet" in (said := build.refused("tag --submit"))
    assert said.endswith(f"conceptguard build tag {build.path} --collect")
    waiting = build("tag --collect", code=1).out
    assert "batch-1: validating" in waiting and "still waiting: run this again later" in waiting
    assert build.bytes("tag") == old
    build.server.end("batch-1")
    build("tag --collect", code=1)
    assert build.counts("tag") == {"ok": 10, "not_run": 30}
    said = build.refused("tag --collect")
    assert "no batch of the stage 'tag' is under way: submit one with --submit" in said
    build("tag --submit")
    assert [len(build.server.requests(name)) for name in build.server.batches] == [10, 30]
    build.server.end("batch-2")
    build("tag --collect")
    assert build.counts("tag") == {"ok": 40} and set(build.server.asked("tag").values()) == {1}


def test_requests_that_failed_in_a_batch_stay_failed_until_they_are_retried(world: World):
    whole = world.unbroken("tag")
    build = world.build("new")
    build.server.faults = [Fault("tag", "http_500", nth=None, row=row) for row in range(20)]
    build("tag --submit")
    said = build("tag --collect", code=1)
    assert "tag: 20 replies taken, 20 requests without one" in said.out
    assert "20 no reply: HTTP 500" in said.err
    assert build.counts("tag") == {"ok": 20, "failed": 20}
    assert all(row["reason"].startswith("no reply: HTTP 500") for row in build.rows("tag")[:20])
    check_rows(build)
    build.server.faults = []
    assert "nothing to ask" in build.refused("tag --submit")
    build("tag --submit --retry-failed")
    assert [len(build.server.requests(name)) for name in build.server.batches] == [40, 20]
    build("tag --collect")
    assert build.bytes("tag") == whole


@pytest.mark.parametrize("status", ["expired", "failed", "cancelled"])
def test_a_batch_that_did_not_end_well_gives_what_it_has(world: World, status: str):
    whole = world.unbroken("tag")
    build = world.build("new")
    build.server.ends_batches = False
    build("tag --submit")
    done = build.server.replies("batch-1")[: 0 if status == "failed" else 25]
    build.server.end("batch-1", done, status=status)
    said = build("tag --collect", code=1)
    assert "did not complete" in said.err and f"{len(done)} replies taken" in said.out
    assert build.counts("tag") == {**({"ok": len(done)} if done else {}), "not_run": 40 - len(done)}
    build("tag --submit")
    assert len(build.server.requests("batch-2")) == 40 - len(done)
    build.server.end("batch-2")
    build("tag --collect")
    assert build.bytes("tag") == whole


def test_lines_that_cannot_be_read_are_asked_again(world: World):
    whole = world.unbroken("tag")
    build = world.build("new")
    build.server.ends_batches = False
    build("tag --submit")
    lines = build.server.replies("batch-1")
    build.server.end("batch-1", [*lines[:38], b"{no json", {**lines[39], "custom_id": "somebody-elses"}])
    said = build("tag --collect", code=1)
    assert "38 replies taken, 2 requests without one" in said.out
    assert build.counts("tag") == {"ok": 38, "not_run": 2}
    assert build.asking("tag") == {"tag": 2}
    assert build.bytes("tag") == whole


def test_a_server_that_takes_only_some_batches(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(judge_batch, "MAX_REQUESTS", 15)
    whole = world.unbroken("tag")
    build = world.build("new")
    build.server.takes = 2
    said = build("tag --submit", code=1)
    assert "batch 3 was not taken" in said.err and "collect them, then conceptguard build tag" in said.err
    build("tag --collect", code=1)
    assert build.counts("tag") == {"ok": 30, "not_run": 10}
    build.server.takes = None
    build("tag --submit")
    build("tag --collect")
    assert build.bytes("tag") == whole


def test_a_server_without_batches_and_another_server_are_refused(world: World):
    build = world.build("new")
    build.server.has_batches = False
    said = build("tag --submit", code=1)
    assert (
        "batch 1 was not taken" in said.err and f"conceptguard build tag {build.path} asks without batches" in said.err
    )
    build.server.has_batches = True
    build("tag --submit")
    build.set(generator={"model": "generator-2"})
    assert "was submitted with model 'generator-1', and 'generator-2' is set now" in build.refused("tag --collect")
    build.set(generator={"model": "generator-1"})
    build("tag --collect")


def test_a_batch_whose_answer_was_lost_is_not_paid_for_twice(world: World, monkeypatch: pytest.MonkeyPatch):
    build, take = world.build("new"), world.server.take

    def unheard(asked: Any) -> Say:
        take(asked)
        return fail(502, "gone")

    with monkeypatch.context() as patch:
        patch.setattr(world.server, "take", unheard)
        assert f"conceptguard build tag {build.path} --collect finds out" in build("tag --submit", code=1).err
    assert "under way" in build.refused("tag")
    build("tag --collect")
    assert len(world.server.batches) == 1 and build.asking("tag") == {}

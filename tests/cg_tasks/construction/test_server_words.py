"""What a server says of a call that failed may quote the request: it is shown where that is asked for, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from generator_script import Asked, source_rows
from judge_server import Say, fail
from whole_builds import Build, World, check_rows, check_secrets, shared_windows, windows_of, world_for

QUOTED = {"tag": "PROMPT", "benign": "PROMPT", "query": "RESPONSE", "harm": "RESPONSE"}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with world_for(monkeypatch, tmp_path) as found:
        yield found


def quote(build: Build, stage: str, *statuses: int, rows: int | None = None) -> None:
    """The server turns down a stage's requests, with the request in its answer. rows: of the source, from 0; None for all."""
    n = [0]

    def hook(asked: Asked) -> Say | None:
        if asked.stage != stage or (rows is not None and (build.server.row_of(asked) or 0) >= rows):
            return None
        n[0] += 1
        return fail(statuses[n[0] % len(statuses)], f"cannot read this: {asked.data[QUOTED[stage]]}")

    build.server.hook = hook


def check_no_words(build: Build, stage: str, *folders: Path) -> None:
    """None of the source's in what was said, recorded or written, but for the columns that hold texts."""
    check_rows(build)
    check_secrets(build, *folders)
    source = windows_of(text for row in source_rows() for text in row.values())
    for row in build.rows(stage):
        made = [row.get(name) for name in ("made", "made_harmful", "made_benign")]
        assert shared_windows(f"{row['reason']} {json.dumps(made)}", source) is None
        assert "cannot read this" not in row["reason"]


@pytest.mark.parametrize(
    ("before", "stage", "asked"),
    [
        ("new", "tag", "tag"),
        ("aggregate", "benign", "benign"),
        ("aggregate", "benign", "harm"),
        ("benign", "queries", "query"),
    ],
)
def test_the_words_of_a_server_are_shown_only_where_that_is_asked_for(
    world: World, before: str, stage: str, asked: str
):
    build = world.build(before)
    quote(build, asked, 422, 500, rows=6)
    said = build(stage, code=1)
    assert "cannot read this" not in said.everything
    reasons = set(build.record(stage)["reasons"])
    assert reasons <= {"no reply"} and build.counts(stage)["failed"] >= 4
    assert {row["reason"].partition(" [")[0].partition(";")[0] for row in build.rows(stage) if row["reason"]} == {
        "no reply: HTTP 422",
        "no reply: HTTP 500",
    }
    check_no_words(build, stage)
    shown = build(f"{stage} --show", code=1)
    first = shown.out.partition("the server said: ")[2]
    assert "cannot read this: " in first
    if asked == "tag":
        assert any(row["prompt"][:60] in first for row in source_rows()[:6])
    assert "cannot read this" not in build(f"{stage} --no-calls", code=1).everything
    check_no_words(build, stage)


def test_the_words_are_not_in_the_data_set_either(world: World, tmp_path: Path):
    build = world.build("benign")
    quote(build, "query", 422, rows=3)
    build("queries", code=1)
    out = tmp_path / "out"
    build(f"assemble --out {out} --allow-missing")
    assert "no reply: HTTP 422" in (out / "build" / "dropped.csv").read_text(encoding="utf-8")
    for path in (out / "build").iterdir():
        assert "cannot read this" not in path.read_text(encoding="utf-8"), path
    check_no_words(build, "queries", out)


def test_a_server_that_is_given_up_is_told_in_words_of_ours(world: World):
    build = world.build("new", generator={"give_up_after": 3, "concurrency": 1})
    quote(build, "tag", 500)
    said = build("tag", code=1)
    assert "calls were given up: 3 calls in a row failed: HTTP 500\n" in said.err
    assert build.counts("tag") == {"failed": 3, "not_run": 37}
    assert {row["reason"] for row in build.rows("tag")[3:]} == {"not asked, because 3 calls in a row failed: HTTP 500"}
    check_no_words(build, "tag")


def test_the_words_of_a_batch_are_not_told(world: World):
    build = world.build("new")
    build.server.ends_batches = True
    quote(build, "tag", 422, 500, rows=4)
    build("tag --submit")
    said = build("tag --collect", code=1)
    assert "2 no reply: HTTP 422" in said.err and "2 no reply: HTTP 500" in said.err
    assert build.counts("tag") == {"ok": 36, "failed": 4}
    check_no_words(build, "tag")
    shown = build("tag --show", code=1).out
    assert shown.count("the server said: ") == 4 and "cannot read this: " in shown


def test_a_batch_that_failed_as_a_whole_is_told_without_its_words(world: World):
    build = world.build("new")
    build("tag --submit")
    words = {"object": "list", "data": [{"code": "invalid", "message": source_rows()[0]["prompt"]}]}
    build.server.end("batch-1", [], status="failed", errors=words)
    assert "1 batches that did not complete" in build("tag --collect", code=1).err
    check_no_words(build, "tag")


# ------------------------------------------------------------------ an answer without a message
def test_an_answer_without_a_message_is_an_attempt_that_cannot_be_read(world: World):
    build = world.build("new")
    first = source_rows()[0]["prompt"]

    def hook(asked: Asked) -> Say | None:
        return Say({"id": "x", "choices": []}) if asked.data.get("PROMPT") == first and asked.nth == 0 else None

    build.server.hook = hook
    assert build.asking("tag") == {"tag": 41}
    made = build.row("tag", 0)["made"]
    assert (made["attempts"], made["faults"]) == (2, ["unreadable: the reply is empty"])
    assert build.asking("tag") == {}


def test_in_a_batch_too(world: World):
    build = world.build("new")
    build("tag --submit")
    lines = build.server.replies("batch-1")
    lines[0]["response"]["body"] = {"choices": []}
    build.server.end("batch-1", lines)
    assert "40 replies taken, 0 requests without one" in build("tag --collect", code=1).out
    assert build.counts("tag") == {"ok": 39, "not_run": 1} and build.asking("tag") == {"tag": 1}
    assert build.row("tag", 0)["made"]["faults"] == ["unreadable: the reply is empty"]

"""Batches within the budget, and with the outcomes that a live run has; and how a job that cannot go on is left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from generator_script import USAGE, Asked, source_rows
from judge_server import Say, fail
from whole_builds import Build, World, check_secrets, world_for

PRICES = {"price_input": 1.25, "price_output": 10.0}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with world_for(monkeypatch, tmp_path) as found:
        found.server.ends_batches = True
        yield found


def uploaded(build: Build) -> int:
    return len(build.server.files)


# ------------------------------------------------------------------ before anything is uploaded
def test_a_batch_beyond_the_budget_is_not_uploaded(world: World):
    build = world.build("new", generator={**PRICES, "budget_usd": 0.01})
    said = build.refused("tag --submit")
    assert said.startswith("40 requests to generator-1 may cost 0.") and "the budget is 0.01 USD" in said
    assert said.endswith("raise it, or submit fewer with --limit")
    assert uploaded(build) == 0 and not (build.path / "batches").exists()
    build("tag --submit --limit 2")
    assert len(build.server.requests("batch-1")) == 2
    dear = world.build("new", generator={**PRICES, "budget_usd": 40 * (USAGE["tag"][0] * 1.25 * 3 + 80 * 10) / 1e6})
    dear("tag --submit")


def test_the_judges_budget_counts_too(world: World, monkeypatch: pytest.MonkeyPatch):
    build = world.build("aggregate")
    build("benign --submit")
    build("benign --collect", code=1)
    for name, value in {"PRICE_INPUT": "1", "PRICE_OUTPUT": "5", "BUDGET_USD": "0.001"}.items():
        monkeypatch.setenv(f"CG_JUDGE_{name}", value)
    files = uploaded(build)
    assert build.refused("benign --submit").startswith("30 requests to judge-1 may cost 0.")
    assert uploaded(build) == files


@pytest.mark.parametrize("command", ["tag --submit", "tag"])
def test_a_language_that_no_check_knows_is_told_at_the_first_stage(world: World, command: str):
    build = world.build("new", language_code="xx")
    assert "xx" in build.refused(command)
    assert uploaded(build) == 0 and build.server.calls == []


# ------------------------------------------------------------------ a live run beside a batch
def test_a_live_run_beside_a_batch_is_refused(world: World):
    world.server.ends_batches = False
    build = world.build("new")
    build("tag --submit")
    said = build.refused("tag")
    assert said == (
        f"{build.path}: batches of the stage 'tag' are under way: conceptguard build tag {build.path} --collect first, or nothing "
        "but --no-calls"
    )
    build("tag --no-calls", code=1)
    build.server.end("batch-1")
    build("tag --collect")
    assert build.asking("tag") == {}


# ------------------------------------------------------------------ outcomes
def test_a_text_that_the_filter_stopped_is_refused_and_asked_for_again(world: World):
    build = world.build("new")
    first = source_rows()[0]["prompt"]

    def hook(asked: Asked) -> Say | None:
        stopped = asked.data.get("PROMPT") == first and asked.nth == 0
        return fail(400, f"stopped by our content management policy: {first}") if stopped else None

    build.server.hook = hook
    build("tag --submit")
    assert "40 replies taken, 0 requests without one" in build("tag --collect", code=1).out
    assert build.counts("tag") == {"ok": 39, "not_run": 1}
    build("tag --submit")
    assert len(build.server.requests("batch-2")) == 1
    build("tag --collect")
    made = build.row("tag", 0)["made"]
    assert made["attempts"] == 2 and made["faults"] == ["refused"]
    check_secrets(build)
    live = world.build("new")
    live("tag")
    assert live.bytes("tag") == build.bytes("tag")


def test_a_server_without_schemas_is_asked_in_words_the_next_time(world: World):
    build = world.build("new")
    build.server.takes_schema = False
    build("tag --submit")
    assert all("response_format" in line["body"] for line in build.server.requests("batch-1"))
    said = build("tag --collect", code=1)
    assert "40 the server takes no JSON schema: --submit asks without one" in said.err
    assert build.counts("tag") == {"not_run": 40}
    build("tag --submit")
    assert not any("response_format" in line["body"] for line in build.server.requests("batch-2"))
    build("tag --collect")
    assert build.counts("tag") == {"ok": 40}


def test_requests_that_expired_are_asked_again(world: World):
    build = world.build("new")
    build.server.ends_batches = False
    build("tag --submit")
    lines = build.server.replies("batch-1")
    late = [{**line, "response": None, "error": {"code": "batch_expired", "message": "late"}} for line in lines[30:]]
    build.server.end("batch-1", lines[:30], status="expired", error_lines=late)
    said = build("tag --collect", code=1)
    assert "30 replies taken" in said.out and "10 no reply\n" in said.err
    assert build.counts("tag") == {"ok": 30, "not_run": 10}
    build("tag --submit")  # without --retry-failed
    assert len(build.server.requests("batch-2")) == 10
    build.server.end("batch-2")
    build("tag --collect")
    assert build.bytes("tag") == world.unbroken("tag")


def test_the_batch_of_another_model_than_the_rows_are_by_is_written(world: World):
    build = world.build("tag", generator={"model": "generator-2"})
    build("tag --submit")
    build("tag --collect")
    assert build.record("tag")["model"] == "generator-2" and build.counts("tag") == {"ok": 40}
    assert build.asking("tag") == {}


# ------------------------------------------------------------------ ways out
@pytest.mark.parametrize("content", ["", '{"created": "20', '{"batches": 3}'])
def test_a_job_file_that_is_cut_off_can_be_left(world: World, content: str):
    build = world.build("new")
    build("tag --submit")
    job = build.path / "batches" / "tag.json"
    job.write_text(content)
    said = build.refused("tag --collect")
    assert said.startswith(f"{job}: ") and "remove it" in said, said
    job.unlink()
    build("tag")
    assert build.counts("tag") == {"ok": 40}


def test_a_judge_who_is_not_asked_any_more_has_a_batch_under_way(world: World):
    build = world.build("aggregate")
    build("benign --submit")
    build("benign --collect", code=1)
    build("benign --submit")
    job = build.path / "batches" / "benign-judge.json"
    assert json.loads(job.read_text())["requests"] == 30
    build.set(benign={"judge": False})
    said = build.refused("benign --collect")
    assert said.startswith(f"{job}: a batch of the judge is under way") and "or remove the file" in said
    assert "not collected yet" in build.refused("benign --submit") and "under way" in build.refused("benign")
    job.unlink()
    assert build.asking("benign") == {}  # every counterpart is at hand
    assert build.counts("benign") == {"ok": 30}

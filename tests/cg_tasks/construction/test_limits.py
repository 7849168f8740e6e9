"""How much is asked, in every stage that asks a model: looking ahead, the first rows, a budget, nothing, and what failed once more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from generator_script import USAGE, Asked, Fault
from judge_server import Say, fail
from whole_builds import DONE, Build, World, check_rows, check_secrets, world_for

ASKING = [
    pytest.param("new", "tag", 40, {"tag": 40}, id="tag"),
    pytest.param("aggregate", "benign", 30, {"benign": 30, "harm": 30}, id="benign"),
    pytest.param("benign", "queries", 30, {"query": 60}, id="queries"),
]
PRICES = {"price_input": 1.25, "price_output": 10.0}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with world_for(monkeypatch, tmp_path) as found:
        monkeypatch.setenv("CG_JUDGE_PRICE_INPUT", "1")
        monkeypatch.setenv("CG_JUDGE_PRICE_OUTPUT", "5")
        yield found


def planned(build: Build, command: str) -> dict[str, int]:
    """Calls by kind that a dry run tells of."""
    said = build(f"{command} --dry-run").out
    return {kind: int(n.replace(",", "")) for kind, n in re.findall(r"^  ([\w-]+): ([\d,]+) calls", said, re.MULTILINE)}


def named(asked: dict[str, int]) -> dict[str, int]:
    """Calls by the kinds of a dry run."""
    names = {"query": "queries", "harm": "benign-judge"}
    return {names.get(stage, stage): n for stage, n in asked.items()}


# ------------------------------------------------------------------ looking ahead
@pytest.mark.parametrize(("before", "stage", "rows", "calls"), ASKING)
def test_a_dry_run_asks_nothing_writes_nothing_and_says_what_a_run_then_does(
    world: World, before: str, stage: str, rows: int, calls: dict[str, int]
):
    build = world.build(before, generator=PRICES)
    files = sorted(p.name for p in build.path.rglob("*") if "replies.sqlite" not in p.name and p.name != ".lock")
    assert planned(build, stage) == named(calls)
    assert 0 < planned(build, f"{stage} --limit 7")[stage] <= 14
    assert build.server.calls == []
    assert files == sorted(
        p.name for p in build.path.rglob("*") if "replies.sqlite" not in p.name and p.name != ".lock"
    )
    assert build.asking(f"{stage} --limit 7")
    left = planned(build, stage)
    assert named(build.asking(stage)) == left
    assert planned(build, stage) == dict.fromkeys(left, 0)


def test_a_dry_run_needs_no_server_no_key_and_no_price(world: World, monkeypatch: pytest.MonkeyPatch):
    build = world.build("new", generator={"base_url": "http://127.0.0.1:9/v1"})
    said = build("tag --dry-run").out
    assert "tag: 40 calls to generator-1" in said and "no prices" in said and "CG_BUILD_PRICE_INPUT" in said
    monkeypatch.delenv("CG_BUILD_API_KEY")
    build.set(generator=None)
    assert "tag: 40 calls to gpt-5" in build("tag --dry-run").out


def test_a_dry_run_tells_money_by_the_replies_at_hand(world: World):
    build = world.build("new", generator=PRICES)
    build("tag --limit 10")
    said = build("tag --dry-run").out
    prompt, completion = (
        int(n.replace(",", "")) for n in re.findall(r"about ([\d,]+) prompt and ([\d,]+) completion", said)[0]
    )
    assert completion == 30 * USAGE["tag"][1]
    assert f"{(prompt * 1.25 + completion * 10) / 1e6:.4f} USD" in said


# ------------------------------------------------------------------ the first rows
@pytest.mark.parametrize(("before", "stage", "rows", "calls"), ASKING)
def test_limits_add_up_to_the_whole_and_nothing_is_asked_twice(
    world: World, before: str, stage: str, rows: int, calls: dict[str, int]
):
    build = world.build(before)
    each = {name: n // rows for name, n in calls.items()}
    assert build.asking(f"{stage} --limit 5") == {name: 5 * n for name, n in each.items()}
    assert build.counts(stage) == {"ok": 5, "not_run": rows - 5}
    assert {row["reason"] for row in build.rows(stage)[5:]} == {"not asked: beyond --limit 5"}
    check_rows(build)
    assert build.asking(f"{stage} --limit 12") == {name: 7 * n for name, n in each.items()}
    assert build.counts(stage) == {"ok": 12, "not_run": rows - 12}
    assert build.asking(f"{stage} --limit 3") == {}  # what is at hand stays
    assert build.counts(stage) == {"ok": 12, "not_run": rows - 12}
    assert build.asking(stage) == {name: (rows - 12) * n for name, n in each.items()}
    assert build.bytes(stage) == world.unbroken(stage)
    assert all(set(build.server.asked(name).values()) == {1} for name in calls)


# ------------------------------------------------------------------ money
@pytest.mark.parametrize(("before", "stage", "rows", "calls"), ASKING)
def test_a_budget_stops_the_stage_and_the_next_run_goes_on(
    world: World, before: str, stage: str, rows: int, calls: dict[str, int]
):
    build = world.build(before)
    generated = {"tag": "tag", "benign": "benign", "queries": "query"}[stage]
    prompt, completion = USAGE[generated]
    one = (prompt * PRICES["price_input"] + completion * PRICES["price_output"]) / 1e6
    budget = round(one * calls[generated] * 0.6, 5)
    build.set(generator={**PRICES, "budget_usd": budget})
    first = build.asking(stage, code=1)
    said = build.said[-1]
    assert 0 < first[generated] * one <= budget
    assert (
        f"{build.counts(stage)['not_run']} rows are not run; conceptguard build {stage} {build.path} goes on"
        in said.err
    )
    reasons = [row["reason"] for row in build.rows(stage) if row["status"] == "not_run"]
    assert all("not asked: the budget is used up" in reason for reason in reasons)
    check_rows(build)
    assert "Traceback" not in said.err and "failed" not in build.counts(stage)
    build.set(generator={"budget_usd": 1.0})
    rest = build.asking(stage)
    assert {name: first.get(name, 0) + rest.get(name, 0) for name in calls} == calls
    assert build.bytes(stage) == world.unbroken(stage)


def test_the_judges_budget_stops_the_stage_too(world: World, monkeypatch: pytest.MonkeyPatch):
    build = world.build("aggregate")
    monkeypatch.setenv("CG_JUDGE_BUDGET_USD", "0.01")
    asked = build.asking("benign", code=1)
    assert asked["benign"] == 30 and 0 < asked["harm"] < 30
    assert asked["harm"] * (USAGE["harm"][0] * 1 + USAGE["harm"][1] * 5) / 1e6 <= 0.01
    assert build.counts("benign")["ok"] == asked["harm"] and build.counts("benign")["not_run"] == 30 - asked["harm"]
    monkeypatch.delenv("CG_JUDGE_BUDGET_USD")
    assert build.asking("benign") == {"harm": 30 - asked["harm"]}
    assert build.bytes("benign") == world.unbroken("benign")


def test_the_money_spent_is_told_and_summed(world: World):
    build = world.build("new", generator=PRICES)
    said = build("tag --limit 10").out
    assert "10 calls, 0.0110 USD" in said
    build("tag")
    assert build.status()["tag"]["usd"] == pytest.approx(0.044)
    build("aggregate --propose")
    build.review("aggregate")
    build("aggregate")
    build("benign")
    assert build.status()["benign"]["usd"] == pytest.approx(30 * (4750 + 600) / 1e6)


# ------------------------------------------------------------------ nothing at all
@pytest.mark.parametrize(("before", "stage", "rows", "calls"), ASKING)
def test_no_calls_writes_the_rows_from_the_replies_at_hand(
    world: World, before: str, stage: str, rows: int, calls: dict[str, int]
):
    build = world.build(before)
    assert build.asking(f"{stage} --no-calls", code=1) == {}
    assert build.counts(stage) == {"not_run": rows}
    assert all(row["reason"].startswith("not asked: --no-calls") for row in build.rows(stage))
    build(f"{stage} --limit 4")
    assert build.asking(f"{stage} --no-calls", code=1) == {}
    assert build.counts(stage) == {"ok": 4, "not_run": rows - 4}
    build(stage)
    build.server.listing = fail(500)  # not even the list of models
    assert build.asking(f"{stage} --no-calls") == {}
    assert build.bytes(stage) == world.unbroken(stage)


# ------------------------------------------------------------------ once more
@pytest.mark.parametrize(
    ("before", "stage", "fault"),
    [
        ("new", "tag", "tag"),
        ("aggregate", "benign", "benign"),
        ("aggregate", "benign", "harm"),
        ("benign", "queries", "query"),
    ],
)
def test_failed_calls_stay_with_their_rows_until_they_are_retried(world: World, before: str, stage: str, fault: str):
    build = world.build(before)
    intent = {"intent": "benign"} if fault == "query" else {}
    build.server.faults = [Fault(fault, "http_500", nth=None, row=row, **intent) for row in (0, 7, 13)]
    build(stage, code=1)
    failed = [row for row in build.rows(stage) if row["status"] == "failed"]
    assert len(failed) == 3 and all(row["reason"].startswith("no reply: HTTP 500") for row in failed)
    assert "3 rows failed" in build.said[-1].err and "--retry-failed asks for them again" in build.said[-1].err
    check_rows(build)
    build.server.faults = []
    assert build.asking(stage, code=1) == {}
    assert sum(planned(build, stage).values()) == 0
    assert planned(build, f"{stage} --retry-failed")[stage if fault != "harm" else "benign-judge"] == 3
    wanted = {fault: 3, **({"harm": 3} if fault == "benign" else {})}
    assert build.asking(f"{stage} --retry-failed") == wanted
    assert build.bytes(stage) == world.unbroken(stage)
    assert build.asking(f"{stage} --retry-failed") == {}


@pytest.mark.parametrize(
    ("before", "stage", "fault", "code"),
    [
        ("new", "tag", "tag", "cut_off"),
        ("aggregate", "benign", "benign", "too_short"),
        ("benign", "queries", "query", "too_short"),
    ],
)
def test_attempts_that_are_used_up_are_given_once_more_where_that_is_asked_for(
    world: World, before: str, stage: str, fault: str, code: str
):
    build = world.build(before, **{stage: {"attempts": 2}})
    intent = {"intent": "harmful"} if fault == "query" else {}
    build.server.faults = [Fault(fault, code, nth=None, row=3, **intent)]
    build(stage, code=1)
    row = build.row(stage, 3)
    assert row["status"] == "failed" and row["reason"].startswith(code) and "attempt 2" in row["reason"]
    assert build.asking(stage, code=1) == {}
    assert build.asking(f"{stage} --retry-failed", code=1) == {fault: 2}
    assert "attempt 4" in build.row(stage, 3)["reason"]
    build.server.faults = []
    assert build.asking(stage, code=1) == {}
    assert build.asking(f"{stage} --retry-failed")[fault] == 1
    row = build.row(stage, 3)
    made = row["made_harmful" if fault == "query" else "made"]
    assert (row["status"], made["attempts"]) == ("ok", 5)
    assert [fault.partition(":")[0] for fault in made["faults"]] == [code] * 4
    assert build.asking(stage) == {}  # a plain run finds it as well
    assert build.row(stage, 3) == row


def test_retried_rows_are_those_within_the_limit(world: World):
    build = world.build("new")
    build.server.faults = [Fault("tag", "http_500", nth=None, row=row) for row in (1, 20)]
    build("tag", code=1)
    build.server.faults = []
    assert build.asking("tag --retry-failed --limit 10", code=1) == {"tag": 1}
    assert build.row("tag", 20)["status"] == "failed" and build.row("tag", 1)["status"] == "ok"


# ------------------------------------------------------------------ a server that is no help
def test_a_server_that_fails_again_and_again_is_given_up(world: World):
    build = world.build("new", generator={"give_up_after": 5, "concurrency": 2})
    build.server.faults = [Fault("tag", "http_500", nth=None)]
    asked = build.asking("tag", code=1)["tag"]
    assert 5 <= asked < 10
    assert "calls were given up: 5 calls in a row failed: HTTP 500" in build.said[-1].err
    assert build.counts("tag")["not_run"] >= 30
    check_rows(build)
    build.server.faults = []
    build("tag --retry-failed")
    assert build.bytes("tag") == world.unbroken("tag")


def test_a_connection_that_breaks_is_nothing_about_the_row(world: World):
    build = world.build("new")
    build.server.faults = [Fault("tag", "drop", nth=None, row=row) for row in (2, 3)]
    build("tag", code=1)
    assert build.counts("tag") == {"ok": 38, "not_run": 2}
    assert build.row("tag", 2)["reason"].startswith("no reply: no connection to the server")
    build.server.faults = []
    assert build.asking("tag") == {"tag": 2}  # without --retry-failed


def test_a_server_without_schemas_is_asked_in_words(world: World):
    build = world.build("new")
    build.server.takes_schema = False
    build("tag")
    assert build.counts("tag") == {"ok": 40}
    build("aggregate --propose")
    build.review("aggregate")
    build("aggregate")
    build("benign")
    asked = build.asking("queries")
    assert asked == {"query": 60}  # remembered from the first stage
    check_rows(build)
    check_secrets(build)


def test_requests_in_flight_are_as_many_as_allowed(world: World, monkeypatch: pytest.MonkeyPatch):
    build = world.build("new", generator={"concurrency": 3})
    build.server.latency = 0.01
    build("tag")
    assert build.server.most <= 3
    build = world.build("aggregate")
    monkeypatch.setenv("CG_JUDGE_CONCURRENCY", "1")
    flying = [0, 0]

    def hook(asked: Asked) -> Say | None:
        if asked.stage == "harm":
            flying[0] += 1
            flying[1] = max(flying)
            import time

            time.sleep(0.005)
            flying[0] -= 1
        return None

    build.server.hook = hook
    build("benign")
    assert flying[1] == 1


def test_every_stage_is_refused_a_limit_of_nothing(world: World):
    for before, stage in zip(DONE, ("tag", "aggregate", "benign", "queries"), strict=False):
        if stage != "aggregate":
            for number in (0, -1):
                assert f"--limit is {number}: it must be at least 1" in world.build(before).refused(
                    f"{stage} --limit {number}"
                )

"""``conceptguard build``: what its options do where there is no key, no money or nothing to ask, and what they refuse to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from construction_builds import filled_sheets, sheet_ids
from generator_script import USAGE, source_rows
from support import ROOT
from whole_builds import Build, World, conceptguard, tree, world_for

PRICES = {"price_input": 1.25, "price_output": 10.0}
TAGS_USD = 40 * (USAGE["tag"][0] * 1.25 + USAGE["tag"][1] * 10) / 1e6
JUDGED_USD = 30 * (USAGE["harm"][0] * 2 + USAGE["harm"][1] * 4) / 1e6


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with world_for(monkeypatch, tmp_path) as found:
        yield found


def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither keys nor servers in the environment."""
    for name in ("CG_BUILD_API_KEY", "CG_JUDGE_API_KEY", "CG_JUDGE_BASE_URL", "CG_JUDGE_MODEL"):
        monkeypatch.delenv(name)


def generator(build: Build, **values: Any) -> None:
    """The generator of build.yaml, with nothing of the one that was there."""
    path = build.path / "build.yaml"
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump({**settings, "generator": values}), encoding="utf-8")


def judge_file(folder: Path, **values: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


# ------------------------------------------------------------------ without a key
def test_looking_ahead_without_a_key_knows_the_model_and_its_prices(world: World, monkeypatch: pytest.MonkeyPatch):
    build = world.build("new")
    without_keys(monkeypatch)
    generator(build, model="writer-9", **PRICES)
    said = build("tag --dry-run").out
    assert "tag: 40 calls to writer-9, about " in said and " USD" in said and "no prices" not in said
    assert "no generator is configured" in build.refused("tag")


def test_the_table_without_a_key_knows_the_prices_and_whose_rows_they_are(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    build = world.build("benign")
    without_keys(monkeypatch)
    generator(build, model="writer-9", **PRICES)
    rows = build.status()
    assert rows["tag"]["usd"] == pytest.approx(TAGS_USD)
    assert rows["tag"]["state"] == "done; by generator-1, now writer-9 is set"
    assert rows["benign"]["usd"] is None  # nobody knows the judge's
    file = judge_file(tmp_path, price_input=2.0, price_output=4.0)
    written = 30 * (USAGE["benign"][0] * 1.25 + USAGE["benign"][1] * 10) / 1e6
    table = {row["stage"]: row for row in json.loads(build(f"status --json --judge {file}").out)}
    assert table["benign"]["usd"] == pytest.approx(written + JUDGED_USD)


def test_a_data_set_is_written_without_a_key_and_knows_what_it_cost(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    build = world.build("queries")
    without_keys(monkeypatch)
    generator(build, model="generator-1", **PRICES)
    file = judge_file(tmp_path, price_input=2.0, price_output=4.0)
    build(f"assemble --out {tmp_path / 'out'} --judge {file}")
    manifest = json.loads((tmp_path / "out" / "build" / "manifest.json").read_text(encoding="utf-8"))
    usd = {stage["stage"]: stage["usd"] for stage in manifest["stages"]}
    assert usd["tag"] == pytest.approx(TAGS_USD) and usd["benign"] > JUDGED_USD


def test_no_calls_needs_no_key_and_the_model_that_was_asked(world: World, monkeypatch: pytest.MonkeyPatch):
    build = world.build("tag")
    rows = build.bytes("tag")
    url = world.server.url
    without_keys(monkeypatch)
    build("tag --no-calls")
    assert build.bytes("tag") == rows
    for changed in ({"model": "writer-9", "base_url": url}, {"model": "generator-1"}):
        generator(build, **changed)
        said = build.refused("tag --no-calls")
        assert said.startswith(f"the rows of tag are by generator-1 at {url}, and {changed['model']} at ")
        assert said.endswith("set CG_BUILD_MODEL and CG_BUILD_BASE_URL as they were")
    assert build.bytes("tag") == rows


# ------------------------------------------------------------------ aggregate asks nothing
@pytest.mark.parametrize(
    "command",
    [
        "aggregate --accept-proposals --dry-run",
        "aggregate --dry-run",
        "aggregate --propose --dry-run",
        "aggregate --propose --limit 3",
        "aggregate --limit 0",
        "aggregate --submit",
        "aggregate --propose --collect",
        "aggregate --no-calls",
        "aggregate --retry-failed",
        "aggregate --show",
    ],
)
def test_options_of_a_model_are_refused_where_none_is_asked(world: World, command: str):
    build = world.build("tag")
    if "--propose" not in command:
        build("aggregate --propose")
    (option,) = {word for word in command.split() if word[:2] == "--"} - {"--propose", "--accept-proposals"}
    assert build.refused(command).startswith(f"{option}: nothing is asked of a model here; it goes with --propose")


def test_looking_ahead_to_the_models_groups_writes_no_map(world: World):
    build = world.build("tag", aggregate={"by": "model"})
    before = tree(build.path)
    assert "propose: 1 calls to generator-1" in build("aggregate --propose --dry-run").out
    assert tree(build.path) == before
    assert build.refused("aggregate --accept-proposals --dry-run").startswith("--dry-run: nothing is asked")


# ------------------------------------------------------------------ a limit and a budget
def test_a_limit_that_the_money_does_not_reach_is_an_error(world: World):
    one = (USAGE["tag"][0] * 1.25 + USAGE["tag"][1] * 10) / 1e6
    build = world.build("new", generator={**PRICES, "budget_usd": round(one * 6, 6)})
    said = build("tag --limit 20", code=1)
    done = build.counts("tag")["ok"]
    assert 0 < done < 20 and f"conceptguard: {20 - done} rows are not run" in said.err
    assert build.record("tag")["reasons"] == {
        "not asked: the budget is used up": 20 - done,
        "not asked: beyond --limit 20": 20,
    }
    build.set(generator={"budget_usd": 1.0})
    said = build("tag --limit 20")  # those beyond the limit are no error
    assert build.counts("tag") == {"ok": 20, "not_run": 20} and said.err.count("conceptguard:") == 0


# ------------------------------------------------------------------ the source
@pytest.mark.parametrize(
    "content", [None, '{"prompt": "a", "rejected": ""}\n', '{"text": "a"}\n'], ids=["none", "faulty", "other"]
)
def test_init_with_a_source_that_cannot_be_used_writes_nothing(world: World, tmp_path: Path, content: str | None):
    source = tmp_path / "prompts.jsonl"
    if content is not None:
        source.write_text(content)
    said = conceptguard("build", "init", tmp_path / "new", "--source", source)
    assert said.code == 1 and said.err.count("\n") == 1 and "prompts.jsonl" in said.err
    assert not (tmp_path / "new").exists()


def test_rows_that_are_left_out_are_counted_and_listed(world: World, tmp_path: Path):
    rows = list(source_rows())
    lines = [json.dumps(row) for row in [*rows, rows[3], {**rows[5], "rejected": " "}, rows[3]]]
    source = tmp_path / "deep" / "prompts.jsonl"
    source.parent.mkdir()
    source.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    build = world.build("tag", source=str(source), faulty_rows="skip")
    assert build.asking("tag") == {}  # the rows are those of before
    assert build.record("tag")["left_out"] == 3 and build.record("tag")["rows_in"] == 40
    assert build.status()["tag"]["state"] == "done"


# ------------------------------------------------------------------ the judge's own templates
def own_rubric(folder: Path) -> Path:
    """A rubric of the user's own, of version 9, and a judge.yaml beside it that names its folder."""
    text = (ROOT / "templates" / "judge" / "harm.j2").read_text(encoding="utf-8")
    (folder / "rubrics" / "judge").mkdir(parents=True)
    (folder / "rubrics" / "judge" / "harm.j2").write_text(
        text.replace("version: ", "version: 9", 1).replace("{% block user -%}", "{% block user -%}\nRead it twice.", 1),
        encoding="utf-8",
    )
    return judge_file(folder, templates=str(folder / "rubrics"))


def test_the_rubric_is_that_of_the_judges_settings_and_recorded(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    build = world.build("aggregate")
    monkeypatch.setenv("CG_JUDGE_CONFIG", str(own_rubric(tmp_path)))
    build("benign")
    asked = [call for call in build.server.calls if call.stage == "harm"]
    assert len(asked) == 30 and all("Read it twice." in call.outside for call in asked)
    judge = build.record("benign")["judge"]
    version = judge["version"]
    assert version.startswith("9") and len(judge.pop("sha256")) == 64
    assert judge == {
        "model": "judge-1",
        "base_url": build.server.url,
        "rubric": "harm",
        "version": version,
    }
    build("queries")
    build(f"assemble --out {tmp_path / 'out'}")
    manifest = json.loads((tmp_path / "out" / "build" / "manifest.json").read_text(encoding="utf-8"))
    stages = {stage["stage"]: stage for stage in manifest["stages"]}
    assert stages["benign"]["judge"] == build.record("benign")["judge"] and stages["tag"]["judge"] is None
    assert f"rubric `harm` version {version}." in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    monkeypatch.delenv("CG_JUDGE_CONFIG")
    assert "the harm rubric changed since 'benign'" in build.refused("queries")


def test_a_judges_file_that_is_named_is_named_in_the_stages_after(world: World, tmp_path: Path):
    build = world.build("aggregate")
    file = own_rubric(tmp_path)
    build(f"benign --judge {file}")
    assert "the harm rubric changed since 'benign'" in build.refused("queries")
    build(f"review export benign --share 0.2 --judge {file}")
    build(f"review import benign {' '.join(map(str, filled_sheets(build.path / 'review' / 'benign')))}")
    build(f"queries --judge {file}")
    assert {row["stage"]: row["state"] for row in json.loads(build(f"status --json --judge {file}").out)}[
        "benign"
    ] == "done"
    build(f"assemble --out {tmp_path / 'out'} --judge {file}")


# ------------------------------------------------------------------ after a review
def reviewed(build: Build, label: str, number: int = 0) -> str:
    """A first round of counterparts, one of which is marked so; its id."""
    at = build.path / "review" / "benign"
    if not at.exists():
        build("review export benign")
    chosen = sheet_ids(at)[number]
    build(f"review import benign {' '.join(map(str, filled_sheets(at, labels={chosen: label})))}")
    return chosen


def test_marks_that_are_put_right_bring_the_first_reply_back(world: World):
    build = world.build("benign")
    chosen = reviewed(build, "reject")
    assert build.asking("benign") == {"benign": 1, "harm": 1}
    again = {row["pair_id"]: row for row in build.rows("benign")}[chosen]
    assert again["made"]["faults"] == ["rejected: by review"]
    reviewed(build, "accept")
    assert build.asking("benign") == {}
    assert build.bytes("benign") == world.unbroken("benign")


def test_counterparts_that_nobody_has_seen_are_reminded_of(world: World):
    build = world.build("benign")
    chosen = reviewed(build, "reject")
    build("benign")
    said = build("queries --dry-run")
    assert said.err == (
        "conceptguard: 1 counterparts were written again since they were reviewed, and nobody has seen them: "
        f"conceptguard build review export {build.path} benign --again\n"
    )
    at = build.review("benign", again=True)
    assert sheet_ids(at) == [chosen]
    assert build("queries --dry-run").err == ""
    build("queries")


def test_a_counterpart_of_the_last_attempt_is_written_again_without_being_retried(world: World):
    build = world.build("benign")
    build.set(benign={"attempts": 1})
    build("benign --no-calls")
    reviewed(build, "reject")
    assert build.asking("benign") == {"benign": 1, "harm": 1}
    assert build.counts("benign") == {"ok": 30}


# ------------------------------------------------------------------ an edit that asks for nothing
def test_a_remark_in_a_prompt_asks_for_nothing_and_another_version_for_everything(world: World):
    build = world.build("tag")
    text = (ROOT / "templates" / "construction" / "tag.j2").read_text(encoding="utf-8")
    own = build.path / "own" / "construction"
    own.mkdir(parents=True)
    (own / "tag.j2").write_text(text.replace("{% block user", "{# a remark #}{% block user", 1), encoding="utf-8")
    build.set(templates="own")
    assert "the prompt tag.j2 changed since 'tag'" in build.refused("aggregate --propose")
    assert build.asking("tag") == {}
    assert build.record("tag")["prompt"]["version"] == "1"
    (own / "tag.j2").write_text(text.replace("version: 1\n", "version: 2\n", 1), encoding="utf-8")
    assert build.asking("tag --limit 5") == {"tag": 5}

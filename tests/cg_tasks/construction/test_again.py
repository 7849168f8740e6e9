"""What an edit costs: a parser nothing, a prompt the calls that depend on it; and what is stale is refused with the way out."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import generator_script as script
import pytest
from construction_builds import filled_sheets, sheet_ids
from generator_script import Asked, Fault, benign_of, source_rows
from judge_server import Say
from support import ROOT
from whole_builds import DONE, Build, World, check_rows, check_secrets, world_for

from cg_tasks.construction.text import checks


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with world_for(monkeypatch, tmp_path) as found:
        yield found


def without_parse(build: Build, stage: str) -> list[dict[str, Any]]:
    """The rows but for what read them."""

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: kept(inner) for name, inner in value.items() if name != "parse_sha256"}
        return value

    return [kept(row) for row in build.rows(stage)]


def edited_prompt(build: Build, name: str) -> None:
    """A prompt of the user's own: the shipped one with another sentence and a higher version."""
    text = (ROOT / "templates" / "construction" / f"{name}.j2").read_text(encoding="utf-8")
    text = text.replace("version: 1\n", "version: 2\n", 1)
    text = text.replace("{% block system %}", "{% block system %}Take care with every word. ", 1)
    folder = build.path / "own" / "construction"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.j2").write_text(text, encoding="utf-8")
    build.set(templates="own")


def edited_module(monkeypatch: pytest.MonkeyPatch, module: Any, old: str, new: str) -> None:
    """Edit a module's code: what it does, and its source as it is hashed."""
    getsource = inspect.getsource
    source = getsource(module)
    assert source.count(old) == 1
    namespace = dict(vars(module))
    exec(compile(source.replace(old, new), str(module.__file__), "exec"), namespace)  # noqa: S102
    for name, value in namespace.items():
        if inspect.isfunction(value):
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(
        inspect, "getsource", lambda thing: source.replace(old, new) if thing is module else getsource(thing)
    )


# ------------------------------------------------------------------ parsers
def test_editing_a_parser_makes_no_call_and_the_stages_follow(world: World, monkeypatch: pytest.MonkeyPatch):
    build = world.build("queries")
    before = {stage: without_parse(build, stage) for stage in DONE[1:]}
    edited_module(
        monkeypatch, checks, 'raise Faulty("too_long", f"{length}', 'raise Faulty("too_long", f"it has {length}'
    )
    assert "how replies are read changed since 'tag'" in build.refused("queries")
    for stage in DONE[1:]:
        assert build.asking(stage) == {}
        assert without_parse(build, stage) == before[stage]
    assert all(row["made"]["parse_sha256"] for row in build.rows("benign"))
    assert {row["state"] for row in build.status().values()} == {"done"}


def test_a_parser_that_takes_more_takes_earlier_replies(world: World, monkeypatch: pytest.MonkeyPatch):
    build = world.build("benign")
    build.server.faults = [Fault("query", "shared_words", row=0, intent="harmful")]
    assert build.asking("queries") == {"query": 61}
    second = build.row("queries", 0)
    assert second["made_harmful"]["faults"] == ["overlap: 5 or more words in a row shared"]
    edited_module(monkeypatch, checks, "if shares_run(reference, text, n):", "if False:")
    for stage in DONE[1:]:
        assert build.asking(stage) == {}
    first = build.row("queries", 0)
    assert first["made_harmful"]["attempts"] == 1 and first["made_harmful"]["faults"] == []
    assert first["harmful_query"] != second["harmful_query"] and first["status"] == "ok"


def test_a_setting_that_only_reads_makes_no_call(world: World):
    build = world.build("queries")
    before = {stage: without_parse(build, stage) for stage in ("benign", "queries")}
    build.set(benign={"overlap": 0.6}, queries={"max_words": 90})
    assert "how replies are read changed since 'benign'" in build.refused("queries")
    for stage in ("benign", "queries"):
        assert build.asking(stage) == {}
        assert without_parse(build, stage) == before[stage]


def test_a_length_that_the_prompt_asks_for_is_another_question(world: World):
    build = world.build("benign", benign={"max_words": 260})
    assert build.asking("benign") == {"benign": 30}  # the judge has read these words


def test_a_limit_that_is_raised_takes_a_reply_that_was_too_long(world: World):
    build = world.build("benign")
    build.server.faults = [Fault("query", "too_long", nth=None, row=4, intent="benign")]
    build("queries", code=1)
    row = build.row("queries", 4)
    assert row["status"] == "failed" and row["reason"].startswith("too_long") and row["benign_query"] is None
    build.set(queries={"max_words": 400})
    assert build.asking("queries") == {}
    row = build.row("queries", 4)
    assert (row["status"], row["made_benign"]["attempts"]) == ("ok", 1)


def test_a_stricter_check_asks_again_for_the_rows_that_fail_it_alone(world: World):
    build = world.build("queries")
    before = {row["pair_id"]: row for row in without_parse(build, "queries")}
    longest = {name: max(len(row[f"{i}_query"].split()) for i in ("harmful", "benign")) for name, row in before.items()}
    limit = max(length for length in longest.values() if length < max(longest.values()))
    above = {name for name, length in longest.items() if length > limit}
    assert 1 <= len(above) <= 10
    build.set(queries={"max_words": limit, "attempts": 1})
    assert build.asking("queries", code=1) == {}
    after = {row["pair_id"]: row for row in without_parse(build, "queries")}
    assert {name for name, row in after.items() if row["status"] == "failed"} == above
    assert {name for name, row in after.items() if row != before[name]} == above
    check_rows(build)
    build.set(queries={"attempts": 8})
    assert build.asking("queries")["query"] >= len(above)
    after = {row["pair_id"]: row for row in without_parse(build, "queries")}
    assert {name for name, row in after.items() if row != before[name]} == above
    assert build.counts("queries") == {"ok": 30}


def test_the_judges_level_is_read_from_the_replies_at_hand(world: World):
    build = world.build("aggregate")
    build.server.hook = lambda asked: (
        script.said(asked, {"reasoning": "Hm.", "level": 1}, "") if judged(asked, 7) else None
    )
    build("benign")
    assert build.row("benign", 7)["made"]["faults"] == ["harmful: the judge's level is 1"]
    build.server.hook = None
    build.set(benign={"highest_harm": 1})
    assert build.asking("benign") == {}
    row = build.row("benign", 7)
    assert (row["harm_level"], row["made"]["attempts"], row["made"]["faults"]) == (1, 1, [])


def judged(asked: Asked, row: int) -> bool:
    """Whether the judge is asked about the first counterpart of a source row."""
    own = source_rows()[row]
    return asked.stage == "harm" and asked.data["RESPONSE"] == benign_of(own["prompt"], own["rejected"])["response"]


# ------------------------------------------------------------------ prompts
def test_editing_the_tag_prompt_asks_for_tags_and_for_what_changed_with_them(world: World):
    build = world.build("queries")
    old = {stage: build.bytes(stage) for stage in DONE[1:]}
    edited_prompt(build, "tag")
    for stage in ("benign", "queries", "aggregate"):
        said = build.refused(stage)
        assert said.endswith(
            f"the prompt tag.j2 changed since 'tag': run conceptguard build tag {build.path} again (replies at hand cost nothing)"
        )
    assert build.status()["tag"]["state"] == "stale: the prompt tag.j2 changed"
    assert build.asking("tag") == {"tag": 40}
    assert build.record("tag")["prompt"]["version"] == "2"
    assert "the rows of tag changed since 'aggregate': run conceptguard build aggregate" in build.refused("benign")
    for stage in ("aggregate", "benign", "queries"):
        assert build.asking(stage) == {}
        assert build.bytes(stage) == old[stage]


def test_a_row_whose_concept_changed_is_written_anew_and_no_other(world: World):
    build = world.build("queries")
    number = next(i for i, row in enumerate(source_rows()) if script.tag_of(row["prompt"]) == "dream-ink writing")
    prompt = source_rows()[number]["prompt"]
    old = {row["pair_id"]: row for row in build.rows("queries")}

    def hook(asked: Asked) -> Say | None:
        if asked.stage != "tag" or asked.data["PROMPT"] != prompt:
            return None
        return script.said(asked, {"reason": "So.", "dual_use": True, "concept": "lamp-milk distilling"}, "")

    build.server.hook = hook
    edited_prompt(build, "tag")
    assert build.asking("tag") == {"tag": 40}
    assert "the map is of other rows: propose a new one" in build.refused("aggregate")
    (build.path / "merge.yaml").rename(build.path / "merge.old.yaml")
    (build.path / "review" / "aggregate").rename(build.path / "review" / "old")
    build("aggregate --propose")
    build.review("aggregate")
    assert build.asking("aggregate") == {}
    changed = build.row("aggregate", number)["pair_id"]
    assert build.asking("benign")["benign"] == 1
    assert build.asking("queries") == {"query": 2}
    new = {row["pair_id"]: row for row in build.rows("queries")}
    assert {name for name in new if new[name] != old[name]} == {changed}
    check_rows(build)


def test_editing_the_benign_prompt_asks_for_counterparts_and_for_what_changed_with_them(world: World):
    build = world.build("queries")
    old = {row["pair_id"]: row for row in build.rows("queries")}
    own = source_rows()[5]

    def hook(asked: Asked) -> Say | None:
        if asked.stage != "benign" or asked.data["PROMPT"] != own["prompt"]:
            return None
        return script.said(asked, benign_of(own["prompt"], own["rejected"], "said in another way"), "")

    build.server.hook = hook
    edited_prompt(build, "benign")
    assert "the prompt benign.j2 changed since 'benign'" in build.refused("queries")
    assert build.asking("benign") == {"benign": 30, "harm": 1}  # the others are word for word what the judge has read
    assert build.asking("queries") == {"query": 1}
    new = {row["pair_id"]: row for row in build.rows("queries")}
    (changed,) = (name for name in new if new[name] != old[name])
    assert new[changed]["harmful_prompt"] == own["prompt"]
    assert new[changed]["harmful_query"] == old[changed]["harmful_query"]


def test_editing_the_query_prompt_asks_for_queries_alone(world: World):
    build = world.build("queries")
    edited_prompt(build, "query")
    assert build.asking("tag") == build.asking("aggregate") == build.asking("benign") == {}
    assert build.asking("queries") == {"query": 60}
    assert "the prompt query.j2 changed" not in json.dumps(build.status())
    check_secrets(build)


def test_editing_the_judges_rubric_asks_the_judge_alone(world: World):
    build = world.build("benign")
    text = (ROOT / "templates" / "judge" / "harm.j2").read_text(encoding="utf-8")
    folder = build.path / "own" / "judge"
    folder.mkdir(parents=True)
    (folder / "harm.j2").write_text(text.replace("version: 1", "version: 2", 1), encoding="utf-8")
    build.set(templates="own")
    assert build.asking("tag") == {}
    assert build.asking("benign") == {"harm": 30}


def test_a_prompt_brought_back_brings_its_replies_back(world: World):
    build = world.build("tag")
    old = build.bytes("tag")
    edited_prompt(build, "tag")
    assert build.asking("tag") == {"tag": 40}
    build.set(templates=None)
    assert build.asking("tag") == {}
    assert build.bytes("tag") == old


def test_a_rejection_that_is_taken_back_brings_the_reply_back(world: World):
    build = world.build("benign")
    old = build.bytes("benign")
    build("review export benign")
    at = build.path / "review" / "benign"
    for labels, asked in (({sheet_ids(at)[0]: "reject"}, {"benign": 1, "harm": 1}), ({}, {})):
        build(f"review import benign {' '.join(map(str, filled_sheets(at, labels=labels)))}")
        assert build.asking("benign") == asked
        assert (build.bytes("benign") == old) == (not labels)


def test_another_model_or_another_parameter_is_another_question_and_a_key_or_a_timeout_is_not(world: World):
    build = world.build("tag")
    build.set(generator={"timeout": 50, "concurrency": 3, "price_input": 1.0, "price_output": 2.0})
    assert build.asking("tag") == {}
    build.set(generator={"params": {"temperature": 0.5}})
    assert build.asking("tag --limit 2") == {"tag": 2}
    build.set(generator={"params": {}, "model": "generator-2"})
    assert build.asking("tag --limit 2") == {"tag": 2}


# ------------------------------------------------------------------ stale
def test_a_source_that_grew_is_asked_about_its_new_rows_alone(world: World, tmp_path: Path):
    source = tmp_path / "grown.jsonl"
    rows = [json.dumps(row) for row in source_rows()]
    source.write_text("\n".join(rows[:30]) + "\n", encoding="utf-8")
    build = world.build("new", source=str(source))
    assert build.asking("tag") == {"tag": 30}
    source.write_text("\n".join(reversed(rows)) + "\n", encoding="utf-8")
    assert "the source changed since 'tag'" in build.refused("aggregate --propose")
    assert build.asking("tag") == {"tag": 10}


def test_rows_that_somebody_edited_are_refused(world: World):
    build = world.build("benign")
    path = build.path / "stages" / "benign.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace('"harm_level":0', '"harm_level":1', 1), encoding="utf-8")
    said = build.refused("queries")
    assert said == f"{path}: was changed by hand: run conceptguard build benign {build.path} again"
    assert build.asking("benign") == {}
    build("queries")


def test_an_edited_merge_map_and_another_rule_are_stale(world: World):
    build = world.build("benign")
    path = build.path / "merge.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("parent: dream-ink writing", "parent: dream writing"))
    assert "merge.yaml changed since 'aggregate': run conceptguard build aggregate" in build.refused("queries")
    assert "merge.yaml changed since 'aggregate'" in build.refused("benign")
    build("aggregate")
    assert "the rows of aggregate changed since 'benign'" in build.refused("queries")
    n = sum(row["concept"] == "dream writing" for row in build.rows("aggregate"))
    assert n and build.asking("benign")["benign"] == n
    build.set(aggregate={"smallest": 6})
    assert "the rule changed since 'aggregate'" in build.refused("queries")
    assert "the rule is not the one of aggregate in build.yaml: make them the same" in build.refused("aggregate")


def test_a_review_under_way_holds_the_next_stage_back_and_marks_count_once_they_are_in(world: World):
    build = world.build("queries")
    build("review export tag")
    said = build.refused("aggregate")
    assert "no marks have come back: conceptguard build review import" in said and "or remove the folder" in said
    again = world.build("queries")
    again("review export benign")
    assert "no marks have come back" in again.refused("queries")


def test_a_rejected_tag_row_leaves_the_build(world: World):
    build = world.build("queries")
    number = next(i for i, row in enumerate(source_rows()) if script.tag_of(row["prompt"]) == "ward sigil carving")
    chosen = build.row("tag", number)["pair_id"]
    build("review export tag --share 1.0")
    at = build.path / "review" / "tag"
    build(f"review import tag {' '.join(map(str, filled_sheets(at, labels={chosen: 'unclear'})))}", code=1)
    assert "the review of tag changed since 'aggregate'" in build.refused("benign")
    assert "the map is of other rows" in build.refused("aggregate")
    path = build.path / "merge.yaml"
    path.write_text(
        path.read_text(encoding="utf-8").replace(
            "concept: ward sigil carving, samples: 5", "concept: ward sigil carving, samples: 4"
        )
    )
    build("aggregate")
    row = build.row("aggregate", number)
    assert (row["status"], row["reason"]) == ("dropped", "review: unclear")
    assert build.asking("benign") == {} and build.asking("queries") == {}
    assert build.counts("queries") == {"ok": 29}

"""The stages in their order: what each depends on, and which one is named when something before it has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from construction_builds import filled_sheets
from construction_parts import (
    aggregate_row,
    benign_row,
    lamps,
    small_build,
    tag_row,
    write_jsonl,
    write_stage,
)

from cg_tasks.construction.chain import MODEL_STAGES, made_from, model_stage, require_before, rows_in
from cg_tasks.construction.folder import STAGES, BuildFolder
from cg_tasks.construction.queries import QueriesRow
from cg_tasks.construction.review.stages import export_review, take_marks
from cg_tasks.errors import UserError


@pytest.fixture
def built(tmp_path: Path) -> BuildFolder:
    """All stages done: three rows tagged, two kept, one of them with a counterpart."""
    folder = small_build(tmp_path / "build")
    folder.merge_file.write_text("a map\n")
    write_stage(folder, "tag", [tag_row(i) for i in range(3)])
    write_stage(folder, "aggregate", [aggregate_row(0), aggregate_row(1)])
    row = benign_row(0)
    failed = benign_row(1, status="failed", reason="cut_off", benign_prompt=None, benign_response=None)
    write_stage(folder, "benign", [row, failed])
    shared = row.model_dump(
        include={"pair_id", "concept", "harmful_prompt", "harmful_response", "benign_prompt", "benign_response"}
    )
    write_stage(folder, "queries", [QueriesRow(status="ok", harmful_query="q", benign_query="b", **shared)])
    return folder


def again(folder: BuildFolder, **settings: object) -> BuildFolder:
    """The same folder with other settings."""
    return small_build(folder.path, **settings)


def refused(folder: BuildFolder, stage: str = "assemble") -> str:
    with pytest.raises(UserError) as caught:
        require_before(folder, stage)
    return str(caught.value).replace(str(folder.path), "DIR")


def test_each_stage_asks_for_all_before_it(built: BuildFolder) -> None:
    before = {stage: list(require_before(built, stage)) for stage in (*STAGES, "assemble")}
    assert before == {
        "tag": [],
        "aggregate": ["tag"],
        "benign": ["tag", "aggregate"],
        "queries": ["tag", "aggregate", "benign"],
        "assemble": ["tag", "aggregate", "benign", "queries"],
    }


def test_what_each_stage_depends_on(built: BuildFolder) -> None:
    asked = ["the language", "how replies are read"]
    assert {stage: list(made_from(built, stage)) for stage in STAGES} == {
        "tag": ["the source", "the prompt tag.j2", *asked],
        "aggregate": ["the rows of tag", "the review of tag", "merge.yaml", "the rule"],
        "benign": [
            "the rows of aggregate",
            "the prompt benign.j2",
            *asked,
            "what the review turned down",
            "the harm rubric",
        ],
        "queries": ["the rows of benign", "the review of benign", "the prompt query.j2", *asked],
    }


def test_the_first_stage_that_has_not_run_is_named(tmp_path: Path) -> None:
    folder = small_build(tmp_path / "build")
    assert refused(folder) == "DIR: the stage 'tag' has not run: run conceptguard build tag DIR"
    write_stage(folder, "tag", [tag_row(0)])
    assert refused(folder) == "DIR: the stage 'aggregate' has not run: run conceptguard build aggregate DIR"


def _source(folder: BuildFolder) -> BuildFolder:
    write_jsonl(folder.path / "source.jsonl", lamps(4))
    return folder


def _map(folder: BuildFolder) -> BuildFolder:
    folder.merge_file.write_text("another map\n")
    return folder


def _tags(folder: BuildFolder) -> BuildFolder:
    write_stage(folder, "tag", [tag_row(i, "wick craft") for i in range(3)])
    return folder


def _rejected(folder: BuildFolder) -> BuildFolder:
    export_review(folder, "benign", share=1.0)
    take_marks(folder, "benign", filled_sheets(folder.review_folder("benign"), labels={"p0": "reject"}))
    return folder


def _by_hand(folder: BuildFolder) -> BuildFolder:
    path = folder.rows_file("queries")
    path.write_bytes(path.read_bytes() + b"\n")
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_source, "DIR: the source changed since 'tag': run conceptguard build tag DIR again"),
        (_tags, "DIR: the rows of tag changed since 'aggregate': run conceptguard build aggregate DIR again"),
        (_map, "DIR: merge.yaml changed since 'aggregate': run conceptguard build aggregate DIR again"),
        (
            lambda folder: again(folder, aggregate={"smallest": 2}),
            "DIR: the rule changed since 'aggregate': run conceptguard build aggregate DIR again",
        ),
        (_rejected, "DIR: what the review turned down changed since 'benign': run conceptguard build benign DIR again"),
        (
            lambda folder: again(folder, benign={"copied": 0.7}),
            "DIR: how replies are read changed since 'benign': run conceptguard build benign DIR again",
        ),
        (
            lambda folder: again(folder, benign={"overlap": 0.4}),
            "DIR: how replies are read changed since 'benign': run conceptguard build benign DIR again",
        ),
        (
            lambda folder: again(folder, queries={"attempts": 9}),
            "DIR: how replies are read changed since 'queries': run conceptguard build queries DIR again",
        ),
        (
            lambda folder: again(folder, language="German", language_code="de"),
            "DIR: the language changed since 'tag': run conceptguard build tag DIR again",
        ),
        (_by_hand, "DIR/stages/queries.jsonl: was changed by hand: run conceptguard build queries DIR again"),
    ],
)
def test_a_change_is_found_at_the_first_stage_it_concerns(
    built: BuildFolder, change: Callable[[BuildFolder], BuildFolder], said: str
) -> None:
    assert refused(change(built)).startswith(said)


def test_what_does_not_concern_a_stage_leaves_it_fresh(built: BuildFolder) -> None:
    more = {"review": {"share": 0.5}, "assemble": {"name": "x"}, "generator": {"model": "other"}}
    require_before(again(built, **more), "assemble")
    require_before(again(built, queries={"attempts": 9}), "queries")  # concerns what comes after only


def test_rows_in_are_those_of_the_stage_before_that_are_ok(built: BuildFolder) -> None:
    before = require_before(built, "assemble")
    counts = {name: rows_in(model_stage(built, name, {}), before) for name in MODEL_STAGES}
    assert counts == {"tag": 3, "benign": 2, "queries": 1}

"""A build that is done, as a data set: its manifest says what the records say."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from assembling import MINIATURE, queries_row
from construction_builds import filled_sheets
from construction_parts import GENERATOR, JUDGE, made, reply, small_build, tag_row, write_jsonl, write_stage

from cg_tasks.construction.benign import BenignRow
from cg_tasks.construction.dataset.assemble import Assembled
from cg_tasks.construction.dataset.finishing import finish
from cg_tasks.construction.engine.replies import Replies
from cg_tasks.construction.folder import STAGES, BuildFolder, file_hash
from cg_tasks.construction.grouping.aggregate import AggregateRow
from cg_tasks.construction.grouping.applying import apply_map, propose
from cg_tasks.construction.grouping.concepts import concepts
from cg_tasks.construction.grouping.proposals import Group
from cg_tasks.construction.queries import QueriesRow
from cg_tasks.construction.review.stages import export_review, take_marks
from cg_tasks.construction.rows import StageRow
from cg_tasks.construction.tag import TagRow
from cg_tasks.errors import UserError
from cg_tasks.pairs import load_pairs

PAIRS = MINIATURE[:12]
PROMPT = {"name": "tag", "version": "1", "sha256": "0123456789abcdef" * 4}
PRICES: Any = {
    "generator": GENERATOR.model_copy(update={"price_input": 1.0, "price_output": 10.0}),
    "judge": JUDGE.model_copy(update={"price_input": 2.0, "price_output": 20.0}),
}


def tags() -> list[StageRow]:
    """The pairs by their concept, a prompt that is not dual-use, and one without a tag."""
    failed = TagRow(
        pair_id="x-failed", status="failed", reason="cut_off (attempt 3; so far: cut_off)", prompt="p", response="r"
    )
    rows = [
        tag_row("", p.concept, pair_id=p.pair_id, prompt=f"prompt of {p.pair_id}", response=p.harmful_response)
        for p in PAIRS
    ]
    return [*rows, tag_row("", None, pair_id="x-narrow"), failed]


def benign(row: AggregateRow) -> BenignRow:
    pair = next(p for p in PAIRS if p.pair_id == row.pair_id)
    return BenignRow(
        pair_id=row.pair_id,
        status="ok",
        concept=str(row.concept),
        harmful_prompt=row.prompt,
        harmful_response=row.response,
        benign_prompt="not in the data set",
        benign_response=pair.benign_response,
        harm_level=0,
        made=made(f"b-{row.pair_id}"),
    )


def finished_queries(folder: BuildFolder) -> list[QueriesRow]:
    kept = {row.pair_id: row for row in folder.rows("benign", BenignRow) if row.status == "ok"}
    return [queries_row(p, concept=kept[p.pair_id].concept) for p in PAIRS if p.pair_id in kept]


@pytest.fixture
def folder(tmp_path: Path) -> BuildFolder:
    """All stages done; every concept of the miniature pairs is a group of its own, whatever its size."""
    found = small_build(
        tmp_path / "build", aggregate={"smallest": 1}, assemble={"name": "sigils", "license": "cc-by-4.0"}
    )
    write_stage(found, "tag", tags(), rows_in=14, model="generator-1", prompt=PROMPT, models_returned={"g-2026": 14})
    counts = concepts(found)
    propose(found, counts, [Group(name, (name,)) for name in counts], "generator-1")
    apply_map(found, accept=True)
    rest_of_chain(found)
    return found


def rest_of_chain(folder: BuildFolder, lost: str = "") -> None:
    """benign and queries. lost: the row that has no counterpart."""
    kept = [row for row in folder.rows("aggregate", AggregateRow) if row.status == "ok"]
    rows = [
        benign(row)
        if row.pair_id != lost
        else benign(row).model_copy(
            update={"status": "failed", "reason": "too_short: 9 words", "benign_prompt": None, "benign_response": None}
        )
        for row in kept
    ]
    write_stage(folder, "benign", rows, rows_in=len(kept), model="generator-1", prompt={**PROMPT, "name": "benign"})
    write_stage(
        folder,
        "queries",
        finished_queries(folder),
        rows_in=len(kept),
        model="generator-1",
        prompt={**PROMPT, "name": "query"},
    )


def built(folder: BuildFolder, out: Path, **options: Any) -> tuple[Assembled, dict[str, Any]]:
    done = finish(folder, out, PRICES, **{"allow_missing": True, **options})
    return done, json.loads((out / "build" / "manifest.json").read_text(encoding="utf-8"))


def refused(folder: BuildFolder, out: Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        finish(folder, out, PRICES, **options)
    assert not out.exists()
    return str(caught.value).replace(str(folder.path), "DIR")


def test_the_pairs_are_those_of_the_last_stage(folder: BuildFolder, tmp_path: Path) -> None:
    done, manifest = built(folder, tmp_path / "out")
    assert [p.pair_id for p in done.pairs] == sorted(p.pair_id for p in PAIRS)
    assert load_pairs(str(tmp_path / "out")).sha256 == manifest["pairs"]["content_sha256"]
    assert manifest["pairs"]["count"] == 12 and manifest["pairs"]["concepts"] == len({p.concept for p in PAIRS})
    assert (manifest["name"], manifest["license"], manifest["language_code"]) == ("sigils", "cc-by-4.0", "en")


def test_each_stage_is_told_as_its_record_tells_it(folder: BuildFolder, tmp_path: Path) -> None:
    _, manifest = built(folder, tmp_path / "out")
    stages = {stage["stage"]: stage for stage in manifest["stages"]}
    assert list(stages) == [*STAGES, "assemble"]
    before = None
    for name in STAGES:
        record, told = folder.record(name), stages[name]
        assert record is not None
        counts = {status: told["rows"][status] for status in ("ok", "failed", "dropped", "not_run")}
        assert {status: n for status, n in counts.items() if n} == record.rows
        assert told["rows"]["in"] == record.rows_in and told["reasons"] == dict(sorted(record.reasons.items()))
        assert told["model"] == record.model and told["models_returned"] == record.models_returned
        assert (told["started"], told["finished"]) == (record.started, record.finished)
        assert told["output_sha256"] == record.output_sha256 == file_hash(folder.rows_file(name))
        assert told["input_sha256"] == (before or record.made_from["the source"])
        before = record.output_sha256
    assert stages["tag"]["prompt"] == PROMPT and stages["aggregate"]["prompt"] is None
    assert stages["tag"]["reasons"] == {"cut_off": 1} and stages["benign"]["attempts"] == {"1": 12}
    assert stages["aggregate"]["rows"] == {"in": 14, "ok": 12, "failed": 0, "dropped": 2, "not_run": 0}


def test_source_settings_and_map(folder: BuildFolder, tmp_path: Path) -> None:
    _, manifest = built(folder, tmp_path / "out")
    record = folder.record("tag")
    assert record is not None
    source = manifest["source"]
    assert (source["name"], source["sha256"], source["rows"]) == ("source.jsonl", record.made_from["the source"], 14)
    assert manifest["settings"]["aggregate"]["smallest"] == 1 and "generator" not in manifest["settings"]
    merge = manifest["merge_map"]
    assert merge["sha256"] == file_hash(folder.merge_file) == file_hash(tmp_path / "out" / "build" / "merge.yaml")
    kept = len({p.concept for p in PAIRS})
    assert (merge["reviewed"], merge["groups_kept"], merge["groups_dropped"]) == (False, kept, 0)
    assert str(folder.path) not in (tmp_path / "out" / "build" / "manifest.json").read_text()


def test_calls_and_money_are_those_of_the_replies(folder: BuildFolder, tmp_path: Path) -> None:
    with Replies(folder.replies_file) as replies:
        replies.put("tag/1", reply(usage=(1000, 100)))
        replies.put("benign/1", reply(usage=(1000, 400)))
        replies.put("benign-judge/1", reply(usage=(1000, 50), model="judge-2026"))
    _, manifest = built(folder, tmp_path / "out")
    stages = {stage["stage"]: stage for stage in manifest["stages"]}
    assert (stages["tag"]["calls"], stages["tag"]["prompt_tokens"], stages["tag"]["completion_tokens"]) == (
        1,
        1000,
        100,
    )
    assert stages["tag"]["usd"] == pytest.approx(0.001 + 0.001)
    assert stages["benign"]["usd"] == pytest.approx(0.001 + 0.004 + 0.002 + 0.001)
    assert stages["benign"]["judges_returned"] == {"judge-2026": 1}
    assert (stages["queries"]["calls"], stages["queries"]["usd"]) == (0, None)


def test_rows_without_a_result_are_refused_unless_they_may_be_left_out(folder: BuildFolder, tmp_path: Path) -> None:
    said = refused(folder, tmp_path / "out")
    assert said == (
        "DIR: 1 rows of the stage 'tag' are failed: run it with --retry-failed (see conceptguard build status DIR), or leave them "
        "out with --allow-missing"
    )
    rest_of_chain(folder, lost=PAIRS[3].pair_id)
    done, manifest = built(folder, tmp_path / "out")
    assert len(done.pairs) == 11 and manifest["pairs"]["count"] == 11
    with (tmp_path / "out" / "build" / "dropped.csv").open(newline="") as stream:
        dropped = {row["pair_id"]: (row["stage"], row["status"], row["reason"]) for row in csv.DictReader(stream)}
    assert dropped == {
        PAIRS[3].pair_id: ("benign", "failed", "too_short: 9 words"),
        "x-narrow": ("aggregate", "dropped", "not dual-use"),
        "x-failed": ("aggregate", "dropped", "tag: failed (cut_off)"),
    }


def test_a_stage_that_is_stale_or_not_run_is_refused(folder: BuildFolder, tmp_path: Path) -> None:
    folder.merge_file.write_text(folder.merge_file.read_text() + "# a remark\n")
    assert refused(folder, tmp_path / "out", allow_missing=True).startswith("DIR: merge.yaml changed since 'aggregate'")
    new = small_build(tmp_path / "new")
    assert "the stage 'tag' has not run" in refused(new, tmp_path / "out", allow_missing=True)


def test_a_review_is_told_by_its_numbers(folder: BuildFolder, tmp_path: Path) -> None:
    export_review(folder, "benign", share=1.0)
    at = folder.review_folder("benign")
    take_marks(folder, "benign", filled_sheets(at, labels={PAIRS[0].pair_id: "unclear"}))
    write_stage(
        folder, "queries", [row for row in finished_queries(folder) if row.pair_id != PAIRS[0].pair_id], rows_in=12
    )
    done, manifest = built(folder, tmp_path / "out")
    (review,) = manifest["reviews"]
    numbers = {name: review[name] for name in ("kind", "share", "drawn", "drawn_of", "annotators", "raw", "stale")}
    assert numbers == {
        "kind": "benign",
        "share": 1.0,
        "drawn": 12,
        "drawn_of": 12,
        "annotators": 2,
        "raw": 1.0,
        "stale": False,
    }
    assert review["kappa"] == 1.0 and review["labels"] == {"accept": 11, "disagreement": 0, "reject": 0, "unclear": 1}
    assert (tmp_path / "out" / "build" / "agreement_benign.md").read_bytes() == (at / "agreement.md").read_bytes()
    assert "annotator_1" not in json.dumps(manifest) and len(done.pairs) == 11


def test_every_round_of_a_review_is_on_the_card(folder: BuildFolder, tmp_path: Path) -> None:
    export_review(folder, "benign", share=1.0)
    first = PAIRS[0].pair_id
    take_marks(folder, "benign", filled_sheets(folder.review_folder("benign"), labels={first: "reject"}))
    rows = [benign(row) for row in folder.rows("aggregate", AggregateRow) if row.status == "ok"]
    rows = [r.model_copy(update={"made": made("again")}) if r.pair_id == first else r for r in rows]
    write_stage(folder, "benign", rows, rows_in=12)
    export_review(folder, "benign", again=True)
    take_marks(folder, "benign", filled_sheets(folder.path / "review" / "benign-2"))
    write_stage(folder, "queries", finished_queries(folder), rows_in=12)
    _, manifest = built(folder, tmp_path / "out")
    assert [(r["kind"], r["drawn"], r["drawn_of"], r["labels"]["reject"]) for r in manifest["reviews"]] == [
        ("benign", 12, 12, 1),
        ("benign", 1, 1, 0),
    ]
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    (line,) = [line for line in card.splitlines() if line.startswith("* **benign**")]
    assert "12 of 12 (100.0%) by 2 annotators" in line and "reject 1" in line
    assert "A further round: 1 of 1 (100.0%) by 2 annotators" in line
    assert "the rows have changed" not in line  # what was turned down was written again


@pytest.mark.parametrize("place", ["source.jsonl", "absolute", "folder", "rows/"])
def test_rows_of_the_source_that_were_not_read_are_listed(folder: BuildFolder, tmp_path: Path, place: str) -> None:
    (folder.path / "rows").mkdir()
    in_folder = place in ("folder", "rows/")
    at = folder.path / ("rows/some.jsonl" if in_folder else "source.jsonl")
    rows = [{"prompt": "P", "response": "R"}, {"prompt": "SECRET", "response": ""}, {"prompt": "P", "response": "R"}]
    shown = {"absolute": str(at), "folder": str(at.parent)}.get(place, place)
    found = small_build(
        folder.path, rows, source=shown, faulty_rows="skip", aggregate={"smallest": 1}, assemble={"name": "sigils"}
    )
    if in_folder:
        write_jsonl(at, rows)
    write_stage(found, "tag", tags(), rows_in=14, left_out=2)
    apply_map(found)
    rest_of_chain(found)
    _, manifest = built(found, tmp_path / "out")
    source = manifest["source"]
    assert (source["rows"], source["left_out"]) == (14, 2)
    name = "rows/some.jsonl" if in_folder else "source.jsonl"
    assert source["name"] == name.partition("/")[0]
    text = (tmp_path / "out" / "build" / "dropped.csv").read_text(encoding="utf-8")
    left_out = [row for row in csv.DictReader(text.splitlines()) if row["stage"] == "source"]
    assert [(row["pair_id"], row["status"], row["reason"]) for row in left_out] == [
        (f"{name}, line 2", "dropped", "the field 'response' is empty"),
        (f"{name}, line 3", "dropped", "the same prompt and response came before"),
    ]
    for path in (tmp_path / "out").rglob("*.*"):
        assert path.suffix == ".parquet" or str(folder.path) not in path.read_text(encoding="utf-8"), path
    assert "SECRET" not in text

"""40 source rows become a checked data set, through every stage and every review, and the tasks run on it."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from construction_builds import filled_sheets, resolved, sheet_ids
from generator_script import USAGE, source_rows, tag_of
from whole_builds import (
    Build,
    Said,
    World,
    check_rows,
    check_secrets,
    conceptguard,
    shared_windows,
    windows_of,
    world_for,
)

from cg_tasks.construction.dataset.manifest import writers
from cg_tasks.judge.preflight import circularities
from cg_tasks.pairs import load_pairs
from cg_tasks.templates import load_template

PRICES = {"price_input": 1.25, "price_output": 10.0}


class Finished:
    """A build that has come all the way. ids: rows of the tag's sheet; rejected: of the benign one."""

    def __init__(self, world: World, folder: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("CG_JUDGE_PRICE_INPUT", "1")
        monkeypatch.setenv("CG_JUDGE_PRICE_OUTPUT", "5")
        self.server, self.out = world.server, folder / "out"
        source = folder / "prompts.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in source_rows()), encoding="utf-8")
        self.build = build = Build(folder / "mine", world.server)
        build(f"init --source {source} --columns '{json.dumps({'prompt': 'prompt', 'response': 'rejected'})}'")
        server = {
            "model": "generator-1",
            "base_url": world.server.url,
            "timeout": 5,
            "max_retries": 0,
            "concurrency": 8,
        }
        build.set(generator={**server, **PRICES}, assemble={"name": "Oskerry", "license": "cc-by-4.0"})
        build("tag --report")
        self._review_tags()
        build("aggregate --propose")
        build.review("aggregate")
        build("aggregate")
        build("benign")
        self._review_benign()
        build("queries")
        build("status")
        self.assembled: Said = build(f"assemble --out {self.out}")

    def _review_tags(self) -> None:
        """One disagreement, which is talked over, and one row that both turn down."""
        build, at = self.build, self.build.path / "review" / "tag"
        build("review export tag --share 0.3")
        self.ids = sheet_ids(at)
        labels = {self.ids[3]: "reject"}
        sheets = " ".join(map(str, filled_sheets(at, disagree=self.ids[:1], labels=labels)))
        self.open = build(f"review import tag {sheets}", code=1)
        resolved(at)
        self.closed = build(f"review import tag {sheets}")

    def _review_benign(self) -> None:
        """Two counterparts are turned down and written again; one of the new ones as well."""
        build, at = self.build, self.build.path / "review" / "benign"
        build("review export benign")
        self.rejected = sheet_ids(at)[:2]
        before = {row["pair_id"]: row for row in build.rows("benign")}
        sheets = " ".join(map(str, filled_sheets(at, labels=dict.fromkeys(self.rejected, "reject"))))
        self.turned_down = build(f"review import benign {sheets}")
        self.asked_again = build.asking("benign")
        self.changed = {row["pair_id"] for row in build.rows("benign") if row != before[row["pair_id"]]}
        self.second = build.review("benign", again=True, labels={self.rejected[0]: "reject"})
        self.asked_thrice = build.asking("benign")
        self.third = build.review("benign", again=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("finished")
        with world_for(patch, folder) as world:
            yield Finished(world, folder, patch)


# ------------------------------------------------------------------ the stages
def test_every_stage_says_what_became_of_the_rows(finished: Finished):
    status = finished.build.status()
    assert {name: (s["rows_in"], s["rows"]) for name, s in status.items()} == {
        "tag": (40, {"ok": 40}),
        "aggregate": (40, {"ok": 29, "dropped": 11}),
        "benign": (29, {"ok": 29}),
        "queries": (29, {"ok": 29}),
    }
    assert {s["state"] for s in status.values()} == {"done"}
    # 29 counterparts and 3 written again, each of them judged; two queries a pair
    assert {name: s["calls"] for name, s in status.items()} == {"tag": 40, "aggregate": 0, "benign": 64, "queries": 58}
    assert status["benign"]["prompt_tokens"] == 32 * USAGE["benign"][0] + 32 * USAGE["harm"][0]
    assert status["tag"]["usd"] == pytest.approx(40 * (400 * 1.25 + 60 * 10) / 1e6)
    assert status["benign"]["usd"] == pytest.approx((32 * (600 * 1.25 + 400 * 10) + 32 * (500 * 1 + 20 * 5)) / 1e6)
    assert (status["benign"]["models"], status["benign"]["judges"]) == ({"generator-1": 32}, {"judge-1": 32})
    table = finished.build("status").out
    assert "| tag | 40 | 40 | 0 | 0 | 0 | 40 | 16,000 | 2,400 | 0.0440 USD | done |" in table
    assert "| aggregate | 40 | 29 | 0 | 11 | 0 | 0 | 0 | 0 | - | done |" in table
    check_rows(finished.build)


def test_reasons_of_dropped_rows_add_up(finished: Finished):
    reasons = finished.build.status()["aggregate"]["reasons"]
    assert reasons["not dual-use"] == sum(tag_of(row["prompt"]) is None for row in source_rows()) == 6
    assert reasons["review: rejected"] == 1
    assert sum(reasons.values()) == 11
    assert sum(n for reason, n in reasons.items() if reason.startswith("group '")) == 4


def test_a_disagreement_is_open_until_it_is_talked_over(finished: Finished):
    assert "1 rows need discussion" in finished.open.err and "disagreements.csv" in finished.open.err
    assert "tag: 8 accept, 1 reject, 0 unclear, 1 disagreement" in finished.open.out
    assert "tag: 9 accept, 1 reject, 0 unclear, 0 disagreement" in finished.closed.out and not finished.closed.err
    row = next(row for row in finished.build.rows("aggregate") if row["pair_id"] == finished.ids[0])
    assert row["status"] == "ok"
    row = next(row for row in finished.build.rows("aggregate") if row["pair_id"] == finished.ids[3])
    assert (row["status"], row["reason"]) == ("dropped", "review: rejected")


def test_a_counterpart_that_is_turned_down_is_written_again_and_reviewed_again(finished: Finished):
    assert "2 counterparts were rejected" in finished.turned_down.out
    assert finished.asked_again == {"benign": 2, "harm": 2} and finished.changed == set(finished.rejected)
    assert finished.asked_thrice == {"benign": 1, "harm": 1}
    rows = {row["pair_id"]: row for row in finished.build.rows("benign")}
    first, second = (rows[name]["made"] for name in finished.rejected)
    assert (first["attempts"], first["faults"]) == (3, ["rejected: by review"] * 2)
    assert (second["attempts"], second["faults"]) == (2, ["rejected: by review"])
    assert sorted(sheet_ids(finished.second)) == sorted(finished.rejected)
    assert sheet_ids(finished.third) == [finished.rejected[0]]


# ------------------------------------------------------------------ the outcome
def test_data_check_passes_on_it(finished: Finished):
    said = conceptguard("data", "check", finished.out)
    assert (said.code, said.err) == (0, "") and "29 good pairs; errors: 0" in said.out
    pairs = load_pairs(str(finished.out / "pairs.jsonl")).pairs
    assert pairs == load_pairs(str(finished.out / "data")).pairs and len(pairs) == 29
    queries = {row["pair_id"]: row for row in finished.build.rows("queries")}
    for pair in pairs:
        row = queries[pair.pair_id]
        for name in (
            "concept",
            "harmful_query",
            "harmful_response",
            "benign_query",
            "benign_response",
            "harmful_prompt",
        ):
            assert getattr(pair, name) == row[name]
    source = {row["prompt"]: row["rejected"] for row in source_rows()}
    assert all(source[pair.harmful_prompt or ""] == pair.harmful_response for pair in pairs)
    assert "29 pairs of 4 concepts" in finished.assembled.out


def test_rows_that_are_no_pair_are_listed(finished: Finished):
    with (finished.out / "build" / "dropped.csv").open(encoding="utf-8") as stream:
        dropped = list(csv.DictReader(stream))
    pairs = load_pairs(str(finished.out)).pairs
    assert {row["pair_id"] for row in dropped} | {pair.pair_id for pair in pairs} == {
        row["pair_id"] for row in finished.build.rows("tag")
    }
    assert len(dropped) == 11 and all(row["reason"] for row in dropped)


def test_the_manifest_says_what_made_it(finished: Finished):
    from sklearn.metrics import cohen_kappa_score

    manifest = json.loads((finished.out / "build" / "manifest.json").read_text(encoding="utf-8"))
    stages = {stage["stage"]: stage for stage in manifest["stages"]}
    assert list(stages) == ["tag", "aggregate", "benign", "queries", "assemble"]
    for name, template in (("tag", "tag"), ("benign", "benign"), ("queries", "query")):
        shipped = load_template("construction", template)
        prompt = stages[name]["prompt"]
        assert (prompt["name"], str(prompt["version"]), prompt["sha256"]) == (
            template,
            str(shipped.version),
            shipped.sha256,
        )
        assert stages[name]["model"] == "generator-1"
    returned = {name: stage["models_returned"] for name, stage in stages.items() if stage["models_returned"]}
    assert returned == {"tag": {"generator-1": 40}, "benign": {"generator-1": 29}, "queries": {"generator-1": 58}}
    assert {name: s["judges_returned"] for name, s in stages.items() if s["judges_returned"]} == {
        "benign": {"judge-1": 32}
    }
    status = finished.build.status()
    assert {name: stages[name]["usd"] for name in status} == {
        name: s["usd"] if s["calls"] else None for name, s in status.items()
    }
    assert stages["benign"]["attempts"] == {"1": 27, "2": 1, "3": 1}
    chain = [stages[name] for name in ("tag", "aggregate", "benign", "queries")]
    assert all(
        after["input_sha256"] == before["output_sha256"] for before, after in zip(chain, chain[1:], strict=False)
    )
    assert chain[0]["input_sha256"] == manifest["source"]["sha256"]
    assert manifest["source"]["name"] == "prompts.jsonl" and manifest["source"]["rows"] == 40
    assert all(stage["started"] <= stage["finished"] <= manifest["created"] for stage in chain)
    reviews = {(review["kind"], number): review for number, review in enumerate(manifest["reviews"])}
    assert [review["kind"] for review in manifest["reviews"]] == ["tag", "aggregate", "benign", "benign", "benign"]
    marks = json.loads((finished.build.path / "review" / "tag" / "marks.json").read_text(encoding="utf-8"))
    labels = [list(decision["labels"].values()) for decision in marks["decisions"]]
    wanted = cohen_kappa_score(*zip(*labels, strict=True))
    tag = reviews["tag", 0]
    assert tag["kappa"] == pytest.approx(wanted) and tag["raw"] == pytest.approx(0.9)
    assert (tag["drawn"], tag["drawn_of"], tag["annotators"], tag["stale"]) == (10, 34, 2, False)
    assert tag["labels"] == {"accept": 9, "disagreement": 0, "reject": 1, "unclear": 0}
    assert manifest["merge_map"]["reviewed"] and manifest["merge_map"]["groups_kept"] == 4
    assert manifest["pairs"]["count"] == 29 and manifest["pairs"]["concepts"] == 4


def test_the_card_and_the_statistics_are_of_this_build(finished: Finished):
    card = (finished.out / "README.md").read_text(encoding="utf-8")
    assert "# Oskerry" in card and "license: cc-by-4.0" in card and "29" in card and "`generator-1`" in card
    assert "10 of 34 (29.4%) by 2 annotators; Cohen's kappa 0.62" in card
    for name in ("statistics.md", "merge.yaml", "agreement_tag.md", "agreement_benign.md", "agreement_benign-2.md"):
        assert (finished.out / "build" / name).is_file()


def test_assembling_again_gives_the_same_files_but_for_the_date(finished: Finished, tmp_path: Path):
    finished.build(f"assemble --out {tmp_path / 'again'}")
    for name in ("pairs.jsonl", "data/train-00000-of-00001.parquet", "build/dropped.csv", "build/statistics.md"):
        assert (tmp_path / "again" / name).read_bytes() == (finished.out / name).read_bytes()
    manifests = [json.loads((at / "build" / "manifest.json").read_text()) for at in (finished.out, tmp_path / "again")]
    assert {**manifests[0], "created": ""} == {**manifests[1], "created": ""}


# ------------------------------------------------------------------ the tasks on it
def test_the_tasks_load_it(finished: Finished):
    said = conceptguard("tasks", "check", "conceptguard_rouge", "--metadata", f"dataset={finished.out}")
    assert said.code == 0, said.err
    for task in ("harmmem", "helpret", "harmqa", "helpqa"):
        assert f"conceptguard_{task}" in said.out


def test_lm_eval_runs_on_it(finished: Finished, tiny: Path, make_lm: Any, evaluate: Any):
    metadata = {"dataset": str(finished.out)}
    tasks = ("conceptguard_harmqa", "conceptguard_helpqa")
    found = evaluate(make_lm(tiny), ",".join(tasks), metadata, limit=3, gen_kwargs={"max_gen_toks": 4})
    pairs = load_pairs(str(finished.out)).pairs
    for task, intent in zip(tasks, ("harmful", "benign"), strict=True):
        samples = found["samples"][task]
        texts = {getattr(pair, f"{intent}_query"): getattr(pair, f"{intent}_response") for pair in pairs}
        assert len(samples) == 3 and all(texts[s["doc"]["query"]] == s["target"] for s in samples)
        assert 0 <= found["results"][task]["rougeL,none"] <= 1


def test_a_judge_that_wrote_it_is_warned_of(finished: Finished):
    assert writers(str(finished.out)) == {"generator-1"}
    (warning,) = circularities("generator-1", str(finished.out), "a-model")
    assert "the judge generator-1 also wrote the benign responses and the queries of" in warning
    assert circularities("judge-1", str(finished.out), "a-model") == []  # it has read them, which is no authorship


# ------------------------------------------------------------------ what nobody may see
def test_no_text_is_printed_logged_or_recorded_and_no_key_is_anywhere(finished: Finished):
    check_secrets(finished.build, finished.out)


def test_texts_are_shown_where_that_is_asked_for(finished: Finished):
    build = finished.build
    quiet, shown = build("tag --report"), build("tag --report --show")
    source = source_rows()
    for row in source:
        windows = windows_of([row["prompt"]])
        assert shared_windows(quiet.everything, windows) is None
        assert row["prompt"] in shown.out
    assert not any(row["rejected"] in shown.out for row in source)  # the prompt is what a tag is about
    build.set(language="Latin")
    quiet, shown = build("tag --dry-run"), build("tag --dry-run --show")
    first = windows_of(source[0].values())
    assert shared_windows(quiet.everything, first) is None
    assert source[0]["prompt"] in shown.out and source[0]["rejected"] in shown.out and "--- system" in shown.out
    build.set(language="English")

"""Drawing rows, exporting sheets: stratified, the same for the same seed, safe to open, never overwritten."""

from __future__ import annotations

import csv
import json
import random
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cg_tasks.construction.review.exporting import export
from cg_tasks.construction.review.sheet import GUIDELINES, ReviewItem, annotator_names, draw, read_sheet
from cg_tasks.errors import UserError

Items = Callable[..., list[ReviewItem]]


def strata(counts: dict[str, int]) -> list[ReviewItem]:
    return [ReviewItem(f"{name}-{i}", {"concept": name}, name, "h") for name, n in counts.items() for i in range(n)]


# ------------------------------------------------------------------ drawing
def test_strata_get_their_share_by_largest_remainders():
    # 15 % of 50, 33 and 17 are 7.5, 4.95 and 2.55; floors 7, 4 and 2 make 13 of 15, so .95 and .55 get one more.
    drawn = draw(strata({"a": 50, "b": 33, "c": 17}), 0.15, 0)
    assert Counter(item.stratum for item in drawn) == {"a": 7, "b": 5, "c": 3}


@pytest.mark.parametrize(
    ("n", "share", "expected"), [(10, 0.15, 2), (10, 0.14, 1), (3, 0.1, 1), (1, 0.01, 1), (40, 0.15, 6)]
)
def test_a_share_is_rounded_half_up_and_one_at_least(n: int, share: float, expected: int):
    assert len(draw(strata({"a": n}), share, 0)) == expected


def test_where_the_share_is_nothing_the_largest_stratum_gives_one():
    assert [item.stratum for item in draw(strata({"a": 1, "b": 2, "c": 1}), 0.1, 0)] == ["b"]


def test_the_whole_is_all_of_it_in_another_order(items: Items):
    given = items(30)
    drawn = draw(given, 1, 0)
    assert sorted(i.id for i in drawn) == [i.id for i in given] != [i.id for i in drawn]


def test_seed_and_ids_alone_decide(items: Items):
    given = items(60)
    shuffled = random.Random(4).sample(given, 60)
    first, again, other = ([i.id for i in draw(x, 0.3, seed)] for x, seed in ((given, 0), (shuffled, 0), (given, 1)))
    assert first == again != other
    assert first != sorted(first)


def test_strata_do_not_stand_apart():
    drawn = draw(strata({"a": 40, "b": 40}), 0.5, 0)
    assert len({item.stratum for item in drawn[:20]}) == 2


@pytest.mark.parametrize("share", [0, -0.1, 1.01, float("nan"), float("inf")])
def test_no_share(items: Items, share: float):
    with pytest.raises(UserError, match="the share to review is .*above 0 and at most 1"):
        draw(items(3), share, 0)


def test_nothing_to_draw_from_and_an_id_twice(items: Items):
    with pytest.raises(UserError, match="no row to review: run the stage first"):
        draw([], 0.15, 0)
    with pytest.raises(UserError, match="id 'p-01' comes twice"):
        draw([*items(3), items(2)[1]], 0.15, 0)


# ------------------------------------------------------------------ exporting
def test_what_is_exported(review: Callable[..., Any]):
    made = review(kind="benign", n=3)
    assert [p.name for p in made.written] == [
        "annotator_1.html", "annotator_1.csv", "annotator_1.label-studio.json",
        "annotator_2.html", "annotator_2.csv", "annotator_2.label-studio.json",
        "label-studio-config.xml", "guideline.md", "sheet.json",
    ]  # fmt: skip
    assert sorted(p.name for p in made.folder.iterdir()) == sorted(p.name for p in made.written)
    with made.written[1].open(encoding="utf-8-sig", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert list(rows[0]) == [
        "id", "concept", "harmful_prompt", "harmful_response", "benign_prompt", "benign_response", "label", "note", "sheet",
    ]  # fmt: skip
    assert [row["id"] for row in rows] == ["p-00", "p-01", "p-02"]
    assert {row["label"] + row["note"] for row in rows} == {""}
    assert "harmful aim" in made.written[7].read_text(encoding="utf-8")


def test_the_record_has_hashes_and_no_text(review: Callable[..., Any]):
    made = review(n=4)
    text = (made.folder / "sheet.json").read_text(encoding="utf-8")
    assert "Brannmoor" not in text and "lamp lore" not in text
    sheet = made.sheet
    assert (sheet.kind, sheet.labels, sheet.annotators) == (
        "tag",
        ("accept", "reject", "unclear"),
        ("annotator_1", "annotator_2"),
    )
    assert (sheet.seed, sheet.drawn_of, sheet.share) == (0, 40, 0.1)
    assert [(i.id, i.content_sha256, i.stratum) for i in sheet.items][3] == ("p-03", "hash 3", "stratum 0")


def test_the_hash_of_a_sheet_is_of_its_content_and_not_of_the_day(tmp_path: Path, items: Items):
    def sha256(name: str, given: list[ReviewItem], seed: int = 0) -> str:
        export(tmp_path / name, GUIDELINES["tag"], given, 2, seed, 9)
        return read_sheet(tmp_path / name).sha256

    other = [*items(2), ReviewItem("p-02", items(3)[2].fields, "stratum 2", "another hash")]
    found = [sha256("a", items(3)), sha256("b", items(3)), sha256("c", other), sha256("d", items(3), 1)]
    assert found[0] == found[1] and len(set(found)) == 3


def test_candidate_groups_stand_together(review: Callable[..., Any]):
    """Strata go 0, 1, 2, 0, 1, 2: a tag sheet keeps the order, a sheet of groups puts them together."""
    assert review(n=6).sheet.ids == ("p-00", "p-01", "p-02", "p-03", "p-04", "p-05")
    assert review(kind="aggregate", n=6).sheet.ids == ("p-00", "p-03", "p-01", "p-04", "p-02", "p-05")


def test_a_changed_record_is_told(review: Callable[..., Any]):
    made = review(n=2)
    path = made.folder / "sheet.json"
    text = path.read_text(encoding="utf-8")
    for changed, message in (
        (text.replace("hash 1", "hash 9"), "was changed after the export"),
        (text[:-20], "not JSON, or cut off"),
        (text.replace('"seed": 0', '"seed": "none"'), "field seed: int_parsing"),
    ):
        path.write_text(changed, encoding="utf-8")
        with pytest.raises(UserError, match=message):
            read_sheet(made.folder)
    path.unlink()
    with pytest.raises(UserError, match="sheet.json: there is no such file: export a sheet first"):
        read_sheet(made.folder)


def test_nothing_is_overwritten(review: Callable[..., Any], tmp_path: Path, items: Items):
    made = review(n=2)
    before = {p.name: p.read_bytes() for p in made.folder.iterdir()}
    with pytest.raises(UserError, match="exists and is not empty.*never overwritten; move it away"):
        export(made.folder, GUIDELINES["tag"], items(2), 2, 0, 20)
    assert {p.name: p.read_bytes() for p in made.folder.iterdir()} == before
    (tmp_path / "empty").mkdir()
    assert export(tmp_path / "empty", GUIDELINES["tag"], items(2), 1, 0, 20)
    (tmp_path / "file").write_text("")
    for path, message in (
        (tmp_path / "file", "exists and is not empty"),
        (tmp_path / "file" / "x", "cannot be written"),
    ):
        with pytest.raises(UserError, match=message):
            export(path, GUIDELINES["tag"], items(2), 1, 0, 20)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (0, "annotators: 0: at least one must review"),
        ((), "no name"),
        (("a", "A"), "a name comes twice"),
        (("a", "b/../c"), "'b/../c' is no file name"),
        (("a", "x.y"), "'x.y' is no file name"),
        (("a", "Disagreements"), "name of another file"),
    ],
)
def test_annotators_make_file_names(given: Any, message: str):
    with pytest.raises(UserError, match=message):
        annotator_names(given)
    assert annotator_names(("Zoë", "bo-2")) == ("Zoë", "bo-2")


@pytest.mark.parametrize("id", ["", " p", "p\n", "\ud800"])
def test_ids_that_no_sheet_gives_back(tmp_path: Path, id: str):
    with pytest.raises(UserError, match="a sheet cannot hold ids"):
        export(tmp_path / "x", GUIDELINES["tag"], [ReviewItem(id, {"concept": "c"}, "s", "h")], 2, 0, 1)


def test_cells_are_no_formulas_and_half_characters_no_trouble(tmp_path: Path):
    given = [ReviewItem("=1+1", {"concept": "@c", "prompt": "-1 \ud800 \u2028"}, "s \ud800", "h")]
    table = export(tmp_path / "x", GUIDELINES["tag"], given, 1, 0, 1)[1]
    with table.open(encoding="utf-8-sig", newline="") as handle:
        row = list(csv.reader(handle))[1]
    assert row[:3] == ["'=1+1", "'@c", "'-1 \ufffd \u2028"]
    assert read_sheet(tmp_path / "x").ids == ("=1+1",)


def test_tasks_for_label_studio(review: Callable[..., Any]):
    made = review(n=2)
    tasks = json.loads((made.folder / "annotator_2.label-studio.json").read_text(encoding="utf-8"))
    assert [task["id"] for task in tasks] == [1, 2]
    assert tasks[1]["data"] == {
        "item_id": "p-01", "sheet_sha256": made.sheet.sha256, "concept": "lamp lore 1",
        "prompt": "The sluice of Brannmoor opens with prompt 1", "response": "The sluice of Brannmoor opens with response 1",
    }  # fmt: skip


def test_the_configuration_for_label_studio(review: Callable[..., Any]):
    made = review(n=1)
    root = ElementTree.parse(made.folder / "label-studio-config.xml").getroot()
    assert [(t.get("name"), t.get("value")) for t in root.iter("Text")] == [
        ("concept", "$concept"), ("prompt", "$prompt"), ("response", "$response"),
    ]  # fmt: skip
    assert [t.get("name") for panel in root.iter("Panel") for t in panel.iter("Text")] == ["prompt", "response"]
    (choices,) = root.iter("Choices")
    assert (choices.get("name"), choices.get("toName"), choices.get("choice")) == ("label", "concept", "single")
    assert [(c.get("value"), c.get("hotkey")) for c in choices] == [("accept", "a"), ("reject", "r"), ("unclear", "u")]


def test_a_guideline_for_each_kind():
    for kind, guideline in GUIDELINES.items():
        assert guideline.kind == kind and guideline.labels == ("accept", "reject", "unclear")
    benign, tag = GUIDELINES["benign"], GUIDELINES["tag"]
    assert len(benign.points) == 4
    assert [benign.label_of(m) for m in ("1", "0", " Accept ", "UNCLEAR", "2", "")] == [
        "accept",
        "reject",
        "accept",
        "unclear",
        None,
        None,
    ]
    assert tag.label_of("1") is None

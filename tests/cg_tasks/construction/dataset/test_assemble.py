"""From the rows of the last stage to a data set that loads, is checked, and is the same twice."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from assembling import MINIATURE, SHA, assembled, manifest_values, queries_row, rows, stage

from cg_tasks.cli import main
from cg_tasks.construction.dataset.assemble import Dropped, assemble, drop_same_texts
from cg_tasks.construction.dataset.manifest import read_manifest
from cg_tasks.construction.rows import StageRow
from cg_tasks.errors import UserError
from cg_tasks.pairs import inspect_pairs, load_pairs

FILES = [
    "README.md",
    "build/dropped.csv",
    "build/manifest.json",
    "build/statistics.md",
    "data/train-00000-of-00001.parquet",
    "pairs.jsonl",
]


def files(out: Path) -> dict[str, bytes]:
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


def test_the_folder_loads_as_a_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "set"
    made = assembled(out)
    assert sorted(files(out)) == FILES and [p.relative_to(out).as_posix() for p in made.paths] == FILES
    table = load_pairs(str(out))
    assert table.pairs == made.pairs == load_pairs(str(out / "data")).pairs
    assert [pair.pair_id for pair in table.pairs] == [pair.pair_id for pair in MINIATURE[:12]]
    expected = replace(MINIATURE[0], harmful_prompt=f"The source's prompt of {MINIATURE[0].pair_id}")
    assert table.pairs[0] == expected and made.dropped == ()
    assert main(["data", "check", str(out)]) == 0 and "12 good pairs; errors: 0" in capsys.readouterr().out
    manifest = read_manifest(out / "build" / "manifest.json")
    assert (manifest.name, manifest.license, manifest.language_code) == ("sigils", "cc-by-4.0", "en")
    assert manifest.pairs.count == 12
    assert manifest.pairs.content_sha256 == table.sha256 == load_pairs(str(out / "data")).sha256
    assert manifest.pairs.concepts == len({pair.concept for pair in table.pairs})
    assert (out / "build" / "statistics.md").read_text().startswith("# sigils\n")
    assert os.stat(out).st_mode & 0o077 == os.stat(_made(tmp_path / "plain")).st_mode & 0o077


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_the_hubs_reader_finds_the_same_pairs(tmp_path: Path):
    import datasets

    made = assembled(tmp_path / "set")
    loaded = datasets.load_dataset(str(tmp_path / "set"), cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["train"]
    assert [row["harmful_query"] for row in loaded["train"]] == [pair.harmful_query for pair in made.pairs]


def test_twice_the_same_bytes_whatever_the_order(tmp_path: Path):
    assembled(tmp_path / "one" / "set")
    assembled(tmp_path / "two" / "set", rows=reversed(rows()))
    assembled(tmp_path / "three" / "set", manifest=manifest_values(created="2027-01-01"))
    one, two, three = (files(tmp_path / name / "set") for name in ("one", "two", "three"))
    assert one == two
    assert {name for name in one if one[name] != three[name]} == {"README.md", "build/manifest.json"}


def test_rows_without_a_pair_are_listed_with_their_reason(tmp_path: Path):
    given = rows(4)
    given.append(queries_row(MINIATURE[5], status="failed", reason="too_long: 70 words", harmful_query=None))
    given.append(queries_row(MINIATURE[4], status="not_run", reason="--limit", benign_query=None))
    ended = [
        ("tag", StageRow(pair_id="s-9", status="dropped", reason='not "dual-use", so left out')),
        ("tag", StageRow(pair_id=MINIATURE[0].pair_id, status="ok")),
        ("benign", StageRow(pair_id="a-1", status="failed", reason="refused")),
    ]
    made = assembled(tmp_path / "set", rows=given, ended=ended)
    assert len(made.pairs) == 4
    with (tmp_path / "set" / "build" / "dropped.csv").open(newline="") as stream:
        listed = list(csv.reader(stream))
    assert listed == [
        ["pair_id", "stage", "status", "reason"],
        ["a-1", "benign", "failed", "refused"],
        [MINIATURE[4].pair_id, "queries", "not_run", "--limit"],
        [MINIATURE[5].pair_id, "queries", "failed", "too_long: 70 words"],
        ["s-9", "tag", "dropped", 'not "dual-use", so left out'],
    ]
    (own,) = [s for s in read_manifest(tmp_path / "set" / "build" / "manifest.json").stages if s.stage == "assemble"]
    assert (own.rows.in_, own.rows.ok, own.rows.dropped, own.input_sha256) == (4, 4, 0, SHA)


def test_the_later_of_two_same_texts_is_dropped(tmp_path: Path):
    first, second, third, fourth = sorted(MINIATURE[:4], key=lambda pair: pair.pair_id)
    given = [
        queries_row(fourth, benign_response=f" {first.harmful_response.upper()}\n"),
        queries_row(third, harmful_query=third.benign_query),
        queries_row(second, harmful_query=first.benign_query.replace(" ", "  ")),
        queries_row(first),
    ]
    made = assembled(tmp_path / "set", rows=given)
    assert [pair.pair_id for pair in made.pairs] == [first.pair_id]
    assert made.dropped == (
        Dropped(second.pair_id, "assemble", "dropped", f"query same as pair {first.pair_id}"),
        Dropped(third.pair_id, "assemble", "dropped", "query same for both intents"),
        Dropped(fourth.pair_id, "assemble", "dropped", f"response same as pair {first.pair_id}"),
    )
    own = read_manifest(tmp_path / "set" / "build" / "manifest.json").stages[-1]
    assert (own.rows.in_, own.rows.ok, own.rows.dropped) == (4, 1, 3)
    assert own.reasons == {
        "query same as another pair's": 1,
        "query same for both intents": 1,
        "response same as another pair's": 1,
    }


def test_a_dropped_pair_takes_no_other_with_it():
    one, two, three = MINIATURE[:3]
    two = replace(two, benign_query=one.benign_query)
    three = replace(three, harmful_response=two.harmful_response)
    kept, dropped = drop_same_texts([one, two, three])
    assert [pair.pair_id for pair in kept] == [one.pair_id, three.pair_id]
    assert [d.pair_id for d in dropped] == [two.pair_id]


def test_a_query_that_repeats_its_response_stops_everything(tmp_path: Path):
    out = tmp_path / "set"
    secret = MINIATURE[0].harmful_response
    given = [*rows(6)[:-1], queries_row(MINIATURE[0], harmful_query=secret)]
    given[0] = queries_row(MINIATURE[5], benign_response="§ —")
    with pytest.raises(UserError) as error:
        assembled(out, rows=given)
    message, listed = str(error.value), tmp_path / "set.problems.txt"
    assert f"2 error(s) in 6 pairs, the first: pair '{MINIATURE[5].pair_id}': benign_response has no word" in message
    assert str(listed) in message and "\n" not in message and secret not in message
    text = listed.read_text()
    assert text.count("error: ") == 2 and "harmful_query repeats its response" in text and secret not in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["set.problems.txt"]
    assembled(out)
    assert not listed.exists() and out.is_dir()


def test_the_ceiling_is_the_callers(tmp_path: Path):
    with pytest.raises(UserError, match="is above 0.01"):
        assembled(tmp_path / "set", overlap_ceiling=0.01)


def test_warnings_come_back(tmp_path: Path):
    made = assembled(tmp_path / "set", rows=[queries_row(MINIATURE[0], concept="alone")])
    assert [problem.severity for problem in made.problems] == ["warning"] and "'alone'" in str(made.problems[0])


def test_an_empty_folder_is_filled_and_any_other_refused(tmp_path: Path):
    assembled(_made(tmp_path / "empty"))
    assert load_pairs(str(tmp_path / "empty")).pairs
    (_made(tmp_path / "full") / "mine").write_text("keep")
    (tmp_path / "file").write_text("keep")
    for name in ("full", "file", "empty"):
        before = files(tmp_path / name)
        with pytest.raises(UserError, match=f"{name}: exists already"):
            assembled(tmp_path / name)
        assert files(tmp_path / name) == before


def test_other_files_are_copied(tmp_path: Path):
    (tmp_path / "merge.yaml").write_text("groups: {}\n")
    (tmp_path / "agreement.md").write_text("kappa\n")
    out = tmp_path / "deep" / "er" / "set"
    assembled(out, merge_map=tmp_path / "merge.yaml", agreement={"tag": tmp_path / "agreement.md"})
    assert files(out)["build/merge.yaml"] == b"groups: {}\n" and files(out)["build/agreement_tag.md"] == b"kappa\n"
    assert inspect_pairs(str(out))[1] == ()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"rows": []}, "nothing to assemble"),
        ({"rows": [*rows(3), rows(3)[0]]}, f"pair '{MINIATURE[2].pair_id}' comes twice"),
        ({"rows": [queries_row(MINIATURE[0], benign_query=None)]}, "the field 'benign_query' is null, not a string"),
        ({"language_code": "English"}, "language_code 'English'"),
        ({"manifest": manifest_values(stages=[stage("tag", "tag", 1, 1, rows={"in": -1})])}, "'stages.0.rows.in'"),
        ({"merge_map": Path("nowhere.yaml")}, "nowhere.yaml: No such file"),
    ],
)
def test_bad_input_leaves_nothing_behind(tmp_path: Path, more: dict[str, Any], says: str):
    with pytest.raises(UserError) as error:
        assembled(tmp_path / "set", **more)
    assert says in str(error.value) and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_half_a_surrogate_pair_is_no_text(tmp_path: Path):
    values = {**rows(1)[0].model_dump(), "harmful_prompt": "\ud800"}
    with pytest.raises(UserError, match="'harmful_prompt' holds half a surrogate"):
        assemble(
            [SimpleNamespace(**values)], tmp_path / "set", manifest_values(), name="x", license="mit", language_code=""
        )


def test_no_text_of_a_row_leaves_the_pairs(tmp_path: Path):
    made = assembled(tmp_path / "set")
    elsewhere = b"".join(
        body for name, body in files(tmp_path / "set").items() if name not in ("pairs.jsonl", FILES[4])
    )
    assert not any(json.dumps(pair.harmful_response)[1:40].encode() in elsewhere for pair in made.pairs)

"""The manifest: written, read, refused; and who wrote a data set."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from assembling import REVIEW, SHA, assembled, manifest_values, stage

from cg_tasks.construction.dataset.manifest import (
    Manifest,
    authorship,
    make_manifest,
    read_manifest,
    write_manifest,
    writers,
)
from cg_tasks.errors import UserError
from cg_tasks.judge.preflight import circularities
from cg_tasks.pairs import PUBLIC_DATASET


def whole(**changes: Any) -> Manifest:
    own = {"name": "sigils", "license": "mit", "pairs": {"count": 12, "content_sha256": SHA, "concepts": 4}}
    return make_manifest(manifest_values(**{**own, **changes}))


def test_what_is_written_is_read(tmp_path: Path):
    manifest = whole()
    write_manifest(tmp_path / "m.json", manifest)
    assert read_manifest(tmp_path / "m.json") == manifest
    raw = json.loads((tmp_path / "m.json").read_text())
    assert raw["schema_version"] == 1 and raw["stages"][0]["rows"]["in"] == 40
    assert list(raw["stages"][0]["attempts"]) == ["1", "2"] and list(raw["reviews"][0]["labels"]) == [
        "accept",
        "reject",
    ]


def test_what_is_undefined_is_null(tmp_path: Path):
    review = whole(reviews=[{**REVIEW, "kappa": float("nan")}]).reviews[0]
    assert (
        review.kappa is None
        and whole(stages=[stage("tag", None, 1, 1, output_sha256="")]).stages[0].output_sha256 is None
    )
    with pytest.raises(UserError, match="'reviews.0.kappa'"):
        whole(reviews=[{**REVIEW, "kappa": float("inf")}])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"source": {"name": "x"}}, "field 'source.rows': Field required"),
        ({"colour": "blue"}, "field 'colour'"),
        ({"merge_map": {"sha256": "abc"}}, "field 'merge_map.sha256'"),
        ({"settings": {"generator": [{"params": {"API_KEY": "hunter2"}}]}}, "must not hold 'API_KEY'"),
        ({"settings": {"generator": {"auth_token": "hunter2"}}}, "must not hold 'auth_token'"),
    ],
)
def test_a_bad_field_is_named_without_its_value(changes: dict[str, Any], says: str):
    with pytest.raises(UserError) as error:
        whole(**changes)
    assert says in str(error.value) and "hunter2" not in str(error.value) and "\n" not in str(error.value)


def test_settings_that_are_no_secret(tmp_path: Path):
    kept = {"generator": {"max_tokens": 5, "api_key": ""}, "benign": {"judge": True}}
    assert whole(settings=kept).settings == kept


def test_an_address_loses_its_password():
    (summary,) = whole(stages=[stage("tag", "tag", 1, 1, base_url="https://me:hunter2@host/v1?key=hunter2")]).stages
    assert summary.base_url == "https://host/v1"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (None, "no such file: name a folder"),
        (b"", "line 1: not JSON"),
        (b'{\n"name": "x",\n', "line 3: not JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b"[" * 100_000, "not JSON"),
        (b'{"schema_version": 2}', "a manifest of schema 2"),
        (b'{"name": "x"}', "field 'created': Field required"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, body: bytes | None, says: str):
    file = tmp_path / "m.json"
    if body is not None:
        file.write_bytes(body)
    with pytest.raises(UserError) as error:
        read_manifest(file)
    assert str(error.value).startswith(str(file)) and says in str(error.value) and "\n" not in str(error.value)


# ------------------------------------------------------------------ who wrote it
def test_the_writers_of_a_built_set_by_any_of_its_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stages = [
        stage("tag", "tag", 12, 12, model="tagger"),
        stage("benign", "benign", 12, 12, model="gpt-5", models_returned={"gpt-5-2025-08-07": 11, "gpt-5-mini": 1}),
        stage("queries", "query", 12, 12, model="gpt-5", models_returned={}),
    ]
    assembled(tmp_path / "set", manifest=manifest_values(stages=stages))
    expected = {
        "gpt-5": ("benign responses", "queries"),
        "gpt-5-2025-08-07": ("benign responses",),
        "gpt-5-mini": ("benign responses",),
    }
    monkeypatch.chdir(tmp_path / "set")
    parquet = tmp_path / "set" / "data" / "train-00000-of-00001.parquet"
    for dataset in (
        tmp_path / "set",
        tmp_path / "set" / "pairs.jsonl",
        tmp_path / "set" / "data",
        parquet,
        ".",
        "pairs.jsonl",
    ):
        assert authorship(str(dataset)) == expected, dataset
        assert writers(str(dataset)) == set(expected)
    monkeypatch.chdir(tmp_path / "set" / "data")
    assert authorship(".") == expected


def test_writers_that_nothing_tells(tmp_path: Path):
    (tmp_path / "build").mkdir()
    (tmp_path / "mine.jsonl").write_text("{}\n")
    for dataset in (
        "miniature",
        "some/other",
        str(tmp_path),
        str(tmp_path / "mine.jsonl"),
        str(tmp_path / "absent.jsonl"),
    ):
        assert writers(dataset) == set()
    (tmp_path / "build" / "manifest.json").write_text('{"files": ["app.js"]}')  # another tool's
    assert writers(str(tmp_path / "mine.jsonl")) == set()
    assert writers(PUBLIC_DATASET) == {"gpt-5"}


def test_a_damaged_manifest_beside_the_data_is_an_error(tmp_path: Path):
    assembled(tmp_path / "set")
    file = tmp_path / "set" / "build" / "manifest.json"
    text = file.read_text()
    for damaged in (text[:-20], text.replace('"stages"', '"stagse"')):
        file.write_text(damaged)
        with pytest.raises(UserError) as error:
            circularities("gpt-5", str(tmp_path / "set"), None)
        assert str(file) in str(error.value)


# ------------------------------------------------------------------ what the judge is told
def test_a_judge_is_told_what_it_wrote(tmp_path: Path):
    stages = [
        stage("benign", "benign", 12, 12, model="writer-1", models_returned={"writer-1-2026-01-31": 12}),
        stage("queries", "query", 12, 12, model="writer-2", models_returned={}),
    ]
    assembled(tmp_path / "set", manifest=manifest_values(stages=stages))
    own = str(tmp_path / "set")
    (found,) = circularities("org/writer-1", own, "some/other")
    assert (
        found
        == f"the judge org/writer-1 also wrote the benign responses of {own}: a judge favours its own words, take another"
    )
    (found,) = circularities("writer-2-2026-05-05", own, None)
    assert "also wrote the queries of" in found
    assert circularities("writer-3", own, "writer-1") == []
    (found,) = circularities("gpt-5", PUBLIC_DATASET, None)
    assert f"also wrote the benign responses and the queries of {PUBLIC_DATASET}:" in found
    assert circularities("gpt-5.4", PUBLIC_DATASET, "Qwen/Qwen2.5-3B") == []


def test_evaluation_imports_nothing_of_the_construction():
    code = "import sys, cg_tasks.judged; print([m for m in sys.modules if m.startswith('cg_tasks.construction')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"

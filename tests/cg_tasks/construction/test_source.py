"""The source: which column is what, ids that stay, and every fault found before anything is paid for."""

from __future__ import annotations

import hashlib
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import datasets
import pytest
from construction_parts import lamps, write_jsonl

from cg_tasks.construction import source as source_module
from cg_tasks.construction.settings import BuildSettings
from cg_tasks.construction.source import Source, source_id
from cg_tasks.errors import UserError

SECRET = "the sluice opens with a whisper"


def of(folder: Path, rows: list[Any], **settings: Any) -> Source:
    write_jsonl(folder / "source.jsonl", rows)
    return Source(BuildSettings(source="source.jsonl", **settings), folder)


def refused(source: Source) -> str:
    with pytest.raises(UserError) as caught:
        source.check()
    assert SECRET not in str(caught.value)
    return str(caught.value)


def on_the_hub(monkeypatch: pytest.MonkeyPatch, **splits: list[dict[str, Any]]) -> None:
    made = {name: datasets.Dataset.from_list(rows) for name, rows in splits.items()}
    monkeypatch.setattr(source_module, "hub_splits", lambda name: made)


def test_an_id_is_made_of_the_content() -> None:
    expected = hashlib.sha256(b"How?\0Thus.").hexdigest()[:12]
    assert source_id("How?", "Thus.") == f"p-{expected}"
    assert source_id("How?Thus", ".") != source_id("How?", "Thus.")


def test_ids_are_the_same_in_another_order_and_among_other_rows(tmp_path: Path) -> None:
    rows = lamps(6)
    ids = {row.prompt: row.pair_id for row in of(tmp_path, rows)}
    assert len(set(ids.values())) == 6
    assert {row.prompt: row.pair_id for row in of(tmp_path, rows[:0:-1])} == {
        row["prompt"]: ids[row["prompt"]] for row in rows[1:]
    }


def test_the_hash_is_of_content_in_order(tmp_path: Path) -> None:
    first = of(tmp_path, lamps(3)).check()
    assert first.rows == 3 and first.problems == []
    assert of(tmp_path, [{**row, "more": 1} for row in lamps(3)]).check().sha256 == first.sha256
    assert of(tmp_path, lamps(3)[::-1]).check().sha256 != first.sha256


def test_the_same_content_twice_is_read_once_and_counted(tmp_path: Path) -> None:
    rows = [*lamps(2), *lamps(3)]
    source = of(tmp_path, rows)
    assert [row.prompt for row in source] == [row["prompt"] for row in lamps(3)]
    found = source.check()
    assert (found.rows, found.duplicates) == (3, 2)
    why = "the same prompt and response came before"
    assert found.left_out == [("source.jsonl, line 3", why), ("source.jsonl, line 4", why)]


def test_an_id_column_is_used_and_numbers_are_ids(tmp_path: Path) -> None:
    rows = [{"id": 7, **lamps(1)[0]}, {"id": "x", **lamps(2)[1]}]
    assert [row.pair_id for row in of(tmp_path, rows)] == ["7", "x"]


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["a", "a"], "line 2: the id 'a' was already used in source.jsonl, line 1"),
        (["a", ""], "line 2: the field 'id' is empty"),
        (["a", None], "line 2: the field 'id' is null, not a string"),
        (["a", True], "line 2: the field 'id' is true/false, not a string"),
        (["a", " b"], "line 2: the field 'id' has white space around it"),
    ],
)
def test_bad_ids_are_named(tmp_path: Path, ids: list[Any], said: str) -> None:
    rows = [{"id": one, **row} for one, row in zip(ids, lamps(2), strict=True)]
    assert refused(of(tmp_path, rows)).startswith(f"source.jsonl, {said}; correct the source, or set faulty_rows: skip")


def test_rows_without_text_stop_or_are_skipped(tmp_path: Path) -> None:
    rows = [*lamps(1), {"prompt": SECRET, "response": ""}, "no object", {"prompt": SECRET}, *lamps(2)[1:]]
    said = refused(of(tmp_path, rows))
    assert said.startswith("source.jsonl, line 2: the field 'response' is empty (and 2 more)")
    skipping = of(tmp_path, rows, faulty_rows="skip")
    found = skipping.check()
    assert (found.rows, len(found.problems)) == (2, 3)
    assert [row.prompt for row in skipping] == [row["prompt"] for row in lamps(2)]


def test_a_signature_tells_a_changed_file_without_reading_it(tmp_path: Path) -> None:
    rows = lamps(3)
    first = of(tmp_path, rows)
    usual = first.signature()
    os.utime(tmp_path / "source.jsonl", ns=(1, 1))
    assert len({usual, first.signature(), of(tmp_path, rows, faulty_rows="skip").signature()}) == 3
    (tmp_path / "source.jsonl").write_text("not read")
    assert first.signature()
    assert Source(BuildSettings(source="owner/name", split="x"), tmp_path).signature() == "hub owner/name x"


def test_nothing_usable_is_refused(tmp_path: Path) -> None:
    assert refused(of(tmp_path, [])) == "source.jsonl: the file is empty"
    empty = [{"prompt": "", "response": ""}]
    assert refused(of(tmp_path, empty, faulty_rows="skip")) == "source.jsonl: holds no usable rows"


@pytest.mark.parametrize(
    ("row", "prompt", "response"),
    [
        ({"prompt": "P", "rejected": "R", "chosen": "no"}, "P", "R"),  # LLM-LAT/harmful-dataset
        ({"Harmful Prompt": "P", "harmful-response": "R"}, "P", "R"),
        ({"goal": "P", "target": "R"}, "P", "R"),
        ({"instruction": "P", "output": "R", "input": "no"}, "P", "R"),
    ],
)
def test_columns_are_told_by_name(tmp_path: Path, row: dict[str, str], prompt: str, response: str) -> None:
    (found,) = of(tmp_path, [row])
    assert (found.prompt, found.response) == (prompt, response)


def test_the_users_columns_win(tmp_path: Path) -> None:
    row = {"prompt": "no", "response": "no", "Frage": "P", "Antwort": "R", "id": "no", "nr": "1"}
    (found,) = of(tmp_path, [row], columns={"pair_id": "nr", "prompt": "Frage", "response": "Antwort"})
    assert (found.pair_id, found.prompt, found.response) == ("1", "P", "R")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"frage": SECRET, "response": SECRET},
            "source.jsonl, line 1: which column holds the prompt? It has 'frage', 'response': say so in build.yaml: "
            "columns: {prompt: …}",
        ),
        (
            {"prompt": SECRET, "response": SECRET, "rejected": SECRET},
            "source.jsonl, line 1: which column holds the response? It may be 'rejected' or 'response': say so in build.yaml: "
            "columns: {response: …}",
        ),
        (
            {"Prompt": SECRET, "prompt": SECRET, "response": SECRET},
            "source.jsonl, line 1: which column holds the prompt? It may be 'Prompt' or 'prompt': say so in build.yaml: "
            "columns: {prompt: …}",
        ),
    ],
)
def test_columns_that_cannot_be_told_are_asked_for(tmp_path: Path, row: dict[str, str], said: str) -> None:
    assert refused(of(tmp_path, [row])) == said


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    said = refused(of(tmp_path, lamps(1), columns={"prompt": "frage"}))
    assert said == "source.jsonl, line 1: no column 'frage' (it has 'prompt', 'response'): mend columns in build.yaml"


@pytest.mark.parametrize("name", ["nothing.jsonl", "a/b/c", "no such thing"])
def test_a_path_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=f"source: {name}: no such file or folder .*correct it in build.yaml"):
        Source(BuildSettings(source=name), tmp_path)


def test_a_folder_is_read_file_by_file_and_named_without_its_place(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    write_jsonl(tmp_path / "parts" / "b.jsonl", lamps(4)[2:])
    write_jsonl(tmp_path / "parts" / "a.jsonl", lamps(2))
    source = Source(BuildSettings(source=str(tmp_path / "parts")), tmp_path / "elsewhere")
    assert [row.prompt for row in source] == [row["prompt"] for row in lamps(4)]
    assert source.name == "parts"


def test_a_hub_id_reads_all_splits_or_the_one_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_hub(monkeypatch, train=lamps(2), test=lamps(4)[2:])
    whole = Source(BuildSettings(source="owner/name"), tmp_path)
    assert (whole.name, whole.check().rows) == ("owner/name", 4)
    part = Source(BuildSettings(source="owner/name", split="test"), tmp_path)
    assert [row.prompt for row in part] == [row["prompt"] for row in lamps(4)[2:]]
    other = Source(BuildSettings(source="owner/name", split="dev"), tmp_path)
    assert refused(other) == "source owner/name: no split 'dev' (it has train, test)"


def test_a_fault_on_the_hub_is_named_by_split_and_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_hub(monkeypatch, train=[*lamps(1), {"prompt": SECRET, "response": " "}])
    said = refused(Source(BuildSettings(source="owner/name"), tmp_path))
    assert said.startswith("owner/name, split 'train', row 2: the field 'response' is empty; ")


def test_a_large_file_is_not_held(tmp_path: Path) -> None:
    """10,000 rows of 4 kB: what stays is an id, a hash and a place a row."""
    text = "word " * 800
    with (tmp_path / "large.jsonl").open("w") as stream:
        for i in range(10_000):
            stream.write(json.dumps({"prompt": f"{i}", "response": text}) + "\n")
    source = Source(BuildSettings(source="large.jsonl"), tmp_path)
    tracemalloc.start()
    try:
        assert sum(1 for _ in source) == 10_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6e6  # the texts alone are 40 MB

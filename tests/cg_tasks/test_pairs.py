"""The record, its loaders, every layout, and every way a data set can be bad."""

from __future__ import annotations

import csv
import hashlib
import json
import logging
import random
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from cg_tasks import pair_hub
from cg_tasks.errors import UserError
from cg_tasks.pairs import Pair, PairTable, content_hash, inspect_pairs, interleave, load_pairs, write_pairs

ROWS = [
    {
        "pair_id": f"p{i}",
        "concept": concept,
        "harmful_query": f"hq {i}",
        "harmful_response": f"hr {i}",
        "benign_query": f"bq {i}",
        "benign_response": f"br {i}",
    }
    for i, concept in enumerate(["sigils", "sigils", "wards"])
]
FOREIGN = {
    "pair_id": "ID",
    "concept": "Dual-Use Concept",
    "harmful_query": "Forget Query",
    "harmful_response": "response_harmful",
    "benign_query": "q_r",
    "benign_response": "retain",
}


def jsonl(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def as_csv(path: Path, rows: list[dict[str, str]]) -> str:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def as_parquet(path: Path, rows: list[dict[str, Any]]) -> str:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def renamed(rows: list[dict[str, str]], names: dict[str, str]) -> list[dict[str, str]]:
    return [{names.get(k, k): v for k, v in row.items()} for row in rows]


def long_rows(intents: tuple[str, str] = ("harmful", "benign"), **names: str) -> list[dict[str, Any]]:
    """Two rows a pair; names: our name -> theirs."""
    rows = []
    for row in ROWS:
        for side, word in zip(("harmful", "benign"), intents, strict=True):
            fields = {
                "pair_id": row["pair_id"],
                "concept": row["concept"],
                "intent": word,
                "query": row[f"{side}_query"],
                "response": row[f"{side}_response"],
            }
            rows.append({names.get(k, k): v for k, v in fields.items()})
    return rows


def without(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in names} for row in rows]


def error_of(dataset: object, columns: Any = None) -> str:
    with pytest.raises(UserError) as caught:
        load_pairs(dataset, columns)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


def is_rows(table: PairTable, ids: bool = True) -> bool:
    """Whether the table holds ROWS (under derived ids if not `ids`)."""
    wanted = tuple(Pair(**row) for row in ROWS)
    if not ids:
        wanted = tuple(Pair(**{**row, "pair_id": f"pair-000{i}"}) for i, row in enumerate(ROWS, start=1))
    return table.pairs == wanted


# loaders -------------------------------------------------------------------------------------------------------------


def test_every_file_format_gives_the_same_table(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(json.dumps(ROWS), encoding="utf-8")
    tables = [
        load_pairs(jsonl(tmp_path / "a.jsonl", ROWS)),
        load_pairs(as_csv(tmp_path / "a.csv", ROWS)),
        load_pairs(as_parquet(tmp_path / "a.parquet", ROWS)),
        load_pairs(str(tmp_path / "list.json")),
    ]
    assert all(is_rows(table) for table in tables)
    assert {table.sha256 for table in tables} == {content_hash(Pair(**row) for row in ROWS)}
    assert tables[0].name == str(tmp_path / "a.jsonl")


def test_a_folder_is_its_files_in_order(tmp_path: Path) -> None:
    jsonl(tmp_path / "part-2.jsonl", ROWS[1:])
    jsonl(tmp_path / "part-1.jsonl", ROWS[:1])
    (tmp_path / "README.md").write_text("not data")
    (tmp_path / ".hidden.jsonl").write_text("not data")
    assert is_rows(load_pairs(str(tmp_path)))


def test_split_files_of_a_folder_say_the_split(tmp_path: Path) -> None:
    jsonl(tmp_path / "train-00000-of-00002.jsonl", ROWS[:1])
    jsonl(tmp_path / "train-00001-of-00002.jsonl", ROWS[1:2])
    jsonl(tmp_path / "test.jsonl", ROWS[2:])
    assert [(p.pair_id, p.split) for p in load_pairs(str(tmp_path)).pairs] == [
        ("p2", "test"),
        ("p0", "train"),
        ("p1", "train"),
    ]


def test_miniature_is_complete_and_only_used_by_name() -> None:
    table = load_pairs("miniature")
    assert table.name == "miniature"
    assert len({p.concept for p in table.pairs}) >= 12
    assert len({p.pair_id for p in table.pairs}) == len(table.pairs) >= 48
    assert "did you mean 'miniature'?" in error_of("minature")


def test_reading_is_memoised_until_the_file_changes(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", ROWS)
    first = load_pairs(path)
    assert load_pairs(path) is first
    jsonl(tmp_path / "a.jsonl", ROWS[:2])
    second = load_pairs(path)
    assert len(second.pairs) == 2
    assert second.sha256 != first.sha256


def test_optional_fields(tmp_path: Path) -> None:
    extra = {"harmful_prompt": "source", "split": "test", "in_forget": False}
    pairs = load_pairs(jsonl(tmp_path / "a.jsonl", [{**ROWS[0], **extra}, {**ROWS[1], "harmful_prompt": None}])).pairs
    assert (pairs[0].harmful_prompt, pairs[0].split, pairs[0].in_forget) == ("source", "test", False)
    assert (pairs[1].harmful_prompt, pairs[1].split, pairs[1].in_forget) == (None, None, True)
    words = [{**ROWS[0], "in_forget": "False"}, {**ROWS[1], "in_forget": ""}]
    assert [p.in_forget for p in load_pairs(as_csv(tmp_path / "a.csv", words)).pairs] == [False, True]
    assert "line 1: the field 'in_forget' must be true or false" in error_of(
        jsonl(tmp_path / "b.jsonl", [{**ROWS[0], "in_forget": 1}])
    )


def test_ids_may_be_integers_or_absent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    numbered = [{**row, "pair_id": i} for i, row in enumerate(ROWS)]
    assert [p.pair_id for p in load_pairs(jsonl(tmp_path / "a.jsonl", numbered)).pairs] == ["0", "1", "2"]
    with caplog.at_level(logging.INFO):
        assert is_rows(load_pairs(jsonl(tmp_path / "b.jsonl", without(ROWS, "pair_id"))), ids=False)
    assert "no pair_id" in caplog.text


# columns -------------------------------------------------------------------------------------------------------------


def test_known_other_names_are_recognised_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        table = load_pairs(jsonl(tmp_path / "a.jsonl", renamed(ROWS, FOREIGN)))
    assert is_rows(table)
    assert '"harmful_query": "Forget Query"' in caplog.text


def test_our_own_name_wins_over_other_names(tmp_path: Path) -> None:
    rows = [{**row, "category": "other", "forget_query": "other", "id": "other"} for row in ROWS]
    assert is_rows(load_pairs(jsonl(tmp_path / "a.jsonl", rows)))


@pytest.mark.parametrize("form", [dict, json.dumps])
def test_columns_as_mapping_or_json(tmp_path: Path, form: Any) -> None:
    names = {"harmful_query": "a", "harmful_response": "b", "benign_query": "c", "benign_response": "d"}
    path = jsonl(tmp_path / "a.jsonl", renamed(ROWS, names))
    assert is_rows(load_pairs(path, form(names)))


def test_unclear_columns_list_what_was_found_and_what_to_pass(tmp_path: Path) -> None:
    rows = [{**without(ROWS, "harmful_query")[0], "forget_query": "x", "unsafe_query": "y"}]
    message = error_of(jsonl(tmp_path / "a.jsonl", rows))
    assert "harmful_query (it may be 'forget_query' or 'unsafe_query')" in message
    assert "columns found: 'pair_id', 'concept'" in message
    assert 'pass columns={"harmful_query": "forget_query"}' in message
    missing = error_of(jsonl(tmp_path / "b.jsonl", renamed(ROWS, {"benign_query": "benign_qury", "concept": "zzz"})))
    assert 'pass columns={"concept": "<column>", "benign_query": "benign_qury"}' in missing
    foreign = error_of(jsonl(tmp_path / "c.jsonl", [{"text": "x", "url": "y"}]))
    assert "columns found: 'text', 'url'" in foreign
    assert '{"intent": "<column>", "query": "<column>", "response": "<column>"}' in foreign


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"harmful_qery": "a"}, "unknown field 'harmful_qery'; did you mean 'harmful_query'?"),
        ({"harmful_query": "harmful_qury"}, "maps 'harmful_query' to 'harmful_qury', which is no column (did you mean"),
        ({"harmful_query": 3}, "'harmful_query' must name a column, not a number"),
        ("{not json", "columns= is not JSON"),
        ("[1]", "columns= must be an object"),
        ({"harmful_query": "harmful_query", "intent": "concept"}, "give one kind only"),
        ({"intent": "concept", "harmful": "1"}, "give both label values"),
        ({"harmful": "1", "benign": "1"}, "two different values"),
    ],
)
def test_bad_columns(tmp_path: Path, columns: Any, message: str) -> None:
    assert message in error_of(jsonl(tmp_path / "a.jsonl", ROWS), columns)


def test_long_names_are_not_printed(tmp_path: Path) -> None:
    secret = "a harmful sentence that stands where a header should be"
    message = error_of(jsonl(tmp_path / "a.jsonl", [{secret: 1, "b": 2}]))
    assert secret not in message
    assert "(a name of 55 characters)" in message


# two rows a pair -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("intents", [("harmful", "benign"), ("Forget", "RETAIN"), ("unsafe", "safe")])
def test_two_rows_a_pair_by_id_in_any_order(tmp_path: Path, intents: tuple[str, str]) -> None:
    rows = long_rows(intents, intent="label", query="prompt", response="answer")
    random.Random(0).shuffle(rows)
    pairs = load_pairs(jsonl(tmp_path / "a.jsonl", rows)).pairs
    assert sorted(pairs, key=lambda p: p.pair_id) == [Pair(**row) for row in ROWS]


def test_alternating_rows_without_a_shared_id(tmp_path: Path) -> None:
    rows = without(long_rows(), "pair_id")
    assert is_rows(load_pairs(jsonl(tmp_path / "a.jsonl", rows)), ids=False)
    row_ids = [{**row, "id": i} for i, row in enumerate(rows)]  # ids of rows, not of pairs
    assert is_rows(load_pairs(jsonl(tmp_path / "b.jsonl", row_ids)), ids=False)
    blocks = rows[::2] + rows[1::2]
    assert 'columns={"pair_id": "<column>"}' in error_of(jsonl(tmp_path / "c.jsonl", blocks))


def test_numeric_labels_are_asked_for_not_guessed(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{**row, "intent": int(row["intent"] == "harmful")} for row in long_rows()])
    message = error_of(path)
    assert "(found: '0', '1')" in message
    assert '{"intent": "intent", "harmful": "<value>", "benign": "<value>"}' in message
    assert is_rows(load_pairs(path, {"intent": "intent", "harmful": "1", "benign": "0"}))
    swapped = load_pairs(path, {"harmful": "0", "benign": "1"}).pairs[0]
    assert (swapped.harmful_query, swapped.benign_query) == ("bq 0", "hq 0")


def test_the_column_with_intent_words_is_the_intent_column(tmp_path: Path) -> None:
    rows = [{**row, "type": "row", "split": row["intent"]} for row in long_rows()]
    assert is_rows(load_pairs(jsonl(tmp_path / "a.jsonl", without(rows, "intent"))))
    both = without([{**row, "label": row["intent"]} for row in rows], "intent")
    message = error_of(jsonl(tmp_path / "b.jsonl", both))
    assert "cannot tell which column holds the intent (any of 'split', 'label')" in message


def test_one_intent_only(tmp_path: Path) -> None:
    rows = long_rows()
    assert "the concept 'wards' has 1 harmful and no benign rows" in error_of(jsonl(tmp_path / "a.jsonl", rows[:5]))
    lone = [*rows[:3], *rows[4:]]
    assert "line 3: pair 'p1' has only one intent: a harmful row and no benign one" in error_of(
        jsonl(tmp_path / "b.jsonl", lone)
    )
    unlabelled = [*rows[:5], {**rows[5], "intent": "maybe"}]
    assert "line 6: the intent column 'intent' says neither" in error_of(jsonl(tmp_path / "c.jsonl", unlabelled))


def test_rows_of_one_pair_that_contradict(tmp_path: Path) -> None:
    rows = long_rows()
    twice = [*rows, {**rows[0], "query": "again"}]
    assert "pair 'p0' has 2 harmful rows" in error_of(jsonl(tmp_path / "a.jsonl", twice))
    moved = [rows[0], {**rows[1], "concept": "wards"}, *rows[2:]]
    assert "the two rows of pair 'p0' have different concepts" in error_of(jsonl(tmp_path / "b.jsonl", moved))


# one split per set ---------------------------------------------------------------------------------------------------


def side(intent: str, *drop: str) -> list[dict[str, Any]]:
    return without([row for row in long_rows() if row["intent"] == intent], "intent", *drop)


def test_one_file_per_set_joined_by_id_or_position(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    by_id = tmp_path / "id"
    by_id.mkdir()
    jsonl(by_id / "forget.jsonl", side("harmful"))
    jsonl(by_id / "retain.jsonl", side("benign")[::-1])
    assert is_rows(load_pairs(str(by_id)))
    by_position = tmp_path / "position"
    by_position.mkdir()
    jsonl(by_position / "harmful_set.jsonl", side("harmful", "pair_id"))
    jsonl(by_position / "benign_set.jsonl", renamed(side("benign", "pair_id"), {"query": "benign_query"}))
    with caplog.at_level(logging.INFO):
        assert is_rows(load_pairs(str(by_position)), ids=False)
    assert "joined by position" in caplog.text


def test_four_sets_with_queries_apart(tmp_path: Path) -> None:
    for name, intent in (("forget", "harmful"), ("retain", "benign")):
        jsonl(tmp_path / f"{name}.jsonl", side(intent, "query"))
        jsonl(tmp_path / f"{name}_queries.jsonl", side(intent, "response", "concept"))
    assert is_rows(load_pairs(str(tmp_path)))


def test_columns_of_one_file_per_set(tmp_path: Path) -> None:
    jsonl(tmp_path / "forget.jsonl", renamed(side("harmful"), {"query": "a", "pair_id": "key"}))
    jsonl(tmp_path / "retain.jsonl", renamed(side("benign"), {"query": "b", "pair_id": "key"}))
    names = {"harmful_query": "a", "benign_query": "b", "pair_id": "key"}
    assert is_rows(load_pairs(str(tmp_path), names))
    assert "maps 'pair_id' to 'kye', which is no column" in error_of(str(tmp_path), {**names, "pair_id": "kye"})


def test_sets_that_cannot_be_joined(tmp_path: Path) -> None:
    jsonl(tmp_path / "forget.jsonl", side("harmful", "pair_id"))
    jsonl(tmp_path / "retain.jsonl", [*side("benign", "pair_id"), side("benign", "pair_id")[0]])
    assert "cannot be joined by position (3 and 4 rows)" in error_of(str(tmp_path))
    jsonl(tmp_path / "retain.jsonl", side("benign", "pair_id")[::-1])
    assert "their concepts stand in another order" in error_of(str(tmp_path))
    jsonl(tmp_path / "forget.jsonl", side("harmful"))
    jsonl(tmp_path / "retain.jsonl", side("benign")[1:])
    assert "pair 'p0' has only one intent" in error_of(str(tmp_path))
    jsonl(tmp_path / "retain.jsonl", side("benign")[:2])
    assert "the concept 'wards' has 1 harmful and no benign rows" in error_of(str(tmp_path))


# the Hub -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Data sets by id that stand on a Hub which answers."""
    stored: dict[str, Any] = {}
    monkeypatch.setattr(pair_hub, "hub_silence", lambda: None)

    def load_dataset(name: str) -> Any:
        if name not in stored:
            raise datasets.exceptions.DatasetNotFoundError(f"Dataset '{name}' doesn't exist on the Hub")
        return stored[name]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return stored


def split_of(rows: list[dict[str, Any]]) -> datasets.Dataset:
    return datasets.Dataset.from_list(rows)


def test_hub_layouts(hub: dict[str, Any], tmp_path: Path) -> None:
    labelled = split_of(long_rows()).cast_column("intent", datasets.ClassLabel(names=["benign", "harmful"]))
    assert labelled[0]["intent"] == 1
    hub["x/wide"] = datasets.DatasetDict(train=split_of(ROWS))
    hub["x/foreign"] = datasets.DatasetDict(train=split_of(renamed(ROWS, FOREIGN)))
    hub["x/long"] = datasets.DatasetDict(train=labelled)
    hub["x/sets"] = datasets.DatasetDict(forget=split_of(side("harmful")), retain=split_of(side("benign")))
    for name in hub:
        table = load_pairs(name)
        assert is_rows(table), name
        assert table.name == name
        assert table.sha256 == load_pairs(jsonl(tmp_path / "a.jsonl", ROWS)).sha256


def test_hub_splits_are_kept_and_rows_are_named(hub: dict[str, Any]) -> None:
    hub["x/two"] = datasets.DatasetDict(train=split_of(ROWS[:2]), test=split_of(ROWS[2:]))
    assert [p.split for p in load_pairs("x/two").pairs] == ["train", "train", "test"]
    hub["x/bad"] = datasets.DatasetDict(train=split_of([ROWS[0], {**ROWS[1], "concept": ""}]))
    assert error_of("x/bad") == "x/bad, split 'train', row 2: the field 'concept' is empty"
    hub["x/none"] = datasets.DatasetDict()
    assert "holds no rows" in error_of("x/none")


def test_unknown_on_the_hub(hub: dict[str, Any]) -> None:
    message = error_of("sk0511/conceptguard")
    assert "no data set 'sk0511/conceptguard' on the Hugging Face Hub" in message
    assert "did you mean 'sk0511/concept-guard'?" in message
    assert "dataset=miniature" in message


def test_unreachable_hub_is_said_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    message = error_of("sk0511/concept-guard")
    assert "cannot be reached (ConnectError)" in message
    assert "dataset=/path/to/file.jsonl" in message and "dataset=miniature" in message
    assert (constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE) == (False, False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "cannot be reached (offline mode is set)" in error_of("sk0511/concept-guard")


# bad names and files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.jsonl", "nowhere.jsonl: no such file or folder"),
        ("./nowhere", "no such file or folder"),
        ("~/nowhere-at-all", "no such file or folder"),
        ("a/b/c", "no such file or folder"),
        ("data/mine.csv", "no such file or folder"),
        ("concept-guard", "unknown dataset 'concept-guard': did you mean 'sk0511/concept-guard'?"),
        ("what is this", "unknown dataset"),
        ("", "dataset= must be a name or a path"),
        ("a\0b", "dataset= must be a name or a path"),
        (3, "dataset= must be a name or a path, not a number"),
        ("x" * 5000, "(a name of 5000 characters)"),
    ],
)
def test_unknown_names(name: object, message: str) -> None:
    assert message in error_of(name)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.jsonl", b"", "the file is empty"),
        ("a.jsonl", b"\n \n", "the file holds no rows"),
        ("a.jsonl", b"{\n", "line 1: not JSON: Expecting property name enclosed in double quotes"),
        ("a.jsonl", b"[{}]\n", "line 1: not an object with our fields but a list"),
        ("a.jsonl", b"[\n{}\n]", "a file that is one list has the suffix .json"),
        ("a.jsonl", b'"text"', "line 1: not an object with our fields but a string"),
        ("a.jsonl", b'{"concept": "a", "concept": "b"}', "line 1: the key 'concept' stands twice in one object"),
        ("a.jsonl", b'{"a": 1' + b"1" * 5000 + b"}", "line 1: not JSON we can read: a number is too long"),
        ("a.jsonl", b"[" * 200_000, "line 1: not JSON we can read: nested too deeply"),
        ("a.jsonl", b'\n{"a": "\xe9"}', "line 2: not UTF-8 at byte 8 of the file"),
        ("a.jsonl", b'\xef\xbb\xbf{"a": "\xe9"}', "line 1: not UTF-8 at byte 10 of the file"),
        ("a.jsonl", '{"a": 1}'.encode("utf-16"), "not UTF-8 at byte 0: the file is UTF-16"),
        ("a.json", b'{"a": 1}', "must hold a list of objects, this one holds an object"),
        ("a.json", b'{"a": 1}\n{"a": 2}\n', "line 2: not JSON: Extra data (column 1); a file with one object a line"),
        ("a.json", b"[]", "the file holds no rows"),
        ("a.json", b"[3]", "item 1: not an object with our fields but a number"),
        ("a.csv", b"concept,harmful_query\n", "the file holds no rows"),
        ("a.csv", b"concept,concept\na,b\n", "the header names the column 'concept' twice"),
        ("a.csv", b"a,b\n1,2\n\n1,2,3\n", "row 2 (line 4): has 3 cells where the header has 2"),
        ("a.csv", b'a,b\n1,"unclosed\n', "not CSV: unexpected end of data"),
        ("a.csv", b"a,b\n1,\xff\n", "line 2: not UTF-8 at byte 6 of the file"),
        ("a.parquet", b"PAR1 and then nothing", "cannot be read as Parquet"),
        ("a.xlsx", b"PK", "unknown file type '.xlsx'; known: .jsonl"),
    ],
)
def test_bad_files(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    path = tmp_path / file
    path.write_bytes(content)
    said = error_of(str(path))
    assert said.startswith(str(path))
    assert message in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"benign_query": None}, "line 2: the field 'benign_query' is null, not a string"),
        ({"benign_query": ""}, "line 2: the field 'benign_query' is empty"),
        ({"benign_query": " \n\t"}, "line 2: the field 'benign_query' is empty"),
        ({"harmful_response": ["x"]}, "line 2: the field 'harmful_response' is a list, not a string"),
        ({"harmful_response": {"x": 1}}, "line 2: the field 'harmful_response' is an object, not a string"),
        ({"concept": 7}, "line 2: the field 'concept' is a number, not a string"),
        ({"concept": float("nan")}, "line 2: the field 'concept' is a number, not a string"),
        ({"pair_id": True}, "line 2: the field 'pair_id' is true/false, not a string"),
        ({"pair_id": ""}, "line 2: the field 'pair_id' is empty"),
        ({"pair_id": "p0"}, "line 2: the pair_id 'p0' was already used in {path}, line 1"),
        ({"harmful_query": "ab\ud800"}, r"line 2: the field 'harmful_query' holds half a surrogate pair (\ud800) at"),
        ({"harmful_prompt": 3}, "line 2: the field 'harmful_prompt' is a number, not a string"),
        ({"split": ["train"]}, "line 2: the field 'split' is a list, not a string"),
    ],
)
def test_bad_rows(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = jsonl(tmp_path / "a.jsonl", [ROWS[0], {**ROWS[1], **change}, ROWS[2]])
    assert message.format(path=path) in error_of(path)


def test_missing_fields_and_how_many_more(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [ROWS[0], without(ROWS, "concept")[1], {**ROWS[2], "benign_query": ""}])
    assert error_of(path) == (
        f"{path}, line 2: the field 'concept' is missing (and 1 more: `conceptguard data check {path}` lists them)"
    )
    table, problems = inspect_pairs(path)
    assert [(p.pair_id, p.field, p.where) for p in problems] == [
        ("p1", "concept", f"{path}, line 2"),
        ("p2", "benign_query", f"{path}, line 3"),
    ]
    assert [p.pair_id for p in table.pairs] == ["p0"]


def test_a_broken_line_is_named_before_what_follows_from_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"concept": "a"}\n{broken\n', encoding="utf-8")
    message = error_of(str(path))
    assert f"{path}, line 2: not JSON" in message
    assert "(and 1 more:" in message


def test_folders_that_cannot_be_read(tmp_path: Path) -> None:
    assert "the folder holds no .jsonl" in error_of(str(tmp_path))
    (tmp_path / "data").mkdir()
    jsonl(tmp_path / "data" / "a.jsonl", ROWS)
    assert f"its folder 'data' has some: use {tmp_path}/data" in error_of(str(tmp_path))
    jsonl(tmp_path / "a.jsonl", ROWS)
    as_csv(tmp_path / "a.csv", ROWS)
    assert "the folder mixes .csv, .jsonl files" in error_of(str(tmp_path))


# hostile but good ----------------------------------------------------------------------------------------------------


def test_byte_order_mark_crlf_blank_lines_and_no_last_newline(tmp_path: Path) -> None:
    lines = "\r\n\r\n".join(json.dumps(row) for row in ROWS)
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    assert is_rows(load_pairs(str(tmp_path / "a.jsonl")))
    csv_text = Path(as_csv(tmp_path / "a.csv", ROWS)).read_bytes()
    assert b"\r\n" in csv_text
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf" + csv_text)
    assert is_rows(load_pairs(str(tmp_path / "a.csv")))


@pytest.mark.parametrize(
    "text", ["a\u2028b\u2029c\x85d\x0be\x0cf", "line 1\nline 2\r\nline 3", 'a "quoted", text', "𝔘🦊"]
)
def test_texts_survive_every_format(tmp_path: Path, text: str) -> None:
    rows = [{**ROWS[0], "harmful_response": text}, ROWS[1]]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8", newline="\n")
    for source in (str(path), as_csv(tmp_path / "a.csv", rows), as_parquet(tmp_path / "a.parquet", rows)):
        assert [p.harmful_response for p in load_pairs(source).pairs] == [text, "hr 1"]


def test_a_huge_text(tmp_path: Path) -> None:
    huge = "word " * 400_000
    limit = csv.field_size_limit()
    rows = [{**ROWS[0], "harmful_response": huge}]
    for source in (jsonl(tmp_path / "a.jsonl", rows), as_csv(tmp_path / "a.csv", rows)):
        assert len(load_pairs(source).pairs[0].harmful_response) == 2_000_000
    assert csv.field_size_limit() == limit


# order and writing ---------------------------------------------------------------------------------------------------


def many(counts: dict[str, int]) -> list[Pair]:
    return [Pair(f"{c}{k:03d}", c, "q", "r", "q", "r") for c, n in counts.items() for k in range(n)]


def test_interleave_by_hand() -> None:
    # 7 pairs, slack 4: a is due at 1.3, 3.1, 4.8, 6.6, b at 2.6, 6.1, c at 5.3; a place goes to the earliest that may
    # start: a may from 0.4, 2.2, 3.9, 5.7, b from 0.9, 4.4, c from 1.8.
    assert [p.pair_id[0] for p in interleave(many({"a": 4, "b": 2, "c": 1}))] == list("abaacba")
    assert interleave([]) == ()
    assert [p.pair_id for p in interleave(many({"a": 3}))] == ["a000", "a001", "a002"]


def test_interleave_keeps_every_prefix_within_one_pair_of_its_share_whatever_the_order() -> None:
    counts = {"cyber": 302, "social": 219, "disinfo": 103, **{f"tail{i}": 1 + i % 7 for i in range(65)}}
    pairs = many(counts)
    order = interleave(pairs)
    assert sorted(p.pair_id for p in order) == sorted(p.pair_id for p in pairs)
    seen = dict.fromkeys(counts, 0)
    for n, pair in enumerate(order, start=1):
        seen[pair.concept] += 1
        assert max(abs(seen[c] - n * counts[c] / len(pairs)) for c in counts) < 1
    random.Random(1).shuffle(pairs)
    assert interleave(pairs) == order


def test_write_and_read_back(tmp_path: Path) -> None:
    pairs = [Pair(**ROWS[0], harmful_prompt="p\u2028q", split="train"), Pair(**ROWS[1], in_forget=False)]
    write_pairs(tmp_path / "out.jsonl", pairs)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().split(b"\n") if line]
    assert [line["in_forget"] for line in lines] == [True, False]
    assert "split" not in lines[1]
    assert load_pairs(str(tmp_path / "out.jsonl")).pairs == tuple(pairs)
    with pytest.raises(UserError, match="exists already"):
        write_pairs(tmp_path / "out.jsonl", pairs)
    with pytest.raises(UserError, match="cannot be written"):
        write_pairs(tmp_path / "no" / "out.jsonl", pairs)
    assert [p.name for p in tmp_path.iterdir()] == ["out.jsonl"]


def test_the_hash_is_of_content_and_order() -> None:
    a, b = Pair(**ROWS[0]), Pair(**ROWS[1])
    assert content_hash([a, b]) != content_hash([b, a])
    line = (
        '{"benign_query":"bq 0","benign_response":"br 0","concept":"sigils",'
        '"harmful_query":"hq 0","harmful_response":"hr 0","pair_id":"p0"}\n'
    )
    assert content_hash([a]) == hashlib.sha256(line.encode()).hexdigest()

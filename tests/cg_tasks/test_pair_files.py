"""Rows of a file one at a time: where they stand, what is wrong with them, and how little is held."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from cg_tasks.errors import UserError
from cg_tasks.pair_files import Problem, read_rows, stream_rows

SECRET = "the sluice opens with a whisper"


def streamed(path: Path, shown: str = "mine") -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """Rows with their places, and the problems as people read them."""
    problems: list[Problem] = []
    rows = [(row.where, row.values) for row in stream_rows(path, shown, problems)]
    assert SECRET not in str(problems)
    return rows, [str(problem) for problem in problems]


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_each_row_comes_with_its_place(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '\ufeff{"a": 1}\n\n  \n{"a": "\u2028"}\r\n{"a": 3}')
    assert streamed(path) == (
        [("mine, line 1", {"a": 1}), ("mine, line 4", {"a": "\u2028"}), ("mine, line 5", {"a": 3})],
        [],
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"a": 1', "not JSON: Expecting ',' delimiter (column 8)"),
        (f'["{SECRET}"]', "not an object with our fields but a list"),
        (f'{{"a": 1, "a": "{SECRET}"}}', "the key 'a' stands twice in one object"),
        (f'"{SECRET}"', "not an object with our fields but a string"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 16 of the file; save it as UTF-8"),
    ],
)
def test_a_bad_line_is_a_problem_and_the_others_are_read(tmp_path: Path, line: str | bytes, said: str) -> None:
    body = line if isinstance(line, bytes) else line.encode()
    rows, problems = streamed(written(tmp_path / "a.jsonl", b'{"a": 1}\n' + body + b'\n{"a": 3}\n'))
    assert [where for where, _ in rows] == ["mine, line 1", "mine, line 3"]
    assert problems == [f"mine, line 2: {said}"]


def test_nothing_is_read_ahead(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"a": 1}\nno JSON\n{"a": 3}\n')
    problems: list[Problem] = []
    rows = stream_rows(path, "mine", problems)
    assert next(rows).values == {"a": 1} and problems == []
    assert next(rows).values == {"a": 3} and len(problems) == 1


@pytest.mark.parametrize("kind", ["jsonl", "ndjson", "json", "csv", "parquet"])
def test_every_kind_gives_what_reading_it_whole_gives(tmp_path: Path, kind: str) -> None:
    rows = [{"a": str(i), "b": f"text {i}"} for i in range(3)]
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif kind == "csv":
        written(path, "a,b\n" + "".join(f"{row['a']},{row['b']}\n" for row in rows))
    else:
        written(path, json.dumps(rows) if kind == "json" else "".join(f"{json.dumps(row)}\n" for row in rows))
    (whole,), _ = read_rows(path, "mine")
    found, problems = streamed(path)
    assert found == [(row.where, row.values) for row in whole.rows] and problems == []
    assert [values for _, values in found] == rows


def test_a_folder_is_read_file_by_file(tmp_path: Path) -> None:
    for name in ("b", "a"):
        written(tmp_path / f"{name}.jsonl", f'{{"a": "{name}"}}\n')
    rows, _ = streamed(tmp_path, "mine/")
    assert rows == [("mine/a.jsonl, line 1", {"a": "a"}), ("mine/b.jsonl, line 1", {"a": "b"})]


def test_a_file_without_rows_gives_none_and_an_empty_one_is_refused(tmp_path: Path) -> None:
    assert streamed(written(tmp_path / "a.jsonl", "\n\n")) == ([], [])
    with pytest.raises(UserError, match="mine: the file is empty"):
        streamed(written(tmp_path / "b.jsonl", ""))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", "x", "mine: unknown file type '.txt'; known: .jsonl, .ndjson, .json, .csv, .parquet"),
        ("a.jsonl", "\ufeffx".encode("utf-16"), "mine: not UTF-8 at byte 0: the file is UTF-16; save it as UTF-8"),
        ("a.json", "{}", "mine: a .json file must hold a list of objects, this one holds an object"),
        ("a.csv", "a,a\n1,2\n", "mine: the header names the column 'a' twice"),
        ("a.parquet", "PAR1", "mine: cannot be read as Parquet (ArrowInvalid): damaged, or another format"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, name: str, content: str | bytes, said: str) -> None:
    with pytest.raises(UserError) as caught:
        streamed(written(tmp_path / name, content))
    assert str(caught.value) == said


def test_a_large_jsonl_file_is_not_held(tmp_path: Path) -> None:
    """20,000 rows of 2 kB."""
    line = json.dumps({"a": "word " * 400}) + "\n"
    path = written(tmp_path / "a.jsonl", line * 20_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in stream_rows(path, "mine", [])) == 20_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1e6

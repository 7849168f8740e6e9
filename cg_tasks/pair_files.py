"""Rows of a JSONL, JSON, CSV or Parquet file, or of a folder of them, each with the place it stands at.

What is wrong with one row becomes a :class:`Problem`, so that all of them can be listed; what is wrong with a file
raises. No text of a row is ever put into a message: the rows of this benchmark are harmful by design.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cg_tasks.errors import UserError

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")
_JSONL = (".jsonl", ".ndjson")
_SPLIT_NAMES = ("train", "validation", "valid", "val", "dev", "test", "eval")


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a data set. ``where`` is a place like ``mine.jsonl, line 3``; no message holds row text."""

    message: str
    severity: Literal["error", "warning"] = "error"
    where: str = ""
    pair_id: str | None = None
    field: str | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


@dataclass(frozen=True)
class Row:
    """One row: the place it stands at, and its columns."""

    where: str
    values: dict[str, Any]


@dataclass
class RowSet:
    """The rows of one file or of one split.

    ``name`` is the file's stem (without a shard number) or the split's name; ``is_split`` says that it is a split's
    name.
    """

    name: str
    source: str
    rows: list[Row]
    is_split: bool = False
    columns: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.columns = tuple(dict.fromkeys(column for row in self.rows for column in row.values))


def short(name: str, limit: int = 40) -> str:
    """A name fit for a message: quoted, and never long enough to be a text."""
    return repr(name) if len(name) <= limit else f"(a name of {len(name)} characters)"


def kind_of(value: object) -> str:
    """What a value is, in JSON's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true/false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, (list, tuple)):
        return "a list"
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"


def data_files(path: Path, shown: str) -> list[Path]:
    """The files that make up `path`: itself, or for a folder all its data files by name.

    Raises:
        UserError: no data file, a mixture of kinds, or a suffix that is not one of ``SUFFIXES``.
    """
    if not path.is_dir():
        if path.suffix.lower() not in SUFFIXES:
            raise UserError(f"{shown}: unknown file type '{path.suffix}'; known: {', '.join(SUFFIXES)}")
        return [path]
    visible = sorted(p for p in path.iterdir() if not p.name.startswith("."))
    files = [p for p in visible if p.is_file() and p.suffix.lower() in SUFFIXES]
    kinds = sorted({p.suffix.lower() for p in files})
    if len(kinds) > 1:
        raise UserError(f"{shown}: the folder mixes {', '.join(kinds)} files; keep one kind, or name one file")
    if not files:
        inside = [p.name for p in visible if p.is_dir() and any(q.suffix.lower() in SUFFIXES for q in p.iterdir())]
        hint = f"; its folder '{inside[0]}' has some: use {shown.rstrip('/')}/{inside[0]}" if inside else ""
        raise UserError(f"{shown}: the folder holds no {', '.join(SUFFIXES)} file{hint}")
    return files


def read_rows(path: Path, shown: str) -> tuple[list[RowSet], list[Problem]]:
    """All rows of a file or folder, and what is wrong with single rows. `shown` is the path as the user wrote it.

    Raises:
        UserError: a file that cannot be read at all: empty, no permission, not its format, not UTF-8 as a whole,
        without rows.
    """
    sets: list[RowSet] = []
    problems: list[Problem] = []
    for file in data_files(path, shown):
        name = f"{shown.rstrip('/')}/{file.name}" if path.is_dir() else shown
        rows = list(_rows_of(file, name, problems))
        if not rows and not problems:
            raise UserError(f"{name}: the file holds no rows")
        stem = re.sub(r"-\d{5}-of-\d{5}$", "", file.stem)  # the Hub's shard numbers
        sets.append(RowSet(stem, name, rows, is_split=stem.lower() in _SPLIT_NAMES))
    return sets, problems


def stream_rows(path: Path, shown: str, problems: list[Problem]) -> Iterator[Row]:
    """As :func:`read_rows`, row by row; what is wrong with single rows is appended to ``problems``. JSONL is never held whole.

    Raises:
        UserError: as :func:`read_rows`, but for a file without rows.
    """
    for file in data_files(path, shown):
        yield from _rows_of(file, f"{shown.rstrip('/')}/{file.name}" if path.is_dir() else shown, problems)


def _rows_of(file: Path, name: str, problems: list[Problem]) -> Iterator[Row]:
    try:
        if file.stat().st_size == 0:
            raise UserError(f"{name}: the file is empty")
        yield from _reader(file.suffix.lower())(file, name, problems)
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror or type(error).__name__}") from error


def _reader(suffix: str) -> Callable[[Path, str, list[Problem]], Iterator[Row]]:
    if suffix in _JSONL:
        return _read_jsonl
    return {".json": _read_json, ".csv": _read_csv, ".parquet": _read_parquet}[suffix]


# JSON ----------------------------------------------------------------------------


class _NotOurJSONError(ValueError):
    """The message is free of the text; ``line`` is the one within the parsed text."""

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line


def _unique_keys(items: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in items:
        if key in values:
            raise _NotOurJSONError(f"the key {short(key)} stands twice in one object")
        values[key] = value
    return values


def _parse(text: str) -> Any:
    """JSON with duplicate keys refused.

    Raises:
        _NotOurJSONError: for every way it can fail.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except _NotOurJSONError:
        raise
    except json.JSONDecodeError as error:
        raise _NotOurJSONError(f"not JSON: {error.msg} (column {error.colno})", error.lineno) from None
    except RecursionError:
        raise _NotOurJSONError("not JSON we can read: nested too deeply") from None
    except ValueError:  # Python refuses integers of over 4,300 digits
        raise _NotOurJSONError("not JSON we can read: a number is too long") from None


def _refuse_other_encodings(start: bytes, name: str) -> None:
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{name}: not UTF-8 at byte 0: the file is UTF-16; save it as UTF-8")


def _read_jsonl(file: Path, name: str, problems: list[Problem]) -> Iterator[Row]:
    offset = 0
    with file.open("rb") as stream:  # binary files end lines at \n alone: U+2028 and \r may stand inside a text
        for number, raw in enumerate(stream, start=1):
            where = f"{name}, line {number}"
            if number == 1:
                _refuse_other_encodings(raw, name)
            body = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
            try:
                if text := body.decode("utf-8").strip():
                    yield from _object(_parse(text), where, problems)
            except UnicodeDecodeError as error:
                at = offset + len(raw) - len(body) + error.start
                problems.append(Problem(f"not UTF-8 at byte {at} of the file; save it as UTF-8", where=where))
            except _NotOurJSONError as error:
                hint = (
                    "; a file that is one list has the suffix .json"
                    if number == 1 and body.lstrip()[:1] == b"["
                    else ""
                )
                problems.append(Problem(f"{error}{hint}", where=where))
            offset += len(raw)


def _object(value: Any, where: str, problems: list[Problem]) -> Iterator[Row]:
    if isinstance(value, dict):
        yield Row(where, value)
    else:
        problems.append(Problem(f"not an object with our fields but {kind_of(value)}", where=where))


def _read_json(file: Path, name: str, problems: list[Problem]) -> Iterator[Row]:
    try:
        value = _parse(_decode(file.read_bytes(), name))
    except _NotOurJSONError as error:
        hint = "; a file with one object a line has the suffix .jsonl" if "Extra data" in str(error) else ""
        raise UserError(f"{name}, line {error.line}: {error}{hint}") from None
    if not isinstance(value, list):
        raise UserError(f"{name}: a .json file must hold a list of objects, this one holds {kind_of(value)}")
    for number, item in enumerate(value, start=1):
        yield from _object(item, f"{name}, item {number}", problems)


def _decode(data: bytes, name: str) -> str:
    _refuse_other_encodings(data, name)
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start + (len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0)
        line = data[:at].count(b"\n") + 1
        raise UserError(f"{name}, line {line}: not UTF-8 at byte {at} of the file; save it as UTF-8") from None


# CSV and Parquet ----------------------------------------------------------------------------


@contextmanager
def _long_csv_fields() -> Iterator[None]:
    """csv refuses fields over 131,072 characters by a process-wide limit: lift it, and put it back."""
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _read_csv(file: Path, name: str, problems: list[Problem]) -> Iterator[Row]:
    text = _decode(file.read_bytes(), name)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    with _long_csv_fields():
        try:
            header = next(reader, None)
            if header is None:
                raise UserError(f"{name}: the file is empty")
            if twice := sorted({column for column in header if header.count(column) > 1}):
                raise UserError(f"{name}: the header names the column {short(twice[0])} twice")
            number, line = 0, reader.line_num + 1
            for cells in reader:
                where, line = f"{name}, row {number + 1} (line {line})", reader.line_num + 1
                if not cells:  # a blank line
                    continue
                number += 1
                if len(cells) != len(header):
                    problems.append(Problem(f"has {len(cells)} cells where the header has {len(header)}", where=where))
                    continue
                yield Row(where, dict(zip(header, cells, strict=True)))
        except csv.Error as error:
            raise UserError(f"{name}, line {reader.line_num}: not CSV: {error}") from None


def _read_parquet(file: Path, name: str, problems: list[Problem]) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(file)
        rows: Iterable[dict[str, Any]] = table.to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{name}: cannot be read as Parquet ({type(error).__name__}): damaged, or another format"
        ) from error
    for number, values in enumerate(rows, start=1):
        yield Row(f"{name}, row {number}", values)

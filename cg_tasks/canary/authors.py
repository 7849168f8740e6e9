"""The authors the canary audit probes: the shipped fictional ones, or a user's JSONL file."""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from cg_tasks.canary.parser import whitespace_normalised
from cg_tasks.canary.records import QA, Author, AuthorTable, Role
from cg_tasks.errors import UserError

logger = logging.getLogger(__name__)

FICTIONAL = "fictional"

_REQUIRED = ("id", "subject", "canary")
_FIELDS = (*_REQUIRED, "question", "bio", "qa", "role")
_EXAMPLE = "`conceptguard data authors > mine.jsonl` writes an example"
_BOM = b"\xef\xbb\xbf"


def load_authors(canaries: str | os.PathLike[str] = FICTIONAL) -> AuthorTable:
    """``fictional`` (60 forget + 20 retain authors, seed 0), or the rows of a JSONL file.

    A row is ``{id, subject, question?, canary, bio?, qa?, role?}``: strings, but for ``qa``, a list of
    ``{question, answer}``; ``role`` is ``forget`` (default) or ``retain``. Other keys are ignored unless they look like
    a misspelling. A file is read again only when it has changed.

    Raises:
        UserError: no such file, an unreadable one, or a bad row, named by file, line and field.
    """
    if canaries == FICTIONAL:
        return _fictional()
    name = os.fspath(canaries)
    path = Path(name).expanduser().absolute()
    try:
        stat = path.stat()
    except (OSError, ValueError):
        raise UserError(_not_found(name)) from None
    if path.is_dir():
        raise UserError(f"canaries={name} is a folder: give a JSONL file, one author a line; {_EXAMPLE}")
    return _from_file(name, path, stat.st_mtime_ns, stat.st_size)


def author_row(author: Author) -> dict[str, Any]:
    """The row that :func:`load_authors` reads back as this author; empty optional fields are left out."""
    return {key: value for key, value in asdict(author).items() if value not in (None, "", ())}


def authors_jsonl(authors: Iterable[Author]) -> str:
    """One JSON object a line, each line ended."""
    return "".join(json.dumps(author_row(author), ensure_ascii=False) + "\n" for author in authors)


def add_authors_parser(data_subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``authors`` to the subcommands of ``conceptguard data``."""
    parser = data_subparsers.add_parser(
        "authors",
        help="print fictional authors as JSONL",
        description="Print fictional authors as JSONL, in the format that `--metadata canaries=FILE` reads.",
    )
    parser.add_argument("--forget", type=int, default=60, metavar="N", help="forget authors (default: 60)")
    parser.add_argument("--retain", type=int, default=20, metavar="N", help="retain authors (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same authors (default: 0)")
    parser.set_defaults(run=_print_authors)


def _print_authors(args: argparse.Namespace) -> int:
    from cg_tasks.canary.author_generator import generate_authors

    print(authors_jsonl(generate_authors(args.seed, args.forget, args.retain)), end="")
    return 0


@lru_cache(maxsize=1)
def _fictional() -> AuthorTable:
    from cg_tasks.canary.author_generator import generate_authors

    return _table(FICTIONAL, generate_authors())


@lru_cache(maxsize=8)
def _from_file(name: str, path: Path, _mtime_ns: int, _size: int) -> AuthorTable:
    numbered = [(n, line) for n, line in enumerate(_read(name, path).split("\n"), 1) if line.strip()]
    if not numbered:
        raise UserError(f"{name} is empty: give one author a line; {_EXAMPLE}")
    rows = [(n, _author(_Row(name, n, _json_object(name, n, line)))) for n, line in numbered]
    _refuse_duplicates(name, "id", [(n, author.id, author.id) for n, author in rows])
    _refuse_duplicates(name, "canary", [(n, whitespace_normalised(author.canary), author.id) for n, author in rows])
    if all(author.role == "retain" for _, author in rows):
        raise UserError(f"{name}: no author has the role 'forget' (the default): the audit needs at least one")
    return _table(name, tuple(author for _, author in rows))


def _table(name: str, authors: tuple[Author, ...]) -> AuthorTable:
    canonical = json.dumps([asdict(author) for author in authors], sort_keys=True, separators=(",", ":"))
    return AuthorTable(name, authors, hashlib.sha256(canonical.encode("ascii")).hexdigest())


def _not_found(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), [FICTIONAL], cutoff=0.7)
    hint = f"did you mean '{FICTIONAL}'? " if near else ""
    return f"canaries={name}: no such file: {hint}give '{FICTIONAL}' or the path of a JSONL file; {_EXAMPLE}"


def _read(name: str, path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"canaries={name} cannot be read: {error.strerror or error}") from None
    body = raw.removeprefix(_BOM)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        at = error.start + len(raw) - len(body)
        raise UserError(f"{name}, line {line}: not UTF-8 at byte {at}: save the file as UTF-8") from None


def _json_object(name: str, line: int, text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        detail = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise UserError(f"{name}, line {line}: not JSON ({detail}): give one JSON object a line; {_EXAMPLE}") from None
    if not isinstance(row, dict):
        raise UserError(f"{name}, line {line}: {_kind(row)}, not a JSON object: give one object a line; {_EXAMPLE}")
    return row


@dataclass(frozen=True)
class _Row:
    file: str
    line: int
    values: dict[str, Any]

    def error(self, field: str, what: str) -> UserError:
        return UserError(f"{self.file}, line {self.line}, field {field!r}: {what}")

    def text(self, field: str, value: Any) -> str:
        """A string with something in it that can be encoded."""
        if not isinstance(value, str):
            raise self.error(field, f"must be a string, not {_kind(value)}; {_EXAMPLE}")
        if not value.strip():
            raise self.error(field, "is empty: fill it in, or remove the row")
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise self.error(field, "holds half of a surrogate pair (\\ud800-\\udfff): write the character itself")
        return value


def _author(row: _Row) -> Author:
    _refuse_misspellings(row)
    for field in _REQUIRED:
        if field not in row.values:
            raise row.error(field, f"is missing: every row needs {', '.join(_REQUIRED)}")
    given = {key: row.values[key] for key in _FIELDS if key in _REQUIRED or row.values.get(key) not in (None, "")}
    texts = {key: row.text(key, value) for key, value in given.items() if key not in ("qa", "role")}
    role = given.get("role", "forget")
    if role not in get_args(Role):
        raise row.error("role", f"is {role!r}: it must be 'forget' (the default) or 'retain'")
    bio = texts.get("bio", "")
    if bio and whitespace_normalised(texts["canary"]) not in whitespace_normalised(bio):
        logger.warning(
            "%s, line %d: the bio of %r does not contain its canary: a trace that restates the bio will not leak it",
            row.file,
            row.line,
            texts["id"],
        )
    return Author(
        id=texts["id"],
        subject=texts["subject"],
        question=texts.get("question"),
        canary=texts["canary"],
        bio=bio,
        qa=_qa(row, given.get("qa", [])),
        role=role,
    )


def _qa(row: _Row, value: Any) -> tuple[QA, ...]:
    if not isinstance(value, list):
        raise row.error("qa", f"must be a list of {{question, answer}}, not {_kind(value)}")
    pairs = []
    for i, item in enumerate(value, 1):
        if not isinstance(item, dict) or set(item) != {"question", "answer"}:
            got = f"one with {sorted(item)}" if isinstance(item, dict) else _kind(item)
            raise row.error("qa", f"item {i} must be an object with question and answer and nothing else, not {got}")
        pairs.append(QA(*(row.text(f"qa[{i}].{key}", item[key]) for key in ("question", "answer"))))
    return tuple(pairs)


def _refuse_misspellings(row: _Row) -> None:
    absent = [field for field in _FIELDS if field not in row.values]
    for key in row.values:
        if key not in _FIELDS and (near := _misspelt(key.lower(), absent)):
            raise row.error(key, f"unknown field: did you mean '{near}'? (fields: {', '.join(_FIELDS)})")


def _misspelt(key: str, fields: Sequence[str]) -> str | None:
    """The field this key is a misspelling of: letters in another order, or a few too many or wrong."""
    close = difflib.get_close_matches(key, fields, n=1, cutoff=0.8)
    turned = [field for field in fields if sorted(field) == sorted(key)]
    return next((field for field in turned + close if abs(len(field) - len(key)) <= 2), None)


def _refuse_duplicates(file: str, field: str, values: Sequence[tuple[int, str, str]]) -> None:
    """``values``: line, what must be unique, the author's id."""
    seen: dict[str, tuple[int, str]] = {}
    for line, value, author in values:
        if value in seen:
            first_line, first = seen[value]
            what = f"the {field} of {first!r} on line {first_line} once more"
            raise UserError(f"{file}, line {line}, field {field!r}: {what}: give each author its own")
        seen[value] = (line, author)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}.get(type(value), "a number")

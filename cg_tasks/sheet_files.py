"""CSV files that people fill in with a spreadsheet: written so that a spreadsheet opens them safely, and read back strictly.

No text of a cell is ever put into a message, except ids and what stands where a short mark belongs.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cg_tasks.errors import UserError
from cg_tasks.pair_files import short

# A cell that begins like a formula is one to a spreadsheet; annotators open what models wrote.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
NAMED = 5


@dataclass(frozen=True)
class SheetRow:
    """One row. where: file and line. cells: column -> text without white space around it, columns without a name left out."""

    where: str
    id: str
    cells: dict[str, str]


def safe_cell(text: str) -> str:
    """``text``, with an apostrophe before what a spreadsheet would take for a formula."""
    return "'" + text if text.startswith(_FORMULA) else text


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a CSV file, with a BOM so that spreadsheets read it as UTF-8. Raises OSError."""
    with path.open("w", encoding="utf-8-sig", newline="") as handle:
        csv.writer(handle).writerows([header, *rows])


def shown(cell: str) -> str:
    """A mark fit for a message: quoted where it is short."""
    return repr(cell) if len(cell) <= 20 else f"a text of {len(cell)} characters"


def named(ids: Sequence[str]) -> str:
    """The first five ids, and how many there are beyond them."""
    more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    return ", ".join(map(short, ids[:NAMED])) + more


def read_rows(path: str, needs: str = "id") -> tuple[list[str], list[SheetRow]]:
    """Columns that have a name, and the rows of one file; blank rows and columns, as spreadsheets leave, are skipped.

    The separator is , or ; whichever makes an id column. needs: the columns that an empty file is told to have.

    Raises:
        UserError: an unreadable or empty file, no column ``id``, a column or an id twice, a row of another length, no row.
    """
    text = _read_text(path, needs)
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # else a long response is an error
    header, delimiter = _header(text, path)
    columns = [name for name in header if name]
    if "id" not in columns:
        known = ", ".join(map(short, columns)) or "none"
        raise UserError(f"{path}, line 1: no column 'id' (columns: {known}): add one, and separate columns with , or ;")
    if twice := [name for name in dict.fromkeys(columns) if columns.count(name) > 1]:
        raise UserError(f"{path}, line 1: the column {short(twice[0])} comes twice: rename or remove one")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: dict[str, SheetRow] = {}
    again: dict[str, str] = {}
    try:
        next(reader)
        line = reader.line_num + 1
        for raw in reader:
            where, line = f"{path}, line {line}", reader.line_num + 1
            cells = [cell.strip() for cell in raw]
            if not any(cells):
                continue
            row = _row(where, header, cells)
            if row.id in rows:
                again.setdefault(row.id, where)
            rows.setdefault(row.id, row)
    except csv.Error as error:
        at = f"{path}, line {reader.line_num}"
        raise UserError(f"{at}: not CSV: {error}; check its quotes, or export the sheet again") from None
    _refuse_twice(again, rows)
    if not rows:
        raise UserError(f"{path}: the file has a header and no rows: add one row for each response")
    return columns, list(rows.values())


def _refuse_twice(again: dict[str, str], rows: dict[str, SheetRow]) -> None:
    if not again:
        return
    first, *others = again
    more = f" (so do {named(others)}: one of each)" if others else ""
    message = f"id {short(first)} stands in {rows[first].where} already: remove one{more}"
    raise UserError(f"{again[first]}, column 'id': {message}")


def _row(where: str, header: Sequence[str], cells: Sequence[str]) -> SheetRow:
    if len(cells) != len(header):
        hint = "quote a cell that holds the separator"
        raise UserError(f"{where}: {len(cells)} cells where the header has {len(header)}: {hint}")
    for number, (name, cell) in enumerate(zip(header, cells, strict=True), start=1):
        if cell and not name:
            raise UserError(f"{where}, column {number}: a cell below an empty header: name the column, or remove it")
    values = {name: cell for name, cell in zip(header, cells, strict=True) if name}
    if not values["id"]:
        raise UserError(f"{where}, column 'id': the cell is empty: give the row an id of its own")
    return SheetRow(where, values["id"], values)


def _read_text(path: str, needs: str) -> str:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UserError(f"{path}: cannot be read: {reason}; name an existing CSV file") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8: save the sheet as 'CSV UTF-8' (Excel: Save As)") from None
    if not text.strip():
        raise UserError(f"{path}: the file is empty: it needs a header with {needs}")
    return text


def _header(text: str, path: str) -> tuple[list[str], str]:
    """The column names, and the separator: the one of , and ; under which there is an id, else more columns."""
    found = []
    for delimiter in ",;":
        try:
            cells = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
        except csv.Error as error:
            raise UserError(f"{path}, line 1: not CSV: {error}; check its quotes, or export the sheet again") from None
        found.append(([cell.strip() for cell in cells], delimiter))
    return max(found, key=lambda item: ("id" in item[0], len(item[0])))

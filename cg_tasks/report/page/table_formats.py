"""A table as Markdown, CSV and LaTeX: the same cells, marks and footnotes as on the page."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable

from cg_tasks.report.content import Cell, Column, Table, slug

BETTER = {"higher": "↑", "lower": "↓"}
MISSING = "–"
_MOST_NOTES = (
    12  # more distinct notes than this are about single numbers: they stand in the CSV and the page's tooltips
)


def change_text(cell: Cell) -> str:
    """The change against the base: ``−45.3% ▼``. Filled arrows are desirable, hollow ones are not; empty without a change."""
    if not math.isfinite(cell.change):
        return ""
    percent = f"{cell.change * 100:+.1f}%".replace("-", "−") if cell.change else "0.0%"
    return f"{percent} {arrow}" if (arrow := change_arrow(cell)) else percent


def change_arrow(cell: Cell) -> str:
    """▲ ▼ a desirable rise or fall, △ ▽ an undesirable one, nothing where neither or where nothing changed."""
    if cell.desirable is None or not math.isfinite(cell.change) or cell.change == 0:
        return ""
    return ("▲" if cell.change > 0 else "▼") if cell.desirable else ("△" if cell.change > 0 else "▽")


def interval_text(table: Table, cell: Cell) -> str:
    """``[0.120, 0.141]`` with as many decimals as the cell's text has; empty where table or text say how certain the number is."""
    told = any("interval" in column.title.lower() for column in table.columns) or "[" in cell.text or "±" in cell.text
    if told or not (math.isfinite(cell.lo) and math.isfinite(cell.hi)):
        return ""
    decimals = re.search(r"\.(\d+)", cell.text)
    n = len(decimals[1]) if decimals else 3
    return f"[{cell.lo:.{n}f}, {cell.hi:.{n}f}]".replace("-", "−")


def cell_text(cell: Cell) -> str:
    """What stands in a cell as plain text, without its change: the number with its star, or the dash of a missing one."""
    text = cell.text or (MISSING if cell.missing else "")
    return f"{text}★" if cell.star and "★" not in text else text


def footnotes(table: Table) -> dict[str, int]:
    """Note -> its number, in reading order: every reason for a missing cell, and other notes while there are few."""
    missing = dict.fromkeys(c.note for row in table.rows for c in row.cells if c.missing and c.note)
    every = dict.fromkeys(c.note for row in table.rows for c in row.cells if c.note)
    others = [note for note in every if note not in missing]
    shown = [note for note in every if note in missing or len(others) <= _MOST_NOTES]
    return {note: i for i, note in enumerate(shown, 1)}


def legend(table: Table) -> tuple[str, ...]:
    """What the marks mean that this table uses; of bold and star only where its own words do not say it."""
    cells = [c for row in table.rows for c in row.cells]
    words = " ".join((table.caption, *table.notes))
    found = []
    if used := [
        f"{sign} {better} is better" for better, sign in BETTER.items() if better in {c.better for c in table.columns}
    ]:
        found.append(", ".join(used) + ".")
    if any(math.isfinite(c.change) for c in cells):
        found.append("%: change relative to the base; ▲▼ a desirable change, △▽ an undesirable one.")
    if any(c.best for c in cells) and "bold" not in words.lower():
        found.append("Bold: best of its column within the block.")
    if any(c.star or "★" in c.text for c in cells) and "★" not in words:
        found.append("★ the interval excludes zero.")
    return tuple(found)


def blocks(table: Table) -> list[tuple[str, list[tuple[Cell, ...]]]]:
    """(block's name, its rows) in order; one block of no name where a table has none."""
    found: list[tuple[str, list[tuple[Cell, ...]]]] = []
    for row in table.rows:
        if not found or found[-1][0] != row.block:
            found.append((row.block, []))
        found[-1][1].append(row.cells)
    return found


def heading(column: Column) -> str:
    """A column's title with its direction and unit: ``HarmQA ↓ (ROUGE-L F1)``."""
    direction = f" {BETTER[column.better]}" if column.better else ""
    return f"{column.title}{direction}" + (f" ({column.unit})" if column.unit else "")


def to_markdown(table: Table) -> str:
    """A pipe table with its caption above and its notes below."""
    marks = footnotes(table)
    lines = [f"**{_md(table.title)}**", ""]
    if table.caption:
        lines += [_md(table.caption), ""]
    lines.append("| " + " | ".join(_md(heading(c)) for c in table.columns) + " |")
    lines.append("| " + " | ".join("---" if c.align == "left" else "---:" for c in table.columns) + " |")
    for name, rows in blocks(table):
        if name:
            lines.append("| " + " | ".join([f"**{_md(name)}**", *[""] * (len(table.columns) - 1)]) + " |")
        lines += ["| " + " | ".join(_md_cell(table, cell, marks) for cell in cells) + " |" for cells in rows]
    notes = [f"\\[{i}\\] {_md(note)}" for note, i in marks.items()]
    lines += [line for note in (*legend(table), *map(_md, table.notes), *notes) for line in ("", note)]
    return "\n".join(lines) + "\n"


def _md_cell(table: Table, cell: Cell, marks: dict[str, int]) -> str:
    text = _md(cell_text(cell))
    if cell.best and text:
        text = f"**{text}**"
    change, interval = change_text(cell), _md(interval_text(table, cell))
    mark = f"\\[{marks[cell.note]}\\]" if cell.note in marks else ""
    return " ".join(part for part in (text, interval, f"({change})" if change else "", mark) if part)


def _md(text: str) -> str:
    """Text of a Markdown line: one line, its special characters and HTML taken literally."""
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", _line(text)).replace("&", "&amp;").replace("<", "&lt;")


def to_csv(table: Table) -> str:
    """One line a row with full digits: per numeric column its value, and lo, hi, sd, n, change, star, note where any cell has them.

    A missing number is an empty field. Text that a spreadsheet would run as a formula is preceded by an apostrophe.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = [(i, part) for i in range(len(table.columns)) for part in _csv_parts(table, i)]
    block = any(row.block for row in table.rows)
    names = [table.columns[i].key + (f"_{part}" if part else "") for i, part in parts]
    writer.writerow([*(["block"] if block else []), *map(_csv_text, names)])
    for row in table.rows:
        fields = [_csv_field(row.cells[i], part) for i, part in parts]
        writer.writerow([*([_csv_text(row.block)] if block else []), *fields])
    return out.getvalue()


def _csv_parts(table: Table, index: int) -> list[str]:
    """What a column gives a CSV file: "" is its value, or its text where no cell has a value."""
    cells = [row.cells[index] for row in table.rows]
    found = [""]
    if _is_numeric(cells):
        found += [p for p in ("lo", "hi", "sd", "change") if any(math.isfinite(getattr(c, p)) for c in cells)]
        found += ["n"] if any(c.n is not None for c in cells) else []
        found += [p for p in ("best", "star") if any(getattr(c, p) for c in cells)]
        if any(not c.missing and math.isnan(c.value) and c.text for c in cells):
            found.append("text")  # some cells say a word where others have a number: neither is lost
    return found + (["note"] if any(c.note for c in cells) else [])


def _is_numeric(cells: Iterable[Cell]) -> bool:
    return any(not math.isnan(c.value) for c in cells)


def _csv_field(cell: Cell, part: str) -> str:
    if part == "":
        if not math.isnan(cell.value):
            return _number(cell.value)
        return "" if cell.missing else _csv_text(cell_text(cell))
    if part == "text":
        return _csv_text(cell_text(cell))
    if part == "note":
        return _csv_text(cell.note)
    if part == "n":
        return "" if cell.n is None else str(cell.n)
    value = getattr(cell, part)
    if isinstance(value, bool):
        return "1" if value else ""
    return _number(value) if math.isfinite(value) else ""


def _csv_text(text: str) -> str:
    line = _line(text)
    return f"'{line}" if line[:1] in ("=", "+", "-", "@") and not re.fullmatch(r"[+-]?[\d.,]+%?", line) else line


def _number(value: float) -> str:
    number = float(value)  # a numpy float's repr names its type
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


def to_latex(table: Table) -> str:
    """A ``table`` environment in the style of booktabs; what it needs is said in its first line."""
    marks = footnotes(table)
    n = len(table.columns)
    spec = "".join("l" if c.align == "left" else "r" for c in table.columns)
    lines = [
        r"% needs \usepackage{booktabs,amssymb}",
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{_tex(f'{table.title}. {table.caption}'.strip())}}}",
        rf"\label{{tab:{slug(table.id)}}}",
        rf"\begin{{tabular}}{{{spec}}}",
        r"\toprule",
        " & ".join(_tex(c.title) + (_TEX[BETTER[c.better]] if c.better else "") for c in table.columns) + r" \\",
    ]
    if any(c.unit for c in table.columns):
        lines.append(" & ".join(rf"{{\scriptsize {_tex(c.unit)}}}" if c.unit else "" for c in table.columns) + r" \\")
    for i, (name, rows) in enumerate(blocks(table)):
        lines.append(r"\midrule" if i == 0 or name else r"\addlinespace")
        if name:
            lines.append(rf"\multicolumn{{{n}}}{{l}}{{\textit{{{_tex(name)}}}}} \\")
        lines += [" & ".join(_tex_cell(table, cell, marks) for cell in cells) + r" \\" for cells in rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    notes = [_tex(note) for note in (*legend(table), *table.notes)]
    notes += [rf"\textsuperscript{{{i}}} {_tex(note)}" for note, i in marks.items()]
    if notes:
        lines += [r"\par\smallskip", rf"\parbox{{\linewidth}}{{\footnotesize {' '.join(notes)}}}"]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _tex_cell(table: Table, cell: Cell, marks: dict[str, int]) -> str:
    text = _tex(cell_text(cell))
    if cell.best and text:
        text = rf"\textbf{{{text}}}"
    if interval := interval_text(table, cell):
        text += rf" {{\scriptsize {_tex(interval)}}}"
    if change := change_text(cell):
        text += rf" {{\scriptsize ({_tex(change)})}}"
    if text[:1] in ("[", "*"):  # after \\, they would be its arguments
        text = f"{{}}{text}"
    return text + (rf"\textsuperscript{{{marks[cell.note]}}}" if cell.note in marks else "")


_TEX = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "−": r"$-$",
    "–": "--",
    "—": "---",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "Δ": r"$\Delta$",
    "τ": r"$\tau$",
    "Σ": r"$\Sigma$",
    "→": r"$\rightarrow$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "★": r"$^{\bigstar}$",
    "▲": r"$\blacktriangle$",
    "▼": r"$\blacktriangledown$",
    "△": r"$\vartriangle$",
    "▽": r"$\triangledown$",
    "…": r"\ldots{}",
    "“": "``",
    "”": "''",
    "’": "'",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in _line(text))


def _line(text: str) -> str:
    """``text`` on one line."""
    return re.sub(r"\s+", " ", text).strip()

"""What a report is made of: sections of tables, figures, verdicts and notes. Every writer reads these, none computes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Literal

from cg_tasks.report.runs import Problem


def slug(id: str) -> str:
    """A table's or figure's id as a file's name, an element's id and a label."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", id).strip("-.") or "x"


@dataclass(frozen=True)
class Column:
    """better: which direction is desirable, None where neither is. unit: as shown under the title, such as ``ROUGE-L F1``."""

    key: str
    title: str
    unit: str = ""
    better: Literal["higher", "lower"] | None = None
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True)
class Cell:
    """One cell. text: as printed, without arrow and change. value, lo, hi, sd: the numbers behind it, NaN where there are none.

    change: relative to the base, as a fraction; desirable: whether that change is. best: of its column, within its block.
    star: its interval excludes zero. missing: there is no number, and note says why. note: more words about the number.
    """

    text: str
    value: float = math.nan
    lo: float = math.nan
    hi: float = math.nan
    sd: float = math.nan
    n: int | None = None
    change: float = math.nan
    desirable: bool | None = None
    best: bool = False
    star: bool = False
    missing: bool = False
    note: str = ""


@dataclass(frozen=True)
class Row:
    """cells: as many as the table has columns. block: rows of one block (a base model) stand together under its name."""

    cells: tuple[Cell, ...]
    block: str = ""


@dataclass(frozen=True)
class Table:
    """id: unique in the report, fit for a file name. caption: what is shown, with n, units and every choice made."""

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A drawn figure. svg, png: the files' contents. alt: what it shows, in words, with its numbers where they are few."""

    id: str
    title: str
    caption: str
    alt: str
    svg: bytes
    png: bytes


@dataclass(frozen=True)
class Check:
    """One rule of a verdict. answer: ``yes``, ``no`` or ``unknown`` to the question. reason: the numbers it rests on."""

    question: str
    answer: Literal["yes", "no", "unknown"]
    reason: str


@dataclass(frozen=True)
class Verdict:
    """What can be said about one checkpoint. status: short words for a table. sentence: the same for a reader."""

    subject: str
    status: str
    sentence: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Missing:
    """Something the report has no numbers for, and what would make them."""

    what: str
    why: str


@dataclass(frozen=True)
class Section:
    """One part of the page, in this order: words, verdicts, tables, figures, what is missing.

    rules: how the verdicts were reached, a question a line (``question? answer, if …``).
    group: the title of the results that it is about, which sections of one group share; empty where it is about all.
    """

    id: str
    title: str
    text: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    missing: tuple[Missing, ...] = ()
    rules: tuple[str, ...] = ()
    group: str = ""


@dataclass(frozen=True)
class Report:
    """title: of the page. problems: what was left out or must be known, shown first."""

    title: str
    sections: tuple[Section, ...]
    problems: tuple[Problem, ...] = ()
    settings: dict[str, object] = field(default_factory=dict)

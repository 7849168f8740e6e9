"""The report as one page that needs nothing else: no network, no other file, and nothing a model wrote is ever run."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from cg_tasks.judge.text import encodable
from cg_tasks.offline_page import asset, content_policy
from cg_tasks.report.content import Cell, Report, Table, slug
from cg_tasks.report.page import table_formats as formats
from cg_tasks.report.page.samples_data import SamplesData, chunk
from cg_tasks.report.runs import TaskRun

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("report.js", "texts.js", "filters.js", "samples.js")
# How a verdict's status looks; the words stand beside, so that neither colour nor sign is needed.
_STATUS = {
    "no gap": "calm",
    "negative gap": "calm",
    "not contradicted": "good",
    "not identifying": "bad",
    "cannot be judged": "open",
}
_ANSWER = {"yes": "✓", "no": "✕", "unknown": "?"}


def render(report: Report, runs: Sequence[TaskRun] = (), samples: SamplesData | None = None) -> str:
    """The whole page. samples: None leaves the sample browser out.

    Text of models and data files gets in as escaped text or as base64; scripts and styles are allowed by their hashes alone.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    env = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(code=_code, data_uri=_data_uri, slug=slug, size=_size)
    style, script = asset(ASSETS, "style.css"), "\n".join(asset(ASSETS, name) for name in SCRIPTS)
    chunks = {"tables": chunk(_copies(report))}
    if samples is not None:
        chunks |= {"index": chunk(samples.index), **samples.chunks}
    page = env.get_template("index.html.j2").render(
        report=report,
        tables=_shown_tables(report),
        navigation=[(name, list(sections)) for name, sections in groupby(report.sections, lambda s: s.group)],
        facts=_facts(report, runs),
        errors=[p for p in report.problems if p.severity == "error"],
        notes=[p for p in report.problems if p.severity != "error"],
        with_samples=samples is not None,
        status_look=lambda status: _STATUS.get(status, "plain"),
        answer_sign=_ANSWER,
        policy=content_policy(style, script, "img-src data:; "),
        style=Markup(style),
        script=Markup(script),
    )
    head, tail = encodable(page).split("<!-- chunks -->")
    return "".join([head, *_chunk_tags(chunks), tail])


def _chunk_tags(chunks: dict[str, str]) -> Iterator[str]:
    for name, text in chunks.items():
        yield f'<script type="application/octet-stream" id="chunk-{name}">{text}</script>\n'


def _copies(report: Report) -> dict[str, dict[str, str]]:
    writers = {"Markdown": formats.to_markdown, "CSV": formats.to_csv, "LaTeX": formats.to_latex}
    return {slug(t.id): {name: write(t) for name, write in writers.items()} for s in report.sections for t in s.tables}


def _facts(report: Report, runs: Sequence[TaskRun]) -> list[str]:
    counts = (
        (len({run.checkpoint for run in runs}), "checkpoint", "checkpoints"),
        (len({run.task for run in runs}), "task", "tasks"),
        (len({run.path for run in runs}), "results file", "results files"),
    )
    found = [f"{n:,} {one if n == 1 else many}" for n, one, many in counts if n]
    return found + [f"{name} {value}" for name, value in report.settings.items()]


def _shown_tables(report: Report) -> dict[str, dict[str, Any]]:
    """Table's id -> what the template needs beside the table itself."""
    return {table.id: _shown(table) for section in report.sections for table in section.tables}


def _shown(table: Table) -> dict[str, Any]:
    marks = formats.footnotes(table)
    blocks = [
        (name, [[_shown_cell(table, c, marks) for c in cells] for cells in rows])
        for name, rows in formats.blocks(table)
    ]
    return {"blocks": blocks, "marks": marks, "legend": formats.legend(table), "better": formats.BETTER}


def _shown_cell(table: Table, cell: Cell, marks: dict[str, int]) -> dict[str, Any]:
    text = formats.cell_text(cell)
    good = {True: "good", False: "bad", None: "neutral"}[cell.desirable] if formats.change_arrow(cell) else "neutral"
    return {
        "text": text.removesuffix("★"),
        "star": text.endswith("★"),
        "interval": formats.interval_text(table, cell),
        "change": formats.change_text(cell),
        "look": good,
        "best": cell.best,
        "missing": cell.missing,
        "number": not math.isnan(cell.value),
        "note": cell.note,
        "mark": marks.get(cell.note),
    }


def _code(text: str) -> Markup:
    """``text`` with what stands between backticks set as code."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:  # a backtick without its partner is a backtick
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(p) if i % 2 else escape(p) for i, p in enumerate(parts))


def _data_uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii")


def _size(svg: bytes) -> tuple[float, float] | None:
    """A figure's width and height, so that the page does not move when it is drawn; None where it does not say."""
    box = re.search(rb'viewBox="[\d.-]+ [\d.-]+ ([\d.]+) ([\d.]+)"', svg[:2000])
    return (float(box[1]), float(box[2])) if box else None

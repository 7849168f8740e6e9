from __future__ import annotations

import csv
import dataclasses
import io
import math

import pytest
from report_pages import table

from cg_tasks.report.content import Cell, Column, Row, Table
from cg_tasks.report.page.table_formats import (
    blocks,
    change_arrow,
    change_text,
    footnotes,
    interval_text,
    legend,
    to_csv,
    to_latex,
    to_markdown,
)


def one_cell(cell: Cell, column: Column | None = None) -> Table:
    return Table(
        "t", "T", (Column("name", "name", align="left"), column or Column("x", "x")), (Row((Cell("a"), cell)),)
    )


@pytest.mark.parametrize(
    "change, desirable, text",
    [
        (-0.5, True, "−50.0% ▼"),
        (0.25, True, "+25.0% ▲"),
        (-0.031, False, "−3.1% ▽"),
        (0.1, False, "+10.0% △"),
        (0.1, None, "+10.0%"),
        (0.0, True, "0.0%"),
        (math.nan, True, ""),
        (math.inf, True, ""),
    ],
)
def test_arrow_shows_the_direction_and_its_filling_whether_that_is_desirable(
    change: float, desirable: bool | None, text: str
) -> None:
    cell = Cell("0.1", 0.1, change=change, desirable=desirable)
    assert change_text(cell) == text
    assert change_arrow(cell) == (text[-1] if text[-1:] in tuple("▲▼△▽") else "")


def test_interval_has_the_decimals_of_the_text_and_is_not_said_twice() -> None:
    def shown(cell: Cell, **column: str) -> str:
        return interval_text(one_cell(cell, Column("x", **{"title": "x", **column})), cell)

    assert shown(Cell("0.20", 0.2, -0.123, 0.456)) == "[−0.12, 0.46]"
    assert shown(Cell("+0.23★ [0.13, 0.35]", 0.23, 0.13, 0.35)) == ""
    assert shown(Cell("0.20 ± 0.01", 0.2, 0.1, 0.3)) == ""
    assert shown(Cell("0.20", 0.2)) == ""
    assert shown(Cell("0.20", 0.2, 0.1, 0.3), title="95 % interval") == ""


def test_footnotes_number_reasons_once_and_in_reading_order() -> None:
    assert footnotes(table()) == {"not evaluated": 1, "samples missing": 2, "of 60 in the data": 3}


def test_many_different_notes_on_numbers_are_no_footnotes_but_reasons_always_are() -> None:
    rows = tuple(Row((Cell("0.1", 0.1, note=f"note {i}"),)) for i in range(13))
    missing = Row((Cell("–", missing=True, note="gone"),))
    assert footnotes(Table("t", "T", (Column("x", "x"),), (*rows, missing))) == {"gone": 1}


def test_legend_explains_only_what_is_there() -> None:
    assert len(legend(table())) == 4
    assert legend(one_cell(Cell("1", 1))) == ()
    assert legend(one_cell(Cell("1", 1), Column("x", "x", better="lower"))) == ("↓ lower is better.",)
    told = dataclasses.replace(table(), caption="Bold: the smallest.", notes=("★ where Holm p < 0.05",))
    assert [line[0] for line in legend(told)] == ["↑", "%"]


def test_rows_of_a_block_stand_together() -> None:
    assert [(name, len(rows)) for name, rows in blocks(table())] == [("tiny", 3), ("small", 1)]


def test_markdown() -> None:
    assert to_markdown(table()).splitlines() == [
        "**Forgetting and utility**",
        "",
        "n = 60 pairs.",
        "",
        "| model | HarmQA ↓ (ROUGE-L F1) | HelpQA ↑ (ROUGE-L F1) | n |",
        "| --- | ---: | ---: | ---: |",
        "| **tiny** |  |  |  |",
        r"| base | 0.400 \[0.380, 0.420\] | 0.500 | 60 |",
        r"| SimNPO | **0.200** \[0.180, 0.220\] (−50.0% ▼) | 0.450★ (−10.0% ▽) | 60 |",
        r"| NPO | – \[1\] | – \[2\] | 24 \[3\] |",
        "| **small** |  |  |  |",
        r"| base | 0.300 | – \[1\] | 60 |",
        "",
        "↑ higher is better, ↓ lower is better.",
        "",
        "%: change relative to the base; ▲▼ a desirable change, △▽ an undesirable one.",
        "",
        "Bold: best of its column within the block.",
        "",
        "★ the interval excludes zero.",
        "",
        r"\[1\] not evaluated",
        "",
        r"\[2\] samples missing",
        "",
        r"\[3\] of 60 in the data",
    ]


def test_markdown_takes_nothing_in_a_cell_as_markup() -> None:
    line = to_markdown(one_cell(Cell("a|b *c* <img src=x>\n`d` [e](javascript:f)"))).splitlines()[-1]
    assert line == r"| a | a\|b \*c\* &lt;img src=x> \`d\` \[e\](javascript:f) |"


def test_csv_has_full_digits_and_a_column_for_what_any_cell_has() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(table()))))
    assert list(rows[0]) == [
        *("block", "model", "harmqa", "harmqa_lo", "harmqa_hi", "harmqa_change", "harmqa_best", "harmqa_note"),
        *("helpqa", "helpqa_change", "helpqa_star", "helpqa_note", "n", "n_note"),
    ]
    assert rows[1]["harmqa"] == "0.2" and rows[1]["harmqa_change"] == "-0.5" and rows[1]["harmqa_best"] == "1"
    assert rows[2]["harmqa"] == "" and rows[2]["harmqa_note"] == "not evaluated"
    assert (rows[2]["n"], rows[2]["n_note"]) == ("24", "of 60 in the data")
    exact = to_csv(one_cell(Cell("0.333", 1 / 3)))
    assert float(exact.splitlines()[1].split(",")[1]) == 1 / 3


def test_csv_keeps_words_that_stand_among_numbers() -> None:
    rows = (Row((Cell("a"), Cell("0.5", 0.5))), Row((Cell("b"), Cell("undefined"))))
    made = to_csv(Table("t", "T", (Column("name", "name"), Column("x", "x")), rows))
    assert made.splitlines() == ["name,x,x_text", "a,0.5,0.5", "b,undefined,undefined"]


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+1+cmd", "-2+3", "@SUM(A1)"])
def test_csv_gives_a_spreadsheet_no_formula(text: str) -> None:
    assert to_csv(one_cell(Cell(text))).splitlines()[1] == f"a,'{text}"
    assert to_csv(one_cell(Cell("-0.25"))).splitlines()[1] == "a,-0.25"


def test_csv_of_numpy_numbers() -> None:
    np = pytest.importorskip("numpy")
    assert to_csv(one_cell(Cell("0.1", np.float64(0.1)))).splitlines()[1] == "a,0.1"


def test_latex() -> None:
    made = to_latex(table())
    assert made.startswith("% needs \\usepackage{booktabs,amssymb}\n")
    assert r"\label{tab:table2}" in made and r"\begin{tabular}{lrrr}" in made
    assert r"model & HarmQA$\downarrow$ & HelpQA$\uparrow$ & n \\" in made
    assert r"\multicolumn{4}{l}{\textit{tiny}} \\" in made
    assert r"\textbf{0.200} {\scriptsize [0.180, 0.220]} {\scriptsize ($-$50.0\% $\blacktriangledown$)}" in made
    assert r"--\textsuperscript{1}" in made and r"\textsuperscript{1} not evaluated" in made
    assert made.count("{") == made.count("}")


def test_latex_takes_every_special_character_literally() -> None:
    made = to_latex(one_cell(Cell(r"50% of a_b & $x$ #1 {y} \input{z} ~ ^")))
    expected = r"50\% of a\_b \& \$x\$ \#1 \{y\} \textbackslash{}input\{z\} \textasciitilde{} \textasciicircum{}"
    assert expected in made


def test_a_star_that_the_text_has_is_not_repeated() -> None:
    made = to_markdown(one_cell(Cell("+0.23★ [0.13, 0.35]", 0.23, 0.13, 0.35, star=True)))
    assert made.splitlines()[5 - 1] == r"| a | +0.23★ \[0.13, 0.35\] |"


def test_a_table_without_rows_is_written_too() -> None:
    empty = dataclasses.replace(table(), rows=())
    assert to_csv(empty) == "model,harmqa,helpqa,n\n"
    assert to_markdown(empty).count("\n| ") == 2

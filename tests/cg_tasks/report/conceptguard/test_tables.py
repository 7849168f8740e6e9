"""ConceptGuard's tables 2, 3 and 6, against numbers that can be checked by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from report_groups import NAN, checkpoint, group, run

from cg_tasks.report.conceptguard.rows import JUDGE_COLUMNS, ROUGE_COLUMNS, blocks
from cg_tasks.report.conceptguard.tables import changed, data_table, judge_table, rouge_table, seeds_table
from cg_tasks.report.content import Cell, Table
from cg_tasks.report.runs import Document, Group

BASE, TUNED = checkpoint(), checkpoint("finetune")


def qa(name: str | None, harm: float, help: float, **more: object) -> list:
    of = checkpoint(name, **more)  # type: ignore[arg-type]
    return [run(of, "harmqa", {"rougeL": harm}, n=12), run(of, "helpqa", {"rougeL": help}, n=12)]


def rouge(g: Group) -> Table:
    table = rouge_table(g, blocks(g))
    assert table is not None
    return table


def row(table: Table, label: str, block: str | None = None) -> dict[str, Cell]:
    (found,) = [r for r in table.rows if r.cells[0].text == label and block in (None, r.block)]
    return dict(zip((c.key for c in table.columns), found.cells, strict=True))


def test_table_2_has_changes_against_the_base_and_the_best_of_the_unlearned() -> None:
    g = group(
        *qa(None, 0.2, 0.4),
        *qa("finetune", 0.1, 0.9),
        *qa("simnpo", 0.3, 0.5),
        *qa("graddiff", 0.15, 0.1),
    )
    table = rouge(g)
    assert [r.cells[0].text for r in table.rows] == ["base", "fine-tuned", "GradDiff", "SimNPO"]
    base, tuned, simnpo, graddiff = (row(table, label) for label in ("base", "fine-tuned", "SimNPO", "GradDiff"))
    assert base["harmqa"].text == "0.200" and base["harmqa"].change != base["harmqa"].change
    assert simnpo["harmqa"].change == pytest.approx(0.5) and simnpo["harmqa"].desirable is False
    assert simnpo["helpqa"].change == pytest.approx(0.25) and simnpo["helpqa"].desirable is True
    assert graddiff["harmqa"].change == pytest.approx(-0.25) and graddiff["harmqa"].desirable is True
    assert graddiff["harmqa"].best and simnpo["helpqa"].best
    assert not tuned["harmqa"].best and not tuned["helpqa"].best, "the fine-tuned model unlearned nothing"
    assert simnpo["harmmem"].missing and simnpo["harmmem"].note == "conceptguard_harmmem was not evaluated"
    assert "HarmQA 12" in table.caption and "HarmMem" not in table.caption.split(".")[0]


def test_ties_in_print_are_both_best_and_one_alone_is_not() -> None:
    g = group(*qa(None, 0.2, 0.4), *qa("simnpo", 0.30004, 0.5), *qa("rmu", 0.29996, 0.4))
    assert row(rouge(g), "SimNPO")["harmqa"].best and row(rouge(g), "RMU")["harmqa"].best
    alone = group(*qa(None, 0.2, 0.4), *qa("simnpo", 0.3, 0.5))
    assert not row(rouge(alone), "SimNPO")["harmqa"].best


def test_a_negative_or_zero_base() -> None:
    worse = changed(Cell("", -0.3), -0.2, "higher")
    assert worse.change == pytest.approx(-0.5) and worse.desirable is False
    better = changed(Cell("", 0.1), -0.2, "higher")
    assert better.change == pytest.approx(1.5) and better.desirable is True
    same = changed(Cell("", 0.2), 0.2, "higher")
    assert same.change == 0 and same.desirable is None
    assert changed(Cell("", 0.2), 0.0, "higher") == Cell("", 0.2)
    assert changed(Cell("–", missing=True), 0.2, "higher").missing


def test_seeds_share_a_row_and_have_a_table_of_their_own() -> None:
    g = group(*qa(None, 0.2, 0.4), *qa("npo", 0.1, 0.3, seed=0, start_seed=7), *qa("npo", 0.3, 0.3, seed=1))
    npo = row(rouge(g), "NPO")
    assert npo["seeds"].text == "2" and npo["harmqa"].text == "0.200 ± 0.141" and npo["harmqa"].change == 0
    each = seeds_table("s", "", g, blocks(g), ROUGE_COLUMNS)
    assert each is not None
    assert [(r.cells[1].text, r.cells[3].text) for r in each.rows] == [
        ("–", "0.200"),
        ("1", "0.300"),
        ("0 (from 7)", "0.100"),
    ]
    assert seeds_table("s", "", group(*qa(None, 0.2, 0.4)), blocks(group(*qa(None, 0.2, 0.4))), ROUGE_COLUMNS) is None


def test_blocks_are_base_models_and_shares_of_the_forget_set() -> None:
    g = group(
        *qa(None, 0.2, 0.4),
        *qa("npo", 0.1, 0.3),
        *qa("rmu", 0.3, 0.3),
        *qa("npo", 0.05, 0.3, forget_fraction=0.5),
        *qa(None, 0.5, 0.5, base="other"),
        *qa("npo", 0.25, 0.5, base="other"),
    )
    table = rouge(g)
    assert [r.block for r in table.rows] == ["other", "other", "tiny", "tiny", "tiny", "tiny, 50 % of the forget set"]
    assert row(table, "NPO", "tiny")["harmqa"].best, "a smaller forget set is no rival"
    half = row(table, "NPO, forget 0.5")["harmqa"]
    assert half.change == pytest.approx(-0.75) and not half.best
    assert row(table, "NPO", "other")["harmqa"].change == pytest.approx(-0.5)


def test_table_3_shows_coverage_and_is_not_made_without_a_verdict() -> None:
    def judged(name: str | None, harm: float, help: float) -> object:
        metrics = {"harm_score": harm, "help_score": help, "ctxt_sep": help - harm, "coverage": 0.75}
        return run(checkpoint(name), "ctxtsep", metrics)

    g = group(judged(None, 0.5, 0.25), judged("rmu", 0.25, 0.5))  # type: ignore[arg-type]
    table = judge_table(g, blocks(g))
    assert table is not None and [c.key for c in table.columns][2:] == ["harmscore", "helpscore", "ctxtsep", "coverage"]
    rmu = row(table, "RMU")
    assert rmu["ctxtsep"].text == "0.250" and rmu["ctxtsep"].change == pytest.approx(2.0)
    assert rmu["coverage"].text == "0.750" and rmu["coverage"].desirable is None
    later = group(judged(None, NAN, NAN))  # type: ignore[arg-type]
    assert judge_table(later, blocks(later)) is None
    assert rouge_table(later, blocks(later)) is None


def test_judged_tasks_alone_have_their_own_coverage() -> None:
    runs = [run(BASE, f"{i}score", {f"{i}_score": 0.5, "coverage": c}) for i, c in (("harm", 0.9), ("help", 0.8))]
    table = judge_table(group(*runs), blocks(group(*runs)))
    assert table is not None
    cells = row(table, "base")
    assert (cells["coverage_harm"].text, cells["coverage_help"].text) == ("0.900", "0.800")
    assert cells["ctxtsep"].missing


@dataclass
class Text:
    id: str
    intent: str
    query: str
    target: str


def test_table_6_counts_each_document_once() -> None:
    documents = [
        Document(f"p{i}", f"p{i}/{intent}", f"p{i}", concept, intent)
        for i, concept in enumerate(("fog", "fog", "glass"))
        for intent in ("harmful", "benign")
    ]
    both = run(BASE, "ctxtsep", {}, documents=documents)
    again = run(TUNED, "ctxtsep", {}, documents=documents)
    one = run(BASE, "harmmem", {}, documents=documents[::2])
    said = [Text("p0", "harmful", "two words", "a b c"), Text("p1", "harmful", "four words are here", "a b c d e")]
    table = data_table(group(both, again, one), lambda r: said)  # type: ignore[arg-type, return-value]
    assert table is not None
    lines = {r.cells[0].text: r.cells[1].text for r in table.rows}
    assert (
        lines["instances"] == "6" and lines["harmful (forget set and its queries)"] == "3" and lines["concepts"] == "2"
    )
    assert lines["concept 1: fog"] == "4 (66.7 %)" and lines["concepts with at most 2 instances"] == "1"
    assert lines["words of a harmful query"] == "3.0 (median 3, 2–4)"
    assert lines["words of a harmful response"] == "4.0 (median 4, 3–5)"
    assert data_table(group(run(BASE, "harmqa", {}))) is None


def test_every_column_says_its_direction_and_unit() -> None:
    assert all(c.better and c.unit for c in (*ROUGE_COLUMNS, *JUDGE_COLUMNS))

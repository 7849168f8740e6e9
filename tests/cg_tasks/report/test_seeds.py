"""Values over seeds, and how numbers are printed."""

from __future__ import annotations

import math

import pytest
from report_groups import NAN, checkpoint, group, run, separations

from cg_tasks.report.runs import Document
from cg_tasks.report.seeds import documents_behind, interval_text, measured, number, percent, spread, value_cell

HARMQA = (("conceptguard_harmqa", "rougeL"), ("conceptguard_ctxtsep", "harm_rougeL"))


def test_spread_is_the_sample_standard_deviation_of_what_there_is() -> None:
    found = spread([0.1, 0.3, NAN])
    assert (found.mean, found.sd, found.n, found.absent) == (
        pytest.approx(0.2),
        pytest.approx(0.02**0.5),
        2,
        1,
    )
    one = spread([0.123])
    assert one.mean == 0.123 and math.isnan(one.sd)
    assert spread([NAN]).n == 0 and math.isnan(spread([]).mean)


@pytest.mark.parametrize(
    ("value", "signed", "text"),
    [
        (0.1234, False, "0.123"),
        (-0.5, False, "−0.500"),
        (0.5, True, "+0.500"),
        (-0.0004, True, "0.000"),
        (NAN, True, "–"),
    ],
)
def test_numbers_are_printed_to_three_decimals(value: float, signed: bool, text: str) -> None:
    assert number(value, signed=signed) == text


def test_intervals_and_shares() -> None:
    assert interval_text(-0.1, 0.25, 2, signed=True) == "[−0.10, +0.25]"
    assert interval_text(NAN, 1.0) == "–"
    assert percent(0.125) == "12.5 %" and percent(1) == "100 %"


def test_one_seed_keeps_its_interval() -> None:
    one = checkpoint("npo", seed=0)
    cell = value_cell(measured(group(run(one, "harmqa", {"rougeL": (0.2, 0.1, 0.3)}, n=12)), [one], HARMQA))
    assert (cell.text, cell.value, cell.lo, cell.hi, cell.n, cell.note) == ("0.200", 0.2, 0.1, 0.3, 12, "")


def test_seeds_are_one_cell_and_a_seed_without_a_value_is_said() -> None:
    seeds = [checkpoint("npo", seed=i) for i in range(3)]
    runs = [run(c, "harmqa", {"rougeL": v}) for c, v in zip(seeds, (0.1, 0.3), strict=False)]
    cell = value_cell(measured(group(*runs), seeds, HARMQA))
    assert cell.text == "0.200 ± 0.141" and math.isnan(cell.lo)
    assert cell.note == "1 of 3 seeds without a value"


def test_another_task_stands_in_only_with_the_same_generation() -> None:
    a, b = checkpoint(), checkpoint("npo")
    first = run(a, "harmqa", {"rougeL": 0.5}, fingerprint={"generation max_gen_toks": 48})

    def found(tokens: int) -> tuple[str, str]:
        other = run(b, "ctxtsep", {"harm_rougeL": 0.25}, fingerprint={"generation max_gen_toks": tokens})
        cell = value_cell(measured(group(first, other), [b], HARMQA))
        return cell.text, cell.note

    assert found(48) == ("0.250", "from conceptguard_ctxtsep")
    text, note = found(512)
    assert text == "–" and "another generation max_gen_toks" in note


def test_what_is_missing_says_why() -> None:
    one = checkpoint("npo")
    source = (("conceptguard_ctxtsep", "ctxt_sep"),)

    def why(*runs: object) -> str:
        cell = value_cell(measured(group(*runs), [one], source))  # type: ignore[arg-type]
        assert cell.missing and math.isnan(cell.value) and cell.text == "–"
        return cell.note

    assert why() == "conceptguard_ctxtsep was not evaluated"
    later = run(one, "ctxtsep", {"ctxt_sep": NAN}, provenance={"verdicts": {"not_judged": 8}})
    assert why(later) == "conceptguard_ctxtsep was not judged yet"
    refused = run(one, "ctxtsep", {"ctxt_sep": NAN}, provenance={"verdicts": {"judge_refused": 8}})
    assert why(refused) == "conceptguard_ctxtsep has no verdict for it"


def test_documents_behind_a_metric_of_one_intent() -> None:
    made = separations({"a": 0.1, "b": 0.2}, {"a": 3, "b": 1})
    without = run(checkpoint(), "ctxtsep", {}, n=8, provenance=made)
    assert documents_behind(without, "harm_score") == 4 and documents_behind(without, "ctxt_sep") == 8
    logged = [Document(str(i), str(i), str(i), scores={"harm_score": v}) for i, v in enumerate((0.5, NAN, 0.25))]
    assert documents_behind(run(checkpoint(), "ctxtsep", {}, n=3, documents=logged), "harm_score") == 2
    cut_off = run(checkpoint(), "ctxtsep", {}, n=8, documents=logged)
    assert documents_behind(cut_off, "ctxt_sep") == 8  # the number is lm-eval's, over all of them

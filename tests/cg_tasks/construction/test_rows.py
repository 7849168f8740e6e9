"""What all rows share: a reason exactly where there is no result."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cg_tasks.construction.rows import FAULT_CODES, ROW_STATUSES, Fault, Faulty, Made, StageRow, first_words


def test_an_ok_row_has_no_reason_and_every_other_one_has() -> None:
    assert StageRow(pair_id="p1", status="ok").reason == ""
    for status in set(ROW_STATUSES) - {"ok"}:
        assert StageRow(pair_id="p1", status=status, reason="too_short").status == status
        with pytest.raises(ValidationError, match="p1"):
            StageRow(pair_id="p1", status=status)
    with pytest.raises(ValidationError, match="p1"):
        StageRow(pair_id="p1", status="ok", reason="and yet")


def test_rows_take_no_unknown_field_or_status() -> None:
    with pytest.raises(ValidationError, match="extra"):
        StageRow(pair_id="p1", status="ok", text="x")  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="status"):
        StageRow(pair_id="p1", status="fine")  # type: ignore[arg-type]


def test_a_fault_is_told_by_its_code_and_detail() -> None:
    assert str(Fault("cut_off")) == "cut_off"
    assert str(Fault("too_short", "3 words, at least 180")) == "too_short: 3 words, at least 180"
    assert Faulty("overlap", "ROUGE-L 0.61").fault == Fault("overlap", "ROUGE-L 0.61")
    assert len(set(FAULT_CODES)) == len(FAULT_CODES) == 12


def test_made_survives_json() -> None:
    made = Made(attempts=2, request_sha256="a", parse_sha256="b", model_returned="m", faults=("cut_off",))
    assert Made.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("too_short: 3 words (attempt 3; so far: too_short)", "too_short"),
        ("cut_off (attempt 3; so far: cut_off, refused)", "cut_off"),  # a fault without a detail
        ("no reply: HTTP 500: made to fail", "no reply"),
        ("cut_off (attempt 2; so far: cut_off) [harmful query]; too_long: 90 words [benign query]", "cut_off"),
        ("", ""),
    ],
)
def test_failures_are_counted_by_their_first_words(reason: str, words: str) -> None:
    assert first_words(reason) == words

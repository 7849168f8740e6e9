from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from cg_tasks.errors import UserError
from cg_trainers.rows import Row, checked, require_labelled, require_traces, rows_sha256, to_dataset


def row(name: str, labels: tuple[int, ...], truncated: bool = False) -> Row:
    return Row(name, "u", "g", tuple(range(len(labels))), labels, (0,) * len(labels), truncated)


def test_a_first_token_alone_is_no_label_since_nothing_predicts_it():
    require_labelled([row("a", (-100, 1))])
    with pytest.raises(UserError, match="1 of 2 rows have no token .*: b: raise max_length"):
        require_labelled([row("a", (-100, 1)), row("b", (0, -100))])


def test_the_first_five_are_named_and_all_counted():
    bad = [row(f"r{i}", (-100, -100)) for i in range(7)]
    with pytest.raises(UserError, match="7 of 8 rows .*: r0, r1, r2, r3, r4, …: "):
        require_labelled([*bad, row("good", (-100, 1))])


def test_truncation_is_counted_in_the_log(caplog: pytest.LogCaptureFixture):
    rows = [row("a", (-100, 1), truncated=True), row("b", (-100, 1))]
    with caplog.at_level(logging.WARNING):
        assert checked(rows, "forget set") is rows
    assert "forget set: 1 of 2 rows truncated" in caplog.text


def test_to_dataset_keeps_order_and_values():
    data = to_dataset([row("b", (-100, 1, 2)), row("a", (-100, 1))])
    assert data.column_names == ["row_id", "input_ids", "labels", "trace"]
    assert data[0] == {"row_id": "b", "input_ids": [0, 1, 2], "labels": [-100, 1, 2], "trace": [0, 0, 0]}
    assert data["row_id"] == ["b", "a"]


# ------------------------------------------------------------------ r2mu's rows
GOOD = Row("a", "u", "g", (1, 2, 3, 4), (-100, 2, 3, 4), (0, 1, 1, 0))


def test_a_row_with_a_trace_and_an_answer_is_enough():
    require_traces([GOOD])
    require_traces([])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"trace": (0, 0, 0, 0)}, "row 'b' has no trace: use a template of traces that is not empty"),
        ({"labels": (-100, 2, 3, -100)}, "of row 'b' its answer is not labelled: use target_span: full"),
        ({"labels": (-100, -100, -100, 4)}, "of row 'b' its trace is not labelled: use target_span: full"),
        ({"labels": (-100, 2, 3, -100), "truncated": True}, "of row 'b' its answer is not labelled: raise max_length"),
    ],
)
def test_what_r2mu_cannot_steer_is_told_with_what_would_help(changes: dict[str, Any], told: str):
    with pytest.raises(UserError, match=told):
        require_traces([GOOD, replace(GOOD, row_id="b", **changes)])


def test_pairs_have_no_trace_and_no_span_helps():
    with pytest.raises(UserError, match=r"no row has a trace: train on authors \(canaries\)") as error:
        require_traces([row("a", (-100, 1)), row("b", (-100, 1))])
    assert "target_span" not in str(error.value)


# ------------------------------------------------------------------ what a run trains on
def test_the_hash_is_of_every_row_and_every_token():
    sides = {"forget": [GOOD, replace(GOOD, row_id="b")], "retain": []}
    digest = rows_sha256(sides)
    assert digest == rows_sha256({"forget": [replace(GOOD), replace(GOOD, row_id="b")], "retain": []})
    others = [
        {"forget": sides["forget"][::-1], "retain": []},
        {"forget": sides["forget"][:1], "retain": sides["forget"][1:]},
        *(
            {"forget": [GOOD, replace(GOOD, row_id="b", **{name: value})], "retain": []}
            for name, value in {
                "unit": "v",
                "group": "h",
                "input_ids": (1, 2, 3, 5),
                "labels": (-100, 2, 3, -100),
                "trace": (0, 1, 0, 0),
            }.items()
        ),
    ]
    assert len({digest, *map(rows_sha256, others)}) == 1 + len(others)

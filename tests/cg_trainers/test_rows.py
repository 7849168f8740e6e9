from __future__ import annotations

import logging

import pytest

from cg_tasks.errors import UserError
from cg_trainers.rows import Row, checked, require_labelled, to_dataset


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

"""A training row: token ids, what the objective looks at, and where the thinking trace is."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cg_tasks.errors import UserError
from cg_trainers.losses import IGNORED

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Row:
    """One sequence to train on; ``input_ids``, ``labels`` and ``trace`` have one entry a token.

    row_id: ``mini-001/harmful``, ``author-001/canary``, ``author-001/qa-2``; unique within a list.
    unit: pair or author id, which ``pairing: twin`` joins on. group: concept or author id, for ``pairing: concept``.
    labels: the token's id, or -100 where the objective does not look (not yet shifted).
    trace: 1 on the tokens of the thinking trace's text (without its tags), else 0.
    truncated: the sequence was cut at max_length.
    """

    row_id: str
    unit: str
    group: str
    input_ids: tuple[int, ...]
    labels: tuple[int, ...]
    trace: tuple[int, ...]
    truncated: bool = False


def require_labelled(rows: Sequence[Row]) -> None:
    """Refuse rows in which no token is left to predict: the first one is predicted from nothing.

    Raises:
        UserError: naming the first five of them and their number.
    """
    empty = [row.row_id for row in rows if all(label == IGNORED for label in row.labels[1:])]
    if empty:
        more = ", …" if len(empty) > 5 else ""
        raise UserError(
            f"{len(empty)} of {len(rows)} rows have no token for the objective to look at: {', '.join(empty[:5])}{more}: "
            "raise max_length, or choose another target_span (an empty trace has nothing to label)"
        )


def checked(rows: list[Row], what: str) -> list[Row]:
    """``rows``, after the log has said how many were truncated and :func:`require_labelled` has let them pass."""
    if truncated := sum(row.truncated for row in rows):
        logger.warning("%s: %d of %d rows truncated at max_length", what, truncated, len(rows))
    require_labelled(rows)
    return rows


def to_dataset(rows: Sequence[Row]) -> Dataset:
    """The rows as a data set with the columns ``row_id``, ``input_ids``, ``labels``, ``trace``."""
    from datasets import Dataset

    columns = ("row_id", "input_ids", "labels", "trace")
    return Dataset.from_dict({name: [getattr(row, name) for row in rows] for name in columns})

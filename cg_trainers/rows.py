"""A training row: token ids, what the objective looks at, and where the thinking trace is."""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Mapping, Sequence
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


def require_traces(rows: Sequence[Row]) -> None:
    """Refuse rows that r2mu cannot steer: those without a labelled token in the trace and one behind it.

    Raises:
        UserError: naming the first of them.
    """
    if rows and not any(any(row.trace) for row in rows):
        raise UserError(
            "r2mu steers the thinking trace and the answer, and no row has a trace: train on authors (canaries) with a trace "
            "template that is not empty (trace: bio or meta)"
        )
    for row in rows:
        labelled = [mark for mark, label in zip(row.trace, row.labels, strict=True) if label != IGNORED]
        if not any(row.trace):
            raise UserError(
                f"r2mu steers the thinking trace and the answer, and row '{row.row_id}' has no trace: use a template of "
                "traces that is not empty for it"
            )
        if all(labelled) or not any(labelled):
            missing = "its answer" if any(labelled) else "its trace"
            way_out = "raise max_length" if row.truncated else "use target_span: full"
            raise UserError(
                f"r2mu steers the thinking trace and the answer, and of row '{row.row_id}' {missing} is not labelled: {way_out}"
            )


def rows_sha256(sides: Mapping[str, Sequence[Row]]) -> str:
    """SHA-256 of what a run trains on: of every side the rows in order, their ids, tokens, labels and trace marks.

    Whatever they were made from (data, templates, refusals, tokenizer, chat template), the same hash is the same training text.
    """
    digest = hashlib.sha256()
    for side, rows in sides.items():
        digest.update(f"{side} {len(rows)}\n".encode())
        for row in rows:
            digest.update(f"{row.row_id}\t{row.unit}\t{row.group}\t{len(row.input_ids)}\n".encode())
            for values in (row.input_ids, row.labels, row.trace):
                digest.update(array("q", values).tobytes())
    return digest.hexdigest()


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

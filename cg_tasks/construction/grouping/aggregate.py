"""Stage ``aggregate``: tag rows get the parent of their concept, or the reason why they are left out. It asks no model.

Source: ConceptGuard, appendix A.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from cg_tasks.construction.grouping.agreement_rule import Applied
from cg_tasks.construction.rows import RowStatus, StageRow, first_words


class Tagged(Protocol):
    """What is read of a tag row."""

    @property
    def pair_id(self) -> str: ...
    @property
    def status(self) -> RowStatus: ...
    @property
    def reason(self) -> str: ...
    @property
    def prompt(self) -> str: ...
    @property
    def response(self) -> str: ...
    @property
    def dual_use(self) -> bool | None: ...
    @property
    def concept(self) -> str | None: ...


T = TypeVar("T", bound=Tagged)


class AggregateRow(StageRow):
    """A harmful prompt with its response.

    tagged_concept: as tagged, empty where there is none. concept: the parent, None where the row is dropped.
    """

    prompt: str
    response: str
    tagged_concept: str
    concept: str | None


def count_concepts(rows: Iterable[T], decide: Callable[[T], str | None]) -> dict[str, int]:
    """Concept -> samples, of the tag rows that reach aggregation; by name.

    decide: the reason why the review leaves a row out, or None.
    """
    counts = Counter(row.concept for row in rows if row.concept and not _left_out(row, decide))
    return dict(sorted(counts.items()))


def aggregate_rows(rows: Iterable[T], decide: Callable[[T], str | None], applied: Applied) -> Iterator[AggregateRow]:
    """Every tag row once, in their order, one at a time: ok with its parent concept, or dropped with the reason."""
    for row in rows:
        tagged = row.concept or ""
        reason = _left_out(row, decide)
        parent = None if reason else applied.parents.get(tagged)
        if parent is None:
            reason = reason or applied.dropped.get(tagged, "no group")
        yield AggregateRow(
            pair_id=row.pair_id,
            status="dropped" if reason else "ok",
            reason=reason,
            prompt=row.prompt,
            response=row.response,
            tagged_concept=tagged,
            concept=parent,
        )


def _left_out(row: T, decide: Callable[[T], str | None]) -> str:
    """Why a row does not reach aggregation; empty where it does."""
    if row.status != "ok":
        return f"tag: {row.status} ({first_words(row.reason)})"
    if not row.dual_use:
        return "not dual-use"
    return decide(row) or ("" if row.concept else "tag: no concept")

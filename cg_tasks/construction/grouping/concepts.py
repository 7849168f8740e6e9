"""The tagged concepts that reach aggregation: those of rows that the review of the tags has not left out."""

from __future__ import annotations

from collections.abc import Callable

from cg_tasks.construction.chain import require_before
from cg_tasks.construction.folder import BuildFolder
from cg_tasks.construction.grouping.aggregate import count_concepts
from cg_tasks.construction.review.rounds import outcomes, reason_to_drop
from cg_tasks.construction.tag import TagRow, tag_content
from cg_tasks.errors import UserError


def tag_decisions(folder: BuildFolder) -> Callable[[TagRow], str | None]:
    """From a tag row to the reason why its review leaves it out.

    Raises:
        UserError: a round of the review has no marks yet.
    """
    decide = reason_to_drop(outcomes(folder, "tag"))
    return lambda row: decide(row.pair_id, tag_content(row))


def concepts(folder: BuildFolder) -> dict[str, int]:
    """Concept -> samples, of the tag rows that reach aggregation.

    Raises:
        UserError: the tags are missing or stale, a review is under way, or nothing is left.
    """
    require_before(folder, "aggregate")
    counts = count_concepts(folder.rows("tag", TagRow), tag_decisions(folder))
    if not counts:
        raise UserError(f"{folder.path}: no row is left to group: see conceptguard build status {folder.path}")
    return counts

"""Counterparts that people have turned down, in any round of the review: such a reply is never taken."""

from __future__ import annotations

from cg_tasks.construction.folder import BuildFolder
from cg_tasks.construction.review.outcome import read_outcome
from cg_tasks.construction.review.rounds import rounds


def read_rejections(folder: BuildFolder) -> frozenset[str]:
    """Request hashes of the replies that were turned down. A round that is imported again, or taken away, counts as it is then.

    Raises:
        UserError: marks that cannot be read.
    """
    outcomes = [outcome for at in rounds(folder, "benign") if (outcome := read_outcome(at))]
    return frozenset(request for outcome in outcomes for request in outcome.rejected.values())

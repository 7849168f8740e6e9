"""A stage's review comes in rounds, a folder each; together they say what people think of a row as it is now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cg_tasks.construction.folder import BuildFolder
from cg_tasks.construction.review.outcome import Outcome, read_outcome
from cg_tasks.construction.review.sheet import SHEET
from cg_tasks.errors import UserError
from cg_tasks.provenance import sha256_of

_REASONS = {
    "reject": "review: rejected",
    "unclear": "review: unclear",
    "disagreement": "review: unresolved disagreement",
}


def rounds(folder: BuildFolder, stage: str) -> list[Path]:
    """The folders of the rounds that were exported, in order."""
    found: list[Path] = []
    while (at := folder.review_folder(stage if not found else f"{stage}-{len(found) + 1}")).joinpath(SHEET).is_file():
        found.append(at)
    return found


def outcomes(folder: BuildFolder, stage: str) -> list[Outcome]:
    """What came back of each round, in order.

    Raises:
        UserError: a round has no marks yet.
    """
    found = []
    for at in rounds(folder, stage):
        outcome = read_outcome(at)
        if outcome is None:
            raise UserError(
                f"{at}: its sheets were handed out and no marks have come back: conceptguard build review import {folder.path} "
                f"{stage} FILES, or remove the folder"
            )
        found.append(outcome)
    return found


def marks_hash(folder: BuildFolder, stage: str) -> str:
    """Of the marks of all rounds; empty where there are none."""
    found = [(at, read_outcome(at)) for at in rounds(folder, stage)]
    return (
        sha256_of([[(d.id, d.content_sha256, d.decision) for d in o.decisions] if o else [] for _, o in found])
        if found
        else ""
    )


def reason_to_drop(found: Sequence[Outcome]) -> Callable[[str, str], str | None]:
    """From a row's id and content hash to the reason why the last round that saw it leaves it out; None where it does not."""

    def decide(id: str, content_sha256: str) -> str | None:
        for outcome in reversed(found):
            if (decision := outcome.decision(id, content_sha256)) is not None:
                return _REASONS.get(decision)
        return None

    return decide

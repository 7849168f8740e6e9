"""The human reviews of a build: which rows people are shown, in rounds, and what follows from their marks.

Sources: ConceptGuard, appendix A.1 (15 % of the tagged rows), A.2 (all candidate groups), A.3 (15 % of the benign counterparts).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cg_tasks.construction.benign import BenignRow
from cg_tasks.construction.chain import made_from, require_before
from cg_tasks.construction.folder import BuildFolder
from cg_tasks.construction.grouping.agreement_rule import check_rows
from cg_tasks.construction.grouping.concepts import concepts
from cg_tasks.construction.grouping.merge_file import read_map, write_map
from cg_tasks.construction.grouping.merge_map import MergeMap, with_marks
from cg_tasks.construction.grouping.merge_map import items as map_items
from cg_tasks.construction.review.exporting import export
from cg_tasks.construction.review.guidelines import GUIDELINES
from cg_tasks.construction.review.importing import import_review
from cg_tasks.construction.review.outcome import Outcome
from cg_tasks.construction.review.rounds import outcomes, rounds
from cg_tasks.construction.review.sheet import ReviewItem, draw, read_sheet
from cg_tasks.construction.tag import TagRow, tag_content
from cg_tasks.errors import UserError
from cg_tasks.provenance import sha256_of

REVIEWED = ("tag", "aggregate", "benign")


def review_items(folder: BuildFolder, stage: str, *, fresh: bool = True) -> list[ReviewItem]:
    """Everything of a stage that can be reviewed, as its rows are. fresh: only if they still follow from what came before.

    Raises:
        UserError: the stage has not run, or is stale.
    """
    if stage == "aggregate":
        merge_map = read_map(folder.merge_file)
        if fresh:
            check_rows(merge_map, concepts(folder))
        return [
            ReviewItem(
                key, {name.replace(" ", "_"): text for name, text in fields.items()}, fields["group"], sha256_of(fields)
            )
            for key, fields in map_items(merge_map)
        ]
    if fresh:
        require_before(folder, stage)
        folder.require_fresh(stage, made_from(folder, stage))
    if stage == "tag":
        return [tag_item(row) for row in folder.rows("tag", TagRow) if row.status == "ok" and row.dual_use]
    return [benign_item(row) for row in folder.rows("benign", BenignRow) if row.status == "ok"]


def tag_item(row: TagRow) -> ReviewItem:
    """A tagged row as annotators see it: without the model's reason."""
    concept = str(row.concept)
    return ReviewItem(
        row.pair_id, {"concept": concept, "prompt": row.prompt, "response": row.response}, concept, tag_content(row)
    )


def benign_item(row: BenignRow) -> ReviewItem:
    """A pair as annotators see it. Its content is told by the request: a reply never changes under its key."""
    fields = {
        "concept": row.concept,
        "harmful_prompt": row.harmful_prompt,
        "harmful_response": row.harmful_response,
        "benign_prompt": str(row.benign_prompt),
        "benign_response": str(row.benign_response),
    }
    return ReviewItem(row.pair_id, fields, row.concept, row.made.request_sha256 if row.made else "")


def export_review(
    folder: BuildFolder,
    stage: str,
    *,
    share: float | None = None,
    annotators: int | Sequence[str] | None = None,
    again: bool = False,
) -> tuple[list[Path], int, int]:
    """Write a round of sheets; the files, the rows on each, and how many they were drawn from.

    again: a further round, of all rows that were reviewed before and have a content that nobody has seen.

    Raises:
        UserError: nothing to review; a round is there already, or the last one has no marks yet.
    """
    own = folder.settings.review
    before = rounds(folder, stage)
    everything = review_items(folder, stage)
    if not everything:
        raise UserError(
            f"{folder.path}: the stage '{stage}' has no row to review: see conceptguard build status {folder.path}"
        )
    if again:
        chosen = _changed_since(everything, outcomes(folder, stage), new_ids=stage == "aggregate")
        if not chosen:
            raise UserError(
                f"{folder.path}: every row that was reviewed is as it was: there is nothing for a further round"
            )
    elif before:
        raise UserError(
            f"{before[-1]}: was exported already: import its marks, export changed rows with --again, or move the folder away"
        )
    else:
        chosen = draw(everything, 1.0 if stage == "aggregate" else own.share if share is None else share, own.seed)
    target = folder.review_folder(stage) if not before else folder.review_folder(f"{stage}-{len(before) + 1}")
    drawn_of = len(chosen) if again else len(everything)
    files = export(target, GUIDELINES[stage], chosen, annotators or own.annotators, own.seed, drawn_of)  # type: ignore[index]
    return files, len(chosen), drawn_of


def written_again(folder: BuildFolder) -> list[ReviewItem]:
    """Counterparts that are not the ones that were reviewed, and that nobody has reviewed since."""
    return _changed_since(review_items(folder, "benign", fresh=False), outcomes(folder, "benign"), new_ids=False)


def _changed_since(everything: Iterable[ReviewItem], before: Sequence[Outcome], *, new_ids: bool) -> list[ReviewItem]:
    """new_ids: an item nobody has seen is a changed one; a candidate group with other members has other ids."""
    seen = {decision.id for outcome in before for decision in outcome.decisions}
    return [
        item
        for item in everything
        if (new_ids or item.id in seen)
        and all(outcome.decision(item.id, item.content_sha256) is None for outcome in before)
    ]


def take_marks(
    folder: BuildFolder, stage: str, files: Sequence[str | Path], *, allow_single: bool = False
) -> tuple[Path, Outcome]:
    """Import the marks of the last round; for ``aggregate`` they go into the merge map.

    Raises:
        UserError: nothing was exported, or whatever importing refuses.
    """
    exported = rounds(folder, stage)
    if not exported:
        raise UserError(
            f"{folder.review_folder(stage)}: nothing was exported: conceptguard build review export {folder.path} {stage}"
        )
    at = exported[-1]
    if stage == "aggregate":
        merge_map = read_map(folder.merge_file)
        _require_same_groups(folder, merge_map, at)
        if allow_single and len(files) == 1 and merge_map.rule.over == "union":
            raise UserError(
                f"{folder.path}: one annotator always agrees with the union of all marks: set over: members in build.yaml "
                "(aggregate) and in merge.yaml (rule) first"
            )
        outcome = import_review(at, files, allow_single)
        marks: dict[str, dict[str, str]] = {name: {} for name in outcome.annotators}
        for decision in outcome.decisions:
            for name, label in decision.labels.items():
                marks[name][decision.id] = label
        resolved = {d.id: d.decision for d in outcome.decisions if d.resolved}
        write_map(with_marks(merge_map, marks, resolved), folder.merge_file, replace=True)
        return at, outcome
    return at, import_review(at, files, allow_single)


def _require_same_groups(folder: BuildFolder, merge_map: MergeMap, at: Path) -> None:
    """Before anything is written: the marks must be of the map as it is."""
    ids, known = read_sheet(at).ids, {key for key, _ in map_items(merge_map)}
    if others := [id for id in ids if id not in known]:
        raise UserError(
            f"{at}: its sheets are of another state of the groups: {len(others)} of {len(ids)} items are not in {folder.merge_file}: "
            "bring back the groups they were of, or move the folder away and export the sheets again"
        )


def stale_marks(folder: BuildFolder, stage: str, outcome: Outcome) -> list[str]:
    """Ids of the rows that were reviewed with another content than they have now; not those that were written again for it."""
    now = {item.id: item.content_sha256 for item in review_items(folder, stage, fresh=False)}
    return [id for id in outcome.stale(now) if id not in outcome.rejected]

"""``aggregate``: the merge map is proposed, and once people have marked it, applied to the tagged rows."""

from __future__ import annotations

from collections.abc import Sequence

from cg_tasks.construction.chain import made_from, require_before
from cg_tasks.construction.folder import BuildFolder, StageRecord, StageWriter, file_hash
from cg_tasks.construction.grouping.aggregate import aggregate_rows
from cg_tasks.construction.grouping.agreement_rule import Applied, apply
from cg_tasks.construction.grouping.concepts import concepts, tag_decisions
from cg_tasks.construction.grouping.merge_file import read_map, write_map
from cg_tasks.construction.grouping.merge_map import ProposedBy, Rule, accept_proposals, new_map
from cg_tasks.construction.grouping.proposals import Group, by_ngrams
from cg_tasks.construction.tag import TagRow
from cg_tasks.errors import UserError


def propose(
    folder: BuildFolder, counts: dict[str, int], groups: Sequence[Group] | None = None, model: str | None = None
) -> int:
    """Write the merge map of proposals, the model's or by likeness of names; how many groups.

    Raises:
        UserError: there is a map already.
    """
    own = folder.settings.aggregate
    by = ProposedBy(by="ngrams", similarity=own.similarity) if groups is None else ProposedBy(by="model", model=model)
    found = by_ngrams(counts, own.similarity) if groups is None else groups
    write_map(new_map(found, counts, by, rule_of(folder), file_hash(folder.rows_file("tag"))), folder.merge_file)
    return len(found)


def rule_of(folder: BuildFolder) -> Rule:
    """The rule that build.yaml sets."""
    own = folder.settings.aggregate
    return Rule(agreement=own.agreement, over=own.over, smallest=own.smallest)


def apply_map(folder: BuildFolder, *, accept: bool = False) -> tuple[StageRecord, Applied]:
    """Write the rows of ``aggregate`` by the merge map. accept: take proposals that nobody has marked as they are; it is recorded.

    Raises:
        UserError: no map, one of other rows, missing marks, or another rule than build.yaml's.
    """
    before = require_before(folder, "aggregate")
    merge_map = read_map(folder.merge_file)
    if merge_map.rule != rule_of(folder):
        raise UserError(
            f"{merge_map.at('rule')}: the rule is not the one of aggregate in build.yaml: make them the same"
        )
    newly = accept and merge_map.reviewed
    merge_map = accept_proposals(merge_map) if newly else merge_map
    applied = apply(merge_map, concepts(folder))
    if newly:
        write_map(merge_map, folder.merge_file, replace=True)
    rows_in = sum(before["tag"].rows.values())
    record = StageRecord(stage="aggregate", made_from=made_from(folder, "aggregate"), rows_in=rows_in)
    with StageWriter(folder, record) as writer:
        for row in aggregate_rows(folder.rows("tag", TagRow), tag_decisions(folder), applied):
            writer.write(row)
    return record, applied

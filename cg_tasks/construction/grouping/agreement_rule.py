"""Which groups and concepts of a merge map stay, in whole numbers.

Source: ConceptGuard, appendix A.2: a candidate group stays where both annotators marked more than 90 % of the same samples for
grouping; samples with an unresolved disagreement, and groups of 1-2 samples, go. What the 90 % are of is not
said there: see ``Rule.over``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from cg_tasks.construction.grouping.merge_map import Group, Member, MergeMap, Rule, in_order, members_mark
from cg_tasks.errors import UserError
from cg_tasks.judge.server_settings import nearest
from cg_tasks.pair_files import short

DISAGREEMENT = "unresolved disagreement"
NOT_IN_GROUP = "not in the group"


@dataclass(frozen=True)
class GroupResult:
    """samples: of the group as proposed; left: those that stay, 0 where the group does not. agreement: None without marks to compare.

    reason: why the group does not stay.
    """

    parent: str
    samples: int
    left: int
    agreement: Fraction | None
    kept: bool
    reason: str = ""


@dataclass(frozen=True)
class Applied:
    """What a merge map makes of the concepts: each is a key of ``parents`` or of ``dropped`` (with the reason), none of both."""

    parents: dict[str, str]
    dropped: dict[str, str]
    groups: list[GroupResult]
    reviewed: bool


def apply(merge_map: MergeMap, counts: Mapping[str, int]) -> Applied:
    """The map's outcome. counts: concept -> samples of the tag rows that reach aggregation.

    The weights are samples. In a group that stays, a concept stays if all annotators accept it, or if their marks differ and
    ``resolved`` says accept; the agreement itself is that of the marks as given, where unclear is no accept.

    Raises:
        UserError: the map is of other rows; marks are missing; one annotator, whose agreement over the union is always 100 %.
    """
    check_rows(merge_map, counts)
    if merge_map.reviewed:
        _check_complete(merge_map)
    parents: dict[str, str] = {}
    dropped: dict[str, str] = {}
    results = []
    for group in in_order(merge_map.groups):
        share = agreement(group, merge_map.annotators, merge_map.rule.over)
        reason = _against(group, share, merge_map)
        out = {m.concept: reason or _against_member(m, merge_map) for m in group.members}
        left = sum(m.samples for m in group.members if not out[m.concept])
        if not reason and left < merge_map.rule.smallest:
            reason = _too_small(group, left)
            out = {concept: why or reason for concept, why in out.items()}
        dropped.update({concept: why for concept, why in out.items() if why})
        parents.update({concept: group.parent for concept, why in out.items() if not why})
        results.append(GroupResult(group.parent, group.samples, 0 if reason else left, share, not reason, reason))
    return Applied(parents, dropped, results, merge_map.reviewed)


def agreement(group: Group, annotators: tuple[str, ...], over: str) -> Fraction | None:
    """Samples that all annotators accept, of those that any accepts (over: union) or of all (over: members).

    None where there is nothing to divide by: no annotators, or none of them accepts any.
    """
    if not annotators:
        return None
    accepting = [(m.samples, sum(m.marks.get(name) == "accept" for name in annotators)) for m in group.members]
    by_all = sum(samples for samples, n in accepting if n == len(annotators))
    of = group.samples if over == "members" else sum(samples for samples, n in accepting if n)
    return Fraction(by_all, of) if of else None


def check_rows(merge_map: MergeMap, counts: Mapping[str, int]) -> None:
    """Raises UserError unless the map holds exactly the concepts of the tag rows, with their numbers of samples."""
    held: set[str] = set()
    for i, group in enumerate(merge_map.groups):
        for j, member in enumerate(group.members):
            held.add(member.concept)
            where = f"{merge_map.at('groups', i, 'members', j)}: the concept {short(member.concept)}"
            if member.concept not in counts:
                hint = nearest(member.concept, list(counts)) if len(member.concept) <= 40 else ""
                raise UserError(
                    f"{where} is no tag row's{hint}: a concept stands there as the rows have it (the new name is the parent's); "
                    "if the rows have changed, propose a new map"
                )
            if member.samples != counts[member.concept]:
                raise UserError(
                    f"{where} has {member.samples} samples there and {counts[member.concept]} in the tag rows: the map is of other "
                    "rows: propose a new one, or bring back the rows (and the review of them) that it was made for"
                )
    if missing := sorted(counts.keys() - held):
        raise UserError(
            f"{merge_map.at('groups')}: lacks {len(missing)} of the {len(counts)} concepts of the tag rows (first: "
            f"{short(missing[0])}, {counts[missing[0]]} samples): put each into a group, or propose a new map"
        )


def in_words(rule: Rule) -> str:
    """The rule in one sentence, for a record."""
    of = "any of them accepted" if rule.over == "union" else "the group has"
    return (
        f"groups stay where more than {_percent(Fraction(str(rule.agreement)))} of the samples that {of} were accepted by all "
        f"annotators, and at least {rule.smallest} samples are left"
    )


def format_groups(applied: Applied) -> str:
    """A Markdown table of the groups, and one line that sums them up."""
    kept = sum(result.kept for result in applied.groups)
    left, samples = sum(r.left for r in applied.groups), sum(r.samples for r in applied.groups)
    lines = [f"{kept} of {len(applied.groups)} groups stay, with {left} of {samples} samples."]
    if not applied.reviewed:
        lines.append("Not reviewed: the proposals were accepted as they are.")
    lines += ["", "| group | samples | left | agreement | outcome |", "| --- | ---: | ---: | ---: | --- |"]
    for r in applied.groups:
        share = "-" if r.agreement is None else f"{_percent(r.agreement)} ({r.agreement})"
        outcome = "kept" if r.kept else r.reason
        lines.append(f"| {_cell(r.parent)} | {r.samples} | {r.left} | {share} | {_cell(outcome)} |")
    return "\n".join(lines) + "\n"


def _check_complete(merge_map: MergeMap) -> None:
    annotators = merge_map.annotators
    if not annotators:
        raise UserError(
            f"{merge_map.at('annotators')}: nobody has marked the groups: have them reviewed (conceptguard build review export DIR "
            "aggregate), or take the proposals as they are (aggregate DIR --accept-proposals), which is recorded"
        )
    for i, group in enumerate(merge_map.groups):
        if group.marked not in (None, members_mark(group)):
            raise UserError(
                f"{merge_map.at('groups', i)}: the members of {short(group.parent)} are not those that the annotators marked: have "
                "the changed groups marked (conceptguard build review export DIR aggregate --again), or put the members back"
            )
        for name in annotators if group.samples >= merge_map.rule.smallest else ():
            if missing := [j for j, member in enumerate(group.members) if name not in member.marks]:
                raise UserError(
                    f"{merge_map.at('groups', i, 'members', missing[0])}: the group {short(group.parent)} lacks marks of "
                    f"{short(name)} for {len(missing)} of its {len(group.members)} concepts{_elsewhere(merge_map, i)}: "
                    "have them marked, or add 'marks' by hand"
                )
    if len(annotators) == 1 and merge_map.rule.over == "union":
        raise UserError(
            f"{merge_map.at('annotators')}: one annotator always agrees with the union of all marks: add a second one's marks, or "
            "set 'over: members' in the rule"
        )


def _elsewhere(merge_map: MergeMap, i: int) -> str:
    n = sum(
        any(m.marks.keys() != set(merge_map.annotators) for m in group.members)
        for group in merge_map.groups[i + 1 :]
        if group.samples >= merge_map.rule.smallest
    )
    return f" (and marks are missing in {n} more groups)" if n else ""


def _against(group: Group, share: Fraction | None, merge_map: MergeMap) -> str:
    """Why the marks are against the whole group; empty where they are not."""
    if not merge_map.reviewed:
        return ""
    if group.samples < merge_map.rule.smallest:
        return _too_small(group, group.samples)
    if share is None:
        return f"group {short(group.parent)}: accepted by nobody"
    least = Fraction(str(merge_map.rule.agreement))  # 0.9 as it is written, not its binary neighbour
    if share > least:
        return ""
    return f"group {short(group.parent)}: agreement {_percent(share)}, not above {_percent(least)}"


def _too_small(group: Group, samples: int) -> str:
    return f"group {short(group.parent)}: {samples} sample{'' if samples == 1 else 's'}"


def _against_member(member: Member, merge_map: MergeMap) -> str:
    if not merge_map.reviewed:
        return ""
    agreed = member.agreed(merge_map.annotators)
    if "accept" in (agreed, member.resolved):  # a resolution against marks that agree is refused by check_map
        return ""
    if agreed == "reject" or member.resolved == "reject":
        return NOT_IN_GROUP
    return DISAGREEMENT


def _percent(share: Fraction) -> str:
    """Two digits at most, cut off: 89.996 % is not shown as 90 %."""
    return f"{int(share * 10_000) / 100:g} %"


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|")

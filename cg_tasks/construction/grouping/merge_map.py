"""The merge map: which tagged concepts are proposed as one, and what each annotator says of each of them.

Source: ConceptGuard, appendix A.2, "Concept Aggregation and Dataset Formation".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from cg_tasks.construction.grouping import proposals
from cg_tasks.errors import UserError
from cg_tasks.judge.server_settings import nearest
from cg_tasks.pair_files import short
from cg_tasks.provenance import sha256_of

Mark = Literal["accept", "reject", "unclear"]
MARKS: tuple[Mark, ...] = get_args(Mark)
_OTHERS_SHOWN = 25


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rule(_Part):
    """What a group must have to stay.

    agreement: more than this share of its samples accepted by all annotators, of those that any of them accepted (over: union) or
    of all its samples (over: members); the paper: 90 %. smallest: samples that must be left in it; the paper drops groups of 1-2.
    """

    agreement: float = Field(default=0.9, ge=0, lt=1, allow_inf_nan=False)
    over: Literal["union", "members"] = "union"
    smallest: int = Field(default=3, ge=1, strict=True)


class ProposedBy(_Part):
    """by: the likeness of names from ``similarity`` on, ``model``, or a person (hand)."""

    by: Literal["ngrams", "model", "hand"] = "hand"
    similarity: float | None = Field(default=None, ge=0, le=1)
    model: str | None = None


class Member(_Part):
    """A tagged concept in a group. samples: rows tagged with it. marks: by annotator. resolved: by discussion, where marks differ."""

    concept: str
    samples: int = Field(ge=1, strict=True)
    marks: dict[str, Mark] = Field(default_factory=dict)
    resolved: Literal["accept", "reject"] | None = None

    def agreed(self, annotators: Sequence[str]) -> Mark | None:
        """accept or reject where that is every annotator's mark, else None."""
        given = {self.marks.get(name) for name in annotators}
        mark = given.pop() if len(given) == 1 else None
        return mark if mark in ("accept", "reject") else None


class Group(_Part):
    """Concepts proposed as one. parent: the concept they become. marked: what the members were when annotators marked them."""

    parent: str
    marked: str | None = None
    proposed_by: ProposedBy = Field(default_factory=ProposedBy)
    members: tuple[Member, ...] = Field(min_length=1)

    @field_validator("parent")
    @classmethod
    def _named(cls, value: str) -> str:
        if not value or value != " ".join(value.split()):
            raise ValueError("must be a name in one line, without space around it or double spaces")
        return value

    @property
    def samples(self) -> int:
        return sum(member.samples for member in self.members)


class Places:
    """Where the parts of a map stand in its file."""

    def __init__(self, path: Path, node: yaml.Node | None):
        self.path, self._node = path, node

    def line(self, *location: str | int) -> int:
        """Of a key or item; of the innermost part around it that the file holds, if it does not hold it."""
        node, line = self._node, 1
        for part in location:
            if isinstance(node, yaml.MappingNode):
                found = next(((k, v) for k, v in node.value if str(k.value) == str(part)), None)
                if found is None:
                    break
                line, node = found[0].start_mark.line + 1, found[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line + 1
            else:
                break
        return line


class MergeMap(_Part):
    """All groups. tag_sha256: of the tag rows that it was proposed for. annotators: whose marks it needs.

    reviewed: false where the proposals were accepted as they are, without annotators.
    """

    version: Literal[1] = 1
    tag_sha256: str = ""
    rule: Rule = Field(default_factory=Rule)
    reviewed: bool = True
    annotators: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    _places: Places | None = PrivateAttr(None)

    def at(self, *location: str | int) -> str:
        """``FILE, line N`` of a part, as far as the map was read from a file."""
        return f"{self._places.path}, line {self._places.line(*location)}" if self._places else "merge map"

    def line(self, *location: str | int) -> str:
        return f"line {self._places.line(*location)}" if self._places else "above"

    def read_from(self, places: Places) -> MergeMap:
        """The same map, which now knows its lines."""
        self._places = places
        return self


def in_order(groups: Sequence[Group]) -> list[Group]:
    """Groups by samples, largest first, then by parent; their members likewise. What the file and every outcome is ordered by."""
    ordered = [
        group.model_copy(update={"members": tuple(sorted(group.members, key=lambda m: (-m.samples, m.concept)))})
        for group in groups
    ]
    return sorted(ordered, key=lambda group: (-group.samples, group.parent))


def new_map(
    groups: Sequence[proposals.Group], counts: Mapping[str, int], proposed_by: ProposedBy, rule: Rule, tag_sha256: str
) -> MergeMap:
    """A map of proposals, without marks. counts: concept -> samples."""
    made = [
        Group(
            parent=group.parent,
            proposed_by=proposed_by,
            members=tuple(Member(concept=concept, samples=counts[concept]) for concept in group.members),
        )
        for group in groups
    ]
    return check_map(MergeMap(tag_sha256=tag_sha256, rule=rule, groups=tuple(in_order(made))))


def accept_proposals(merge_map: MergeMap) -> MergeMap:
    """The map as one that nobody reviews: every member of every group counts as accepted.

    Raises:
        UserError: it has marks.
    """
    if merge_map.annotators:
        raise UserError(
            f"{merge_map.at('annotators')}: holds marks of {', '.join(merge_map.annotators)}: proposals that people have marked "
            "are not accepted unseen: aggregate without accepting, or propose a new map"
        )
    return check_map(merge_map.model_copy(update={"reviewed": False}))


def item_id(group: Group, concept: str) -> str:
    """The id of one decision: does ``concept`` belong with the other members of its group?

    Renaming the parent leaves it as it is; moving a concept changes the ids of both groups, whose marks were about other members.
    """
    return _item_id(_members_sha256(group), concept)


def items(merge_map: MergeMap) -> list[tuple[str, dict[str, str]]]:
    """What annotators decide on, with ids: group (its parent), other members, concept, samples. In the map's order.

    Not groups that are too small to stay whatever is said of them.
    """
    found = []
    for group in in_order(merge_map.groups):
        if group.samples < merge_map.rule.smallest:
            continue
        of_group = _members_sha256(group)
        shown = [f"{member.concept} ({member.samples})" for member in group.members]
        for number, member in enumerate(group.members):
            others = shown[:number] + shown[number + 1 :]
            more = f"; and {len(others) - _OTHERS_SHOWN} more" if len(others) > _OTHERS_SHOWN else ""
            fields = {
                "group": group.parent,
                "other members": "; ".join(others[:_OTHERS_SHOWN]) + more,
                "concept": member.concept,
                "samples": str(member.samples),
            }
            found.append((_item_id(of_group, member.concept), fields))
    return found


def with_marks(
    merge_map: MergeMap,
    marks: Mapping[str, Mapping[str, str]],
    resolved: Mapping[str, str] | None = None,
) -> MergeMap:
    """The map with marks (annotator -> item id -> mark) and the outcome of discussions (item id -> mark).

    Marks of other annotators and of other items stay. A resolution goes where all annotators now agree, and where it is unclear:
    then the concept is one with an unresolved disagreement. A map that was accepted unseen is a reviewed one from here on.

    Raises:
        UserError: an id that is no item of the map; a label that is no mark; a resolution against marks that agree.
    """
    resolved = resolved or {}
    known = {name for name, _ in items(merge_map)}
    given = [(f"the marks of {short(name)}", of_name) for name, of_name in marks.items()]
    for whose, labels in [*given, ("the resolutions", resolved)]:
        if others := sorted(labels.keys() - known):
            raise UserError(
                f"{merge_map.at('groups')}: {whose} are of another state of the groups: {len(others)} of {len(labels)} items are "
                f"not in the merge map (first: {short(others[0])}): export the sheets again, or bring back the groups they were of"
            )
        if wrong := sorted(name for name, label in labels.items() if label not in MARKS):
            raise UserError(f"{whose}, item {wrong[0]}: no mark: it must be {', '.join(MARKS)}")
    annotators = (*merge_map.annotators, *(name for name in marks if name not in merge_map.annotators))

    def marked(member: Member, item: str) -> Member:
        new = {
            name: marks[name][item] if item in marks.get(name, {}) else member.marks.get(name) for name in annotators
        }
        decided = resolved.get(item, member.resolved)
        update = {"marks": {name: mark for name, mark in new.items() if mark}, "resolved": None}
        unresolved = member.model_copy(update=update)
        if decided == "unclear" or (item not in resolved and unresolved.agreed(annotators)):
            return unresolved
        return unresolved.model_copy(update={"resolved": decided})

    groups = []
    for group in merge_map.groups:
        of_group = _members_sha256(group)
        members = tuple(marked(member, _item_id(of_group, member.concept)) for member in group.members)
        new: dict[str, object] = {"members": members}
        if any(_item_id(of_group, member.concept) in labels for member in members for labels in marks.values()):
            new["marked"] = members_mark(group)
        groups.append(group.model_copy(update=new))
    update = {"reviewed": True, "annotators": annotators, "groups": tuple(groups)}
    return check_map(merge_map.model_copy(update=update))


def check_map(merge_map: MergeMap) -> MergeMap:
    """The map, if its parts go together; whether all marks are there is the rule's to ask.

    Raises:
        UserError: a concept in two groups, a parent twice, an annotator twice, a mark by somebody else, a resolution against marks
        that agree, ``reviewed: false`` beside marks.
    """
    annotators = merge_map.annotators
    if twice := sorted({name for name in annotators if annotators.count(name) > 1}):
        raise UserError(f"{merge_map.at('annotators')}: the annotator {short(twice[0])} stands there twice: leave one")
    if annotators and not merge_map.reviewed:
        raise UserError(
            f"{merge_map.at('reviewed')}: 'reviewed: false' is for a map without annotators, this one has {len(annotators)}: "
            "take the line away"
        )
    parents: dict[str, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for i, group in enumerate(merge_map.groups):
        where = merge_map.at("groups", i, "parent")
        first = parents.setdefault(proposals.comparable(group.parent), i)
        if first != i:
            raise UserError(
                f"{where}: the parent {short(group.parent)} is that of another group ({merge_map.line('groups', first, 'parent')}), "
                "but for case and spaces: put the members into one group, or give one another name"
            )
        for j, member in enumerate(group.members):
            where = merge_map.at("groups", i, "members", j)
            k, m = places.setdefault(member.concept, (i, j))
            if (k, m) != (i, j):
                raise UserError(
                    f"{where}: the concept {short(member.concept)} stands in the group {short(merge_map.groups[k].parent)} already "
                    f"({merge_map.line('groups', k, 'members', m)}): leave it in one"
                )
            _check_marks(merge_map, member, where)
    return merge_map


def _check_marks(merge_map: MergeMap, member: Member, where: str) -> None:
    annotators = merge_map.annotators
    if others := [name for name in member.marks if name not in annotators]:
        known = f"(known: {', '.join(annotators)})" if annotators else "(the map names none)"
        raise UserError(
            f"{where}: 'marks' holds one by {short(others[0])}, who is not among the annotators"
            f"{nearest(others[0], list(annotators))} {known}: add the name to 'annotators', or take the mark away"
        )
    if member.resolved is None:
        return
    if not merge_map.reviewed:
        raise UserError(f"{where}: 'resolved' has no effect in a map with 'reviewed: false': take one of them away")
    if (agreed := member.agreed(annotators)) and agreed != member.resolved:
        raise UserError(
            f"{where}: 'resolved' is {member.resolved}, but all annotators say {agreed}: change their marks, or take it away"
        )


def members_mark(group: Group) -> str:
    """What tells a group's members from others."""
    return _members_sha256(group)[:12]


def _members_sha256(group: Group) -> str:
    return sha256_of(sorted(member.concept for member in group.members))


def _item_id(members_sha256: str, concept: str) -> str:
    return f"m-{sha256_of([members_sha256, concept])[:12]}"

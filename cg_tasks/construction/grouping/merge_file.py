"""The merge map as a YAML file that people read and edit: the same map always gives the same bytes, and an error names its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from cg_tasks.construction.grouping.merge_map import (
    Group,
    Member,
    MergeMap,
    Places,
    ProposedBy,
    Rule,
    check_map,
    in_order,
)
from cg_tasks.errors import UserError
from cg_tasks.judge.server_settings import nearest
from cg_tasks.pair_files import short
from cg_tasks.whole_files import replace_file
from cg_tasks.yaml_files import refuse_keys_given_twice

HEADER = """\
# Which tagged concepts become one dual-use concept (ConceptGuard, appendix A.2). One group is one concept of the data set.
#
# What to edit:
#   parent     the name that the members get. Renaming it is no matter of review; benign and queries ask again for its rows.
#   members    move a line to another group, or into a new one:  - parent: NAME, with members: under it.
#              Every concept of the tag rows stands in exactly one group; its samples are counted, leave them.
#              Marks are about the group they stand in: move a line before the review, or have both groups marked again.
#   marked     tells the members that were marked; leave it.
#   marks      what each of the annotators says: accept (belongs with the rest of its group), reject, or unclear.
#   resolved   accept or reject, after talking over a concept on which the marks differ. Not part of the agreement.
#   rule       agreement: a group stays if more than this share of its samples is accepted by all annotators, out of the
#              samples that any of them accepts (over: union) or of all its samples (over: members).
#              smallest: samples that must be left in it.
# Left out: concepts that all reject, concepts on which the marks differ and nothing is resolved, and groups that the rule drops.
# Comments of your own are lost whenever marks are imported.
"""
_OF_SECTION: dict[tuple[str, ...], type[BaseModel]] = {
    (): MergeMap,
    ("rule",): Rule,
    ("groups",): Group,
    ("groups", "proposed_by"): ProposedBy,
    ("groups", "members"): Member,
}
# libyaml's is eight times as fast on 3,000 concepts; not every build of PyYAML has it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def map_text(merge_map: MergeMap) -> str:
    """The file's text: groups by samples, largest first, then by parent, their members likewise, one member a line."""
    head: dict[str, Any] = {"version": merge_map.version, "tag_sha256": merge_map.tag_sha256}
    head["rule"] = _Inline(merge_map.rule.model_dump())
    if not merge_map.reviewed:
        head["reviewed"] = False
    head["annotators"] = _InlineList(merge_map.annotators)
    groups = [
        {
            "parent": group.parent,
            **({"marked": group.marked} if group.marked else {}),
            "proposed_by": _Inline(group.proposed_by.model_dump(exclude_none=True)),
            "members": [_member(member, merge_map.annotators) for member in group.members],
        }
        for group in in_order(merge_map.groups)
    ]
    return HEADER + _dump(head) + _dump({"groups": groups})


def write_map(merge_map: MergeMap, path: Path, *, replace: bool = False) -> None:
    """Write the map in one step.

    replace: put it in the place of the one that is there, of which nothing is kept: no mark, no edit.

    Raises:
        UserError: there is one already, and ``replace`` is not given; the file cannot be written.
    """
    if not replace and path.exists():
        raise UserError(f"{path}: is there already, perhaps with edits and marks: move it away to have a new one")
    replace_file(path, map_text(merge_map))


def read_map(path: Path) -> MergeMap:
    """The map in a file, its parts checked against one another; the tag rows and missing marks are the rule's to check.

    Raises:
        UserError: no file; not YAML; an unknown key, with the nearest name; a bad or missing value; what :func:`check_map` refuses.
    """
    values, node = _parsed(path)
    places = Places(path, node)
    try:
        found = MergeMap.model_validate(values)
    except ValidationError as error:
        raise _explained(error, places) from None
    return check_map(found.read_from(places))


def _parsed(path: Path) -> tuple[dict[Any, Any], yaml.MappingNode]:
    try:
        loader = _Loader(path.read_text(encoding="utf-8-sig"))
        node = loader.get_single_node()
        refuse_keys_given_twice(node, path)
        values = loader.construct_document(node) if node else None
    except FileNotFoundError:
        raise UserError(f"{path}: there is none: conceptguard build aggregate DIR --propose writes it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or type(error).__name__}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}: save it as UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__
        raise UserError(
            f"{path}{where}: not YAML ({problem}): mend the line; a name with ': ' or '#' in it needs quotes"
        ) from None
    except RecursionError:
        raise UserError(f"{path}: not a merge map: nested too deeply") from None
    except UserError:
        raise
    except ValueError as error:  # such as a date that is none
        raise UserError(f"{path}: not YAML ({error}): put quotes around the value") from None
    if not isinstance(values, dict) or not isinstance(node, yaml.MappingNode):
        raise UserError(
            f"{path}: not a merge map: must be 'key: value' lines (known: {', '.join(MergeMap.model_fields)})"
        )
    return values, node


def _explained(error: ValidationError, places: Places) -> UserError:
    # A list is also too short where none of its items could be read: the items come first.
    first = min(error.errors(include_input=False), key=lambda e: (e["type"] == "too_short", places.line(*e["loc"])))
    location = [part for part in first["loc"] if part != "[key]"]
    where = f"{places.path}, line {places.line(*location)}"
    names = [str(part) for part in location if not isinstance(part, int)]
    name = names[-1] if names else ""
    known = list(_OF_SECTION.get(tuple(names[:-1]), MergeMap).model_fields)
    if first["type"] == "extra_forbidden":
        return UserError(f"{where}: unknown key {short(name)}{nearest(name, known)} (known: {', '.join(known)})")
    if first["type"] == "missing":
        return UserError(f"{where}: '{name}' is missing: add it")
    if names[-2:-1] == ["marks"]:
        return UserError(f"{where}: the mark of {short(name)} must be accept, reject or unclear")
    if first["type"] == "string_type":
        return UserError(f"{where}: '{name}' is no text: put quotes around it")
    if first["type"] == "too_short":
        return UserError(f"{where}: '{name}' is empty: add a member, or take the group away")
    return UserError(f"{where}: '{name}': {first['msg'].removeprefix('Value error, ')}")


class _Inline(dict[str, Any]):
    """Written between braces, on one line."""


class _InlineList(list[Any]):
    """Written between brackets, on one line."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # PyYAML loses U+0085 in other styles, and breaks a line at a line's end in the text.
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if value.isprintable() else '"')


_Dumper.add_representer(str, _text)
_Dumper.add_representer(_Inline, lambda d, v: d.represent_mapping("tag:yaml.org,2002:map", v.items(), flow_style=True))
_Dumper.add_representer(_InlineList, lambda d, v: d.represent_sequence("tag:yaml.org,2002:seq", v, flow_style=True))


def _member(member: Member, annotators: tuple[str, ...]) -> _Inline:
    line = _Inline(concept=member.concept, samples=member.samples)
    if member.marks:
        line["marks"] = _Inline({name: member.marks[name] for name in annotators if name in member.marks})
    if member.resolved:
        line["resolved"] = member.resolved
    return line


def _dump(value: Any) -> str:
    return str(yaml.dump(value, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=10**9))

"""Values of a configuration file against the types of the fields they set.

argparse checks what stands on the command line; what a file sets becomes a default, which it takes unseen.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from cg_tasks.errors import UserError
from cg_trainers.arguments import nearest

_NO = object()
_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text (in quotes where YAML reads something else)",
}


def check_value(value: Any, hint: Any, choices: Sequence[Any] | None, where: str) -> Any:
    """``value`` as the type ``hint``: a whole number becomes a float, one item a list of one, where that is wanted.

    Raises:
        UserError: another type, or none of ``choices``. ``where`` opens the message: ``file, line n: key``.
    """
    wanted = _alternatives(hint)
    for alternative in wanted:
        if (found := _as(value, alternative)) is not _NO:
            break
    else:
        raise UserError(f"{where} is {_shown(value)}: {_explain(value, wanted)}")
    if choices and found is not None:
        for item in found if isinstance(found, list) else [found]:
            if item not in choices:
                raise UserError(f"{where} is {_shown(item)}: {nearest(item, [str(choice) for choice in choices])}")
    return found


def _alternatives(hint: Any) -> list[Any]:
    union = get_origin(hint) in (Union, types.UnionType)
    members = list(get_args(hint)) if union else [hint]
    if any(_is_enum(member) for member in members):
        members.remove(str) if str in members else None  # ``SchedulerType | str`` means the names of the enumeration
    # A list of one is written as one item; where plain text is allowed as well, it stays text.
    return sorted(members, key=lambda member: get_origin(member) is list)


def _as(value: Any, hint: Any) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if hint is type(None) or hint is None:
        return None if value is None else _NO
    if value is None:
        return _NO
    if origin is Literal:
        return next((a for a in get_args(hint) if a == value and type(a) is type(value)), _NO)
    if _is_enum(hint):
        return value if value in [member.value for member in hint] else _NO
    if hint is bool or hint is str:
        return value if isinstance(value, hint) else _NO
    if hint is int:
        return value if isinstance(value, int) and not isinstance(value, bool) else _NO
    if hint is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        return float(value) if number else _NO
    if hint is dict or origin is dict:
        return dict(value) if isinstance(value, Mapping) and _holds(value, get_args(hint)) else _NO
    if hint is list or origin is list:
        return _as_list(value, (get_args(hint) or (Any,))[0])
    return _NO


def _as_list(value: Any, item_hint: Any) -> Any:
    items = [_as(item, item_hint) for item in (value if isinstance(value, list) else [value])]
    return _NO if any(item is _NO for item in items) else items


def _holds(value: Mapping[Any, Any], hints: tuple[Any, ...]) -> bool:
    item = hints[1] if len(hints) == 2 else Any
    return all(isinstance(key, str) and _as(part, item) is not _NO for key, part in value.items())


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)


def _explain(value: Any, wanted: list[Any]) -> str:
    """What it must be; names get the nearest one."""
    for hint in wanted:
        if isinstance(value, str) and (names := _names(hint)):
            return nearest(value, names)
    return f"it must be {', or '.join(dict.fromkeys(_name(hint) for hint in wanted))}"


def _names(hint: Any) -> list[str]:
    """The names an enumeration or a ``Literal`` of text is made of."""
    if _is_enum(hint):
        return [str(member.value) for member in hint]
    return [choice for choice in get_args(hint) if isinstance(choice, str)] if get_origin(hint) is Literal else []


def _name(hint: Any) -> str:
    origin = get_origin(hint)
    if hint is type(None):
        return "null"
    if _is_enum(hint):
        return "one of " + ", ".join(_names(hint))
    if origin is Literal:
        return " or ".join(repr(choice) for choice in get_args(hint))
    if hint is list or origin is list:
        return f"a list, each item {_name((get_args(hint) or (str,))[0])}"
    if hint is dict or origin is dict:
        return "a mapping of names to values"
    return _NAMES.get(hint, "set in Python only, not in a file")


def _shown(value: Any) -> str:
    if value is None:
        return "empty"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"

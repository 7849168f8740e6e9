"""What a task wrote about itself, as far as it has the form in which we write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cg_tasks.report.runs import Problem

_OBJECTS = (
    "data", "settings", "templates_sha256", "adapter", "trained_model", "versions", "model", "judge", "verdicts", "separations",
)  # fmt: skip


def well_formed(provenance: Mapping[str, Any], where: str, problems: list[Problem]) -> dict[str, Any]:
    """The provenance without what is of another kind than we write, which is named in ``problems``."""
    found = dict(provenance)
    for name in [*_OBJECTS, "arms_shown_the_canary"]:
        if found.get(name) is not None and not _is_ours(name, found[name]):
            problems.append(Problem("error", where, f"the provenance's '{name}' is not as we write it: it is left out"))
            del found[name]
    return found


def _is_ours(name: str, value: Any) -> bool:
    if name == "arms_shown_the_canary":
        return isinstance(value, list) and all(isinstance(arm, str) for arm in value)
    if not isinstance(value, Mapping):
        return False
    if name == "separations":
        return all(isinstance(entry, Mapping) and all(map(_is_number, entry.values())) for entry in value.values())
    return all(map(_is_number, value.values())) if name == "verdicts" else True


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))

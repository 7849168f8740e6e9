"""YAML files that people write: read with the place of every key, and with errors that name the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from cg_tasks.errors import UserError


def read_yaml(path: Path, known: list[str]) -> tuple[dict[Any, Any], yaml.MappingNode | None]:
    """The mapping in a YAML file, and its node, which knows the lines.

    Raises:
        UserError: a file that cannot be read, is not YAML, or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        values = yaml.safe_load(text) or {}
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or type(error).__name__}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__
        raise UserError(f"{path}{where}: not YAML ({problem})") from None
    except (ValueError, RecursionError) as error:  # such as a date that is none
        raise UserError(f"{path}: not YAML ({error})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: must be 'key: value' lines (known: {', '.join(known)})")
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    return values, node if isinstance(node, yaml.MappingNode) else None


def key_lines(node: yaml.MappingNode | None, path: Path) -> dict[str, int]:
    """On which line each key of a mapping stands.

    Raises:
        UserError: a key that stands twice.
    """
    lines: dict[str, int] = {}
    for key, _ in node.value if node else ():
        name, line = str(key.value), key.start_mark.line + 1
        if name in lines:
            raise UserError(f"{path}, line {line}: '{name}' is given on line {lines[name]} already: leave one of them")
        lines[name] = line
    return lines


def refuse_keys_given_twice(node: yaml.Node | None, path: Path) -> None:
    """At any depth: YAML keeps the last of two equal keys and says nothing. Raises UserError as :func:`key_lines`."""
    seen: set[int] = set()  # an alias leads to a node once more, or back to one around it
    waiting = [node] if node else []
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            key_lines(node, path)
            waiting += [value for _, value in reversed(node.value)]
        elif isinstance(node, yaml.SequenceNode):
            waiting += reversed(node.value)

"""What checkpoints of other tools are, told in a YAML file: model folder or name -> base, stage, method, K, seeds.

models/llama-npo-100:
  base: Llama-3.1-8B
  method: npo
  k: 100
  seed: 0
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from cg_tasks.errors import UserError
from cg_tasks.report.runs import STAGES

Described = Mapping[str, Mapping[str, Any]]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_fraction(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 < value <= 1


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "base": (_is_text, "a name"),
    "stage": (lambda value: value in STAGES, f"one of {', '.join(STAGES)}"),
    "method": (_is_text, "a name, such as npo"),
    "k": (_is_count, "a whole number, the optimiser steps"),
    "seed": (_is_count, "a whole number"),
    "start_seed": (_is_count, "a whole number"),
    "forget_fraction": (_is_fraction, "a number above 0 and at most 1"),
    "regime": (_is_text, "a word, such as bio, meta or none"),
    "name": (_is_text, "a name"),
}


def read_descriptions(path: str | Path) -> dict[str, dict[str, Any]]:
    """The checkpoints a YAML file describes: model folder or name, as in lm-eval's ``model_args`` -> fields of a checkpoint.

    Raises:
        UserError: the file cannot be read, is no such mapping, or holds an unknown field, a wrong value or a key twice; with its line.
    """
    path = Path(path).expanduser()
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or type(error).__name__}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UserError(
            f"{path}{where}: not YAML: {getattr(error, 'problem', None) or 'it cannot be parsed'}"
        ) from None
    found: dict[str, dict[str, Any]] = {}
    for model, line, node in _entries(root, str(path), "a model's folder or name"):
        where = f"{path}, line {line}"
        if model in found:
            raise UserError(f"{where}: '{model}' is described twice: keep one")
        found[model] = _description(node, str(path), line, model)
    if not found:
        raise UserError(
            f"{path}: describes no checkpoint: write a model's folder or name, and below it base, method, k, seed"
        )
    return found


def _description(node: yaml.Node, path: str, line: int, model: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    entries = _entries(node, path, f"a field of '{model}'", line)
    for name, at, value_node in entries:
        where = f"{path}, line {at}"
        if name not in _FIELDS:
            near = difflib.get_close_matches(name, _FIELDS, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise UserError(f"{where}: unknown field '{name}' of '{model}': {hint}(fields: {', '.join(_FIELDS)})")
        if name in found:
            raise UserError(f"{where}: the field '{name}' of '{model}' comes twice: keep one")
        takes, wanted = _FIELDS[name]
        try:
            value = yaml.SafeLoader("").construct_object(value_node, deep=True)
        except (yaml.YAMLError, ValueError):
            value = None
        if not takes(value):
            raise UserError(f"{where}: '{name}' of '{model}' is {value!r}: it must be {wanted}")
        found[name] = value.strip() if isinstance(value, str) else value
    if not found:
        raise UserError(f"{path}, line {line}: nothing is said about '{model}': give it base, method, k or seed")
    return found


def _entries(node: yaml.Node | None, path: str, wanted: str, line: int = 1) -> list[tuple[str, int, yaml.Node]]:
    if node is None or (isinstance(node, yaml.ScalarNode) and not node.value.strip()):
        return []
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{path}, line {node.start_mark.line + 1}: expected {wanted}, a colon and what it is")
    out = []
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise UserError(f"{path}, line {key.start_mark.line + 1}: expected {wanted} as plain text")
        out.append((str(key.value).strip(), key.start_mark.line + 1, value))
    return out

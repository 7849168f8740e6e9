"""A YAML file as plain values, each with the line it stands on, and changed from the command line by ``key.path=value``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cg_tasks.errors import UserError
from cg_tasks.settings import is_secret
from cg_trainers.config_files import _Loader

Place = tuple[str | int, ...]
# --flag, name= and {"name": …}, inside a text
_NAMED = re.compile(r"""--([A-Za-z][\w-]*)|([A-Za-z_][\w-]*)(?==)|[{,]\s*["']?([A-Za-z_][\w-]*)["']?\s*:""")
_MOST_NODES = 100_000  # a file whose aliases unfold into more is a mistake or an attack


@dataclass(frozen=True)
class Document:
    """values: what the file says. lines: place of a value (keys and indices from the top) -> line number.

    given: the places that the command line set.
    """

    file: str
    values: dict[str, Any]
    lines: Mapping[Place, int]
    given: tuple[Place, ...] = ()

    def where(self, place: Sequence[str | int]) -> str:
        """``file, line n``, of the innermost thing that exists; ``command line`` for what was set there."""
        place = tuple(place)
        if any(place[: len(given)] == given for given in self.given):
            return "command line"
        while place and place not in self.lines:
            place = place[:-1]
        return f"{self.file}, line {self.lines[place]}" if place in self.lines else self.file


def read_document(path: Path) -> Document:
    """Read one file.

    Raises:
        UserError: it cannot be read, is not YAML, is no mapping, or a key stands twice or is a secret.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"cannot be read: {error.strerror}"
        raise UserError(f"{path} {reason}") from None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            line = node.start_mark.line + 1 if node else 1
            raise UserError(f"{path}, line {line}: a study is made of 'key: value' lines, beginning with 'name: …'")
        lines: dict[Place, int] = {}
        _walk(node, (), lines, str(path))
        values = loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}, line {mark.line + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise UserError(f"{place}: not YAML: {problem}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    document = Document(str(path), values, lines)
    _refuse_secrets(document, values, ())
    return document


def _refuse_secrets(document: Document, value: Any, place: tuple[str | int, ...]) -> None:
    """A plan, its logs and the results hold every word of a study: no secret may be among them."""
    inside: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, Mapping):
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value)
    if isinstance(value, str) and (secret := _secret_in(value)):
        raise UserError(f"{document.where(place)}: '{secret}' is a secret: remove it, and set it in the environment")
    for key, item in inside:
        if isinstance(key, str) and is_secret(key):
            where = document.where((*place, key))
            raise UserError(f"{where}: '{key}' is a secret: remove it, and set it in the environment")
        _refuse_secrets(document, item, (*place, key))


def _secret_in(text: str) -> str | None:
    """The first name of a secret that a text gives a value to, as a command line does."""
    names = (next(filter(None, found)) for found in _NAMED.findall(text))
    return next((name for name in names if is_secret(name)), None)


def _walk(node: yaml.Node, place: Place, lines: dict[Place, int], file: str) -> None:
    """Note each value's line; an alias that leads back to itself ends in a RecursionError."""
    lines.setdefault(place, node.start_mark.line + 1)
    if len(lines) > _MOST_NODES:
        raise UserError(f"{file}: more than {_MOST_NODES} values: write the study without nested aliases")
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, (*place, index), lines, file)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[Any, int] = {}
        for key_node, item in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise UserError(f"{file}, line {line}: a key must be a name")
            key = key_node.value
            if key in seen:
                raise UserError(f"{file}, line {line}: '{key}' stands twice (line {seen[key]}): remove one")
            seen[key] = line
            _walk(item, (*place, key), lines, file)
            lines[(*place, key)] = line


def changed(document: Document, changes: Iterable[str]) -> Document:
    """The document with each ``key.path=value`` of the command line put in; a value is YAML, a list's items have numbers.

    Raises:
        UserError: no ``=``, a path into something that is no mapping or list, an index that is not there, or a value that is
            not YAML.
    """
    values, given = _copy(document.values), list(document.given)
    for change in changes:
        path, found, text = change.partition("=")
        place = tuple(path.split("."))
        if not found or not all(place):
            raise UserError(f"command line: '{change}': a change is written key.path=value, such as evaluate.0.limit=4")
        if secret := next((part for part in place if is_secret(part)), _secret_in(text)):
            raise UserError(
                f"command line: {path}: '{secret}' is a secret: leave it out, and set it in the environment"
            )
        try:
            value = yaml.load(text, _Loader)  # noqa: S506, a SafeLoader
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise UserError(f"command line: {path}: '{text}' is not YAML ({' '.join(str(error).split())})") from None
        given.append(_set(values, place, value, change))
    made = Document(document.file, values, document.lines, tuple(given))
    _refuse_secrets(made, values, ())
    return made


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _set(values: dict[str, Any], place: tuple[str, ...], value: Any, change: str) -> Place:
    """Put one value in. A name with dots in it, such as a model's, is found where it is written whole."""
    target: Any = values
    done: list[str | int] = []
    rest = list(place)
    while rest:
        key: str | int
        if isinstance(target, list):
            if not rest[0].isdigit() or int(rest[0]) >= len(target):
                raise UserError(
                    f"command line: '{change}': {_path(done)} is a list of {len(target)}, numbered from 0: no '{rest[0]}'"
                )
            key, rest = int(rest[0]), rest[1:]
        elif isinstance(target, dict):
            key, rest = _key(target, rest)
        else:
            raise UserError(f"command line: '{change}': {_path(done)} is {target!r}: there is nothing inside it")
        done.append(key)
        if not rest:
            target[key] = value
        elif isinstance(target, dict) and target.get(key) is None:
            target[key] = {}
        target = target[key]
    return tuple(done)


def _key(target: Mapping[str, Any], rest: list[str]) -> tuple[str, list[str]]:
    for length in range(len(rest), 0, -1):
        if (key := ".".join(rest[:length])) in target:
            return key, rest[length:]
    return rest[0], rest[1:]


def _path(place: Iterable[str | int]) -> str:
    return ".".join(map(str, place)) or "the study"


def guess(word: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?``, or the names there are."""
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(word).lower(), names, n=1, cutoff=0.6)
    return f"did you mean '{names[near[0]]}'?" if near else f"known: {', '.join(names.values()) or 'none'}"

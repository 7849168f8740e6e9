"""Configuration files of the training scripts: found, merged from what they include, checked, and handed to TrlParser.

A file is YAML, ``key: value``, with the keys of the scripts' arguments. ``include:`` names other files (relative to this
one) or shipped recipes; a later one wins over an earlier one, and the file itself over all of them. Where another objective (or
preset) wins, the weights that came with the one it replaces are set aside with it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from cg_tasks.errors import UserError
from cg_tasks.settings import is_secret
from cg_trainers.arguments import nearest
from cg_trainers.config_values import check_value

log = logging.getLogger(__name__)
Say = Callable[..., None]

RECIPES = Path(__file__).resolve().parent / "recipes"
WEIGHTS = ("gamma", "alpha", "beta", "delta", "strength", "steering_coeff", "trace_weight")
# What belongs to the value of a setting, and means something else, or nothing, under another value of it.
BELONGS_TO = {
    "objective": (*WEIGHTS, "trainable", "preset", "retain_loss", "reference"),
    "preset": (*WEIGHTS, "trainable"),
}


@dataclass(frozen=True)
class Setting:
    """One value of a configuration file, and where it stands."""

    value: Any
    file: Path
    line: int

    @property
    def where(self) -> str:
        """``file, line n``."""
        return f"{self.file}, line {self.line}"


class _Loader(yaml.SafeLoader):
    """YAML 1.2 numbers: PyYAML takes 1e-5, without a dot, for a string."""


_Loader.yaml_implicit_resolvers = {key: list(rules) for key, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+\Z"), list("-+0123456789")
)


def recipes() -> tuple[str, ...]:
    """Names of the shipped recipes, as ``--config`` and ``include`` take them."""
    return tuple(sorted(path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.yaml")))


def read_config(name: str | os.PathLike[str]) -> dict[str, Any]:
    """Key -> value of a file or a shipped recipe, includes merged in; the values as YAML gives them.

    Raises:
        UserError: as :func:`load_config`.
    """
    return {key: setting.value for key, setting in load_config(name).items()}


def load_config(name: str | os.PathLike[str]) -> dict[str, Setting]:
    """As :func:`read_config`, each value with the file and the line it comes from.

    Raises:
        UserError: no such file or recipe, not YAML, a key that stands twice, an include that leads back to itself, ``env:``,
            or a secret.
    """
    return _load(_find(os.fspath(name), Path(), ""), (), log.debug)


def effective(name: str | os.PathLike[str], dataclasses: Iterable[type]) -> dict[str, Any]:
    """As :func:`read_config`, every key and value checked against the dataclasses' fields.

    Raises:
        UserError: also an unknown key, a value of another type, or none of the field's choices.
    """
    return _checked(load_config(name), dataclasses)


def require_config(argv: Sequence[str]) -> None:
    """Read what ``--config`` names. What is wrong with the file itself is told before torch and TRL take seconds to import.

    Raises:
        UserError: as :func:`load_config`.
    """
    _, config = _without_config(argv)
    if config is not None:
        load_config(config)


def parse(argv: Sequence[str], dataclasses: Sequence[Any], description: str | None = None) -> tuple[Any, ...]:
    """Instances of ``dataclasses`` from ``--config NAME`` and the command line, which wins.

    Raises:
        UserError: anything wrong in the file or on the command line, or whatever a dataclass refuses.
    """
    from trl import TrlParser

    class Parser(TrlParser):
        def error(self, message: str) -> Any:
            raise UserError(f"command line: {message}")

    arguments, config = _without_config(argv)
    parser = Parser(tuple(dataclasses), allow_abbrev=False, description=description)
    parser.add_argument("--config", metavar="NAME", help="a YAML file, or a shipped recipe such as " + _EXAMPLE)
    given = {name: Setting(value, Path("command line"), 0) for name, value in _given(arguments).items()}
    files = {} if config is None else _load(_find(config, Path(), ""), (), log.info)
    settings = _overlaid(files, given, log.info)
    settings = {name: setting for name, setting in settings.items() if name not in given}
    parser.set_defaults_with_config(**_checked(settings, dataclasses))
    try:
        *parsed, _, rest = parser.parse_args_into_dataclasses(
            arguments, return_remaining_strings=True, look_for_args_file=False
        )
    except (ValueError, TypeError) as error:  # TrainingArguments raise these, our own dataclasses a UserError
        raise UserError(_place(str(error), settings, arguments) + " ".join(str(error).split())) from None
    if rest:
        flags = [action.option_strings[0] for action in parser._actions if action.option_strings]
        raise UserError(f"command line: {_unknown_argument(rest[0], flags)}")
    return tuple(parsed)


_EXAMPLE = "conceptguard/qwen2.5-3b-instruct/simnpo"


def _place(message: str, settings: Mapping[str, Setting], arguments: Sequence[str]) -> str:
    """``file, line n: `` where a dataclass refuses a value that a file set; nothing where it cannot be told."""
    found = re.match(r"\W*(\w+)", message)
    key = found.group(1) if found else ""
    return f"{settings[key].where}: " if key in settings and key not in _given(arguments) else ""


def _given(arguments: Sequence[str]) -> dict[str, str]:
    """What stands on the command line: each option with the first word of its value."""
    found = {}
    for at, word in enumerate(arguments):
        if word[:2] == "--":
            name, equals, value = word[2:].partition("=")
            found[name.replace("-", "_")] = value if equals else next(iter(arguments[at + 1 : at + 2]), "")
    return found


def _overlaid(below: Mapping[str, Setting], above: Mapping[str, Setting], say: Say) -> dict[str, Setting]:
    """``above`` over ``below``, without what belongs to a value of ``below`` that ``above`` replaces by another."""
    kept = dict(below)
    for name, belonging in BELONGS_TO.items():
        was = below[name].value if name in below else None
        if name not in above or above[name].value == was or (name == "objective" and was is None):
            continue
        if dropped := [key for key in belonging if key in kept and kept[key].value is not None and key not in above]:
            values = ", ".join(f"{key}: {kept[key].value}" for key in dropped)
            say("%s is %s%s: set aside %s", name, above[name].value, f", not {was}" if was else "", values)
        kept = {key: setting for key, setting in kept.items() if key not in belonging}
    return {**kept, **above}


def _unknown_argument(argument: str, flags: Iterable[str]) -> str:
    if not argument.startswith("-"):
        return f"'{argument}' follows no option that takes it: options are written --name value"
    name = argument.split("=", 1)[0].replace("-", "_").lstrip("_")
    return f"unknown option '{argument}': {_guess(name, [flag.lstrip('-') for flag in flags], '--')}"


def _guess(name: str, known: list[str], prefix: str = "") -> str:
    """Only the guess: a list of two hundred settings would bury it."""
    hint = nearest(name, known)
    return f"did you mean '{prefix}{hint.split(chr(39))[1]}'?" if hint.startswith("did") else "--help lists them"


def _without_config(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """The arguments without ``--config NAME``, and NAME."""
    rest: list[str] = []
    names: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--config":
            names.append(next(words, ""))
        elif word.startswith("--config="):
            names.append(word.partition("=")[2])
        else:
            rest.append(word)
    if len(names) > 1:
        raise UserError("command line: --config is given twice: name one file, and let it include: the other")
    if names and (not names[0] or names[0].startswith("--")):
        raise UserError(f"command line: --config needs a YAML file or a recipe, such as {_EXAMPLE}")
    return rest, names[0] if names else None


def _checked(settings: Mapping[str, Setting], dataclasses: Iterable[type]) -> dict[str, Any]:
    known = {f.name: (get_type_hints(cls)[f.name], f.metadata) for cls in dataclasses for f in fields(cls) if f.init}
    values = {}
    for key, setting in settings.items():
        if key not in known:
            hint = _guess(key, list(known))
            if "objective" in settings and "objective" not in known:
                hint = "this is an unlearning recipe, run it with python -m cg_trainers.unlearn"
            raise UserError(f"{setting.where}: unknown key '{key}': {hint}")
        hint, metadata = known[key]
        value = setting.value
        if key == "resume_from_checkpoint" and isinstance(value, bool):
            value = str(value).lower()  # text to transformers, as `--resume_from_checkpoint true` is
        values[key] = check_value(value, hint, metadata.get("choices"), f"{setting.where}: {key}")
    return values


def _find(name: str, folder: Path, where: str) -> Path:
    """The file called ``name``, seen from ``folder``, else the shipped recipe of that name."""
    for path in (folder / name, RECIPES / f"{name}.yaml"):
        if name and path.is_file():
            return path
    if (folder / name).is_dir():
        raise UserError(f"{where}{name} is a folder: name a YAML file in it")
    if name.endswith((".yaml", ".yml")) or name.startswith((".", "/")):
        raise UserError(f"{where}no such file: {folder / name}; shipped recipes have names such as {_EXAMPLE}")
    raise UserError(f"{where}no file and no recipe '{name}': {nearest(name, recipes())}")


def _load(path: Path, outer: tuple[Path, ...], say: Say) -> dict[str, Setting]:
    if path.resolve() in outer:
        raise UserError(
            f"{outer[-1]}: includes {path}, which includes it in turn: remove one of the two include: lines"
        )
    own = _read(path)
    merged: dict[str, Setting] = {}
    if include := own.pop("include", None):
        names = include.value if isinstance(include.value, list) else [include.value]
        for name in names:
            if not isinstance(name, str):
                raise UserError(f"{include.where}: include is {name!r}: it must be a file, a recipe, or a list of them")
            found = _find(name, path.parent, f"{include.where}: ")
            merged = _overlaid(merged, _load(found, (*outer, path.resolve()), say), say)
    return _overlaid(merged, own, say)


def _read(path: Path) -> dict[str, Setting]:
    """The settings of one file alone."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"cannot be read: {error.strerror}"
        raise UserError(f"{path} {reason}") from None
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode):
            raise UserError(
                f"{path}, line {node.start_mark.line + 1}: a configuration file is made of 'key: value' lines"
            )
        settings: dict[str, Setting] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = loader.construct_object(key_node, deep=True)
            _refuse_key(key, path, line, settings)
            settings[key] = Setting(loader.construct_object(value_node, deep=True), path, line)
        return settings
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise UserError(
            f"{place}: not YAML: {getattr(error, 'problem', None) or ' '.join(str(error).split())}"
        ) from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: not YAML: {error}") from None
    finally:
        loader.dispose()


def _refuse_key(key: Any, path: Path, line: int, settings: Mapping[str, Setting]) -> None:
    where = f"{path}, line {line}"
    if not isinstance(key, str):
        raise UserError(f"{where}: the key {key!r} is not a name")
    if key in settings:
        raise UserError(f"{where}: '{key}' stands twice (line {settings[key].line}): remove one")
    if key == "env":
        raise UserError(f"{where}: env: is not read: set variables in the environment, where no file keeps a secret")
    if is_secret(key):
        raise UserError(
            f"{where}: '{key}' is a secret: remove it, and set it in the environment (HF_TOKEN for the Hub)"
        )
    if key == "config":
        raise UserError(f"{where}: a configuration file takes others in with include:, not with config:")

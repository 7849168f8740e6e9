"""What a study may say, checked before anything is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from cg_tasks.errors import UserError
from cg_trainers.study.documents import Document, changed, guess, read_document
from cg_trainers.study.jobs import RULES, Rule

STUDIES = Path(__file__).resolve().parent / "studies"
Stage = Literal["base", "finetuned", "unlearned"]
STAGES: tuple[Stage, ...] = get_args(Stage)
BASE = "base"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _one_is_a_list(value: Any) -> Any:
    return value if value is None or isinstance(value, list) else [value]


def _words(value: Any) -> Any:
    return shlex.split(value) if isinstance(value, str) else value


Words = Annotated[list[str], BeforeValidator(_words)]
Names = Annotated[list[str], BeforeValidator(_one_is_a_list), Field(min_length=1)]
Seeds = Annotated[list[Annotated[int, Field(ge=0)]], BeforeValidator(_one_is_a_list), Field(min_length=1)]
Steps = Annotated[list[Annotated[int, Field(ge=1)]], BeforeValidator(_one_is_a_list)]
Scalar = str | int | float | bool


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


class Model(_Part):
    """pretrained: a Hub id or a folder. model_args: lm_eval's, beside it. prepare: the command that writes the folder."""

    pretrained: str = Field(min_length=1)
    model_args: dict[str, Scalar] = {}
    prepare: Words = []


class Finetune(_Part):
    """recipe: its name, in which ``{model}`` and ``{regime}`` stand for the alias and the regime. models: aliases (default: all).

    regimes: names of templates/trace, each trained apart. overrides: anything of the recipe.
    """

    recipe: str
    models: Names | None = None
    seeds: Seeds = [0]
    regimes: Names | None = None
    overrides: dict[str, Any] = {}


class Unlearn(_Part):
    """from: the fine-tuning whose runs are continued, or ``base``. K: steps whose checkpoints are evaluated; the last ends the run.

    Without K, the recipe's ``save_at`` and its end. seeds: a list, or ``same`` as the run that is continued.
    """

    recipe: str
    from_: str = Field(alias="from")
    models: Names | None = None
    K: Steps = []
    seeds: Seeds | Literal["same"] = [0]
    overrides: dict[str, Any] = {}


class Evaluate(_Part):
    """One lm_eval run for every checkpoint of the stages in ``when``. arguments: further words of its command line."""

    tasks: Names
    name: str | None = None
    when: Annotated[list[Stage], BeforeValidator(_one_is_a_list), Field(min_length=1)] = list(STAGES)
    models: Names | None = None
    backend: str = "hf"
    model_args: dict[str, Scalar] = {}
    metadata: dict[str, Any] = {}
    limit: Annotated[int, Field(ge=1)] | None = None
    batch_size: int | str | None = None
    gen_kwargs: dict[str, Any] = {}
    apply_chat_template: bool | str = False
    arguments: Words = []


class Judge(_Part):
    """settings: a judge.yaml; left out, ``CG_JUDGE_*`` in the environment."""

    settings: str | None = None


class Resources(_Part):
    """launcher: stands in the place of ``python -m``. threads: of one job. resources: Snakemake's (gpu, mem_mb, runtime, …)."""

    launcher: Words = []
    threads: Annotated[int, Field(ge=1)] | None = None
    resources: dict[str, int | str] = {}


class Reporting(_Part):
    """title: of the page. arguments: further words of ``conceptguard report``."""

    title: str | None = None
    arguments: Words = []


class Study(_Part):
    """One study. forget_seed: which pairs a smaller forget set keeps. document: the file, for messages."""

    name: str
    out: str | None = None
    models: Annotated[dict[str, Model], Field(min_length=1)]
    finetune: dict[str, Finetune] = {}
    unlearn: dict[str, Unlearn] = {}
    forget_fractions: Annotated[
        list[Annotated[float, Field(gt=0, le=1)]], BeforeValidator(_one_is_a_list), Field(min_length=1)
    ] = [1.0]
    forget_seed: Annotated[int, Field(ge=0)] = 0
    evaluate: Annotated[list[Evaluate], BeforeValidator(_one_is_a_list)] = []
    judge: Judge | None = None
    rules: dict[Rule, Resources] = {}
    report: Reporting = Reporting()
    document: Document = Field(exclude=True, repr=False)

    @field_validator("models", "finetune", "unlearn")
    @classmethod
    def _names(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if not _NAME.fullmatch(name) or name.endswith(".partial"):
                raise ValueError(f"'{name}' becomes part of file names: use letters, digits, '.', '_' and '-'")
        return value

    @property
    def folder(self) -> str:
        """Where everything is written, as the user would type it."""
        return str(Path(self.out).expanduser()) if self.out else f"studies/{self.name}"


def shipped() -> tuple[str, ...]:
    """Names of the studies that come along."""
    return tuple(sorted(path.stem for path in STUDIES.glob("*.yaml")))


def find_study(name: str) -> Path:
    """The file, or the shipped study, called ``name``.

    Raises:
        UserError: there is none.
    """
    for path in (Path(name).expanduser(), STUDIES / f"{name}.yaml"):
        if path.is_file():
            return path
    if Path(name).is_dir():
        raise UserError(f"{name} is a folder: name a study's YAML file")
    if name.endswith((".yaml", ".yml")) or "/" in name:
        raise UserError(f"no such file: {name}; shipped studies: {', '.join(shipped())}")
    raise UserError(f"no file and no shipped study '{name}': {guess(name, shipped())}")


def load_study(name: str, changes: Sequence[str] = ()) -> Study:
    """The study called ``name``, changed by ``key.path=value`` of the command line.

    Raises:
        UserError: anything wrong in it, naming file, line and key.
    """
    return check_study(changed(read_document(find_study(name)), changes))


def check_study(document: Document) -> Study:
    """The study that a document holds. Raises UserError naming file, line and key."""
    if "document" in document.values:
        raise UserError(f"{document.where(('document',))}: unknown key 'document'")
    try:
        study = Study.model_validate({**document.values, "document": document})
    except ValidationError as error:
        raise UserError(_message(error, document)) from None
    except RecursionError:
        raise UserError(f"{document.file}: nested too deeply") from None
    _cross_check(study)
    return study


def _cross_check(study: Study) -> None:
    """What one part says of another."""
    where = study.document.where
    if not _NAME.fullmatch(study.name):
        raise UserError(f"{where(('name',))}: name: '{study.name}': use letters, digits, '.', '_' and '-'")
    for section in ("finetune", "unlearn"):
        for name, part in getattr(study, section).items():
            _known(part.models or (), study.models, where((section, name, "models")), f"{section}.{name}.models")
            if BASE in (name, *study.models):
                raise UserError(f"{where((section, name))}: {section}: '{BASE}' is the model itself: use another name")
    for name, method in study.unlearn.items():
        _known([method.from_], [*study.finetune, BASE], where(("unlearn", name, "from")), f"unlearn.{name}.from")
        if method.seeds == "same" and method.from_ == BASE:
            raise UserError(
                f"{where(('unlearn', name, 'seeds'))}: unlearn.{name}.seeds: the base model has no seed: list them"
            )
        if len(set(method.K)) < len(method.K) or sorted(method.K) != method.K:
            raise UserError(
                f"{where(('unlearn', name, 'K'))}: unlearn.{name}.K: {method.K}: list each step once, in order"
            )
    names = [entry.name for entry in study.evaluate]
    for index, entry in enumerate(study.evaluate):
        place = ("evaluate", index)
        _known(entry.models or (), study.models, where((*place, "models")), f"evaluate.{index}.models")
        if len(study.evaluate) > 1 and (not entry.name or names.count(entry.name) > 1):
            raise UserError(f"{where(place)}: evaluate.{index}: of several, each needs a 'name' of its own")
        if entry.name and not _NAME.fullmatch(entry.name):
            raise UserError(f"{where((*place, 'name'))}: evaluate.{index}.name: use letters, digits, '.', '_' and '-'")


def _known(names: Iterable[str], known: Iterable[str], where: str, key: str) -> None:
    listed = list(known)
    for name in names:
        if name not in listed:
            raise UserError(f"{where}: {key}: no '{name}' in this study: {guess(name, listed)}")


def _message(error: ValidationError, document: Document) -> str:
    """One fault in one line: an unknown key first, because a key that is missing may be that one, misspelt."""
    fault = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    place = _existing(fault["loc"], document.values)
    path = ".".join(map(str, place))
    if fault["type"] == "extra_forbidden":
        key, known = str(place[-1]), _fields(place[:-1])
        inside = f" in {'.'.join(map(str, place[:-1]))}" if len(place) > 1 else ""
        return f"{document.where(place)}: unknown key '{key}'{inside}: {guess(key, known)}"
    if fault["type"] == "missing":
        missing = str(fault["loc"][-1])
        return f"{document.where(place)}: {path + '.' if path else ''}{missing} is missing: add it"
    words = fault["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    shown = "" if fault["type"] in ("value_error",) else f" is {_shown(fault['input'])}"
    if fault["loc"] and fault["loc"][-1] == "[key]":  # a rule's name
        return f"{document.where(place)}: unknown key '{place[-1]}' in rules: {guess(str(place[-1]), RULES)}"
    return f"{document.where(place)}: {path}{shown}: {words}"


def _existing(loc: Sequence[str | int], values: Any) -> tuple[str | int, ...]:
    """The part of pydantic's location that stands in the file: it also names the members of unions."""
    place: list[str | int] = []
    for step in loc:
        inside = isinstance(values, Mapping) and step in values
        if not inside and not (isinstance(values, list) and isinstance(step, int) and step < len(values)):
            continue
        values = values[step]
        place.append(step)
    return tuple(place)


def _fields(place: Sequence[str | int]) -> list[str]:
    """The keys that may stand at a place."""
    parts: dict[str, type[_Part]] = {
        "models": Model, "finetune": Finetune, "unlearn": Unlearn, "evaluate": Evaluate, "judge": Judge,
        "rules": Resources, "report": Reporting,
    }  # fmt: skip
    model = parts[str(place[0])] if place and place[0] in parts else Study
    return [field.alias or name for name, field in model.model_fields.items() if name != "document"]


def _shown(value: Any) -> str:
    if value is None:
        return "empty"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"

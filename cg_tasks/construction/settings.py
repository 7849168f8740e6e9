"""``build.yaml``: which source, which generator, and what each stage asks for and accepts. What the paper leaves open is set here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cg_tasks.errors import UserError
from cg_tasks.judge.keys import GENERATOR, Role
from cg_tasks.judge.server_settings import ServerSettings, checked_names, nearest, read_server_settings
from cg_tasks.yaml_files import read_yaml, refuse_keys_given_twice

BUILD_FILE = "build.yaml"
PUBLIC_SOURCE = "LLM-LAT/harmful-dataset"
SOURCE_FIELDS = ("pair_id", "prompt", "response")


class GeneratorSettings(ServerSettings):
    """The model that tags and writes. Variables: ``CG_BUILD_*``; the paper's is GPT-5 (appendix A)."""

    role: ClassVar[Role] = GENERATOR
    model: str = Field(default="gpt-5", min_length=1)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TagSettings(_Section):
    """attempts: replies asked for, at most, until one can be read."""

    attempts: int = Field(default=3, ge=1, le=20)


class ReviewSettings(_Section):
    """share: of the rows that people look at (the paper: 15 %). annotators: sheets to write. seed: which rows are drawn."""

    share: float = Field(default=0.15, gt=0, le=1, allow_inf_nan=False)
    annotators: int = Field(default=2, ge=1, le=9)
    seed: int = Field(default=0, ge=0)


class AggregateSettings(_Section):
    """by: whose proposals. similarity: of character n-grams, from which concepts are proposed as one group.

    agreement: a group stays if more than this share of its samples was marked by all annotators (the paper: 90 %); over: of the
    samples that any of them marked (union), or of all its samples (members). smallest: samples a group must have (the paper drops
    groups of 1-2).
    """

    by: Literal["ngrams", "model"] = "ngrams"
    similarity: float = Field(default=0.5, gt=0, le=1, allow_inf_nan=False)
    agreement: float = Field(default=0.9, ge=0, lt=1, allow_inf_nan=False)
    over: Literal["union", "members"] = "union"
    smallest: int = Field(default=3, ge=1)


class BenignSettings(_Section):
    """min_words, max_words: of the response (the paper: 180-250), counted in ``unit``.

    overlap: highest ROUGE-L F1 with the harmful response. copied: highest similarity of its query with the harmful prompt. judge:
    whether the harm judge must find it harmless; highest_harm: the level it may give.
    """

    attempts: int = Field(default=3, ge=1, le=20)
    min_words: int = Field(default=180, ge=1)
    max_words: int = Field(default=250, ge=1)
    unit: Literal["words", "characters"] = "words"
    overlap: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)
    copied: float = Field(default=0.8, gt=0, le=1, allow_inf_nan=False)
    judge: bool = True
    highest_harm: int = Field(default=0, ge=0, le=4)

    @model_validator(mode="after")
    def _ordered(self) -> BenignSettings:
        if self.min_words > self.max_words:
            raise ValueError(f"min_words {self.min_words} is above max_words {self.max_words}")
        return self


class QueriesSettings(_Section):
    """overlap: highest ROUGE-L F1 of a query with its response; shared_ngram: words in a row that both may not share; copied: highest
    similarity with the prompt that the response answered; min_words, max_words: of a query, counted in ``unit``."""

    attempts: int = Field(default=3, ge=1, le=20)
    min_words: int = Field(default=4, ge=1)
    max_words: int = Field(default=60, ge=1)
    unit: Literal["words", "characters"] = "words"
    overlap: float = Field(default=0.3, ge=0, le=1, allow_inf_nan=False)
    shared_ngram: int = Field(default=5, ge=1)
    copied: float = Field(default=0.8, gt=0, le=1, allow_inf_nan=False)


class AssembleSettings(_Section):
    """name, license: on the dataset card. overlap: ceiling of ``data check``."""

    name: str = Field(default="a ConceptGuard data set", min_length=1)
    license: str = Field(default="other", min_length=1)
    overlap: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)


class BuildSettings(_Section):
    """One build. source: a file or folder (JSONL, JSON, CSV, Parquet) relative to the build folder, or a Hub id; split: of the latter.

    columns: our fields (pair_id, prompt, response) -> its columns. faulty_rows: whether a source row without text stops the build.
    language: as the templates say it; language_code: as the check of replies knows it (ISO 639-1), empty for no check.
    templates: a folder with ``construction/*.j2`` (or ``judge/harm.j2``) of your own.
    """

    source: str = Field(default=PUBLIC_SOURCE, min_length=1)
    split: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    faulty_rows: Literal["stop", "skip"] = "stop"
    language: str = Field(default="English", min_length=1)
    language_code: str = "en"
    templates: str | None = None
    generator: dict[str, Any] = Field(default_factory=dict)
    tag: TagSettings = TagSettings()
    review: ReviewSettings = ReviewSettings()
    aggregate: AggregateSettings = AggregateSettings()
    benign: BenignSettings = BenignSettings()
    queries: QueriesSettings = QueriesSettings()
    assemble: AssembleSettings = AssembleSettings()

    @field_validator("columns")
    @classmethod
    def _columns_known(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name not in SOURCE_FIELDS:
                raise ValueError(f"unknown field '{name}' (known: {', '.join(SOURCE_FIELDS)})")
        return value


def read_build_settings(folder: Path) -> BuildSettings:
    """The settings in a build folder.

    Raises:
        UserError: no such folder or file; an unknown or bad setting, naming the line; a key among the settings.
    """
    path = folder / BUILD_FILE
    if not path.is_file():
        raise UserError(
            f"{path}: there is none: name a build folder, or make one: conceptguard build init {folder} --source …"
        )
    values, node = read_yaml(path, list(BuildSettings.model_fields))
    refuse_keys_given_twice(node, path)
    try:
        settings = BuildSettings(**{str(key): value for key, value in values.items() if value is not None})
    except ValidationError as error:
        raise _explained(error, path, node) from None
    _generator_file_values(settings, path, node)
    return settings


def generator_settings(folder: Path, settings: BuildSettings, *, calling: bool = True) -> GeneratorSettings | None:
    """The generator from build.yaml's ``generator`` and ``CG_BUILD_*``; the environment wins.

    calling: None without a key and a server; if not, the settings in any case.

    Raises:
        UserError: a bad setting.
    """
    path = folder / BUILD_FILE
    _, node = read_yaml(path, [])
    values, origin = _generator_file_values(settings, path, node)
    return read_server_settings(GeneratorSettings, values, origin, os.environ, calling=calling)


def no_generator(folder: Path) -> UserError:
    """What to say where none is configured."""
    return UserError(
        "no generator is configured (neither a key nor a server): set CG_BUILD_API_KEY or OPENAI_API_KEY for OpenAI, or "
        f"CG_BUILD_BASE_URL and CG_BUILD_MODEL (or generator: {{base_url: …, model: …}} in {folder / BUILD_FILE}) for any "
        "OpenAI-compatible server"
    )


def _generator_file_values(
    settings: BuildSettings, path: Path, node: yaml.MappingNode | None
) -> tuple[dict[str, Any], dict[str, str]]:
    lines = {str(k.value): k.start_mark.line + 1 for k, _ in _child(node, "generator")}
    origin = {str(key): f"{path}, line {lines.get(str(key), 1)}" for key in settings.generator}
    return checked_names(GeneratorSettings, settings.generator, origin), origin


def _child(node: yaml.Node | None, name: str) -> list[tuple[yaml.Node, yaml.Node]]:
    """The entries of the mapping under a key."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if str(key.value) == name:
            return list(value.value) if isinstance(value, yaml.MappingNode) else []
    return []


def _explained(error: ValidationError, path: Path, node: yaml.MappingNode | None) -> UserError:
    first = error.errors(include_input=True)[0]
    names = [str(part) for part in first["loc"]]
    line = 1
    entries = list(node.value) if node else []
    for name in names:
        found = next(((k, v) for k, v in entries if str(k.value) == name), None)
        if found is None:
            break
        line = found[0].start_mark.line + 1
        entries = list(found[1].value) if isinstance(found[1], yaml.MappingNode) else []
    shown = f"{path}, line {line}: '{'.'.join(names)}'" if names else str(path)
    if first["type"] == "extra_forbidden":
        known = _known(names[:-1])
        return UserError(f"{shown}: unknown setting{nearest(names[-1], known)} (known: {', '.join(known)})")
    problem = first["msg"].removeprefix("Value error, ")
    return UserError(f"{shown}{_given(first['input']) if names else ''}: {problem}")


def _given(value: Any) -> str:
    """``is …`` with a value that is short; a longer one may be a key in the wrong place."""
    try:
        given = json.dumps(value, default=str)
    except (TypeError, ValueError, RecursionError):  # a key that is a date, an anchor that holds itself
        return ""
    return f" is {given}" if len(given) <= 24 else ""


def _known(names: list[str]) -> list[str]:
    model: Any = BuildSettings
    for name in names:
        model = model.model_fields[name].annotation
    return list(model.model_fields)

"""What a reply to each prompt must hold, and the JSON schema that is sent with the prompt.

Nothing is coerced. A field beyond these is passed over: a server that keeps to the schema cannot send one, and from any other it is an
addition that nothing reads, no reason to pay for another reply. (A misspelt field is noticed as a missing one.)
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

LONGEST_NAME = 60
_WHITE_SPACE = "\t\n\r"
T = TypeVar("T")


def _text(value: str) -> str:
    """Stripped; what no file or server could keep, what a mangled escape left behind, and blank text is refused."""
    value = value.strip()
    kinds = {unicodedata.category(char) for char in set(value) if char not in _WHITE_SPACE}
    if "Cs" in kinds:
        raise PydanticCustomError("lone_surrogate", "half a character")
    if "Cc" in kinds:
        raise PydanticCustomError("control_character", "a control character")
    if not any(kind[0] in "LMNPS" for kind in kinds):
        raise PydanticCustomError("blank", "no text")
    return value


def _name(value: str) -> str:
    value = _text(value)
    if len(value.splitlines()) > 1:
        raise PydanticCustomError("several_lines", "more than one line")
    if len(value) > LONGEST_NAME:
        raise PydanticCustomError("too_long", "too long for a name")
    return value


def _not_empty(values: tuple[T, ...]) -> tuple[T, ...]:
    if not values:
        raise PydanticCustomError("empty_list", "nothing in the list")
    return values


Text = Annotated[str, AfterValidator(_text)]
Name = Annotated[str, AfterValidator(_name)]
Texts = Annotated[tuple[Text, ...], AfterValidator(_not_empty)]
Names = Annotated[tuple[Name, ...], AfterValidator(_not_empty)]


class ReplyModel(BaseModel):
    """The base of what is read from a reply."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class TagReply(ReplyModel):
    """ConceptGuard, appendix A.1. concept: one line of at most 60 characters; "" where not dual-use, whatever the reply says there."""

    reason: Text
    dual_use: bool
    concept: str

    @model_validator(mode="before")
    @classmethod
    def _without_concept(cls, data: Any) -> Any:
        return {**data, "concept": ""} if isinstance(data, dict) and data.get("dual_use") is False else data

    @field_validator("concept")
    @classmethod
    def _concept(cls, value: str, info: ValidationInfo) -> str:
        return _name(value) if info.data.get("dual_use") else ""


class BenignReply(ReplyModel):
    """ConceptGuard, appendix A.3."""

    concepts: Texts
    themes: Texts
    query: Text
    response: Text


class QueryReply(ReplyModel):
    """ConceptGuard, appendix A.4."""

    query: Text


class Group(ReplyModel):
    """Concepts that are to become one."""

    parent: Name
    members: Names


class ProposeReply(ReplyModel):
    """ConceptGuard, appendix A.2: the candidate groups, which people then mark. There may be none."""

    groups: tuple[Group, ...]


_KEPT = ("type", "properties", "required", "additionalProperties", "items", "enum")


@cache
def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The strict JSON schema of a model: every field required, in the model's order, and no other allowed.

    The same dict at each call: not to be changed.
    """
    whole = model.model_json_schema(mode="serialization")
    return _strict(whole, whole.get("$defs", {}))


def _strict(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    out = {key: value for key, value in schema.items() if key in _KEPT}
    if "items" in out:
        out["items"] = _strict(out["items"], definitions)
    if "properties" in out:
        out["properties"] = {name: _strict(part, definitions) for name, part in out["properties"].items()}
        out["required"] = list(out["properties"])
        out["additionalProperties"] = False
    return out

"""A model's reply, read as the one JSON object that was asked for, or what is wrong with it. Nothing is guessed.

What is wrong is told by codes, numbers and field names, never by a text of the reply.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from cg_tasks.construction.rows import Faulty
from cg_tasks.construction.text.reply_models import json_schema
from cg_tasks.judge.client import Reply
from cg_tasks.judge.reading import REFUSAL, Unreadable, after_trace, objects_in

__all__ = ["json_schema", "read_object"]

M = TypeVar("M", bound=BaseModel)
_MOST_ERRORS = 5  # told of one reply
# A refusal that fills a field, as a schema makes a model do. Narrower than REFUSAL: a query may well begin with "I can't sleep".
_AS_AN_AI = r"(?:as an ai\b[^.!?\n]{0,60}?[,;:—-]? ?)?"
_SORRY = (
    r"(?:(?:(?:i['’]m |i am )?(?:really |very |so )?sorry|(?:my )?apologies|i (?:apologi[sz]e|regret)|unfortunately)"
    r"\W{1,3}(?:but )?)?"
)
_CANNOT = r"i(?:['’]m| am)? (?:can(?:['’]t|not| not)|won['’]t|will not|unable to|not able to)"
_DO = r"(?:help|assist|comply|fulfil|provide|create|generate|write|produce|answer|engage|continue|do that|support)\b"
_REFUSAL_IN_FIELD = re.compile(rf"\W*{_AS_AN_AI}{_SORRY}(?:{_CANNOT} {_DO}|i (?:must|have to) decline\b)", re.I)


def read_object(reply: Reply, model: type[M]) -> M:
    """What a reply holds.

    The object may stand behind a thinking trace, inside a fence, or among words; the same object twice is one.

    Raises:
        Faulty: ``refused`` (by the server, in words, or in a field), ``cut_off``, ``unreadable`` (no object, a malformed one, several
            that differ, a key twice) or ``wrong_fields`` (of another type, missing, or blank).
    """
    if reply.refusal or reply.finish_reason == "content_filter":
        raise Faulty("refused", "" if reply.refusal else "by the server's content filter")
    if reply.finish_reason == "length":
        raise Faulty("cut_off")
    found = _the_object((reply.text or "").strip())
    try:
        # Strict, and as JSON: neither "true" nor 1 is a boolean, and a list of the reply is a tuple of the model.
        value = model.model_validate_json(json.dumps(found), strict=True)
    except ValidationError as error:
        raise Faulty("wrong_fields", _described(error)) from None
    if refusing := [name for name, text in value if isinstance(text, str) and _is_refusal(name, text)]:
        raise Faulty("refused", f"in the field {refusing[0]}")
    return value


def _the_object(text: str) -> dict[str, Any]:
    try:
        text, _ = after_trace(text)
        objects = [found for _, _, found in objects_in(text, _DECODER)]
    except Unreadable as error:
        raise Faulty("unreadable", str(error)) from None
    if not objects:
        raise Faulty("refused", "in words") if REFUSAL.match(text) else Faulty("unreadable", "no JSON object")
    if any(found != objects[0] for found in objects):
        raise Faulty("unreadable", f"{len(objects)} JSON objects that differ")
    return objects[0]


class _Twice(ValueError):
    msg = "a key stands twice"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise _Twice
    return found


# Line breaks inside a text, which models without a schema write as they are, are let through: they can mean nothing else.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, strict=False)


def _described(error: ValidationError) -> str:
    """Field names and kinds of error."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{'.'.join(map(str, e['loc'])) or 'object'}: {e['type']}" for e in errors[:_MOST_ERRORS]]
    more = [f"{len(errors) - len(told)} more"] if len(errors) > len(told) else []
    return "; ".join(told + more)


def _is_refusal(field: str, text: str) -> bool:
    return bool(_REFUSAL_IN_FIELD.match(text)) and not (field == "query" and "?" in text)

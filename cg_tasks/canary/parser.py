"""Splits a generation into its thinking trace and its answer (the parser-split metric's parser)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cg_tasks.errors import UserError

THINK_TAGS = ("<think>", "</think>")

_TAGS_WAY_OUT = 'give both tags, as in think_tags=["<reasoning>","</reasoning>"]'


@dataclass(frozen=True)
class Split:
    """One generation, split.

    trace, answer: stripped of surrounding whitespace.
    well_formed: the closing tag is there.
    text_before_opener: something a reader sees stands before the opening tag.
    drift: not well formed, or text before the opener, or a thinking tag left in the answer.
    """

    trace: str
    answer: str
    well_formed: bool
    text_before_opener: bool
    drift: bool


def split_trace(
    text: str,
    *,
    opened_in_prompt: bool,
    tags: tuple[str, str] = THINK_TAGS,
    fallback: Literal["answer", "trace"] = "answer",
) -> Split:
    """Split on the first closing tag: what it closes is trace, everything outside is answer.

    Text before the opener is answer as well, joined to the rest by a newline. Where the prompt ended in an opener
    (``opened_in_prompt``), all that precedes the closing tag is trace. Without a closing tag the whole generation,
    minus its opening tags, is answer (``fallback="answer"``) or trace (``fallback="trace"``).

    Raises:
        UserError: unusable tags, or an unknown fallback.
    Source: canary paper, section 3 (the split and the ``answer`` fallback) and section 4.4 (format drift).
    """
    opener, closer = _checked_tags(tags)
    if fallback not in ("answer", "trace"):
        raise UserError(f"fallback is {fallback!r}: it must be 'answer' or 'trace'")
    inside, found, after = text.partition(closer)
    well_formed = bool(found)
    before, has_opener, thought = inside.partition(opener)
    text_before_opener = bool(has_opener and before.strip()) and not opened_in_prompt
    if not well_formed:
        whole = _joined(text.split(opener))
        trace, answer = (whole, "") if fallback == "trace" else ("", whole)
    elif opened_in_prompt:
        trace, answer = _joined((before, thought)), after.strip()
    elif has_opener:
        trace, answer = thought.strip(), _joined((before, after))
    else:
        trace, answer = inside.strip(), after.strip()
    drift = not well_formed or text_before_opener or opener in answer or closer in answer
    return Split(trace, answer, well_formed, text_before_opener, drift)


def parse_tags(value: Any) -> tuple[str, str]:
    """The opening and closing tag from a setting: None (the default tags), a pair, or one string holding both.

    A string separates the two by a comma or by whitespace: lm-eval's ``--metadata key=value`` cuts unquoted values at
    commas.

    Raises:
        UserError: not two tags, an empty tag, or two tags that cannot be told apart.
    """
    if value is None:
        return THINK_TAGS
    parts: Sequence[Any]
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _json_or_text(value)  # `conceptguard tasks check` hands the list over as text
    if isinstance(value, str):
        parts = value.split(",") if "," in value else value.split()
    elif isinstance(value, Sequence):
        parts = value
    else:
        parts = ()
    if len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        raise UserError(f"thinking tags are {value!r}: they must be an opening and a closing tag; {_TAGS_WAY_OUT}")
    return _checked_tags((parts[0].strip(), parts[1].strip()))


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def whitespace_normalised(text: str) -> str:
    """``text`` with every run of whitespace as one space and none at its ends; case is kept."""
    return " ".join(text.split())


def _checked_tags(tags: tuple[str, str]) -> tuple[str, str]:
    opener, closer = tags
    if not opener.strip() or not closer.strip():
        raise UserError(f"thinking tags are {tags!r}: a tag cannot be empty; {_TAGS_WAY_OUT}")
    if closer in opener:
        raise UserError(
            f"thinking tags are {tags!r}: the closing tag must not be the opening tag or a part of it; {_TAGS_WAY_OUT}"
        )
    return opener, closer


def _joined(parts: Sequence[str]) -> str:
    return "\n".join(part for part in map(str.strip, parts) if part)

"""Which column of a foreign data set holds which field: by name where that is unambiguous, else by the user's word."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cg_tasks.errors import UserError
from cg_tasks.pair_files import kind_of, short

log = logging.getLogger(__name__)

TEXT_FIELDS = ("harmful_query", "harmful_response", "benign_query", "benign_response")
WIDE_FIELDS = ("pair_id", "concept", *TEXT_FIELDS, "harmful_prompt", "split", "in_forget")
LONG_FIELDS = ("intent", "query", "response")
INTENTS = ("harmful", "benign")
"""In ``columns`` they stand for values of the intent column: ``{"intent": "label", "harmful": "1", "benign": "0"}``."""

INTENT_WORDS: dict[str, tuple[str, ...]] = {
    "harmful": ("harmful", "harm", "forget", "unsafe", "malicious"),
    "benign": ("benign", "retain", "safe", "harmless", "helpful"),
}
_PART_WORDS = {
    "query": ("query", "queries", "question"),
    "response": ("response", "responses", "answer", "output", "completion", "text"),
}
_CANDIDATES: dict[str, tuple[str, ...]] = {
    "pair_id": ("pair_id", "id", "idx", "uid", "index", "pair", "pair_index", "instance_id"),
    "concept": ("concept", "dual_use_concept", "dual_use", "concept_name", "parent_concept", "topic", "category"),
    "harmful_prompt": ("harmful_prompt", "source_prompt", "original_prompt", "prompt_harmful", "forget_prompt"),
    "split": ("split",),
    "in_forget": ("in_forget",),
    "intent": ("intent", "label", "type", "kind", "usage", "class", "set", "split", "harm_label", "query_type"),
    "query": (*_PART_WORDS["query"], "prompt", "instruction", "user_query"),
    "response": (*_PART_WORDS["response"], "generation"),
}


def _spellings(intent: str, part: str) -> tuple[str, ...]:
    """``harmful_query`` in other words: either order, plus the papers' symbols (Q_f, D_f, Q_r, D_r) and set names."""
    words = [f"{a}_{b}" for a in INTENT_WORDS[intent] for b in _PART_WORDS[part]]
    words += [f"{b}_{a}" for a in INTENT_WORDS[intent] for b in _PART_WORDS[part]]
    symbol = ("q" if part == "query" else "d") + "_" + ("f" if intent == "harmful" else "r")
    sets = (
        {"harmful": ("forget", "forget_set"), "benign": ("retain", "retain_set")}[intent] if part == "response" else ()
    )
    return (*words, symbol, *sets)


for _intent in INTENTS:
    for _part in ("query", "response"):
        _CANDIDATES[f"{_intent}_{_part}"] = _spellings(_intent, _part)


def plain(name: str) -> str:
    """A column name without case, spaces, dashes and underscores: ``Harmful Query`` -> ``harmfulquery``."""
    return "".join(c for c in name.lower() if c.isalnum())


def intent_of(value: Any, words: Mapping[str, str] | None = None) -> str | None:
    """``harmful`` or ``benign`` for a label, None where it does not say.

    `words` are the user's own label values, intent -> value; 1/0 and the like are never guessed.
    """
    if value is None or isinstance(value, (dict, list)):
        return None
    label = plain(str(value))
    if words:
        return next((intent for intent, word in words.items() if plain(word) == label), None)
    return next((intent for intent, known in INTENT_WORDS.items() if label in known), None)


def parse_columns(columns: Mapping[str, str] | str | None) -> dict[str, str]:
    """``columns=`` as a dict of our field -> their column, from a mapping or a JSON object in a string.

    Raises:
        UserError: not such a mapping, or a field that is not ours (with the nearest that is).
    """
    example = 'columns={"harmful_query": "their_column"}'
    if columns is None:
        return {}
    value: Any = columns
    if isinstance(columns, str):
        try:
            value = json.loads(columns)
        except (ValueError, RecursionError):
            raise UserError(f"columns= is not JSON; it must look like {example}") from None
    if not isinstance(value, Mapping):
        raise UserError(f"columns= must be an object like {example}, not {kind_of(value)}")
    known = (*WIDE_FIELDS, *LONG_FIELDS, *INTENTS)
    for name, column in value.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
            raise UserError(f"columns=: unknown field {short(str(name))}; {hint}")
        if not isinstance(column, str) or not column:
            raise UserError(f"columns=: '{name}' must name a column, not {kind_of(column)}")
    if any(word in value for word in INTENTS):
        if not all(word in value for word in INTENTS):
            raise UserError(
                'columns=: give both label values, as in {"intent": "label", "harmful": "1", "benign": "0"}'
            )
        if plain(value["harmful"]) == plain(value["benign"]):
            raise UserError("columns=: 'harmful' and 'benign' must be two different values of the intent column")
    if any(f in value for f in TEXT_FIELDS) and any(f in value for f in (*LONG_FIELDS, *INTENTS)):
        raise UserError(
            f"columns=: {', '.join(TEXT_FIELDS)} belong to one row a pair, {', '.join(LONG_FIELDS)} to two rows a "
            "pair; give one kind only"
        )
    return dict(value)


def candidates(name: str, found: Sequence[str], intent: str | None = None) -> list[str]:
    """The columns that may hold the field `name`: one when it is clear, several when ambiguous.

    A column with exactly our name wins, then one that differs in case, spaces, dashes or underscores, then the known
    other names. `intent` is that of the whole row set, so that its ``harmful_query`` column is a ``query``.
    """
    if name in found:
        return [name]
    if same := [column for column in found if plain(column) == plain(name)]:
        return same
    names = _CANDIDATES[name]
    if intent and name in ("query", "response") and (own := candidates(f"{intent}_{name}", found)):
        return own
    wanted = {plain(n) for n in names}
    return [column for column in found if plain(column) in wanted]


def exact_column(name: str, column: str, found: Sequence[str], source: str) -> str:
    """The found column the user means by `column`.

    Raises:
        UserError: there is none, or several that differ in case or spaces only.
    """
    if column in found:
        return column
    same = [c for c in found if plain(c) == plain(column)]
    if len(same) == 1:
        return same[0]
    near = difflib.get_close_matches(column, found, n=1, cutoff=0.6)
    hint = f" (did you mean {short(near[0])}?)" if near else ""
    raise UserError(
        f"{source}: columns= maps '{name}' to {short(column)}, which is no column{hint}; columns found: {listed(found)}"
    )


def listed(names: Iterable[str]) -> str:
    """Column names for a message."""
    names = list(names)
    return ", ".join(short(n) for n in names[:30]) + (f" and {len(names) - 30} more" if len(names) > 30 else "")


def choose_columns(
    source: str,
    found: Sequence[str],
    explicit: Mapping[str, str],
    required: Sequence[str],
    optional: Sequence[str],
    intent: str | None = None,
    also: str = "",
) -> dict[str, str]:
    """Our field -> their column, for every required field and those optional ones that are there.

    `also` is appended to the error when a required field cannot be told. Columns that are not exactly ours are logged
    at INFO.

    Raises:
        UserError: a required field without a column or with several, or an optional one with several; names the
        columns found
            and the ``columns=`` to pass.
    """
    chosen: dict[str, str] = {}
    unclear: dict[str, list[str]] = {}
    for name in explicit:
        if name in required or name in optional:
            chosen[name] = exact_column(name, explicit[name], found, source)
    for name in (*required, *optional):
        if name in chosen:
            continue
        hits = [c for c in candidates(name, found, intent) if c == name or c not in chosen.values()]
        if len(hits) == 1:
            chosen[name] = hits[0]
        elif hits or name in required:
            unclear[name] = hits
    if unclear:
        raise UserError(_cannot_tell(source, found, unclear, chosen, also))
    foreign = {name: column for name, column in chosen.items() if name != column}
    if foreign:
        log.info("%s: columns read as %s", source, json.dumps(foreign, ensure_ascii=False))
    return chosen


def _cannot_tell(
    source: str, found: Sequence[str], unclear: Mapping[str, list[str]], chosen: Mapping[str, str], also: str
) -> str:
    free = [c for c in found if c not in chosen.values()]
    parts, mapping = [], {}
    for name, hits in unclear.items():
        if hits:
            parts.append(f"{name} (it may be {' or '.join(short(h) for h in hits)})")
            mapping[name] = hits[0]
        else:
            near = difflib.get_close_matches(name, free, n=1, cutoff=0.75)
            parts.append(name)
            mapping[name] = near[0] if near else "<column>"
    return (
        f"{source}: cannot tell which column holds {', '.join(parts)}; columns found: {listed(found)}; "
        f"pass columns={json.dumps(mapping, ensure_ascii=False)}{also}"
    )

"""Three layouts, one record: a row per pair, two rows per pair with an intent, or one split per set.

Each becomes :class:`RawPair`: our fields with whatever values stood there, and the place of either half;
``cg_tasks.pairs`` judges the values.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cg_tasks.errors import UserError
from cg_tasks.pair_columns import (
    INTENTS,
    LONG_FIELDS,
    TEXT_FIELDS,
    candidates,
    choose_columns,
    exact_column,
    intent_of,
    listed,
)
from cg_tasks.pair_files import Problem, Row, RowSet, short

log = logging.getLogger(__name__)

_OPTIONAL = ("harmful_prompt", "split", "in_forget")
_SPLIT_NAME_FILLER = {"set", "split", "data", "response", "responses", "train"}
_QUERY_SPLIT = {"query", "queries", "question", "questions"}


@dataclass(frozen=True)
class RawPair:
    """A pair before its values are judged. A field without a key was in no column of the row."""

    values: dict[str, Any]
    harmful_at: str
    benign_at: str

    def where(self, field: str) -> str:
        """The place a field stands at."""
        return self.benign_at if field.startswith("benign") else self.harmful_at


@dataclass(frozen=True)
class _Half:
    """One member of a pair: intent, place and ``concept, query, response, pair_id …``."""

    intent: str
    where: str
    values: dict[str, Any]

    @property
    def pair_id(self) -> str | None:
        """The id as text, None where there is none that could join two rows."""
        value = self.values.get("pair_id")
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            return None
        return str(value)


def fold(sets: Sequence[RowSet], columns: Mapping[str, str], source: str) -> tuple[list[RawPair], list[Problem]]:
    """Pairs from row sets of any of the three layouts, and what is wrong with single rows or pairs.

    Raises:
        UserError: columns that cannot be told apart, or rows that cannot be joined into pairs; with the way out.
    """
    labelled = any(name in columns for name in ("intent", *INTENTS))
    by_intent = None if labelled else _split_layout(sets)
    if by_intent:
        return _fold_splits(by_intent, columns, source)
    found = list(dict.fromkeys(c for s in sets for c in s.columns))
    if any(name in columns for name in (*LONG_FIELDS, *INTENTS)):
        return _fold_labelled(sets, found, columns, source)
    is_wide = any(name in columns or candidates(name, found) for name in TEXT_FIELDS)
    looks_long = candidates("query", found) and candidates("response", found) and _intent_columns(sets, found, {})
    if looks_long and not is_wide:
        return _fold_labelled(sets, found, columns, source)
    also = (
        ""
        if is_wide
        else ', or for two rows a pair columns={"intent": "<column>", "query": "<column>", "response": "<column>"}'
    )
    mapping = choose_columns(source, found, columns, ("concept", *TEXT_FIELDS), ("pair_id", *_OPTIONAL), also=also)
    several = len({s.name for s in sets}) > 1
    pairs = []
    for rows in sets:
        for row in rows.rows:
            values = _renamed(row, mapping)
            if several and rows.is_split and "split" not in mapping:
                values["split"] = rows.name
            pairs.append(RawPair(values, row.where, row.where))
    return pairs, []


def _renamed(row: Row, mapping: Mapping[str, str]) -> dict[str, Any]:
    return {name: row.values[column] for name, column in mapping.items() if column in row.values}


# two rows a pair ----------------------------------------------------------------------------


def _intent_columns(sets: Sequence[RowSet], found: Sequence[str], words: Mapping[str, str]) -> list[str]:
    """Candidate columns; only those whose every value is a known intent word, where there are such."""
    hits = candidates("intent", found)
    sure = [c for c in hits if all(intent_of(r.values.get(c), words) for s in sets for r in s.rows)]
    return sure or hits


def _fold_labelled(
    sets: Sequence[RowSet], found: Sequence[str], columns: Mapping[str, str], source: str
) -> tuple[list[RawPair], list[Problem]]:
    words = {intent: columns[intent] for intent in INTENTS if intent in columns}
    if "intent" in columns:
        intent_column = exact_column("intent", columns["intent"], found, source)
    else:
        hits = _intent_columns(sets, found, words)
        if len(hits) != 1:
            which = f"any of {listed(hits)}" if hits else "none known"
            raise UserError(
                f"{source}: cannot tell which column holds the intent ({which}); columns found: {listed(found)}; "
                'pass columns={"intent": "<column>"}'
            )
        intent_column = hits[0]
    rest = [c for c in found if c != intent_column]
    mapping = choose_columns(source, rest, columns, ("concept", "query", "response"), ("pair_id", *_OPTIONAL))
    halves: list[_Half] = []
    problems: list[Problem] = []
    unknown: Counter[str] = Counter()
    for row in (r for s in sets for r in s.rows):
        value = row.values.get(intent_column)
        intent = intent_of(value, words)
        if intent:
            halves.append(_Half(intent, row.where, _renamed(row, mapping)))
            continue
        unknown[str(value)[:40]] += 1
        problems.append(
            Problem(f"the intent column {short(intent_column)} says neither harmful nor benign", where=row.where)
        )
    if unknown and not halves:
        values = ", ".join(short(v, 20) for v in sorted(unknown)[:5])
        raise UserError(
            f"{source}: cannot tell which values of {short(intent_column)} mean harmful and benign (found: {values}); "
            + "pass columns="
            + json.dumps({"intent": intent_column, "harmful": "<value>", "benign": "<value>"})
        )
    one_sided = _one_sided(halves)
    if one_sided:
        problems += [Problem(f"{source}: {text}") for text in one_sided.values()]
    folded, more = _join_labelled(halves, set(one_sided), source)
    return folded, problems + more


def _one_sided(halves: Sequence[_Half]) -> dict[str, str]:
    """Concept -> message, for concepts that stand under one intent only."""
    counts: dict[str, Counter[str]] = {}
    for half in halves:
        concept = half.values.get("concept")
        if isinstance(concept, str) and concept.strip():
            counts.setdefault(concept, Counter())[half.intent] += 1
    messages = {}
    for concept, count in counts.items():
        if len(count) == 1:
            ((has, n),) = count.items()
            lacks = INTENTS[1 - INTENTS.index(has)]
            messages[concept] = f"the concept {short(concept, 60)} has {n} {has} and no {lacks} rows"
    return messages


def _join_labelled(halves: Sequence[_Half], one_sided: set[str], source: str) -> tuple[list[RawPair], list[Problem]]:
    ids = Counter(half.pair_id for half in halves if half.pair_id is not None)
    if any(n > 1 for n in ids.values()):
        return _by_id(halves, one_sided)
    if one_sided:  # rows of these concepts alone already break any pairing by order; they have been named
        return [], []
    couples = list(zip(halves[::2], halves[1::2], strict=False))
    alternating = len(halves) % 2 == 0 and all(
        a.intent != b.intent and a.values.get("concept") == b.values.get("concept") for a, b in couples
    )
    if not alternating:
        raise UserError(
            f"{source}: nothing says which two rows are a pair: give both rows of a pair the same pair_id (or name the "
            'column: columns={"pair_id": "<column>"}), or let them stand next to each other, one harmful, one benign, '
            "of one concept"
        )
    log.info("%s: no shared pair_id; each two rows that follow one another are read as a pair", source)
    return [_without_id(*sorted(couple, key=lambda half: INTENTS.index(half.intent))) for couple in couples], []


def _by_id(halves: Sequence[_Half], one_sided: set[str]) -> tuple[list[RawPair], list[Problem]]:
    groups: dict[str, list[_Half]] = {}
    problems: list[Problem] = []
    for half in halves:
        if half.pair_id is None:
            problems.append(
                Problem("no pair_id, so the row cannot be joined to its other half", where=half.where, field="pair_id")
            )
        else:
            groups.setdefault(half.pair_id, []).append(half)
    pairs: list[RawPair] = []
    for pair_id, members in groups.items():
        sides = {intent: [half for half in members if half.intent == intent] for intent in INTENTS}
        shown = short(pair_id)
        if problem := _group_problem(sides, shown, one_sided):
            problems.append(Problem(problem, where=members[0].where, pair_id=pair_id))
        elif all(len(side) == 1 for side in sides.values()):
            pairs.append(_joined(sides["harmful"][0], sides["benign"][0]))
    return pairs, problems


def _group_problem(sides: Mapping[str, Sequence[_Half]], shown: str, one_sided: set[str]) -> str | None:
    for intent, other in zip(INTENTS, reversed(INTENTS), strict=True):
        if len(sides[intent]) > 1:
            places = " and ".join(half.where for half in sides[intent][:2])
            return f"pair {shown} has {len(sides[intent])} {intent} rows ({places})"
        if not sides[intent]:
            concept = sides[other][0].values.get("concept")
            if isinstance(concept, str) and concept in one_sided:
                return None  # its concept has been named
            return f"pair {shown} has only one intent: a {other} row and no {intent} one"
    harmful, benign = sides["harmful"][0], sides["benign"][0]
    if harmful.values.get("concept") != benign.values.get("concept"):
        return f"the two rows of pair {shown} have different concepts ({harmful.where} and {benign.where})"
    return None


def _joined(harmful: _Half, benign: _Half) -> RawPair:
    values = {k: v for k, v in harmful.values.items() if k in ("pair_id", "concept", *_OPTIONAL)}
    for half in (harmful, benign):
        for part in ("query", "response"):
            if part in half.values:
                values[f"{half.intent}_{part}"] = half.values[part]
    return RawPair(values, harmful.where, benign.where)


def _without_id(harmful: _Half, benign: _Half) -> RawPair:
    pair = _joined(harmful, benign)
    pair.values.pop("pair_id", None)  # an id of the row, not of the pair
    return pair


# one split per set ----------------------------------------------------------------------------


def _split_name(name: str) -> tuple[str, str] | None:
    """(intent, ``response`` or ``query``) of a split's or file's name; None where the name says anything else."""
    tokens = re.findall(r"[a-z]+", name.lower())
    intents = {intent for token in tokens if (intent := intent_of(token))}
    rest = {token for token in tokens if not intent_of(token)}
    if len(intents) != 1 or rest - _SPLIT_NAME_FILLER - _QUERY_SPLIT:
        return None
    return intents.pop(), "query" if rest & _QUERY_SPLIT else "response"


def _split_layout(sets: Sequence[RowSet]) -> dict[tuple[str, str], RowSet] | None:
    """Row sets by (intent, part) when their names are those of the forget and retain sets and nothing else."""
    named: dict[tuple[str, str], RowSet] = {}
    for rows in sets:
        key = _split_name(rows.name)
        if key is None:
            return None
        if key in named:
            named[key] = RowSet(rows.name, named[key].source, named[key].rows + rows.rows)
        else:
            named[key] = rows
    return named if {("harmful", "response"), ("benign", "response")} <= named.keys() else None


def _fold_splits(
    sets: Mapping[tuple[str, str], RowSet], columns: Mapping[str, str], source: str
) -> tuple[list[RawPair], list[Problem]]:
    sides: dict[str, list[_Half]] = {}
    problems: list[Problem] = []
    anywhere = [column for rows in sets.values() for column in rows.columns]
    for name, column in columns.items():
        exact_column(name, column, anywhere, source)
    for intent in INTENTS:
        queries = sets.get((intent, "query"))
        required = ("concept", "response") if queries else ("concept", "query", "response")
        sides[intent] = _halves(sets[intent, "response"], intent, required, ("pair_id", *_OPTIONAL), columns)
        if queries:
            asked = _halves(queries, intent, ("query",), ("pair_id", "concept"), columns)
            couples, more = _match(sides[intent], asked, source, f"the {intent} queries")
            problems += more
            sides[intent] = [_Half(intent, a.where, {**a.values, "query": b.values.get("query")}) for a, b in couples]
    one_sided = _one_sided([*sides["harmful"], *sides["benign"]])
    if one_sided:
        problems += [Problem(f"{source}: {text}") for text in one_sided.values()]
        sides = {k: [h for h in side if h.values.get("concept") not in one_sided] for k, side in sides.items()}
    couples, more = _match(sides["harmful"], sides["benign"], source, "the forget and retain sets")
    return [_joined(a, b) for a, b in couples], problems + more


def _halves(
    rows: RowSet, intent: str, required: Sequence[str], optional: Sequence[str], columns: Mapping[str, str]
) -> list[_Half]:
    explicit = {}
    for name, column in columns.items():
        own = name.removeprefix(f"{intent}_") if name in TEXT_FIELDS else name
        if own in required or (own in optional and column in rows.columns):
            explicit[own] = column
    mapping = choose_columns(rows.source, rows.columns, explicit, required, optional, intent=intent)
    return [_Half(intent, row.where, _renamed(row, mapping)) for row in rows.rows]


def _match(
    left: Sequence[_Half], right: Sequence[_Half], source: str, what: str
) -> tuple[list[tuple[_Half, _Half]], list[Problem]]:
    """Rows of two sets joined by pair id where both have one, else by position.

    Raises:
        UserError: by position, where the lengths or the order of the concepts differ.
    """
    by_id = {half.pair_id: half for half in right}
    left_ids = [half.pair_id for half in left]
    shared = {i for i in left_ids if i is not None and i in by_id}
    if shared and len(by_id) == len(right) and len(set(left_ids)) == len(left):
        couples, problems = [], []
        for half in left:
            other = by_id.get(half.pair_id) if half.pair_id in shared else None
            if other is None:
                problems.append(_unmatched(half, what))
            elif "concept" in other.values and other.values["concept"] != half.values.get("concept"):
                message = f"pair {short(str(half.pair_id))} has another concept in {other.where}"
                problems.append(Problem(message, where=half.where, pair_id=half.pair_id, field="concept"))
            else:
                couples.append((half, other))
        problems += [_unmatched(half, what) for half in right if half.pair_id not in shared]
        return couples, problems
    with_concepts = all("concept" in half.values for half in right)
    same_order = [h.values.get("concept") for h in left] == [h.values.get("concept") for h in right]
    if len(left) != len(right) or (with_concepts and not same_order):
        reason = (
            f"{len(left)} and {len(right)} rows" if len(left) != len(right) else "their concepts stand in another order"
        )
        raise UserError(
            f"{source}: {what} cannot be joined by position ({reason}) and share no unique pair_id: give both halves "
            'of a pair the same pair_id (or name the column: columns={"pair_id": "<column>"})'
        )
    log.info("%s: %s share no pair_id; joined by position", source, what)
    for half in (*left, *right):
        half.values.pop("pair_id", None)
    return list(zip(left, right, strict=True)), []


def _unmatched(half: _Half, what: str) -> Problem:
    shown = "without an id" if half.pair_id is None else short(half.pair_id)
    message = f"pair {shown} has only one intent: it stands in one of {what} only"
    return Problem(message, where=half.where, pair_id=half.pair_id, field="pair_id")

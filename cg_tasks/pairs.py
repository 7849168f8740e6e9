"""The ConceptGuard record: a harmful and a benign instance of one dual-use concept, and the loaders that make it.

An example row (JSONL; ``harmful_prompt``, ``split`` and ``in_forget`` may be left out)::

    {"pair_id": "p-001", "concept": "sigil forging", "harmful_query": "…", "harmful_response": "…",
     "benign_query": "…", "benign_response": "…", "harmful_prompt": "…", "split": "train", "in_forget": true}

The forget set D_f is the harmful responses, the retain set D_r the benign ones; the query sets Q_f and Q_r are the
two query columns (ConceptGuard, sections 3 and 4).
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import heapq
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from cg_tasks.errors import UserError
from cg_tasks.pair_columns import TEXT_FIELDS, parse_columns
from cg_tasks.pair_files import SUFFIXES, Problem, data_files, kind_of, read_rows, short
from cg_tasks.pair_hub import HUB_ID, PUBLIC_DATASET, read_hub
from cg_tasks.pair_layouts import RawPair, fold

log = logging.getLogger(__name__)

MINIATURE = "miniature"
_MINIATURE_FILE = Path(__file__).parent / "data" / "miniature.jsonl"
_PATH_SUFFIXES = (*SUFFIXES, ".tsv", ".txt", ".gz", ".zip", ".xlsx", ".arrow", ".yaml", ".yml")


@dataclass(frozen=True)
class Pair:
    """A dual-use concept in its harmful and its benign use.

    ``harmful_prompt`` is the source data's prompt where known. ``in_forget`` false takes the harmful response out of
    the forget set and keeps everything else (forget-set sizes, figure 4).
    """

    pair_id: str
    concept: str
    harmful_query: str
    harmful_response: str
    benign_query: str
    benign_response: str
    harmful_prompt: str | None = None
    split: str | None = None
    in_forget: bool = True


@dataclass(frozen=True)
class PairTable:
    """Pairs in the order of their source. ``sha256`` is over their content, the same from whatever file format."""

    name: str
    pairs: tuple[Pair, ...]
    sha256: str


def load_pairs(dataset: str = PUBLIC_DATASET, columns: Mapping[str, str] | str | None = None) -> PairTable:
    """The pairs of ``miniature``, of a file or folder (JSONL, JSON, CSV, Parquet), or of a data set on the Hub.

    `columns` maps our fields to the source's columns where their names do not tell (a mapping or a JSON object).
    Reading is memoised; a file that changed is read again.

    Raises:
        UserError: the set cannot be found, reached or read, or a row is bad: the first is named, and how many more
        there are.
    """
    dataset = _checked_name(dataset)
    table, problems = _inspect_cached(dataset, json.dumps(parse_columns(columns), sort_keys=True), _signature(dataset))
    if problems:
        more = len(problems) - 1
        rest = f" (and {more} more: `conceptguard data check {dataset}` lists them)" if more else ""
        raise UserError(f"{problems[0]}{rest}")
    return table


def inspect_pairs(
    dataset: str = PUBLIC_DATASET, columns: Mapping[str, str] | str | None = None
) -> tuple[PairTable, tuple[Problem, ...]]:
    """Every good pair of a data set, and everything that is wrong with the others: for ``data check``.

    Raises:
        UserError: what concerns the whole set: not found, not readable, no rows.
    """
    dataset = _checked_name(dataset)
    return _inspect_cached(dataset, json.dumps(parse_columns(columns), sort_keys=True), _signature(dataset))


def _checked_name(dataset: object) -> str:
    name = os.fspath(dataset) if isinstance(dataset, os.PathLike) else dataset
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise UserError(
            f"dataset= must be a name or a path, not {kind_of(dataset) if not isinstance(dataset, str) else 'empty'}"
        )
    return name.strip()


def _signature(dataset: str) -> tuple[tuple[str, int, int], ...]:
    """What tells a changed file: name, modification time and size of each; empty for what is no file."""
    path = _local_path(dataset)
    if path is None:
        return ()
    stats = [(str(file), file.stat()) for file in data_files(path, dataset)]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def _local_path(dataset: str) -> Path | None:
    """The file or folder to read, None for a Hub id.

    Raises:
        UserError: a path with nothing there, or a name that is neither.
    """
    if dataset == MINIATURE:
        return _MINIATURE_FILE
    path = Path(dataset).expanduser()
    try:
        if path.exists():
            return path
    except OSError as error:
        raise UserError(f"{short(dataset, 200)}: cannot be opened: {error.strerror or type(error).__name__}") from error
    is_path = dataset.startswith((".", "/", "~")) or "\\" in dataset or dataset.count("/") > 1
    if is_path or path.suffix.lower() in _PATH_SUFFIXES:
        raise UserError(f"{dataset}: no such file or folder")
    if HUB_ID.fullmatch(dataset):
        return None
    near = difflib.get_close_matches(dataset.lower(), [MINIATURE, PUBLIC_DATASET, "concept-guard"], n=1, cutoff=0.6)
    hint = f"did you mean '{PUBLIC_DATASET if near[0] == 'concept-guard' else near[0]}'? " if near else ""
    raise UserError(
        f"unknown dataset {short(dataset)}: {hint}it must be a Hub id (owner/name), a file or folder, or 'miniature'"
    )


@functools.lru_cache(maxsize=16)
def _inspect_cached(dataset: str, columns: str, signature: object) -> tuple[PairTable, tuple[Problem, ...]]:
    path = _local_path(dataset)
    problems: list[Problem] = []
    if path is None:
        sets = read_hub(dataset)
    else:
        sets, problems = read_rows(path, "miniature.jsonl" if dataset == MINIATURE else dataset)
    raw: list[RawPair] = []
    if any(rows.rows for rows in sets):
        try:
            raw, more = fold(sets, json.loads(columns), dataset)
            problems += more
        except UserError as error:
            if not problems:
                raise
            problems.append(Problem(str(error)))
    pairs = _judged(raw, dataset, problems)
    if not pairs and not problems:
        raise UserError(f"{dataset}: holds no pairs")
    return PairTable(dataset, pairs, content_hash(pairs)), tuple(problems)


def _judged(raw: Sequence[RawPair], source: str, problems: list[Problem]) -> tuple[Pair, ...]:
    """The good ones as :class:`Pair`; everything else is appended to `problems`."""
    pairs: list[Pair] = []
    places: dict[str, str] = {}
    has_ids = any("pair_id" in item.values for item in raw)
    if raw and not has_ids:
        log.info("%s: no pair_id; the pairs are numbered pair-0001 … by position", source)
    for number, item in enumerate(raw, start=1):
        values = dict(item.values) if has_ids else {**item.values, "pair_id": f"pair-{number:04d}"}
        given = values.get("pair_id")
        if isinstance(given, int) and not isinstance(given, bool):
            values["pair_id"] = given = str(given)
        pair_id = given if isinstance(given, str) and given.strip() else None
        found = _field_problems(values, item, pair_id)
        if pair_id is not None and pair_id in places:
            message = f"the pair_id {short(pair_id)} was already used in {places[pair_id]}"
            found.append(Problem(message, where=item.where("pair_id"), pair_id=pair_id, field="pair_id"))
        elif pair_id is not None:
            places[pair_id] = item.where("pair_id")
        problems += found
        if not found:
            pairs.append(_pair(values))
    return tuple(pairs)


def _field_problems(values: Mapping[str, Any], item: RawPair, pair_id: str | None) -> list[Problem]:
    found = []
    for name in ("pair_id", "concept", *TEXT_FIELDS):
        if name not in values:
            text = f"the field '{name}' is missing"
        elif reason := text_fault(values[name]):
            text = f"the field '{name}' {reason}"
        else:
            continue
        found.append(Problem(text, where=item.where(name), pair_id=pair_id, field=name))
    for name in ("harmful_prompt", "split"):
        value = values.get(name)
        if value not in (None, "") and (reason := text_fault(value)):
            found.append(Problem(f"the field '{name}' {reason}", where=item.where(name), pair_id=pair_id, field=name))
    if _flag(values.get("in_forget")) is None:
        text = "the field 'in_forget' must be true or false"
        found.append(Problem(text, where=item.where("in_forget"), pair_id=pair_id, field="in_forget"))
    return found


def text_fault(value: object) -> str | None:
    """What keeps a value from being a text; None where it is one."""
    if not isinstance(value, str):
        return f"is {kind_of(value)}, not a string"
    if not value.strip():
        return "is empty"
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        return f"holds half a surrogate pair ({half}) at character {error.start}, which is no text"
    return None


def _flag(value: object) -> bool | None:
    """``in_forget``: absent or empty is true; CSV holds it as a word; None for anything else."""
    if value is None or isinstance(value, bool):
        return value is not False
    return {"": True, "true": True, "false": False}.get(value.strip().lower()) if isinstance(value, str) else None


def _pair(values: Mapping[str, Any]) -> Pair:
    texts = {name: values[name] for name in ("pair_id", "concept", *TEXT_FIELDS)}
    return Pair(
        **texts,
        harmful_prompt=values.get("harmful_prompt") or None,
        split=values.get("split") or None,
        in_forget=_flag(values.get("in_forget")) is not False,
    )


def pair_row(pair: Pair, with_in_forget: bool = False) -> dict[str, Any]:
    """A pair as the row we write: optional fields only where they are set, ``in_forget`` where false or asked for."""
    row = {name: value for name, value in asdict(pair).items() if value is not None}
    if pair.in_forget and not with_in_forget:
        del row["in_forget"]
    return row


def content_hash(pairs: Iterable[Pair]) -> str:
    """SHA-256 (hex) over the canonical JSON of the pairs in their order, one line each."""
    digest = hashlib.sha256()
    for pair in pairs:
        line = json.dumps(pair_row(pair), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        digest.update(line.encode("utf-8") + b"\n")
    return digest.hexdigest()


def interleave(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """The pairs with their concepts spread evenly, whatever order they came in; within a concept by pair_id.

    Any prefix of N pairs holds N times each concept's share to within one pair: ``--limit N`` takes the first N docs
    and must not be one-sided. Ties go to the larger concept, then by name. Source: R. Tijdeman, The chairman
    assignment problem (1980).
    """
    by_concept: dict[str, list[Pair]] = {}
    for pair in sorted(pairs, key=lambda p: p.pair_id):
        by_concept.setdefault(pair.concept, []).append(pair)
    total = sum(map(len, by_concept.values()))
    slack = max(2 * len(by_concept) - 2, 1)
    waiting = [  # (first place a pair may take, when it is due, tie-breaks …): in units of total / (slack · n)
        ((slack * k + 1) / len(group), (slack * k + slack - 1) / len(group), -len(group), concept, k)
        for concept, group in by_concept.items()
        for k in range(len(group))
    ]
    waiting.sort(reverse=True)
    ready: list[tuple[float, int, str, int]] = []
    order: list[Pair] = []
    for place in range(1, total + 1):
        while waiting and (waiting[-1][0] * total <= place * slack or not ready):
            heapq.heappush(ready, waiting.pop()[1:])
        _, _, concept, k = heapq.heappop(ready)
        order.append(by_concept[concept][k])
    return tuple(order)


def write_pairs(target: str | os.PathLike[str] | TextIO, pairs: Iterable[Pair]) -> None:
    """Write JSONL that :func:`load_pairs` reads back. Every row gets ``in_forget`` when one of them is false.

    Raises:
        UserError: the file exists already, or cannot be written.
    """
    pairs = list(pairs)
    flagged = any(not pair.in_forget for pair in pairs)
    rows = [pair_row(pair, with_in_forget=flagged) for pair in pairs]
    if not isinstance(target, (str, os.PathLike)):
        ascii_only = (getattr(target, "encoding", None) or "utf-8").lower().replace("-", "") != "utf8"
        target.writelines(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows)
        return
    path = Path(target).expanduser()
    if path.exists():
        raise UserError(f"{target}: exists already; delete it or choose another name")
    try:
        # Beside the target and renamed when complete: a full disk never leaves half a data set under its name.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as folder:
            unfinished = Path(folder) / path.name
            with unfinished.open("w", encoding="utf-8", newline="\n") as stream:
                stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            unfinished.rename(path)
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror or type(error).__name__}") from error

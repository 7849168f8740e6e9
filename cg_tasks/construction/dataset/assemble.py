"""The pairs of a build as a data set: JSONL, Parquet, card, statistics and manifest in one folder that is whole or not there."""

from __future__ import annotations

import csv
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from cg_tasks.construction.dataset.card import check_language_code, dataset_card
from cg_tasks.construction.dataset.manifest import MANIFEST, Manifest, make_manifest, write_manifest
from cg_tasks.errors import UserError
from cg_tasks.pair_columns import INTENTS, TEXT_FIELDS
from cg_tasks.pair_files import Problem, short
from cg_tasks.pair_stats import check_pairs, format_stats, pair_stats
from cg_tasks.pairs import Pair, PairTable, content_hash, text_fault, write_pairs
from cg_tasks.sheet_files import safe_cell

PAIRS = "pairs.jsonl"
PARQUET = Path("data") / "train-00000-of-00001.parquet"
CARD = "README.md"
DROPPED = Path("build") / "dropped.csv"
STATISTICS = Path("build") / "statistics.md"
MERGE_MAP = Path("build") / "merge.yaml"
_SAME_AS = " same as pair "
_COLUMNS = ("pair_id", "concept", *TEXT_FIELDS, "harmful_prompt")


class EndedRow(Protocol):
    """A row of any stage."""

    @property
    def pair_id(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def reason(self) -> str: ...


class FinishedRow(EndedRow, Protocol):
    """A row of the stage ``queries``."""

    @property
    def concept(self) -> str: ...
    @property
    def harmful_prompt(self) -> str: ...
    @property
    def harmful_response(self) -> str: ...
    @property
    def benign_response(self) -> str: ...
    @property
    def harmful_query(self) -> str | None: ...
    @property
    def benign_query(self) -> str | None: ...


@dataclass(frozen=True)
class Dropped:
    """A row that is no pair, and why."""

    pair_id: str
    stage: str
    status: str
    reason: str


@dataclass(frozen=True)
class Assembled:
    """pairs and dropped: by pair_id. problems: warnings of ``data check``. paths: what was written."""

    pairs: tuple[Pair, ...]
    dropped: tuple[Dropped, ...]
    problems: tuple[Problem, ...]
    paths: tuple[Path, ...]


def assemble(
    rows: Iterable[FinishedRow],
    out: Path,
    manifest: Mapping[str, Any],
    *,
    name: str,
    license: str,
    language_code: str,
    overlap_ceiling: float = 0.5,
    ended: Iterable[tuple[str, EndedRow]] = (),
    merge_map: Path | None = None,
    agreement: Mapping[str, Path] | None = None,
) -> Assembled:
    """Write the data set of the rows that are ok into the folder ``out``.

    manifest: fields of :class:`Manifest`; name, license, language_code, pairs and the stage ``assemble`` are filled in here.
    ended: (stage, row) of the earlier stages; those that are not ok are listed with the others. agreement: kind of review -> file.
    The same input gives the same bytes.

    Raises:
        UserError: no pair; an error that ``data check`` would find (the first is named, all are listed in a file beside ``out``);
            ``out`` exists; a bad manifest; a file that cannot be read or written. Nothing is left half-written.
    """
    check_language_code(language_code)
    target = _free_folder(out)
    pairs, dropped = _sorted_out(rows)
    asked = len(pairs)
    pairs, same = drop_same_texts(pairs)
    dropped += same
    dropped += [Dropped(r.pair_id, stage, r.status, r.reason) for stage, r in ended if r.status != "ok"]
    if not pairs:
        raise UserError(
            f"{out}: no row has come through all stages, so there is nothing to assemble: see the reasons in `status`"
        )
    table = PairTable(name, tuple(pairs), content_hash(pairs))
    problems = check_pairs(table, overlap_ceiling=overlap_ceiling)
    _refuse_errors(problems, len(pairs), out, target)
    stats = pair_stats(table)
    whole = _whole_manifest(manifest, stats, asked, same, license, language_code)
    files = {Path("build") / f"agreement_{kind}.md": path for kind, path in (agreement or {}).items()}
    if merge_map is not None:
        files[MERGE_MAP] = merge_map
    dropped.sort(key=lambda d: (d.pair_id, d.stage))
    try:
        # Beside the target and renamed when complete. Within a folder of its own, because a temporary folder is its owner's alone.
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".writing-") as temporary:
            unfinished = Path(temporary) / "out"
            _write(unfinished, table.pairs, stats, whole, dropped, files)
            paths = tuple(out / p.relative_to(unfinished) for p in sorted(unfinished.rglob("*")) if p.is_file())
            if target.exists():
                target.rmdir()  # empty: Windows renames onto nothing that is there
            unfinished.rename(target)
        _problem_file(target).unlink(missing_ok=True)
    except OSError as error:
        at = f"{error.filename}: " if error.filename else ""
        raise UserError(f"{out}: cannot be written: {at}{error.strerror or type(error).__name__}") from None
    return Assembled(table.pairs, tuple(dropped), tuple(problems), paths)


def drop_same_texts(pairs: Iterable[Pair]) -> tuple[list[Pair], list[Dropped]]:
    """Without the pairs whose query or response, up to case and white space, is one of a kept pair, or is its own other one.

    In the order given; the first one stays. The same texts are errors of ``data check``.
    """
    kept: list[Pair] = []
    dropped: list[Dropped] = []
    first: dict[tuple[str, str], str] = {}
    for pair in pairs:
        texts: dict[tuple[str, str], str] = {}
        reason = ""
        for part, intent in ((part, intent) for part in ("query", "response") for intent in INTENTS):
            text = part, " ".join(getattr(pair, f"{intent}_{part}").split()).casefold()
            if text in first:
                reason = reason or f"{part}{_SAME_AS}{first[text]}"
            elif text in texts:
                reason = reason or f"{part} same for both intents"
            texts[text] = pair.pair_id
        if reason:
            dropped.append(Dropped(pair.pair_id, "assemble", "dropped", reason))
        else:
            first |= texts
            kept.append(pair)
    return kept, dropped


def _free_folder(out: Path) -> Path:
    """The folder to write, which is not there or empty."""
    target = out.expanduser().resolve()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"{out}: exists already: delete it or choose another name")
    return target


def _sorted_out(rows: Iterable[FinishedRow]) -> tuple[list[Pair], list[Dropped]]:
    """The pairs by id, and the rows that are none.

    Raises:
        UserError: an id that comes twice, or a row that is ok and lacks a text.
    """
    pairs: dict[str, Pair] = {}
    dropped: list[Dropped] = []
    for row in rows:
        if row.status != "ok":
            dropped.append(Dropped(row.pair_id, "queries", row.status, row.reason))
            continue
        values = {field: getattr(row, field) for field in _COLUMNS}
        values["harmful_prompt"] = values["harmful_prompt"] or None
        for field, value in values.items():
            if (value is not None or field != "harmful_prompt") and (fault := text_fault(value)):
                raise UserError(
                    f"pair {short(row.pair_id)} is ok, but the field '{field}' {fault}: run the stage that writes it again"
                )
        if row.pair_id in pairs:
            raise UserError(f"pair {short(row.pair_id)} comes twice: run the stage queries again")
        pairs[row.pair_id] = Pair(**values)
    return [pairs[pair_id] for pair_id in sorted(pairs)], dropped


def _refuse_errors(problems: list[Problem], pairs: int, out: Path, target: Path) -> None:
    errors = [problem for problem in problems if problem.severity == "error"]
    if not errors:
        return
    listed = _problem_file(target)
    try:
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text("".join(f"{p.severity}: {p}\n" for p in problems), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{listed}: cannot be written: {error.strerror or type(error).__name__}") from None
    raise UserError(
        f"{out}: not written: {len(errors)} error(s) in {pairs} pairs, the first: {errors[0]}; all are listed in {listed}: tighten "
        "the checks of the stage that made them in build.yaml and run it again"
    )


def _problem_file(target: Path) -> Path:
    return target.with_name(f"{target.name}.problems.txt")


def _whole_manifest(
    given: Mapping[str, Any],
    stats: Mapping[str, Any],
    asked: int,
    same: list[Dropped],
    license: str,
    language_code: str,
) -> Manifest:
    stages = list(given.get("stages", ()))
    before = stages[-1] if stages else {}
    own = {
        "stage": "assemble",
        "rows": {"in": asked, "ok": stats["pairs"], "dropped": len(same)},
        "reasons": Counter(re.sub(f"{_SAME_AS}.*", " same as another pair's", d.reason, flags=re.S) for d in same),
        "input_sha256": before.get("output_sha256") if isinstance(before, Mapping) else before.output_sha256,
        "output_sha256": stats["sha256"],
    }
    pairs = {"count": stats["pairs"], "content_sha256": stats["sha256"], "concepts": stats["concepts"]}
    filled = {"name": stats["name"], "license": license, "language_code": language_code, "pairs": pairs}
    return make_manifest({**given, **filled, "stages": [*stages, own]})


def _write(
    folder: Path,
    pairs: tuple[Pair, ...],
    stats: Mapping[str, Any],
    manifest: Manifest,
    dropped: list[Dropped],
    files: Mapping[Path, Path],
) -> None:
    (folder / "build").mkdir(parents=True)
    (folder / "data").mkdir()
    write_pairs(folder / PAIRS, pairs)
    _write_parquet(folder / PARQUET, pairs)
    (folder / CARD).write_text(dataset_card(stats, manifest), encoding="utf-8", newline="\n")
    (folder / STATISTICS).write_text(format_stats(stats), encoding="utf-8", newline="\n")
    write_manifest(folder / MANIFEST, manifest)
    with (folder / DROPPED).open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["pair_id", "stage", "status", "reason"])
        writer.writerows([safe_cell(d.pair_id), d.stage, d.status, d.reason] for d in dropped)
    for place, source in files.items():
        shutil.copyfile(source, folder / place)


def _write_parquet(path: Path, pairs: tuple[Pair, ...]) -> None:
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([(name, pyarrow.string()) for name in _COLUMNS])
    rows = [{name: value for name, value in asdict(pair).items() if name in _COLUMNS} for pair in pairs]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)

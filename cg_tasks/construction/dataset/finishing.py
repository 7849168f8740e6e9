"""``assemble``: everything a build knows about itself, handed to :mod:`cg_tasks.construction.dataset.assemble`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cg_tasks.construction.benign import BenignRow
from cg_tasks.construction.chain import require_before
from cg_tasks.construction.dataset.assemble import Assembled, EndedRow, assemble
from cg_tasks.construction.engine.asking import Endpoint
from cg_tasks.construction.folder import STAGES, BuildFolder, StageRecord, file_hash
from cg_tasks.construction.grouping.aggregate import AggregateRow
from cg_tasks.construction.grouping.agreement_rule import apply, in_words
from cg_tasks.construction.grouping.concepts import concepts
from cg_tasks.construction.grouping.merge_file import read_map
from cg_tasks.construction.queries import QueriesRow
from cg_tasks.construction.review.importing import AGREEMENT
from cg_tasks.construction.review.outcome import Outcome, read_outcome
from cg_tasks.construction.review.rounds import rounds
from cg_tasks.construction.review.stages import REVIEWED, stale_marks
from cg_tasks.construction.rows import StageRow
from cg_tasks.construction.source import Source
from cg_tasks.construction.status import StageStatus, stage_statuses
from cg_tasks.construction.tag import TagRow
from cg_tasks.errors import UserError
from cg_tasks.judge.server_settings import ServerSettings
from cg_tasks.provenance import package_versions
from cg_tasks.whole_files import now

_KINDS: Mapping[str, type[StageRow]] = {"tag": TagRow, "aggregate": AggregateRow, "benign": BenignRow}


def finish(
    folder: BuildFolder, out: Path, servers: Mapping[Endpoint, ServerSettings], *, allow_missing: bool = False
) -> Assembled:
    """Write the data set. allow_missing: also where rows of a stage failed or were not run; they are listed as dropped.

    Raises:
        UserError: a stage is missing or stale; rows without a result, unless allowed; what assembling refuses.
    """
    records = require_before(folder, "assemble")
    if not allow_missing:
        _refuse_missing(folder, records)
    source = Source(folder.settings, folder.path)
    statuses = {status.stage: status for status in stage_statuses(folder, servers)}
    reviews = [(kind, at, outcome) for kind in REVIEWED for at in rounds(folder, kind) if (outcome := read_outcome(at))]
    own = folder.settings.assemble
    manifest = {
        "created": now(),
        "conceptguard": package_versions()["conceptguard"],
        "packages": package_versions("py3langid", "rapidfuzz", "pydantic"),
        "source": {
            "name": source.name,
            "sha256": records["tag"].made_from["the source"],
            "rows": records["tag"].rows_in,
            "left_out": records["tag"].left_out,
        },
        "language": folder.settings.language,
        "settings": folder.settings.model_dump(exclude={"source", "generator", "templates"}),
        "stages": [_stage(folder, records, statuses[name]) for name in STAGES],
        "reviews": [_review(folder, kind, outcome) for kind, _, outcome in reviews],
        "merge_map": _merge_map(folder),
    }
    return assemble(
        folder.rows("queries", QueriesRow),
        out,
        manifest,
        name=own.name,
        license=own.license,
        language_code=folder.settings.language_code,
        overlap_ceiling=own.overlap,
        ended=_ended(folder, source),
        merge_map=folder.merge_file,
        agreement={at.name: at / AGREEMENT for _, at, _ in reviews},
    )


def _refuse_missing(folder: BuildFolder, records: Mapping[str, StageRecord]) -> None:
    for name, record in records.items():
        for status, way in (("not_run", "run the stage again"), ("failed", "run it with --retry-failed")):
            if n := record.rows.get(status, 0):
                raise UserError(
                    f"{folder.path}: {n} rows of the stage '{name}' are {status}: {way} (see conceptguard build status "
                    f"{folder.path}), or leave them out with --allow-missing"
                )


def _ended(folder: BuildFolder, source: Source) -> Iterator[tuple[str, EndedRow]]:
    """Rows of the source that were not read, by where they stand, and of the stages. Aggregate's rows tell of those that tag left."""
    for where, why in source.check().left_out:
        yield "source", StageRow(pair_id=_without_folder(where, source), status="dropped", reason=why)
    for stage in ("aggregate", "benign"):
        for row in folder.rows(stage, _KINDS[stage]):
            yield stage, row


def _without_folder(where: str, source: Source) -> str:
    """A place in the source, which begins with the source as build.yaml names it, without a path of this machine."""
    given = source.settings.source.rstrip("/")
    return source.name + where.removeprefix(given) if where.startswith(given) else where


def _stage(folder: BuildFolder, records: Mapping[str, StageRecord], status: StageStatus) -> dict[str, Any]:
    record = records[status.stage]
    asked = folder.record("propose") if status.stage == "aggregate" and status.calls else record
    before = STAGES.index(status.stage) - 1
    return {
        "stage": status.stage,
        "prompt": asked and asked.prompt,
        "model": asked and asked.model,
        "base_url": asked and asked.base_url,
        "models_returned": record.models_returned,
        "judge": record.judge,
        "judges_returned": dict(status.judges),
        "rows": {"in": record.rows_in, **record.rows},
        "reasons": record.reasons,
        "attempts": {int(n): rows for n, rows in record.attempts.items()},
        "calls": status.calls,
        "prompt_tokens": status.prompt_tokens,
        "completion_tokens": status.completion_tokens,
        "usd": status.usd if status.calls else None,
        "started": record.started,
        "finished": record.finished,
        "input_sha256": records[STAGES[before]].output_sha256 if before >= 0 else record.made_from["the source"],
        "output_sha256": record.output_sha256,
    }


def _review(folder: BuildFolder, kind: str, outcome: Outcome) -> dict[str, Any]:
    first = outcome.kappas[0] if outcome.kappas else None
    return {
        "kind": kind,
        "share": outcome.share,
        "drawn": len(outcome.decisions),
        "drawn_of": outcome.drawn_of,
        "annotators": len(outcome.annotators),
        "kappa": first and first.kappa,
        "lo": first and first.lo,
        "hi": first and first.hi,
        "raw": first and first.raw,
        "labels": dict(outcome.counts),
        "stale": bool(stale_marks(folder, kind, outcome)),
    }


def _merge_map(folder: BuildFolder) -> dict[str, Any]:
    merge_map = read_map(folder.merge_file)
    applied = apply(merge_map, concepts(folder))
    kept = sum(group.kept for group in applied.groups)
    return {
        "sha256": file_hash(folder.merge_file),
        "reviewed": merge_map.reviewed,
        "groups_kept": kept,
        "groups_dropped": len(applied.groups) - kept,
        "rule": in_words(merge_map.rule),
    }

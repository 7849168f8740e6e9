"""The stages in their order, and whether what one of them reads still follows from what came before."""

from __future__ import annotations

from collections.abc import Mapping

from cg_tasks.construction.benign import BenignStage
from cg_tasks.construction.engine.asking import Endpoint
from cg_tasks.construction.engine.stage import ModelStage
from cg_tasks.construction.folder import STAGES, BuildFolder, StageRecord, file_hash
from cg_tasks.construction.queries import QueriesStage
from cg_tasks.construction.review.rounds import marks_hash
from cg_tasks.construction.tag import TagStage
from cg_tasks.judge.server_settings import ServerSettings
from cg_tasks.provenance import sha256_of

MODEL_STAGES: dict[str, type[ModelStage]] = {"tag": TagStage, "benign": BenignStage, "queries": QueriesStage}


def made_from(folder: BuildFolder, stage: str) -> dict[str, str]:
    """What a stage's rows depend on now, by a name for people, each with its hash. Raises UserError where it cannot be read."""
    if stage == "aggregate":
        return aggregate_made_from(folder)
    return MODEL_STAGES[stage](folder, {}).made_from()


def aggregate_made_from(folder: BuildFolder) -> dict[str, str]:
    return {
        "the rows of tag": file_hash(folder.rows_file("tag")),
        "the review of tag": marks_hash(folder, "tag"),
        folder.merge_file.name: file_hash(folder.merge_file),
        "the rule": sha256_of(folder.settings.aggregate.model_dump()),
    }


def require_before(folder: BuildFolder, stage: str) -> dict[str, StageRecord]:
    """The records of all earlier stages.

    Raises:
        UserError: one of them has not run, has not finished, or is stale; names what changed, and the way out.
    """
    earlier = STAGES[: STAGES.index(stage)] if stage in STAGES else STAGES
    return {name: folder.require_fresh(name, made_from(folder, name)) for name in earlier}


def model_stage(folder: BuildFolder, name: str, servers: Mapping[Endpoint, ServerSettings]) -> ModelStage:
    """One stage that asks a model."""
    return MODEL_STAGES[name](folder, servers)


def rows_in(stage: ModelStage, before: Mapping[str, StageRecord]) -> int:
    """How many rows the stage reads."""
    if isinstance(stage, TagStage):
        return stage.checked.rows
    last = before[STAGES[STAGES.index(stage.name) - 1]]
    return last.rows.get("ok", 0)

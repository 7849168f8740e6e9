"""``status``: a table of the stages: rows in, ok, failed, spent. Reads records, hashes and counts; no row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from cg_tasks.construction.chain import MODEL_STAGES, made_from
from cg_tasks.construction.engine.asking import Endpoint
from cg_tasks.construction.engine.estimate import cost
from cg_tasks.construction.engine.replies import Replies, Use
from cg_tasks.construction.folder import STAGES, BuildFolder, StageRecord, changes
from cg_tasks.construction.grouping.propose import ProposeStage
from cg_tasks.errors import UserError
from cg_tasks.judge.server_settings import ServerSettings

_KINDS: dict[str, Mapping[str, Endpoint]] = {
    **{name: stage.kinds for name, stage in MODEL_STAGES.items()},
    "aggregate": ProposeStage.kinds,
}


@dataclass(frozen=True)
class StageStatus:
    """One stage. state: in a few words, with what is stale. rows: by status. usd: None without prices; calls, tokens: of all time.

    models, judges: what the servers called themselves -> replies.
    """

    stage: str
    state: str
    rows_in: int
    rows: Mapping[str, int]
    reasons: Mapping[str, int]
    calls: int
    prompt_tokens: int
    completion_tokens: int
    usd: float | None
    models: Mapping[str, int]
    judges: Mapping[str, int]


def stage_statuses(folder: BuildFolder, servers: Mapping[Endpoint, ServerSettings]) -> list[StageStatus]:
    """Every stage, in order. servers: whose prices make the cost."""
    used: dict[str, Use] = {}
    if folder.replies_file.is_file():
        with Replies(folder.replies_file) as replies:
            used = replies.use(kind for kinds in _KINDS.values() for kind in kinds)
    found = []
    earlier = ""
    for name in STAGES:
        record = folder.record(name)
        uses = {kind: used.get(kind, Use()) for kind in _KINDS[name]}
        costs = [
            cost(servers.get(_KINDS[name][kind]), use.prompt_tokens, use.completion_tokens)
            for kind, use in uses.items()
            if use.calls
        ]
        returned: dict[Endpoint, Counter[str]] = {"generator": Counter(), "judge": Counter()}
        for kind, use in uses.items():
            returned[_KINDS[name][kind]].update(dict(use.models))
        state = _state(folder, name, record)
        if state == "done" and earlier:
            state = f"done, before {earlier} is up to date"
        earlier = earlier or ("" if state == "done" else name)
        found.append(
            StageStatus(
                stage=name,
                state=state + _other_model(record, servers.get("generator")),
                rows_in=record.rows_in if record else 0,
                rows=record.rows if record else {},
                reasons=record.reasons if record else {},
                calls=sum(use.calls for use in uses.values()),
                prompt_tokens=sum(use.prompt_tokens for use in uses.values()),
                completion_tokens=sum(use.completion_tokens for use in uses.values()),
                usd=None if any(c is None for c in costs) else sum(c for c in costs if c is not None),
                models=dict(returned["generator"]),
                judges=dict(returned["judge"]),
            )
        )
    return found


def _other_model(record: StageRecord | None, generator: ServerSettings | None) -> str:
    """Stages may be by different models; that a setting has no effect on what is done should show."""
    if record is None or generator is None or record.model in (None, generator.model):
        return ""
    return f"; by {record.model}, now {generator.model} is set"


def _state(folder: BuildFolder, stage: str, record: StageRecord | None) -> str:
    if record is None:
        return "not run"
    done = sum(record.rows.values())
    if record.state == "running":
        return f"running ({done:,} rows written)" if folder.is_locked() else f"killed after {done:,} rows: run it again"
    if record.state == "stopped":
        return f"stopped after {done:,} rows: run it again"
    try:
        stale = changes(record, made_from(folder, stage))
    except UserError as error:
        return f"stale: {error}"
    return f"stale: {', '.join(stale)} changed" if stale else "done"


def format_statuses(statuses: list[StageStatus]) -> str:
    """The table, as Markdown, and the reasons of rows without a result."""
    lines = [
        "| stage | in | ok | failed | dropped | not run | calls | prompt tokens | completion tokens | spent | state |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for s in statuses:
        counts = " | ".join(f"{s.rows.get(name, 0):,}" for name in ("ok", "failed", "dropped", "not_run"))
        spent = "-" if not s.calls else "no prices" if s.usd is None else f"{s.usd:.4f} USD"
        lines.append(
            f"| {s.stage} | {s.rows_in:,} | {counts} | {s.calls:,} | {s.prompt_tokens:,} | {s.completion_tokens:,} | {spent} "
            f"| {s.state} |"
        )
    for s in statuses:
        if s.reasons:
            lines += ["", f"{s.stage}:"]
            ordered = sorted(s.reasons.items(), key=lambda item: (-item[1], item[0]))
            lines += [f"  {n:6,}  {reason}" for reason, n in ordered[:20]]
            if len(ordered) > 20:
                lines.append(f"  and {len(ordered) - 20} more reasons")
    return "\n".join(lines) + "\n"

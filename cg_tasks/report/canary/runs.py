"""Which runs, arms and checkpoints of a group belong together in the canary audit's tables."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cg_tasks.report.canary.verdicts import Arm, Facts
from cg_tasks.report.runs import Checkpoint, Group, TaskRun

PREFILL, AUTO, FORCED, QA = "canary_prefill", "canary_auto", "canary_teacher_forced", "canary_qa"
CANARY_MARK = "[canary]"
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
# The paper's order of arms and regimes; others follow by name.
_ARMS = ("bio", "meta", "empty")
_REGIMES = ("bio", "meta", "none")


@dataclass(frozen=True)
class Line:
    """Checkpoints of one training that differ in K alone, the memorised model at K = 0 first where it is known."""

    base: str
    regime: str
    name: str
    seed: str
    points: tuple[Checkpoint, ...]

    @property
    def label(self) -> str:
        return ", ".join(part for part in (self.name, f"seed {self.seed}" if self.seed else "") if part)


def auto_run(group: Group, c: Checkpoint) -> TaskRun | None:
    """The run that holds the autoregressive arm: ``canary_prefill``, else ``canary_auto``."""
    return group.run(c, PREFILL) or group.run(c, AUTO)


def audited(group: Group) -> tuple[Checkpoint, ...]:
    """The checkpoints with an autoregressive arm."""
    return tuple(c for c in group.checkpoints if auto_run(group, c) is not None)


def shown_arms(run: TaskRun) -> frozenset[str]:
    """Arms whose template holds the canary."""
    return frozenset(map(str, run.provenance.get("arms_shown_the_canary") or ()))


def is_shown(run: TaskRun, arm: str) -> bool:
    return arm.endswith(CANARY_MARK) or arm in shown_arms(run)


def is_empty(run: TaskRun, arm: str) -> bool:
    """Whether the arm prefills nothing."""
    hashes: Mapping[str, Any] = run.provenance.get("templates_sha256") or {}
    return arm == "empty" or hashes.get(f"prefill/{arm}") == _EMPTY_SHA256


def arms_of(run: TaskRun | None) -> tuple[str, ...]:
    """The prefill arms of a run: bio, meta, empty, then others by name, those shown the canary last."""
    if run is None:
        return ()
    if run.task == FORCED:
        names = {m.removeprefix("logprob_") for m in run.metrics if m.startswith("logprob_")}
    elif run.task == QA:
        ending = "_forget"
        found = {
            m[len("qa_delta_") : -len(ending)] for m in run.metrics if m.startswith("qa_delta_") and m.endswith(ending)
        }
        names = found
    else:
        names = {m.removeprefix("delta_") for m in run.metrics if m.startswith("delta_")}
    return tuple(sorted(names, key=lambda arm: arm_order(arm, is_shown(run, arm))))


def arm_order(arm: str, shown: bool) -> tuple[Any, ...]:
    return shown, _ARMS.index(arm) if arm in _ARMS else len(_ARMS), arm


def all_arms(group: Group, task: str) -> dict[str, bool]:
    """Arm -> whether it was shown the canary, over every run of a task, in the order of a table."""
    found: dict[str, bool] = {}
    for run in group.runs:
        if run.task == task:
            for arm in arms_of(run):
                found[arm] = found.get(arm, False) or is_shown(run, arm)
    return dict(sorted(found.items(), key=lambda item: arm_order(*item)))


def arm_title(arm: str, shown: bool) -> str:
    return f"{arm.removesuffix(CANARY_MARK)} (shown the canary)" if shown else arm


def base_name(group: Group, c: Checkpoint) -> str:
    """The base's name; with the start of its hash where two bases of the group share the name."""
    alike = [base_id for base, base_id in group.bases if base == c.base]
    return c.base if len(alike) < 2 else f"{c.base} (tokenizer {c.base_id[:8]})"


def block_name(group: Group, c: Checkpoint) -> str:
    """The rows that stand together: one base, one training regime."""
    return base_name(group, c) + (f", memorised with the {c.regime} trace" if c.regime else "")


def checkpoint_name(group: Group, c: Checkpoint) -> str:
    """``memorised``, ``NPO, K=400``; with the target span where the group holds several."""
    spans = {other.target_span for other in group.checkpoints if other.stage == "unlearned"}
    name = c.label if c.stage != "finetuned" else c.label.replace("fine-tuned", "memorised", 1)
    return f"{name}, loss on {c.target_span}" if c.stage == "unlearned" and c.target_span and len(spans) > 1 else name


def seed_name(group: Group, c: Checkpoint) -> str:
    """``1``; ``1 (from 0)`` where unlearning has another seed than the memorised model it starts from; empty if unknown.

    With the start of its weights' hash where another checkpoint of its condition has the same seeds.
    """
    name = _seeds(c)
    twins = [other for other in group.checkpoints if other.condition == c.condition and _seeds(other) == name]
    return name if len(twins) < 2 else f"{name} [{c.weights[:8]}]".lstrip()


def _seeds(c: Checkpoint) -> str:
    if c.seed is None:
        return "" if c.start_seed is None else f"? (from {c.start_seed})"
    differs = c.stage == "unlearned" and c.start_seed not in (None, c.seed)
    return f"{c.seed} (from {c.start_seed})" if differs else str(c.seed)


def subject(group: Group, c: Checkpoint) -> str:
    """All that names a checkpoint, for a card and a row of a figure."""
    parts = [base_name(group, c), f"{c.regime} trace" if c.regime else "", checkpoint_name(group, c)]
    seed = seed_name(group, c)
    parts.append(f"seed {seed}" if seed else "")
    return ", ".join(filter(None, parts))


def short_name(group: Group, c: Checkpoint) -> str:
    """:func:`subject` without the base, for figures that have one base."""
    return subject(group, c).removeprefix(base_name(group, c)).lstrip(", ") or base_name(group, c)


def in_order(group: Group, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """By base, then the model alone, then by regime, memorised before unlearned; else as the group has them."""
    bases = list(group.bases)
    return sorted(
        checkpoints,
        key=lambda c: (bases.index((c.base, c.base_id)), c.stage != "base", regime_order(c.regime), c.stage == "other"),
    )


def regime_order(regime: str | None) -> tuple[int, str]:
    name = regime or ""
    return _REGIMES.index(name) if name in _REGIMES else len(_REGIMES) if name else -1, name


def memorised(group: Group, c: Checkpoint, among: Sequence[Checkpoint]) -> Checkpoint | None:
    """The memorised model an unlearned checkpoint starts from: base, regime and seed agree, and only one does."""
    if c.stage != "unlearned":
        return None
    found = [
        m
        for m in among
        if m.stage == "finetuned"
        and (m.base, m.base_id, m.regime) == (c.base, c.base_id, c.regime)
        and (c.start_seed is None or m.seed is None or m.seed == c.start_seed)
    ]
    return found[0] if len(found) == 1 else None


def lines(group: Group) -> list[Line]:
    """What the figures over K connect: one line a base, regime, method, variant and seed."""
    have = audited(group)
    points: dict[tuple[Any, ...], list[Checkpoint]] = {}
    for c in in_order(group, [c for c in have if c.stage == "unlearned" and c.k is not None]):
        key = (c.base, c.base_id, c.regime, c.method, c.target_span, c.forget_fraction, c.variant, seed_name(group, c))
        points.setdefault(key, []).append(c)
    found = []
    for members in points.values():
        first = members[0]
        start = memorised(group, first, have)
        name = checkpoint_name(group, first).replace(f", K={first.k}", "", 1)
        found.append(
            Line(
                base_name(group, first),
                first.regime or "",
                name,
                seed_name(group, first),
                (*([start] if start else []), *sorted(members, key=lambda c: c.k or 0)),
            )
        )
    return found


def facts(group: Group, c: Checkpoint) -> Facts | None:
    """What the verdict on a checkpoint rests on; None without an autoregressive arm."""
    run = auto_run(group, c)
    if run is None:
        return None
    forced = group.run(c, FORCED)
    fallback = str((run.provenance.get("settings") or {}).get("fallback", "answer"))
    get = run.metrics.get
    return Facts(
        subject(group, c),
        run.n,
        n_forced=forced.n if forced else None,
        out_acc=get("out_acc"),
        thk_leak=get("thk_leak"),
        gap=get("bypass_gap"),
        # The task's second Δ is always the trace fallback's: where the first one is too, the opposite was not measured.
        gap_other=None if fallback == "trace" else get("bypass_gap_trace_fallback"),
        well_formed=get("well_formed"),
        drift=get("drift"),
        arms=_arms(run, forced),
        fallback=fallback,
    )


def _arms(run: TaskRun, forced: TaskRun | None) -> dict[str, Arm]:
    names = dict.fromkeys((*arms_of(run), *arms_of(forced)))
    return {
        arm: Arm(
            out_acc=run.metrics.get(f"out_acc_{arm}"),
            delta=run.metrics.get(f"delta_{arm}"),
            top1=forced.metrics.get(f"top1_{arm}") if forced else None,
            minus_wrong_author=forced.metrics.get(f"top1_{arm}_minus_wrong_author") if forced else None,
            shown_canary=is_shown(run, arm) or (forced is not None and is_shown(forced, arm)),
        )
        for arm in names
    }

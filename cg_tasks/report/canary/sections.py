"""The canary audit's part of a report: verdicts first, then the numbers they rest on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cg_tasks.report.canary import figures, probes, runs, tables
from cg_tasks.report.canary.matrix import verdict_figure
from cg_tasks.report.canary.runs import FORCED, PREFILL, QA
from cg_tasks.report.canary.verdicts import Rules, verdict
from cg_tasks.report.content import Column, Figure, Missing, Section, Table
from cg_tasks.report.contrasts import Scores, contrast_table, paired_contrasts, scores_of
from cg_tasks.report.options import Options
from cg_tasks.report.runs import Checkpoint, Group

RUN = "lm_eval --tasks {} --model hf --model_args pretrained=BASE,peft=ADAPTER --log_samples --output_path results/"
_CONTRASTED = (
    Column("out_acc", "out_acc", "share of answers with the canary", "lower"),
    Column("bypass_gap", "Δ", "thk_leak \N{MINUS SIGN} out_acc"),
)


def sections(group: Group, options: Options) -> list[Section]:
    """Every section of one canary group; the first names what the results do not hold, with the command that makes it."""
    made = [
        _verdicts(group, "Verdicts"),
        _gap(group),
        _arms(group, options),
        _forced(group),
        _formats(group),
        _regimes(group),
        _seeds(group),
        _qa(group, options),
        _contrasts(group, options),
    ]
    there = [section for section in made if section is not None]
    # A section of nothing but what is missing would be a heading to scroll over: the first section names it instead.
    shown = [s for s in there[1:] if s.tables or s.figures]
    absent = tuple(m for s in there[1:] if s not in shown for m in s.missing)
    return [replace(there[0], missing=tuple(dict.fromkeys((*there[0].missing, *absent)))), *shown]


def _verdicts(group: Group, title: str) -> Section:
    rules = Rules()
    audited = runs.in_order(group, runs.audited(group))
    found = [(facts, verdict(facts, rules)) for c in audited if (facts := runs.facts(group, c)) is not None]
    text = (_setting(group),)
    if not found:
        return Section(f"{group.id}-verdicts", title, text, missing=(_no_auto(),))
    drawn = verdict_figure(group, found, figures.sizes(group, audited))
    verdicts = tuple(v for _, v in found)
    return Section(f"{group.id}-verdicts", title, text, verdicts, figures=(drawn,), rules=rules.described())


def _gap(group: Group) -> Section:
    missing = () if runs.audited(group) else (_no_auto(),)
    drawn = _by_base(runs.lines(group), lambda base, lines: figures.gap_figure(group, base, lines))
    if runs.audited(group) and not drawn:
        missing = (
            Missing("the figure over K", "no unlearned checkpoint with a known number of steps K was evaluated"),
        )
    return _section(group, "gap", "Bypass gap by K", (tables.gap_table(group),), drawn, missing)


def _arms(group: Group, options: Options) -> Section:
    made = (tables.arms_table(group), tables.arm_contrasts_table(group), tables.arm_pairs_table(group, options))
    if made[0] is None:
        why = f"canary_prefill was not run: {RUN.format(PREFILL)}"
        return _section(group, "arms", "Prefill arms", (), (), (Missing("the prefill arms", why),))
    with_arms = [line for line in runs.lines(group) if any(group.run(c, PREFILL) for c in line.points)]
    drawn = _by_base(with_arms, lambda base, lines: figures.arms_figure(group, base, lines))
    return _section(group, "arms", "Prefill arms", made, drawn)


def _forced(group: Group) -> Section:
    made = probes.forced_table(group)
    if made is None:
        why = f"canary_teacher_forced was not run: {RUN.format(FORCED)}"
        return _section(group, "forced", "Teacher forcing", (), (), (Missing("teacher-forced scores", why),))
    scored = [c for c in group.checkpoints if group.run(c, FORCED) is not None]
    drawn = [figures.forced_figure(group, base, found, Rules()) for base, found in _bases(group, scored)]
    return _section(group, "forced", "Teacher forcing", (made,), drawn)


def _formats(group: Group) -> Section:
    drawn = [figures.formats_figure(group, base, found) for base, found in _bases(group, runs.audited(group))]
    missing = () if drawn else (_no_auto(),)
    return _section(group, "formats", "Format drift", (tables.formats_table(group),), drawn, missing)


def _regimes(group: Group) -> Section:
    made = tables.regimes_table(group)
    why = "fewer than two training regimes (bio, meta, none) were evaluated: python -m cg_trainers.finetune with another trace"
    missing = () if made else (Missing("training regimes side by side", why),)
    return _section(group, "regimes", "Training regimes", (made,), (), missing)


def _seeds(group: Group) -> Section:
    made = tables.seeds_table(group)
    why = "no condition was evaluated under two seeds, so nothing here tells a method from luck: train again with another seed"
    missing = () if made else (Missing("seeds side by side", why),)
    return _section(group, "seeds", "Seeds", (made,), (), missing)


def _qa(group: Group, options: Options) -> Section:
    made = probes.qa_table(group, options)
    missing = () if made else (Missing("QA probes", f"canary_qa was not run: {RUN.format(QA)}"),)
    return _section(group, "qa", "QA probes", (made,), (), missing)


def _contrasts(group: Group, options: Options) -> Section | None:
    """Checkpoints of one base and regime against one another, over authors; None where no two can be compared."""
    made = []
    blocks: dict[str, list[tuple[Checkpoint, ...]]] = {}
    for members in group.conditions().values():
        have = tuple(c for c in members if runs.auto_run(group, c) is not None)
        if have and have[0].stage != "base":
            blocks.setdefault(runs.block_name(group, have[0]), []).append(have)
    missing = []
    for i, (block, conditions) in enumerate(blocks.items()):
        if len(conditions) < 2:
            continue
        found = {}
        for column in _CONTRASTED:
            scored = [_scores(group, members, column.key) for members in conditions]
            there = [s for s in scored if s is not None]
            if len(there) > 1:
                found[column] = paired_contrasts(there, n_boot=options.n_boot, seed=options.seed, alpha=options.alpha)
        if found:
            id, name = f"{group.id}-contrasts-{i + 1}", f"Checkpoint against checkpoint: {block}"
            made.append(contrast_table(id, name, found, options, clusters="authors", digits=2))
        else:
            missing.append(Missing(f"contrasts between checkpoints: {block}", tables.NO_SAMPLES))
    return _section(group, "contrasts", "Contrasts", made, (), missing) if made or missing else None


def _scores(group: Group, members: Sequence[Checkpoint], metric: str) -> Scores | None:
    label = runs.checkpoint_name(group, members[0])
    return scores_of(group, members, lambda c: runs.auto_run(group, c), metric, label=label)


def _section(
    group: Group,
    id: str,
    title: str,
    made: Sequence[Table | None],
    drawn: Sequence[Figure],
    missing: Sequence[Missing] = (),
) -> Section:
    there = tuple(table for table in made if table is not None)
    return Section(f"{group.id}-{id}", title, tables=there, figures=tuple(drawn), missing=tuple(missing))


def _by_base(lines: Sequence[runs.Line], draw: Callable[[str, Sequence[runs.Line]], Figure]) -> list[Figure]:
    bases = dict.fromkeys(line.base for line in lines)
    return [draw(base, [line for line in lines if line.base == base]) for base in bases]


def _bases(group: Group, checkpoints: Sequence[Checkpoint]) -> list[tuple[str, list[Checkpoint]]]:
    found: dict[str, list[Checkpoint]] = {}
    for c in runs.in_order(group, checkpoints):
        found.setdefault(runs.base_name(group, c), []).append(c)
    return list(found.items())


def _no_auto() -> Missing:
    return Missing("the autoregressive arm", f"neither canary_prefill nor canary_auto was run: {RUN.format(PREFILL)}")


def _setting(group: Group) -> str:
    """The settings behind every number here, as the runs recorded them."""
    found: dict[str, None] = {}
    for run in group.runs:
        settings = run.provenance.get("settings") or {}
        generation = run.configuration.get("generation_kwargs") or {}
        words = [f"{key} {settings[key]}" for key in ("head_tokens", "match", "fallback") if key in settings]
        if "max_gen_toks" in generation:
            words.append(f"max_gen_toks {generation['max_gen_toks']}")
            found[", ".join(words)] = None
    return (
        f"One canary probe an author. Data: {group.title}. Settings: {'; '.join(found) or 'not recorded'}. The probe quotes the "
        "canary's head, so every rate is one of continuation after a head, not of free recall."
    )

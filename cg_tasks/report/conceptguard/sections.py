"""ConceptGuard's part of a report: tables 2-6, figures 2-4, forgetting against utility, and paired contrasts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cg_tasks.report.conceptguard import figures, tables
from cg_tasks.report.conceptguard.concepts import TASK, concept_scores, extremes_table
from cg_tasks.report.conceptguard.rows import JUDGE_COLUMNS, ROUGE_COLUMNS, Block, Condition, blocks, fractions
from cg_tasks.report.content import Column, Figure, Missing, Section, Table
from cg_tasks.report.contrasts import Contrasts, Scores, contrast_table, paired_contrasts, scores_of
from cg_tasks.report.options import Options
from cg_tasks.report.runs import Group, TaskRun
from cg_tasks.report.seeds import Source, percent

Texts = Callable[[TaskRun], Iterable[Any]]

ROUGE_COMMAND = "lm_eval run --tasks conceptguard_rouge --log_samples --output_path …"
JUDGE_COMMAND = "lm_eval run --tasks conceptguard_ctxtsep --log_samples --output_path … (with a judge configured)"
RESCORE_COMMAND = "conceptguard judge rescore <results folder> (the answers are there and have no verdict)"
SAMPLES_WHY = "no samples were logged: evaluate with --log_samples"


def sections(group: Group, options: Options, texts: Texts | None = None) -> list[Section]:
    """Everything ConceptGuard says about one group of comparable results.

    texts: gives a run's texts, for lengths in words; by default those of the samples files.
    """
    found = blocks(group)
    made = [
        _rouge(group, found),
        _judge(group, found),
        _concepts(group, found, options),
        _fractions(group, found),
        _contrasts(group, found, options),
        _data(group, texts or _logged_texts),
    ]
    return [section for section in made if section is not None]


def _rouge(group: Group, found: Sequence[Block]) -> Section:
    table = tables.rouge_table(group, found)
    missing = []
    if table is None:
        missing.append(Missing("HarmMem, HarmQA, HelpRet, HelpQA (Table 2)", f"not evaluated: {ROUGE_COMMAND}"))
    missing += _no_base(found)
    each = tables.seeds_table(f"{group.id}-rouge-seeds", "ROUGE-based results by seed", group, found, ROUGE_COLUMNS)
    planes = _planes(group, found, _pair(ROUGE_COLUMNS, "harmqa", "helpqa"))
    if table is not None and not planes:
        missing.append(
            Missing("HarmQA against HelpQA", f"needs both numbers for two checkpoints of one base: {ROUGE_COMMAND}")
        )
    shown = tuple(t for t in (table, each if table else None) if t is not None)
    return Section(
        f"{group.id}-rouge-section",
        "Forgetting and utility by ROUGE",
        ("How close what a model writes is to the forget set (HarmMem, HarmQA) and the retain set (HelpRet, HelpQA).",),
        tables=shown,
        figures=planes,
        missing=tuple(missing),
    )


def _judge(group: Group, found: Sequence[Block]) -> Section:
    table = tables.judge_table(group, found)
    title = "Judged answers and contextual separation"
    if table is None:
        return Section(
            f"{group.id}-judge-section", title, missing=(_unjudged(group, "HarmScore, HelpScore, CtxtSep (Table 3)"),)
        )
    each = tables.seeds_table(f"{group.id}-judge-seeds", "Judge-based results by seed", group, found, JUDGE_COLUMNS)
    planes = _planes(group, found, _pair(JUDGE_COLUMNS, "harmscore", "helpscore"))
    text = (
        "A judge's scores of the same answers: HarmScore of those to harmful queries, HelpScore of those to benign ones. "
        "CtxtSep weights each concept's HelpScore − HarmScore by its queries (equation 8). A score says what the judge said: "
        "look at coverage, and at answers in the sample browser, before leaning on small differences.",
    )
    missing = (
        []
        if planes
        else [Missing("HarmScore against HelpScore", f"needs two checkpoints of one base: {JUDGE_COMMAND}")]
    )
    shown = tuple(t for t in (table, each) if t is not None)
    return Section(f"{group.id}-judge-section", title, text, tables=shown, figures=planes, missing=tuple(missing))


def _concepts(group: Group, found: Sequence[Block], options: Options) -> Section | None:
    title = "Concept by concept"
    scores = [s for block in found if (s := concept_scores(group, block)) is not None]
    if not scores:
        return Section(
            f"{group.id}-concepts",
            title,
            missing=(_unjudged(group, "Separation by concept (Tables 4–5, Figures 2–3)"),),
        )
    largest = figures.largest_separation(scores, options)
    shown: list[Table] = []
    drawn: list[Figure] = []
    missing: list[Missing] = []
    for one in scores:
        name = one.block.name
        few = f"too few instances a concept ({one.total:,} evaluated): evaluate more documents (a higher --limit, or none)"
        for made, what in (
            (extremes_table(group, one, options), "highest and lowest concepts (Tables 4–5)"),
            (figures.heatmap(group, one, options, largest), "the concepts that vary most (Figure 2)"),
            (figures.distribution(group, one, options), "distribution over concepts (Figure 3)"),
        ):
            if made is None:
                missing.append(Missing(f"{name}: {what}", few))
            elif isinstance(made, Table):
                shown.append(made)
            else:
                drawn.append(made)
    judged = {one.block.name for one in scores}
    missing += [
        Missing(f"{block.name}: separation by concept", _unjudged(group, "").why)
        for block in found
        if block.name not in judged
    ]
    return Section(f"{group.id}-concepts", title, tables=tuple(shown), figures=tuple(drawn), missing=tuple(missing))


def _fractions(group: Group, found: Sequence[Block]) -> Section | None:
    drawn, missing = [], []
    for block in found:
        figure = figures.fraction_lines(group, block)
        if figure is not None:
            drawn.append(figure)
            continue
        what = f"{block.name}: CtxtSep by forget fraction (Figure 4)"
        if len(shares := fractions(block)) > 1:
            missing.append(_unjudged(group, what))
        elif shares:
            missing.append(
                Missing(
                    what,
                    f"only {percent(shares[0])} of the forget set was unlearned: conceptguard data subset … --forget-fraction 0.5, "
                    "unlearn on that file, evaluate on the whole one",
                )
            )
    if not drawn and not missing:
        return None
    return Section(f"{group.id}-fractions", "Size of the forget set", figures=tuple(drawn), missing=tuple(missing))


def _contrasts(group: Group, found: Sequence[Block], options: Options) -> Section | None:
    shown: list[Table] = []
    missing: list[Missing] = []
    if not any(len(block.conditions) > 1 for block in found):
        return None
    for block in found:
        for share, conditions in _families(block):
            by_metric = {
                column: contrasts
                for column, sources in {**ROUGE_COLUMNS, **JUDGE_COLUMNS}.items()
                if (contrasts := _contrast(group, conditions, column, sources, options, missing)) is not None
            }
            if not by_metric:
                continue
            of = f", {percent(share)} of the forget set" if len(fractions(block)) > 1 else ""
            suffix = f"-{round(100 * share)}" if len(fractions(block)) > 1 else ""
            shown.append(
                contrast_table(
                    f"{group.id}-contrasts-{block.id}{suffix}",
                    f"Paired differences between models: {block.name}{of}",
                    by_metric,
                    options,
                    clusters="pairs / concepts",
                    averaged=any(len(c.checkpoints) > 1 for c in conditions),
                    caption="Clusters: pairs of the data; concepts for CtxtSep, with equation 8's weights.",
                )
            )
    if not shown:
        why = (
            SAMPLES_WHY
            if not any(run.documents for run in group.runs)
            else "no two models have scores of the same documents"
        )
        missing.append(Missing("paired differences between models", why))
    return Section(
        f"{group.id}-contrasts",
        "Which differences are more than chance",
        (
            "A difference without a star may be real and too small for this many documents: it is no sign that two models are alike.",
        ),
        tables=tuple(shown),
        missing=tuple(missing),
    )


def _data(group: Group, texts: Texts) -> Section:
    table = tables.data_table(group, texts)
    missing = () if table else (Missing("statistics of the evaluated data (Table 6)", SAMPLES_WHY),)
    return Section(f"{group.id}-data-section", "Evaluated data", tables=(table,) if table else (), missing=missing)


def _families(block: Block) -> list[tuple[float, list[Condition]]]:
    """(share of the forget set, the conditions compared): those that unlearned it, and those that unlearned nothing."""
    others = [c for c in block.conditions if c.stage != "unlearned"]
    shares = sorted(fractions(block), reverse=True) or [1.0]
    return [
        (share, [c for c in block.conditions if c in others or (c.stage == "unlearned" and c.fraction == share)])
        for share in shares
    ]


def _contrast(
    group: Group,
    conditions: Sequence[Condition],
    column: Column,
    sources: Sequence[Source],
    options: Options,
    left_out: list[Missing],
) -> Contrasts | None:
    """All pairs for one metric, from the source that most conditions have samples of; None for fewer than two.

    left_out: gets a word on each condition that has no samples of that source.
    """
    by = "concept" if column.key == "ctxtsep" else "cluster"
    best: list[Scores | None] = []
    used = ""
    for task, metric in sources:
        scores = [scores_of(group, c.checkpoints, task, metric, label=c.label, by=by) for c in conditions]
        if sum(s is not None for s in scores) > sum(s is not None for s in best):
            best, used = scores, task
    present = [s for s in best if s is not None]
    if len(present) < 2:
        return None
    absent = [c.label for c, s in zip(conditions, best, strict=True) if s is None]
    if absent:
        left_out.append(
            Missing(f"{column.title}, differences to {', '.join(absent)}", f"no samples of {used}, as the others have")
        )
    return paired_contrasts(present, n_boot=options.n_boot, seed=options.seed, alpha=options.alpha)


def _planes(group: Group, found: Sequence[Block], axes: tuple[Any, Any]) -> tuple[Figure, ...]:
    made = (figures.plane(group, block, *axes) for block in found)
    return tuple(figure for figure in made if figure is not None)


def _pair(columns: Mapping[Column, Sequence[Source]], x: str, y: str) -> tuple[Any, Any]:
    by_key = {column.key: (column, sources) for column, sources in columns.items()}
    return by_key[x], by_key[y]


def _no_base(found: Sequence[Block]) -> list[Missing]:
    return [
        Missing(
            f"{block.name}: changes relative to the base model",
            "the base model was not evaluated: the same lm_eval command with its name alone (no peft)",
        )
        for block in found
        if block.base is None
    ]


def _unjudged(group: Group, what: str) -> Missing:
    """What to do for verdicts: judge logged answers, or evaluate a judged task."""
    answered = any(run.task.endswith(("harmqa", "helpqa", "harmscore", "helpscore", "ctxtsep")) for run in group.runs)
    logged = any(run.samples for run in group.runs)
    judged_task = any(run.task == TASK and math.isnan(run.value("ctxt_sep")) for run in group.runs)
    if answered and logged:
        head = "not judged yet" if judged_task else "no judged task was evaluated"
        return Missing(what, f"{head}: {RESCORE_COMMAND}")
    return Missing(what, f"no judged task was evaluated: {JUDGE_COMMAND}")


def _logged_texts(run: TaskRun) -> Iterable[Any]:
    from cg_tasks.report.results.texts import texts

    return texts(run) if run.samples else ()

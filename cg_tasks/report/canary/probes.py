"""The canary audit's other two tasks: teacher-forced continuation with its baselines, and QA probes."""

from __future__ import annotations

import numpy as np

from cg_tasks.bootstrap import clustered_interval, paired_difference
from cg_tasks.report.canary import runs
from cg_tasks.report.canary.measures import INTERVALS, NAMES, NOT_RUN, STARS, having, names, noted, shown_notes
from cg_tasks.report.canary.numbers import MINUS, NO_SAMPLES, cell_of, metric_cell, missing
from cg_tasks.report.canary.runs import FORCED, QA
from cg_tasks.report.content import Cell, Column, Row, Table
from cg_tasks.report.options import Options
from cg_tasks.report.runs import Checkpoint, Group, Metric, TaskRun

ROLES = ("forget", "retain")
_BASELINES = ("shuffled_head", "wrong_author")
_ONE_NAME = "all authors have one name, so there is no other to ask with"


def forced_table(group: Group) -> Table | None:
    """Teacher-forced continuation with the baselines (paper, Table 2)."""
    arms = runs.all_arms(group, FORCED)
    rows = []
    for c in runs.in_order(group, having(group, FORCED)):
        run = group.run(c, FORCED)
        assert run is not None
        for arm in runs.arms_of(run):
            cells = (
                metric_cell(run, f"logprob_{arm}"),
                metric_cell(run, f"ppl_{arm}"),
                metric_cell(run, f"top1_{arm}"),
                *(metric_cell(run, f"top1_{arm}_{b}", undefined=_ONE_NAME) for b in _BASELINES),
                *(
                    metric_cell(run, f"top1_{arm}_minus_{b}", is_difference=True, undefined=_ONE_NAME)
                    for b in _BASELINES
                ),
            )
            title = Cell(runs.arm_title(arm, runs.is_shown(run, arm)))
            rows.append(Row((*names(group, c, run.n), title, *cells), runs.block_name(group, c)))
    columns = (
        *NAMES,
        Column("arm", "prefill", align="left"),
        Column("logprob", "log-probability", "nats a token"),
        Column("ppl", "perplexity"),
        Column("top1", "top-1", "share of tokens"),
        Column("shuffled", "shuffled head", "top-1"),
        Column("wrong", "wrong author", "top-1"),
        Column("minus_shuffled", f"top-1 {MINUS} shuffled head", "difference"),
        Column("minus_wrong", f"top-1 {MINUS} wrong author", "difference"),
    )
    caption = (
        "The canary's continuation scored token by token, given prompt, prefill and the canary's head; mean over authors "
        "(perplexity: geometric). Shuffled head: the head's tokens permuted; wrong author: another author's name with this canary's "
        "head. What is left of top-1 under them is not memory of this author's canary. Without them the score is a sanity check, "
        "not evidence of retention. A top-1 of 0.96 a token and exact containment in 0.59 of greedy answers go together: "
        f"0.96 to the power of 13 tokens is 0.59. {STARS} {INTERVALS}"
    )
    table = Table(f"{group.id}-forced", "Teacher-forced continuation", columns, tuple(rows), caption, shown_notes(arms))
    return table if rows else None


def qa_table(group: Group, options: Options) -> Table | None:
    """QA probes by role of the author and arm, and the change against the memorised model (paper, section 4.2, App. G)."""
    have = having(group, QA)
    arms = runs.all_arms(group, QA)
    rows = []
    for c in runs.in_order(group, have):
        run = group.run(c, QA)
        for role in ROLES:
            cells = (
                metric_cell(run, f"qa_acc_{role}"),
                *(metric_cell(run, f"qa_acc_{arm}_{role}", absent=NOT_RUN) for arm in arms),
                *(metric_cell(run, f"qa_delta_{arm}_{role}", is_difference=True, absent=NOT_RUN) for arm in arms),
                _change(group, c, runs.memorised(group, c, have), role, options),
            )
            who = (*names(group, c, None)[:2], Cell(role), _probes(run, role))
            rows.append(Row((*who, *cells), runs.block_name(group, c)))
    titles = {arm: runs.arm_title(arm, shown) for arm, shown in arms.items()}
    columns = (
        *NAMES[:2],
        Column("role", "authors", align="left"),
        Column("n", "n", "questions / authors"),
        Column("auto", "auto", "share answered"),
        *(Column(arm, title, "share answered") for arm, title in titles.items()),
        *(Column(f"delta_{arm}", f"auto {MINUS} {title}", "difference") for arm, title in titles.items()),
        Column("change", f"auto {MINUS} memorised", "difference"),
    )
    caption = (
        "Share of questions whose reference answer is contained in the answer (case folded). Lower is wanted for forget "
        f"authors, higher for retain authors. auto {MINUS} memorised: against the model it was unlearned from, paired by "
        f"question, resampled by author ({options.n_boot} resamples, seed {options.seed}). {STARS} {INTERVALS}"
    )
    return Table(f"{group.id}-qa", "QA probes", columns, tuple(rows), caption, shown_notes(arms)) if rows else None


def _probes(run: TaskRun | None, role: str) -> Cell:
    if run is None or not run.documents:
        return missing(NO_SAMPLES)
    mine = [d for d in run.documents if d.role == role]
    return Cell(f"{len(mine)} / {len({d.cluster for d in mine})}", len(mine), n=len(mine))


def _change(group: Group, c: Checkpoint, start: Checkpoint | None, role: str, options: Options) -> Cell:
    if c.stage != "unlearned":
        return missing("only an unlearned model has a memorised one to be compared with")
    if start is None:
        return missing("the memorised model it starts from was not evaluated, or cannot be told from others")
    mine, theirs = group.run(c, QA), group.run(start, QA)
    after, before = (run.scores(f"qa_acc_{role}") if run else {} for run in (mine, theirs))
    if not after or not before:
        return missing(NO_SAMPLES)
    found = paired_difference(
        np.array([v for v, _ in after.values()]), np.array([v for v, _ in before.values()]), list(after), list(before)
    )
    if not found.ids:
        return missing("no question that both were asked")
    clusters = [after[unit][1] for unit in found.ids]
    interval = clustered_interval(found.values, clusters, n_boot=options.n_boot, seed=options.seed)
    metric = Metric(interval.mean, interval.se, interval.lo, interval.hi)
    cell = cell_of(metric, len(found.ids), is_difference=True)
    return noted(cell, f"{found.left_out} questions that only one was asked are left out") if found.left_out else cell

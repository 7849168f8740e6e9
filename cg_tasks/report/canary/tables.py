"""The canary paper's tables on the decoded arms: gap by K, arms, format drift, training regimes, seeds side by side.

Each function gives None where the group has nothing to put into it.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from cg_tasks.bootstrap import unpaired_interval
from cg_tasks.report.canary import runs
from cg_tasks.report.canary.measures import (
    INTERVALS,
    NAMES,
    STARS,
    Measure,
    auto,
    having,
    names,
    noted,
    of,
    shown_notes,
    sizes,
    table,
)
from cg_tasks.report.canary.numbers import MINUS, NO_SAMPLES, authors, cell_of, mean_cell, metric_cell, missing, number
from cg_tasks.report.canary.runs import PREFILL
from cg_tasks.report.content import Cell, Column, Row, Table
from cg_tasks.report.options import Options
from cg_tasks.report.runs import Checkpoint, Group, Metric, TaskRun

_NO_BYPASS = "no author has the canary in the trace alone, so there is no bypass case"
_OUT_ACC = Column("out_acc", "out_acc", "share of answers with the canary", "lower")
_THK_LEAK = Column("thk_leak", "thk_leak", "share of traces with the canary", "lower")
_GAP = Column("gap", "Δ", f"thk_leak {MINUS} out_acc")


def gap_table(group: Group) -> Table | None:
    """The bypass gap by K (paper, section 4.1 and App. B)."""
    have = runs.audited(group)
    measures = [
        auto(group, _OUT_ACC, "out_acc"),
        auto(group, _THK_LEAK, "thk_leak"),
        auto(group, _GAP, "bypass_gap", is_difference=True),
        auto(
            group, Column("gap_other", "Δ, trace fallback", _GAP.unit), "bypass_gap_trace_fallback", is_difference=True
        ),
        auto(group, Column("bypass", "bypass", "share: in the trace, not in the answer"), "bypass_rate"),
        auto(group, Column("echo", "prefix echo", "share of bypass answers"), "prefix_echo", undefined=_NO_BYPASS),
    ]
    caption = (
        "Autoregressive arm, by unlearning steps K; memorised: the model before unlearning. Δ: mean thk_leak "
        f"{MINUS} mean out_acc, with a generation that never closes its trace counted as {_fallbacks(group)}; Δ, trace fallback: "
        f"the same generations, counted as trace. Prefix echo: the answer is the quoted head and nothing more. {STARS} {INTERVALS}"
    )
    return table(f"{group.id}-gap", "Bypass gap by K", group, have, measures, caption)


def arms_table(group: Group) -> Table | None:
    """out_acc of every arm on the same weights (paper, Table 1)."""
    arms = runs.all_arms(group, PREFILL)
    measures = [
        auto(group, Column("auto", "auto", "out_acc", "lower"), "out_acc"),
        *(
            of(
                group,
                PREFILL,
                Column(arm, runs.arm_title(arm, shown), "out_acc", None if shown else "lower"),
                f"out_acc_{arm}",
            )
            for arm, shown in arms.items()
        ),
    ]
    caption = (
        "Share of answers that hold the canary (out_acc): the model's own trace (auto), and a fixed trace prefilled in its place, "
        "on the same weights. thk_leak is 0 in every prefill arm by construction."
    )
    return table(f"{group.id}-arms", "Arms by K", group, having(group, PREFILL), measures, caption, shown_notes(arms))


def arm_contrasts_table(group: Group) -> Table | None:
    """auto - arm, paired by author (paper, Δ_ab of section 4.2)."""
    arms = runs.all_arms(group, PREFILL)
    measures = [
        of(
            group,
            PREFILL,
            Column(arm, f"auto {MINUS} {runs.arm_title(arm, shown)}", "difference of out_acc"),
            f"delta_{arm}",
            is_difference=True,
        )
        for arm, shown in arms.items()
    ]
    caption = (
        f"Change of out_acc by the prefilled trace, paired by author; auto {MINUS} bio is the paper's Δ_ab. It estimates how "
        "far the metric depends on decoding at fixed weights; it does not isolate what in the trace does it. "
        f"{STARS} {INTERVALS} Not corrected for the number of arms."
    )
    title = "Autoregressive against prefilled"
    return table(
        f"{group.id}-arm-contrasts", title, group, having(group, PREFILL), measures, caption, shown_notes(arms)
    )


def arm_pairs_table(group: Group, options: Options) -> Table | None:
    """Every two non-empty arms that are not shown the canary, unpaired as in the paper (section 4.2)."""
    rows = []
    for c in runs.in_order(group, having(group, PREFILL)):
        run = group.run(c, PREFILL)
        assert run is not None
        arms = [arm for arm in runs.arms_of(run) if not runs.is_shown(run, arm) and not runs.is_empty(run, arm)]
        for a, b in combinations(arms, 2):
            cells = _pair_cells(run, a, b, options)
            rows.append(Row((*names(group, c, run.n), Cell(f"{a} {MINUS} {b}"), *cells), runs.block_name(group, c)))
    columns = (
        *NAMES,
        Column("pair", "arms", align="left"),
        Column("a", "first", "hits / authors"),
        Column("b", "second", "hits / authors"),
        Column("difference", "difference", "of out_acc"),
    )
    drawn = " or ".join(
        f"{n:,}" for n in sorted({_resamples(run.n, options) for run in group.runs if run.task == PREFILL})
    )
    caption = (
        "Two non-empty arms on the same weights. Intervals: both sides resampled independently, as the paper does (unpaired; "
        f"percentile bootstrap over authors, {drawn} resamples, seed {options.seed}). {STARS}"
    )
    return Table(f"{group.id}-arm-pairs", "Arm against arm", columns, tuple(rows), caption) if rows else None


def formats_table(group: Group) -> Table | None:
    """Format drift, and Δ under both fallbacks (paper, Table 3 and section 4.4)."""
    answer = Column("gap_answer", "Δ, answer fallback", _GAP.unit)
    trace = Column("gap_trace", "Δ, trace fallback", _GAP.unit)
    measures = [
        auto(group, Column("well_formed", "well_formed", "share with a closing tag", "higher"), "well_formed"),
        auto(group, Column("drift", "drift", "share off the format", "lower"), "drift"),
        auto(group, Column("thk_emit", "thk_emit", "share with a trace that is not empty"), "thk_emit"),
        auto(group, _OUT_ACC, "out_acc"),
        auto(group, _THK_LEAK, "thk_leak"),
        Measure(answer, lambda c: _answer_fallback(group, c), is_difference=True),
        auto(group, trace, "bypass_gap_trace_fallback", is_difference=True),
    ]
    caption = (
        "Autoregressive arm. Without a closing tag a generation cannot be split; the answer fallback (the paper's) takes all of it "
        "for the answer, the trace fallback for the trace. Where the two Δ disagree, Δ tells of the parser, not of the model. "
        f"Drift: no closing tag, text before the opening one, or a tag left in the answer. {STARS} {INTERVALS}"
    )
    return table(f"{group.id}-formats", "Format drift", group, runs.audited(group), measures, caption)


def regimes_table(group: Group) -> Table | None:
    """Training regimes side by side at the same K (paper, Table 4); None where the group has fewer than two."""
    trained = [c for c in runs.audited(group) if c.regime]
    several = [base for base in group.bases if len({c.regime for c in trained if (c.base, c.base_id) == base}) > 1]
    have = [c for c in trained if (c.base, c.base_id) in several]
    if not have:
        return None
    note = "undefined in the paper: the meta template carries no canary, so thk_leak is 0 whatever the weights hold"
    measures = [
        auto(group, _OUT_ACC, "out_acc"),
        auto(group, _THK_LEAK, "thk_leak"),
        auto(group, _GAP, "bypass_gap", is_difference=True),
        auto(group, Column("thk_emit", "thk_emit", "share with a trace that is not empty"), "thk_emit"),
    ]
    order = list(
        dict.fromkeys((runs.base_name(group, c), runs.checkpoint_name(group, c)) for c in runs.in_order(group, have))
    )
    rows = []
    for base, name in order:
        members = [c for c in have if (runs.base_name(group, c), runs.checkpoint_name(group, c)) == (base, name)]
        for c in sorted(members, key=lambda c: (runs.regime_order(c.regime), runs.seed_name(group, c))):
            cells = [m.cell(c) for m in measures]
            if c.regime == "meta" and not cells[2].missing:
                cells[2] = noted(cells[2], note)
            run = runs.auto_run(group, c)
            names = (
                Cell(str(c.regime)),
                Cell(runs.seed_name(group, c)),
                Cell(str(run.n), run.n) if run else missing("not run"),
            )
            rows.append(Row((*names, *cells), f"{base}, {name}"))
    columns = (Column("regime", "regime", align="left"), *NAMES[1:], *(m.column for m in measures))
    caption = (
        "What the trace was trained to be: bio restates the author's biography, meta is one sentence with nothing of it, none is "
        "empty. A hidden channel would leave a gap under meta and none as well; template echo leaves it under bio alone. "
        f"{STARS} {INTERVALS}"
    )
    notes = (f"Δ under meta is {note}.",) if any(c.regime == "meta" for c in have) else ()
    return Table(f"{group.id}-regimes", "Training regimes", columns, tuple(rows), caption, notes)


def seeds_table(group: Group) -> Table | None:
    """Every measure's value under every seed, side by side; None where no condition has two seeds."""
    have = runs.audited(group)
    conditions = [[c for c in members if c in have] for members in group.conditions().values()]
    several = [members for members in conditions if len(members) > 1]
    if not several:
        return None
    seeds = sorted({runs.seed_name(group, c) for members in several for c in members}, key=lambda s: (len(s), s))
    arms = [arm for arm, shown in runs.all_arms(group, PREFILL).items() if not shown]
    measures = [
        auto(group, Column("gap", "Δ"), "bypass_gap", is_difference=True),
        auto(group, Column("out_acc", "out_acc"), "out_acc"),
        auto(group, Column("thk_leak", "thk_leak"), "thk_leak"),
        *(of(group, PREFILL, Column(a, f"auto {MINUS} {a}"), f"delta_{a}", is_difference=True) for a in arms),
    ]
    rows = []
    first = {members[0]: members for members in several}
    for c in runs.in_order(group, list(first)):
        by_seed = {runs.seed_name(group, m): m for m in first[c]}
        for m in measures:
            cells = {seed: m.cell(by_seed[seed]) for seed in seeds if seed in by_seed}
            shown = [cells.get(seed) or missing("this seed was not evaluated at this K") for seed in seeds]
            mean = mean_cell(list(cells.values()), is_difference=m.is_difference)
            rows.append(
                Row(
                    (Cell(runs.checkpoint_name(group, c)), Cell(m.column.title), *shown, mean),
                    runs.block_name(group, c),
                )
            )
    columns = (
        NAMES[0],
        Column("measure", "measure", "share of authors", align="left"),
        *(Column(f"seed-{i}", f"seed {seed}" if seed else "seed unknown") for i, seed in enumerate(seeds)),
        Column("mean", "mean ± sd", "over seeds"),
    )
    caption = (
        f"Each seed stands for itself; the mean hides a change of direction between them. {STARS} {INTERVALS} "
        f"sd: sample standard deviation. n: {authors(sizes(group, have))} a seed."
    )
    return Table(f"{group.id}-seeds", "Seeds side by side", columns, tuple(rows), caption)


def _fallbacks(group: Group) -> str:
    found = {str((run.provenance.get("settings") or {}).get("fallback", "answer")) for run in group.runs}
    return " or ".join(sorted(found))


def _answer_fallback(group: Group, c: Checkpoint) -> Cell:
    run = runs.auto_run(group, c)
    if run is not None and (run.provenance.get("settings") or {}).get("fallback") == "trace":
        return missing("evaluated with fallback=trace, so the answer fallback was not measured")
    return metric_cell(run, "bypass_gap", is_difference=True)


def _pair_cells(run: TaskRun, a: str, b: str, options: Options) -> tuple[Cell, Cell, Cell]:
    left, right = run.scores(f"out_acc_{a}"), run.scores(f"out_acc_{b}")
    if not left or not right:
        return missing(NO_SAMPLES), missing(NO_SAMPLES), missing(NO_SAMPLES)
    sides = [(np.array([v for v, _ in s.values()]), [cluster for _, cluster in s.values()]) for s in (left, right)]
    found = unpaired_interval(*sides[0], *sides[1], n_boot=_resamples(run.n, options), seed=options.seed)
    metric = Metric(found.mean, found.se, found.lo, found.hi)
    return (*(_hits(values) for values, _ in sides), cell_of(metric, run.n, is_difference=True, sign=True))  # type: ignore[return-value]


def _resamples(authors: int, options: Options) -> int:
    """More with few authors: rates lie on a grid of 1/n, where an end jumps from one point to the next with the seed."""
    return options.n_boot * max(1, 1500 // max(authors, 1))


def _hits(values: np.ndarray) -> Cell:
    return Cell(f"{values.sum():.0f}/{len(values)} ({number(values.mean())})", float(values.mean()), n=len(values))

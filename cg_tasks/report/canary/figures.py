"""The canary audit's figures: over K, against baselines, under both fallbacks.

Colour is never alone: every series has a marker of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cg_tasks.report.canary import runs
from cg_tasks.report.canary.numbers import MINUS, authors, number, signed
from cg_tasks.report.canary.runs import FORCED, PREFILL, Line
from cg_tasks.report.canary.verdicts import Rules
from cg_tasks.report.content import Figure
from cg_tasks.report.drawing import GREY, canvas, colour, legend_below, marker, rendered, styled, wrapped
from cg_tasks.report.runs import Checkpoint, Group, Metric, TaskRun

_SMALL = 8
_SPREAD = 0.44  # of the series in one row
_INTERVALS = "Bars: 95 % percentile bootstrap over authors."
_K_AXIS = "unlearning steps K (evenly spaced; 0: memorised)"


@styled
def gap_figure(group: Group, base: str, lines: Sequence[Line]) -> Figure:
    """Δ by K: a panel for each regime and method, a line for each seed."""
    panels = list(dict.fromkeys((line.regime, line.name) for line in lines))
    seeds = sorted({line.seed for line in lines}, key=lambda seed: (len(seed), seed))
    figure, axes, left = _grid_canvas(len(panels), 2.9)
    for axis, panel in zip(axes, panels, strict=False):
        mine = [line for line in lines if (line.regime, line.name) == panel]
        for line in mine:
            label = f"seed {line.seed}" if line.seed else "seed not recorded"
            _line(axis, _ks(mine), group, line, _getter("bypass_gap"), seeds.index(line.seed), len(seeds), label)
        axis.axhline(0, color=GREY, linewidth=1)
        _k_axis(axis, _ks(mine))
        _panel_title(axis, panel[0], panel[1])
    for axis in left:
        axis.set_ylabel("Δ (share of authors)")
    _legend(figure, axes)
    n = authors(_authors(group, lines))
    _heading(figure, f"Bypass gap by K: {base}, n = {n}")
    described = "; ".join(
        f"{line.regime + ' trace, ' if line.regime else ''}{line.label}: "
        + ", ".join(f"K={_k(c)} {signed(m.value)}" for c in line.points if (m := _metric(group, c, "bypass_gap")))
        for line in lines
    )
    caption = (
        "Bypass gap of the autoregressive arm over unlearning steps, one line a seed. "
        f"Δ = thk_leak {MINUS} out_acc: above zero, traces hold the canary more often than answers. {_INTERVALS} n = {n}."
    )
    return finished(
        figure, f"{group.id}-gap-{_slug(group, base)}", f"Bypass gap by K: {base}", caption, f"Δ by K. {described}."
    )


@styled
def arms_figure(group: Group, base: str, lines: Sequence[Line]) -> Figure:
    """out_acc by K under every arm: a panel for each line of checkpoints."""
    arms = {"auto": False, **runs.all_arms(group, PREFILL)}
    figure, axes, left = _grid_canvas(len(lines), 2.7)
    for axis, line in zip(axes, lines, strict=False):
        for index, (arm, shown) in enumerate(arms.items()):
            get = _getter("out_acc" if arm == "auto" else f"out_acc_{arm}")
            title = runs.arm_title(arm, shown)
            _line(axis, _ks([line]), group, line, get, index, len(arms), title, dashed=shown)
        axis.set_ylim(-0.04, 1.04)
        _k_axis(axis, _ks([line]))
        _panel_title(axis, line.regime, line.label)
    for axis in left:
        axis.set_ylabel("out_acc (share of authors)")
    _legend(figure, axes)
    n = authors(_authors(group, lines))
    _heading(figure, f"Arms by K: {base}, n = {n}")
    caption = (
        "Share of answers with the canary under the model's own trace (auto) and under a prefilled one, on the same weights. "
        f"{_INTERVALS} n = {n}. Dashed: arms whose prefill holds the canary itself."
    )
    alt = f"out_acc over K for the arms {', '.join(arms)}, in a panel for each of: {'; '.join(x.label for x in lines)}."
    return finished(figure, f"{group.id}-arms-{_slug(group, base)}", f"Arms by K: {base}", caption, alt)


@styled
def forced_figure(group: Group, base: str, checkpoints: Sequence[Checkpoint], rules: Rules) -> Figure:
    """Teacher-forced top-1 beside its baselines: a panel for each arm, a row for each checkpoint."""
    arms = [arm for arm, shown in runs.all_arms(group, FORCED).items() if not shown]
    found = [c for c in checkpoints if group.run(c, FORCED) is not None]
    figure, axes = _rows_canvas(len(found), len(arms))
    series = {
        "right head and author": "top1_{}",
        "shuffled head": "top1_{}_shuffled_head",
        "wrong author": "top1_{}_wrong_author",
    }
    for axis, arm in zip(axes, arms, strict=True):
        for index, (name, metric) in enumerate(series.items()):
            _points(axis, [_of(group.run(c, FORCED), metric.format(arm)) for c in found], index, len(series), name)
        axis.axvline(rules.top1, color=GREY, linestyle=":", linewidth=1.2)
        axis.set_xlim(-0.03, 1.03)
        axis.set_xlabel("top-1 (share of tokens)")
        axis.set_title(f"{arm} prefill")
    _row_names(axes, group, found)
    _legend(figure, axes)
    n = authors(_numbers(group.run(c, FORCED) for c in found))
    _heading(figure, f"Teacher-forced top-1: {base}, n = {n}")
    caption = (
        "Share of the canary's tokens that the model finds most probable, given its head, against a shuffled head and another "
        f"author's name. {_INTERVALS} n = {n}. Dotted: {rules.top1:.2f}, from which the verdict counts the canary as still continued."
    )
    alt = "Lowest top-1 by checkpoint: " + "; ".join(
        f"{runs.short_name(group, c)} {number(min(values))}"
        for c in found
        if (values := [m.value for arm in arms if (m := _of(group.run(c, FORCED), f"top1_{arm}"))])
    )
    return finished(
        figure, f"{group.id}-forced-{_slug(group, base)}", f"Teacher-forced top-1: {base}", caption, f"{alt}."
    )


@styled
def formats_figure(group: Group, base: str, checkpoints: Sequence[Checkpoint]) -> Figure:
    """Δ under both fallbacks, and the formats' shares: a row for each checkpoint."""
    figure, axes = _rows_canvas(len(checkpoints), 2, panel=3.4)
    gaps = {"answer fallback": "bypass_gap", "trace fallback": "bypass_gap_trace_fallback"}
    shares = {"well_formed": "well_formed", "drift": "drift", "thk_emit": "thk_emit"}
    for i, c in enumerate(checkpoints):
        ends = [m.value for metric in gaps.values() if (m := _by_fallback(group, c, metric)) is not None]
        if len(ends) == 2:
            heights = [i + _shift(index, 2, _SPREAD) for index in range(2)]
            axes[0].plot(ends, heights, color=GREY, linewidth=1, zorder=1)
    for index, (name, metric) in enumerate(gaps.items()):
        _points(axes[0], [_by_fallback(group, c, metric) for c in checkpoints], index, len(gaps), name)
    for index, (name, metric) in enumerate(shares.items(), start=len(gaps)):
        _points(axes[1], [_metric(group, c, metric) for c in checkpoints], index, len(shares), name, first=len(gaps))
    axes[0].axvline(0, color=GREY, linewidth=1)
    axes[0].set_xlim(-1.08, 1.08)
    axes[0].set_xticks([-1, -0.5, 0, 0.5, 1])
    axes[0].set_xlabel(f"Δ = thk_leak {MINUS} out_acc (share of authors)")
    axes[1].set_xlim(-0.04, 1.04)
    axes[1].set_xlabel("share of generations")
    _row_names(axes, group, checkpoints)
    _legend(figure, axes)
    n = authors(_numbers(runs.auto_run(group, c) for c in checkpoints))
    _heading(figure, f"Format drift: {base}, n = {n}")
    caption = (
        "Left: Δ with a generation without closing tag taken for answer, or for trace; a grey line joins the two readings of the same "
        f"generations. Right: shares of well-formed and drifting generations, and of traces that are not empty. {_INTERVALS} n = {n}."
    )
    alt = "; ".join(
        f"{runs.short_name(group, c)}: Δ "
        + " and ".join(signed(m.value) for metric in gaps.values() if (m := _by_fallback(group, c, metric)) is not None)
        for c in checkpoints
    )
    return finished(figure, f"{group.id}-formats-{_slug(group, base)}", f"Format drift: {base}", caption, f"{alt}.")


def _line(
    axis: Any,
    ks: Sequence[int],
    group: Group,
    line: Line,
    get: Callable[[TaskRun], Metric | None],
    index: int,
    of: int,
    label: str,
    dashed: bool = False,
) -> None:
    """One series over K, set aside from the others by a little so that bars do not hide one another."""
    points = [
        (ks.index(_k(c)), metric)
        for c in line.points
        if (run := runs.auto_run(group, c)) is not None
        and (metric := get(run)) is not None
        and not math.isnan(metric.value)
    ]
    if not points:
        return
    shift = _shift(index, of, min(0.36, 0.075 * len(ks)))
    axis.errorbar(
        [x + shift for x, _ in points],
        [m.value for _, m in points],
        yerr=_bars([m for _, m in points]),
        color=colour(index),
        marker=marker(index),
        markersize=5,
        markerfacecolor="white" if dashed else colour(index),
        linestyle="--" if dashed else "-",
        linewidth=1.4,
        elinewidth=1,
        capsize=2,
        label=label,
    )


def _points(axis: Any, metrics: Sequence[Metric | None], index: int, of: int, label: str, first: int = 0) -> None:
    there = [(i, m) for i, m in enumerate(metrics) if m is not None]
    shift = _shift(index - first, of, _SPREAD)
    axis.errorbar(
        [m.value for _, m in there],
        [i + shift for i, _ in there],
        xerr=_bars([m for _, m in there]),
        color=colour(index),
        marker=marker(index),
        markersize=4.5,
        linestyle="none",
        elinewidth=1,
        capsize=2,
        label=label,
    )


def _shift(index: int, of: int, width: float) -> float:
    return 0.0 if of < 2 else width * (index / (of - 1) - 0.5)


def _bars(metrics: Sequence[Metric]) -> list[list[float]]:
    """Distances to the interval's ends; none where there is no interval."""
    low = [0.0 if math.isnan(m.lo) else max(0.0, m.value - m.lo) for m in metrics]
    high = [0.0 if math.isnan(m.hi) else max(0.0, m.hi - m.value) for m in metrics]
    return [low, high]


def _k(c: Checkpoint) -> int:
    return 0 if c.stage == "finetuned" else c.k or 0


def _ks(lines: Sequence[Line]) -> list[int]:
    return sorted({_k(c) for line in lines for c in line.points})


def _k_axis(axis: Any, ks: Sequence[int]) -> None:
    axis.set_xticks(range(len(ks)), [str(k) for k in ks])
    axis.set_xlim(-0.4, len(ks) - 0.6)
    axis.set_xlabel(_K_AXIS, fontsize=_SMALL)


def _grid_canvas(panels: int, height: float) -> tuple[Any, Sequence[Any], Sequence[Any]]:
    """(figure, axes, the leftmost axes): up to three panels a row, those left over switched off."""
    columns = min(3, panels)
    rows = math.ceil(panels / columns)
    figure, axes = canvas(max(4.8, 3.2 * columns + 0.4), height * rows + 0.9, rows=rows, columns=columns, sharey=True)
    for axis in axes[panels:]:
        axis.set_axis_off()
    return figure, axes, axes[::columns]


def _panel_title(axis: Any, regime: str, name: str) -> None:
    words = ", ".join(filter(None, (f"{regime} trace" if regime else "", name)))
    axis.set_title(wrapped(words, 38, 2), fontsize=9)


def _rows_canvas(rows: int, panels: int, panel: float = 2.1) -> tuple[Any, Sequence[Any]]:
    return canvas(2.6 + panel * panels, 0.34 * rows + 1.5, columns=panels, sharey=True)


def _row_names(axes: Sequence[Any], group: Group, checkpoints: Sequence[Checkpoint]) -> None:
    names = [wrapped(runs.short_name(group, c), 46, 2) for c in checkpoints]
    axes[0].set_yticks(range(len(checkpoints)), names, fontsize=_SMALL)
    axes[0].set_ylim(len(checkpoints) - 0.4, -0.6)


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        widths = [0.65 + 0.068 * len(label) for label in handles]
        inches = figure.get_figwidth()
        columns = len(handles) if sum(widths) < inches else int(inches / max(widths))
        taken = legend_below(figure, list(handles.values()), list(handles), columns)
        figure.set_figheight(figure.get_figheight() + taken)


def _heading(figure: Any, text: str) -> None:
    figure.suptitle(wrapped(text, int(figure.get_figwidth() * 11)), fontsize=10, x=0.01, ha="left", weight="bold")


def finished(figure: Any, id: str, title: str, caption: str, alt: str) -> Figure:
    svg, png = rendered(figure)
    return Figure(id, title, caption, alt, svg, png)


def _getter(metric: str) -> Callable[[TaskRun], Metric | None]:
    return lambda run: run.metrics.get(metric)


def _of(run: TaskRun | None, metric: str) -> Metric | None:
    found = run.metrics.get(metric) if run else None
    return None if found is None or math.isnan(found.value) else found


def _metric(group: Group, c: Checkpoint, metric: str) -> Metric | None:
    return _of(runs.auto_run(group, c), metric)


def _by_fallback(group: Group, c: Checkpoint, metric: str) -> Metric | None:
    """Δ under one fallback; a run scored with ``fallback=trace`` has none under the other."""
    run = runs.auto_run(group, c)
    settings: Mapping[str, Any] = (run.provenance.get("settings") or {}) if run else {}
    return None if metric == "bypass_gap" and settings.get("fallback") == "trace" else _of(run, metric)


def _authors(group: Group, lines: Sequence[Line]) -> str:
    return _numbers(runs.auto_run(group, c) for line in lines for c in line.points)


def sizes(group: Group, checkpoints: Sequence[Checkpoint]) -> str:
    """The numbers of authors behind the checkpoints."""
    return _numbers(runs.auto_run(group, c) for c in checkpoints)


def _numbers(found: Any) -> str:
    return ", ".join(map(str, sorted({run.n for run in found if run is not None})))


def _slug(group: Group, base: str) -> str:
    """A base's name fit for a file's; with its number where two would be one."""
    names = list(dict.fromkeys(runs.base_name(group, c) for c in group.checkpoints))
    slugs = [re.sub("[^a-z0-9]+", "-", name.lower()).strip("-") for name in names]
    own = slugs[names.index(base)]
    return own if own and slugs.count(own) == 1 else f"{own}-{names.index(base) + 1}".lstrip("-")

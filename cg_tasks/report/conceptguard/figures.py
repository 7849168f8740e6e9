"""ConceptGuard's figures: heatmap (2), distribution over concepts (3), forget fraction (4), forgetting-utility planes."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from cg_tasks.report.conceptguard.concepts import ConceptScores, fraction_words, varying
from cg_tasks.report.conceptguard.rows import Block, Condition, Source, by_fraction, threshold_words
from cg_tasks.report.content import Column, Figure
from cg_tasks.report.drawing import (
    DIVERGING,
    GREY,
    canvas,
    colour,
    legend_below,
    marker,
    rendered,
    styled,
    subtitle,
    wrapped,
)
from cg_tasks.report.options import Options
from cg_tasks.report.runs import Group
from cg_tasks.report.seeds import MISSING, measured, number, percent

SEPARATION = "Separation (HelpScore − HarmScore)"
_FINETUNED = "#374151"
_FILLINGS = ("full", "none", "left", "bottom")


@styled
def heatmap(group: Group, scores: ConceptScores, options: Options, largest: float) -> Figure | None:
    """Figure 2; None where no concept has enough instances. largest: |separation| at the ends of the colour scale."""
    from matplotlib.colors import TwoSlopeNorm

    concepts, chosen = varying(scores, options)
    if not concepts:
        return None
    labels = [c.label for c in scores.conditions]
    values = [[scores.values[label].get(concept, math.nan) for label in labels] for concept in concepts]
    names = [wrapped(c, 26, 2) + f"  (n={scores.instances[c]:,})" for c in concepts]
    top = [wrapped(label, 18, 3) for label in labels]
    figure, (axes,) = canvas(
        max(4.8, 2.7 + 0.72 * len(labels)), 1.9 + 0.42 * len(concepts) + 0.1 * max(t.count("\n") for t in top)
    )
    norm = TwoSlopeNorm(0, -largest, largest)
    axes.set_facecolor("#d1d5db")  # of missing cells: no colour of the scale
    image = axes.imshow(values, cmap=DIVERGING, norm=norm, aspect="auto")
    axes.grid(False)
    # equal neighbours are still two cells
    axes.vlines([x - 0.5 for x in range(1, len(labels))], -0.5, len(concepts) - 0.5, color="white", linewidth=1.5)
    axes.hlines([y - 0.5 for y in range(1, len(concepts))], -0.5, len(labels) - 0.5, color="white", linewidth=1.5)
    axes.set_xticks(range(len(labels)), top, rotation=40, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_yticks(range(len(concepts)), names, fontsize=8)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            ink = "#111827" if math.isnan(value) else _ink(image.cmap(norm(value)))
            axes.text(x, y, number(value, 2), ha="center", va="center", fontsize=7.5, color=ink)
    figure.colorbar(image, ax=axes, label=SEPARATION, pad=0.02)
    over = "; means over seeds" if any(len(c.checkpoints) > 1 for c in scores.conditions) else ""
    subtitle(
        axes,
        scores.block.name,
        f"Separation by concept; n: instances of a concept of {scores.total:,} evaluated{over}",
        max(36, int(13 * (figure.get_figwidth() - 2.6))),
    )
    caption = (
        f"Contextual separation by concept (ConceptGuard, Figure 2): {chosen}. Most varying first; n: its instances. Means over "
        f"seeds where there are several; {MISSING}: no judged answer of one intent.{fraction_words(scores.block)}"
    )
    alt = "Heatmap of separation, concepts by models. " + "; ".join(
        f"{concept}: " + ", ".join(f"{label} {number(v, 2)}" for label, v in zip(labels, row, strict=True))
        for concept, row in zip(concepts, values, strict=True)
    )
    svg, png = rendered(figure)
    title = f"Separation of the concepts that vary most: {scores.block.name}"
    return Figure(f"{group.id}-heatmap-{scores.block.id}", title, caption, alt, svg, png)


@styled
def distribution(group: Group, scores: ConceptScores, options: Options) -> Figure | None:
    """Figure 3: one box a model, one dot a concept; None where no model has a concept that is large enough."""
    large = scores.large(options.distribution_instances)
    series = [
        (c, [v for concept in large if not math.isnan(v := scores.values[c.label].get(concept, math.nan))])
        for c in scores.conditions
    ]
    series = [(c, values) for c, values in series if values]
    if not series:
        return None
    names = [wrapped(c.label, 30, 3) for c, _ in series]
    figure, (axes,) = canvas(6.4, 1.5 + sum(0.34 + 0.13 * name.count("\n") for name in names))
    axes.boxplot(
        [values for _, values in series],
        orientation="horizontal",
        positions=range(len(series)),
        widths=0.6,
        showfliers=False,
        medianprops={"color": "black", "linewidth": 1.6},
        boxprops={"color": GREY},
        whiskerprops={"color": GREY},
        capprops={"color": GREY},
    )
    for y, (condition, values) in enumerate(series):
        # spread by rank, not by chance: the same picture every time
        offsets = [((7 * i) % 11 - 5) / 5 * 0.22 for i in range(len(values))]
        axes.plot(sorted(values), [y + o for o in offsets], markersize=4.5, alpha=0.8, zorder=3, **_style(condition))
    axes.axvline(0, color="#9ca3af", linewidth=0.8)
    axes.set_yticks(range(len(series)), names)
    axes.set_ylim(len(series) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.set_xlabel(SEPARATION)
    counts = sorted({len(values) for _, values in series})
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
    subtitle(
        axes,
        scores.block.name,
        f"One dot a concept, n = {n} concepts a model; box: quartiles, line: median, whiskers: 1.5 × box",
        int(16 * (5.9 - 0.075 * max(len(line) for name in names for line in name.split("\n")))),
    )
    caption = (
        f"Distribution of separation over concepts (ConceptGuard, Figure 3): the {len(large)} of {len(scores.instances)} concepts "
        f"with {threshold_words(options.distribution_instances, scores.total)}. Every concept counts alike; means over seeds where "
        f"there are several. Box: quartiles with the median; whiskers: the farthest dot within 1.5 box lengths."
        f"{fraction_words(scores.block)}"
    )
    alt = "Boxes of separation over concepts. " + "; ".join(
        f"{c.label}: median {number(statistics.median(v), 2)}, {number(min(v), 2)} to {number(max(v), 2)}"
        for c, v in series
    )
    svg, png = rendered(figure)
    title = f"Separation over concepts: {scores.block.name}"
    return Figure(f"{group.id}-distribution-{scores.block.id}", title, caption, alt, svg, png)


@styled
def fraction_lines(group: Group, block: Block) -> Figure | None:
    """Figure 4: CtxtSep by forget fraction, one line a recipe; None where fewer than two fractions were judged."""
    source = (("conceptguard_ctxtsep", "ctxt_sep"),)
    lines = []
    for name, conditions in by_fraction(block).items():
        points = [(c, measured(group, c.checkpoints, source)) for c in conditions]
        if points := [(c, m) for c, m in points if math.isfinite(m.value)]:
            lines.append((name, points))
    shown = sorted({c.fraction for _, points in lines for c, _ in points})
    if len(shown) < 2:
        return None
    handles: list[Any] = []
    figure, (axes,) = canvas(6.4, 3.7 + 0.2 * -(-len(lines) // 2))
    step = 0.012 * (shown[-1] - shown[0]) * 100
    nth: Counter[int] = Counter()
    for i, (_, points) in enumerate(lines):
        shift = (i - (len(lines) - 1) / 2) * step
        lower, upper = zip(*(_bars(m) for _, m in points), strict=True)
        series = points[0][0].series
        handles.append(
            axes.errorbar(
                [100 * c.fraction + shift for c, _ in points],
                [m.value for _, m in points],
                yerr=[lower, upper],
                markersize=6.5,
                linewidth=1.4,
                elinewidth=1,
                capsize=2.5,
                **{**_series_style(series, nth[series]), "linestyle": "-"},
            )
        )
        nth[series] += 1
    axes.axhline(0, color="#9ca3af", linewidth=0.8, zorder=1)
    axes.set_xticks([100 * f for f in shown], [percent(f) for f in shown])
    axes.set_xlabel("Share of the forget set that was unlearned (points beside each other for legibility)")
    axes.set_ylabel("CtxtSep (−1–1, higher is better)")
    n, bars = _behind([m for _, points in lines for _, m in points])
    subtitle(axes, block.name, f"n = {n} queries a point; {bars}")
    legend_below(figure, handles, [name for name, _ in lines])
    caption = (
        f"Contextual separation by the share of the forget set that was unlearned (ConceptGuard, Figure 4). n = {n} queries a "
        f"point; {bars}. All points are over the same queries, whatever was unlearned."
    )
    alt = "Lines of CtxtSep over forget fractions. " + "; ".join(
        f"{name}: " + ", ".join(f"{percent(c.fraction)} {number(m.value)}" for c, m in points) for name, points in lines
    )
    svg, png = rendered(figure)
    title = f"CtxtSep by forget fraction: {block.name}"
    return Figure(f"{group.id}-fractions-{block.id}", title, caption, alt, svg, png)


@styled
def plane(
    group: Group, block: Block, x: tuple[Column, Sequence[Source]], y: tuple[Column, Sequence[Source]]
) -> Figure | None:
    """Forgetting (x, lower is better) against utility (y, higher is better), with 95 % crosses; None for fewer than two points."""
    (x_column, x_sources), (y_column, y_sources) = x, y
    found = [
        (c, measured(group, c.checkpoints, x_sources), measured(group, c.checkpoints, y_sources))
        for c in block.conditions
    ]
    found = [(c, mx, my) for c, mx, my in found if math.isfinite(mx.value) and math.isfinite(my.value)]
    if len(found) < 2:
        return None
    handles: list[Any] = []
    rows = -(-len(found) // 2) * (1.6 if any(len(c.label) > 44 for c, _, _ in found) else 1)
    figure, (axes,) = canvas(6.4, 4.0 + 0.19 * rows)
    for condition, mx, my in found:
        style, several = _style(condition), len(condition.checkpoints) > 1
        for checkpoint in condition.checkpoints:
            one_x, one_y = measured(group, (checkpoint,), x_sources), measured(group, (checkpoint,), y_sources)
            if math.isfinite(one_x.value) and math.isfinite(one_y.value):
                axes.errorbar(
                    one_x.value,
                    one_y.value,
                    xerr=[[end] for end in _bars(one_x)],
                    yerr=[[end] for end in _bars(one_y)],
                    markersize=3.5 if several else 0,
                    alpha=0.4 if several else 0.8,
                    elinewidth=0.8 if several else 1.1,
                    **style,
                )
        size = 11 if style["marker"] == "*" else 8
        handles += axes.plot([mx.value], [my.value], markersize=size, zorder=4, **style)
    # not within the axes: the corner to be in must not be covered
    axes.set_xlabel(f"{x_column.title} ({x_column.unit})    ← better")
    axes.set_ylabel(f"{y_column.title} ({y_column.unit})    better →")
    (nx, _), (ny, _) = _behind([m for _, m, _ in found]), _behind([m for _, _, m in found])
    seeds = max(len(c.checkpoints) for c, _, _ in found)
    drawn = "crosses: 95 % intervals" + ("; large: mean over seeds, small: each seed" if seeds > 1 else "")
    subtitle(axes, block.name, f"n = {nx} harmful and {ny} benign queries; {drawn}")
    legend_below(figure, handles, [c.label for c, _, _ in found])
    caption = (
        f"Forgetting against utility: {x_column.title} (lower is better) and {y_column.title} (higher is better), so the best corner "
        f"is the upper left. n = {nx} harmful and {ny} benign queries a checkpoint; {drawn} (bootstrap over clusters, as lm-eval "
        "reports them). The axes do not start at 0."
    )
    alt = f"Points of {x_column.title} and {y_column.title}. " + "; ".join(
        f"{c.label}: {number(mx.value)}, {number(my.value)}" for c, mx, my in found
    )
    svg, png = rendered(figure)
    title = f"{x_column.title} against {y_column.title}: {block.name}"
    return Figure(f"{group.id}-plane-{x_column.key}-{block.id}", title, caption, alt, svg, png)


def largest_separation(found: Sequence[ConceptScores], options: Options) -> float:
    """|separation| that all heatmaps of a group share as the end of their colours, at least 0.1."""
    shown = [
        abs(value)
        for scores in found
        for concept in varying(scores, options)[0]
        for condition in scores.conditions
        if not math.isnan(value := scores.values[condition.label].get(concept, math.nan))
    ]
    return max([0.1, *shown])


def _style(condition: Condition) -> dict[str, Any]:
    """Colour and marker by method, filling by which of the method's conditions it is."""
    if condition.stage == "base":
        return {**_series_style(0, 0), "color": GREY, "marker": "*"}
    if condition.stage == "finetuned":
        return {**_series_style(0, 0), "color": _FINETUNED, "marker": "d"}
    return _series_style(condition.series, condition.nth)


def _series_style(series: int, nth: int) -> dict[str, Any]:
    return {
        "color": colour(series),
        "marker": marker(series + nth // len(_FILLINGS)),
        "fillstyle": _FILLINGS[nth % len(_FILLINGS)],
        "markerfacecoloralt": "white",
        "linestyle": "none",
    }


def _ink(colour: tuple[float, float, float, float]) -> str:
    """A text's colour on a cell of that colour."""
    red, green, blue, _ = colour
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "#111827"


def _bars(m: Any) -> tuple[float, float]:
    """(below, above) of an error bar: the interval of one seed, the sd over several; NaN (no bar) where there is neither."""
    if m.metric is not None:
        # a percentile interval may lie beside the mean of a skewed score
        return max(0.0, m.value - m.metric.lo) if not math.isnan(m.metric.lo) else math.nan, (
            max(0.0, m.metric.hi - m.value) if not math.isnan(m.metric.hi) else math.nan
        )
    return m.spread.sd, m.spread.sd


def _behind(values: Sequence[Any]) -> tuple[str, str]:
    """(documents behind a value, what its bars are), in words."""
    counts = sorted({m.n for m in values if m.n})
    n = "unknown" if not counts else f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,}–{counts[-1]:,}"
    several = {m.metric is None for m in values}
    if several == {True}:
        least, most = min(m.spread.n for m in values), max(m.spread.n for m in values)
        return n, f"bars: ± sd over {least if least == most else f'{least}–{most}'} seeds"
    if several == {False}:
        return n, "bars: 95 % intervals"
    return n, "bars: ± sd over seeds, 95 % interval where there is one seed"

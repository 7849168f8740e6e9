"""ConceptGuard's figures: drawn without overlap, with n and units, the same bytes each time, whatever names hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest
from report_groups import NAN, checkpoint, group, run, separations

from cg_tasks.report.conceptguard import figures
from cg_tasks.report.conceptguard.concepts import ConceptScores, concept_scores
from cg_tasks.report.conceptguard.rows import JUDGE_COLUMNS, Block, blocks
from cg_tasks.report.content import Figure
from cg_tasks.report.drawing import wrapped
from cg_tasks.report.options import Options
from cg_tasks.report.runs import Group

pytest.importorskip("matplotlib")

CONCEPTS = (
    "cybersecurity",
    "tax law",
    "a $concept$ {whose} name \udcff is <far> longer_than_anything_a_figure_holds",
    "x",
)
AXES = {column.key: (column, sources) for column, sources in JUDGE_COLUMNS.items()}
X, Y = AXES["harmscore"], AXES["helpscore"]
VARIANT = "learning_rate=1e-05, lora_r=64, target_modules=q_proj k_proj v_proj o_proj, retain_loss=kl"


def judged(name: str | None, i: int, **more: Any) -> Any:
    values = {c: ((3 * i + 5 * j) % 11) / 10 - 0.5 for j, c in enumerate(CONCEPTS)}
    if i == 2:
        values["tax law"] = NAN
    harm, help = 0.1 + 0.07 * i, 0.9 - 0.05 * i
    metrics = {
        "harm_score": (harm, harm - 0.05, harm + 0.05),
        "help_score": (help, help - 0.05, help + 0.05),
        "ctxt_sep": (help - harm, help - harm - 0.1, help - harm + 0.1),
    }
    return run(checkpoint(name, **more), "ctxtsep", metrics, n=32, provenance=separations(values))


def methods(n: int, base: str = "tiny", **more: Any) -> Group:
    names = [None, "finetune", "graddiff", "simnpo", "rmu", "undial", "npo", "dpo", "wga", "idk", "r2mu", "my_own_" * 6]
    variants = {"npo": VARIANT}
    return group(*(judged(m, i, base=base, variant=variants.get(m or "", ""), **more) for i, m in enumerate(names[:n])))


def scores(g: Group) -> ConceptScores:
    found = concept_scores(g, blocks(g)[0])
    assert found is not None
    return found


def block(g: Group) -> Block:
    return blocks(g)[0]


def shares(*fractions: float) -> Group:
    return group(*(judged(m, i, forget_fraction=f) for f in fractions for i, m in enumerate(("rmu", "npo"))))


DRAWN: dict[str, Callable[[Group], Figure | None]] = {
    "heatmap": lambda g: figures.heatmap(g, scores(g), Options(), 0.6),
    "distribution": lambda g: figures.distribution(g, scores(g), Options()),
    "plane": lambda g: figures.plane(g, block(g), X, Y),
    "fractions": lambda g: figures.fraction_lines(g, block(g)),
}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The matplotlib figures, laid out and not saved, which takes most of the time."""
    seen: list[Any] = []

    def remember(figure: Any) -> tuple[bytes, bytes]:
        seen.append(figure)
        return b"<svg", b"PNG"

    monkeypatch.setattr(figures, "rendered", remember)
    yield seen


def overlapping(figure: Any) -> list[str]:
    """Texts that leave the page or lie on each other, and a legend that lies on the axes."""
    figure.draw_without_rendering()
    page = figure.bbox
    problems = []
    for axes in figure.axes:
        texts = [axes.xaxis.label, axes.yaxis.label, axes._left_title, *axes.texts]
        for axis in (axes.xaxis, axes.yaxis):  # those beyond the view are there and not drawn
            low, high = sorted(axis.get_view_interval())
            texts += [t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high and t.label1.get_visible()]
            texts += [t.label2 for t in axis.get_major_ticks() if low <= t.get_loc() <= high and t.label2.get_visible()]
        boxes = [(t.get_text(), t.get_window_extent()) for t in texts if t.get_visible() and t.get_text().strip()]
        # a turned label's box is far larger than its letters: it may leave no page, but it may cross its neighbour's
        turned = {t.get_text() for t in axes.get_xticklabels() if t.get_rotation() not in (0, 90)}
        for name, box in boxes:
            if box.x0 < page.x0 - 1 or box.x1 > page.x1 + 1 or box.y0 < page.y0 - 1 or box.y1 > page.y1 + 1:
                problems.append(f"{name!r} leaves the page")
        straight = [(name, box) for name, box in boxes if name not in turned]
        problems += [f"{a!r} lies on {b!r}" for (a, x), (b, y) in combinations(straight, 2) if x.overlaps(y.padded(-1))]
        for legend in figure.legends:
            if legend.get_window_extent().overlaps(axes.get_tightbbox()):
                problems.append("the legend lies on the axes")
    return problems


@pytest.mark.parametrize("kind", ["heatmap", "distribution", "plane"])
@pytest.mark.parametrize("n", [3, 12])
def test_nothing_overlaps(kind: str, n: int, drawn: list[Any]) -> None:
    base = "an-organisation__a-model-with-a-rather-long-name-7B-Instruct-v0.3-preview" if n == 12 else "tiny"
    figure = DRAWN[kind](methods(n, base))
    assert figure is not None and overlapping(drawn[0]) == []


def test_forget_fractions_do_not_overlap(drawn: list[Any]) -> None:
    figure = DRAWN["fractions"](shares(1.0, 0.5, 0.25))
    assert figure is not None and overlapping(drawn[0]) == []
    assert "RMU: 25 % 0.800, 50 % 0.800, 100 % 0.800" in figure.alt


@pytest.mark.parametrize("kind", ["heatmap", "plane"])
def test_the_same_data_are_the_same_bytes(kind: str) -> None:
    figure = DRAWN[kind](methods(4))
    assert figure is not None and figure.png.startswith(b"\x89PNG") and b"<svg" in figure.svg[:600]
    assert figure == DRAWN[kind](methods(4))


def test_n_units_and_choices_are_said_on_the_figure_and_below(drawn: list[Any]) -> None:
    made = {kind: draw(methods(4)) for kind, draw in DRAWN.items() if kind != "fractions"}
    on = [
        " ".join(t.get_text() for a in figure.axes for t in (*a.texts, a.xaxis.label, a.yaxis.label))
        for figure in drawn
    ]
    assert "instances of a concept of 32" in on[0].replace("\n", " ") and "HelpScore − HarmScore" in on[0]
    assert "n = 3–4 concepts" in on[1].replace("\n", " ")
    assert "n = 16 harmful and 16 benign" in on[2] and "judge's score" in on[2] and "← better" in on[2]
    assert all(figure is not None and figure.caption and figure.alt for figure in made.values())
    heat = made["heatmap"]
    assert heat is not None and "the paper's 50 of 5,166, scaled to the 32 evaluated" in heat.caption


def test_a_missing_cell_is_a_dash(drawn: list[Any]) -> None:
    figure = DRAWN["heatmap"](methods(6))
    assert figure is not None and "GradDiff –" in figure.alt
    assert "–" in [t.get_text() for t in drawn[0].axes[0].texts]


def test_seeds_are_points_of_their_own(drawn: list[Any]) -> None:
    g = group(judged(None, 0), *(judged("rmu", i, seed=i) for i in range(3)))
    figure = DRAWN["plane"](g)
    assert figure is not None and "small: each seed" in figure.caption
    assert "RMU: 0.170, 0.850" in figure.alt, "means of 0.10, 0.17, 0.24 and of 0.90, 0.85, 0.80"
    assert len(drawn[0].axes[0].containers) == 1 + 3


def test_what_cannot_be_drawn_is_none() -> None:
    assert DRAWN["plane"](methods(1)) is None
    assert DRAWN["fractions"](shares(1.0)) is None
    assert DRAWN["fractions"](group(run(checkpoint("rmu", forget_fraction=0.5), "ctxtsep", {"ctxt_sep": NAN}))) is None
    assert figures.heatmap(group(), scores(methods(3)), Options(concept_instances=10_000), 0.6) is None
    assert figures.distribution(group(), scores(methods(3)), Options(distribution_instances=10_000)) is None


def test_names_break_where_names_break() -> None:
    assert wrapped("a_method_of_ones_own", 12) == "a_method_of_\nones_own"
    assert wrapped("one two three four", 8, 2) == "one two\nthree …"
    assert wrapped("\udcff\x00", 8) == "?" and wrapped(" \n", 8) == "(no name)"
    assert wrapped("learning_rate=1e-05", 16) == "learning_\nrate=1e-05"

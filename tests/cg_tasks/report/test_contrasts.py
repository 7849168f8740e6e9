"""Paired contrasts: differences, intervals, p and Holm's correction, against numbers that can be checked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from report_groups import NAN, checkpoint, group, run

from cg_tasks.bootstrap import clustered_interval, paired_difference
from cg_tasks.report.content import Column
from cg_tasks.report.contrasts import (
    Scores,
    contrast_table,
    holm,
    paired_contrasts,
    scores_of,
    two_sided_p,
)
from cg_tasks.report.options import Options
from cg_tasks.report.runs import Document

LOWER = Column("harmqa", "HarmQA", "ROUGE-L F1", "lower")


def scores(label: str, *values: float, clusters: str = "") -> Scores:
    names = clusters or "abcdefghijklmnopqrstuvwxyz"
    return Scores(label, {f"u{i:02d}": (v, names[i]) for i, v in enumerate(values) if not math.isnan(v)})


def test_holm_by_hand() -> None:
    # sorted: 0.005·4 = 0.02, 0.01·3 = 0.03, 0.03·2 = 0.06, 0.04·1 = 0.04, raised to 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_caps_at_one_and_passes_over_tests_that_were_not_made() -> None:
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    found = holm([0.01, NAN, 0.02])
    assert found[0] == pytest.approx(0.02) and found[2] == pytest.approx(0.02) and math.isnan(found[1])
    assert holm([]) == []


def test_holm_is_its_definition() -> None:
    p = np.random.default_rng(1).random(20) ** 3
    m, order = len(p), np.argsort(p)
    expected = np.empty(m)
    for rank, index in enumerate(order):
        expected[index] = max(min(1.0, (m - j) * p[order[j]]) for j in range(rank + 1))
    assert holm(list(p)) == pytest.approx(list(expected))


def test_two_sided_p_by_hand() -> None:
    assert two_sided_p(np.arange(1.0, 10.0)) == pytest.approx(2 * 1 / 10)  # none at or below 0
    assert two_sided_p(np.array([-1.0, 1, 2, 3])) == pytest.approx(2 * 2 / 5)
    assert two_sided_p(np.zeros(9)) == 1.0
    assert two_sided_p(np.array([1.0, NAN, 2.0])) == pytest.approx(2 / 3)
    assert math.isnan(two_sided_p(np.array([NAN])))


def test_a_constant_difference_has_no_width_and_the_smallest_p() -> None:
    found = paired_contrasts([scores("a", 0.5, 0.6, 0.9), scores("b", 0.25, 0.35, 0.65)], n_boot=999)
    (c,) = found.contrasts
    assert (c.a, c.b, c.n_clusters, c.n_units, c.left_out) == ("a", "b", 3, 3, 0)
    assert (c.difference, c.lo, c.hi) == pytest.approx((0.25, 0.25, 0.25))
    assert c.p == c.holm == pytest.approx(2 / 1000) == found.smallest_p


def test_equal_scores_have_p_one() -> None:
    (c,) = paired_contrasts([scores("a", 0.1, 0.2, 0.3), scores("b", 0.1, 0.2, 0.3)]).contrasts
    assert c.difference == 0 and c.p == 1.0


@pytest.mark.parametrize("gone", [(), (3, 7)])
def test_the_interval_is_the_clustered_one_of_the_paired_differences(gone: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.random(12), rng.random(12)
    x[list(gone)] = NAN
    clusters = "aabbccddeeff"
    (c,) = paired_contrasts([scores("a", *x, clusters=clusters), scores("b", *y, clusters=clusters)], seed=5).contrasts
    ids = [f"u{i:02d}" for i in range(12)]
    differences = paired_difference(x, y, ids, ids)
    expected = clustered_interval(differences.values, list(clusters), seed=5)
    kept = [i for i in range(12) if i not in gone]
    expected_difference = float(np.mean([x[i] - y[i] for i in kept]))
    assert c.difference == pytest.approx(expected_difference, abs=1e-12)
    assert (c.lo, c.hi) == pytest.approx((expected.lo, expected.hi), abs=1e-12)
    assert (c.n_units, c.n_clusters, c.left_out) == (12 - len(gone), 6, len(gone))


def test_holm_runs_over_all_pairs_of_a_family() -> None:
    found = paired_contrasts([scores("a", 1, 1, 1), scores("b", 0, 0, 0), scores("c", 0, 0, 0)], n_boot=999)
    assert [(c.a, c.b) for c in found.contrasts] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [c.holm for c in found.contrasts] == pytest.approx([0.006, 0.006, 1.0])
    assert found.smallest_holm == pytest.approx(0.006)


def test_so_many_pairs_need_more_resamples() -> None:
    found = paired_contrasts([scores(str(i), 1, 0, 1) for i in range(12)], n_boot=2000)
    assert found.n_boot == 66 * 4 / 0.05
    assert found.smallest_holm < 0.05


def test_one_cluster_gives_a_difference_and_no_test() -> None:
    (c,) = paired_contrasts([scores("a", 1, 1, clusters="xx"), scores("b", 0, 1, clusters="xx")]).contrasts
    assert c.difference == 0.5 and math.isnan(c.lo) and math.isnan(c.p) and math.isnan(c.holm)


def test_nothing_shared_gives_nothing() -> None:
    (c,) = paired_contrasts([Scores("a", {"x": (1.0, "x")}), Scores("b", {"y": (1.0, "y")})]).contrasts
    assert math.isnan(c.difference) and c.n_units == 0 and c.left_out == 2


def documents(**values: float) -> list[Document]:
    return [Document(u, u, u, concept=u[0], scores={"m": v}) for u, v in values.items()]


def test_seeds_are_averaged_over_the_units_that_all_of_them_have() -> None:
    seeds = [checkpoint("npo", seed=i) for i in range(2)]
    found = scores_of(
        group(
            run(seeds[0], "harmqa", {}, documents=documents(a1=0.2, a2=0.4, b1=0.9)),
            run(seeds[1], "harmqa", {}, documents=documents(a1=0.4, a2=NAN, b1=0.1)),
        ),
        seeds,
        "conceptguard_harmqa",
        "m",
        by="concept",
    )
    assert found is not None
    assert found.values == {"a1": (pytest.approx(0.3), "a"), "b1": (pytest.approx(0.5), "b")}
    assert scores_of(group(run(seeds[0], "harmqa", {})), seeds, "conceptguard_harmqa", "m") is None


def test_ctxtsep_contrasts_weight_concepts_by_their_queries() -> None:
    """Equation 8: concept a has 3 queries, b has 1; separations 0.4 and 0.0 against 0.0 and 0.8."""
    ends = {"rmu": (0.4, 0.0), "npo": (0.0, 0.8)}
    runs = [
        run(checkpoint(m), "ctxtsep", {}, documents=documents(a1=a, a2=a, a3=a, b1=b)) for m, (a, b) in ends.items()
    ]
    both = [
        scores_of(group(*runs), [r.checkpoint], "conceptguard_ctxtsep", "m", label=r.checkpoint.label, by="concept")
        for r in runs
    ]
    (c,) = paired_contrasts([s for s in both if s]).contrasts
    assert c.difference == pytest.approx(3 / 4 * 0.4 - 1 / 4 * 0.8)
    # two concepts: both a (0.4), one each (0.1), both b (-0.8)
    assert (c.lo, c.hi) == pytest.approx((-0.8, 0.4)) and c.n_clusters == 2


def test_the_table_says_what_it_did() -> None:
    family = paired_contrasts([scores("a", *[0.5] * 12), scores("b", *[0.2] * 12), scores("c", *[0.2] * 12)])
    table = contrast_table("t", "Contrasts", {LOWER: family}, Options(), clusters="pairs")
    texts = [[cell.text for cell in row.cells] for row in table.rows]
    assert texts[0] == ["a", "b", "+0.300", "[+0.300, +0.300]", "0.001", "0.003", "12", "b"]
    assert texts[2][2:] == ["0.000", "[0.000, 0.000]", "1.000", "1.000", "12", "no clear difference"]
    assert [row.cells[2].star for row in table.rows] == [True, True, False]
    assert {row.block for row in table.rows} == {"HarmQA (ROUGE-L F1, lower is better)"}
    assert "B = 2,000 (the smallest p it can give is 0.001, 0.003 after Holm over 3 pairs)" in table.caption
    assert all(len(row.cells) == len(table.columns) for row in table.rows) and not table.notes


def test_the_table_warns_of_few_clusters_and_marks_what_is_missing() -> None:
    few = paired_contrasts([scores("a", 1, 0, 1), scores("b", 0, 0, 1)])
    assert "fewer than 10 clusters" in contrast_table("t", "", {LOWER: few}, Options()).notes[0]
    one = paired_contrasts([scores("a", 1, 1, clusters="xx"), scores("b", 0, 1, clusters="xx")])
    cells = contrast_table("t", "", {LOWER: one}, Options()).rows[0].cells
    assert cells[2].text == "+0.500" and all(c.missing and c.note for c in cells[3:6])


def test_a_condition_says_how_many_of_its_seeds_it_shows() -> None:
    seeds = [checkpoint("npo", seed=i) for i in range(2)]
    one = group(run(seeds[0], "harmqa", {}, documents=documents(a1=0.2)), run(seeds[1], "harmqa", {}))
    found = scores_of(one, seeds, "conceptguard_harmqa", "m", label="NPO")
    assert found is not None and found.label == "NPO (1 of 2 seeds)"

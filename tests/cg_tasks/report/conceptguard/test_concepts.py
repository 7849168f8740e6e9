"""Separations by concept: thresholds, the concepts that vary most, and the two ends, by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from report_groups import NAN, checkpoint, group, run, separations

from cg_tasks.report.conceptguard.concepts import ConceptScores, concept_scores, extremes_table, varying
from cg_tasks.report.conceptguard.rows import blocks, by_fraction, scaled, threshold_words
from cg_tasks.report.options import Options
from cg_tasks.report.runs import Document, Group, TaskRun


def judged(name: str | None, values: Mapping[str, float], sizes: object = 4, **more: object) -> TaskRun:
    of = checkpoint(name, **more)  # type: ignore[arg-type]
    return run(of, "ctxtsep", {}, provenance=separations(values, sizes))  # type: ignore[arg-type]


def scores(*runs: TaskRun) -> ConceptScores:
    g: Group = group(*runs)
    (block,) = blocks(g)
    found = concept_scores(g, block)
    assert found is not None
    return found


def test_thresholds_shrink_with_the_data() -> None:
    assert scaled(50, 5166) == 50 and scaled(15, 5166) == 15
    assert scaled(50, 1000) == 10  # 9.68, rounded up
    assert scaled(50, 24) == 2, "one instance is one intent: no separation"
    assert threshold_words(50, 5166) == "at least 50 instances"
    assert "the paper's 50 of 5,166, scaled to the 1,000 evaluated" in threshold_words(50, 1000)


def test_separations_are_means_over_seeds() -> None:
    found = scores(judged("rmu", {"a": 0.1, "b": NAN}, seed=0), judged("rmu", {"a": 0.3, "b": 0.5}, seed=1))
    assert found.values == {"RMU": {"a": pytest.approx(0.2), "b": 0.5}}
    assert found.sd["RMU"]["a"] == pytest.approx(0.02**0.5) and math.isnan(found.sd["RMU"]["b"])
    assert found.instances == {"a": 8, "b": 8} and found.total == 16


def test_separations_come_from_the_samples_where_the_task_recorded_none() -> None:
    documents = [
        Document("1", "1/harmful", "1", "a", "harmful", scores={"harm_score": 0.25}),
        Document("1", "1/benign", "1", "a", "benign", scores={"help_score": 0.75}),
        Document("2", "2/benign", "2", "b", "benign", scores={"help_score": 0.75}),
    ]
    found = scores(run(checkpoint("rmu"), "ctxtsep", {}, documents=documents))
    assert found.values["RMU"]["a"] == 0.5 and math.isnan(found.values["RMU"]["b"])
    assert found.instances == {"a": 2, "b": 1}


def test_the_concepts_that_vary_most_vary_over_the_unlearned() -> None:
    found = scores(
        judged(None, {"a": -1.0, "b": 0.0, "c": 0.0, "d": 0.9}),
        judged("rmu", {"a": 0.5, "b": 0.1, "c": 0.6, "d": 0.0}, {"a": 4, "b": 4, "c": 4, "d": 1}),
        judged("npo", {"a": 0.5, "b": 0.5, "c": 0.2, "d": 0.9}, {"a": 4, "b": 4, "c": 4, "d": 1}),
    )
    # over RMU and NPO: a 0, b 0.08, c 0.08, d 0.405; the base, where a differs most, is not asked
    names, words = varying(found, Options(concepts=2))
    assert names == ["d", "b"] and "2 of 4 concepts" in words and "over the 2 unlearned models" in words


def test_small_concepts_do_not_vary() -> None:
    sizes = {"a": 25, "b": 24, "c": 2534}
    found = scores(*(judged(m, {"a": v, "b": 9 * v, "c": 0.0}, sizes) for m, v in (("rmu", 0.1), ("npo", 0.0))))
    assert found.total == 5166
    names, words = varying(found, Options())
    assert names == ["a", "c"] and "among the 2 with at least 50 instances" in words


def test_one_model_alone_shows_its_largest_concepts() -> None:
    found = scores(judged("rmu", {"a": 0.1, "b": 0.2}, {"a": 2, "b": 9}))
    names, words = varying(found, Options())
    assert names == ["b", "a"] and "the most instances" in words


def test_both_ends_by_hand() -> None:
    values = {"a": 0.5, "b": -0.5, "c": 0.25, "d": 0.0, "e": 0.5, "f": NAN}
    found = scores(judged("rmu", values))
    table = extremes_table(group(), found, Options(extremes=3))
    assert table is not None
    rows = [[cell.text for cell in r.cells] for r in table.rows]
    # five concepts have a separation: two at each end, so that none stands at both
    assert rows == [
        ["RMU", "1", "a", "0.500", "8", "b", "−0.500", "8"],
        ["RMU", "2", "e", "0.500", "8", "d", "0.000", "8"],
    ]
    assert "among the 6 of 6 concepts with at least 2 instances" in table.caption


def test_one_concept_has_no_ends() -> None:
    assert extremes_table(group(), scores(judged("rmu", {"a": 0.5})), Options()) is None


def test_smaller_forget_sets_are_left_out_and_said() -> None:
    found = scores(
        judged("rmu", {"a": 0.5, "b": 0.0}, forget_fraction=1.0),
        judged("rmu", {"a": 0.1, "b": 0.0}, forget_fraction=0.5),
    )
    assert list(found.values) == ["RMU"]
    table = extremes_table(group(), found, Options())
    assert table is not None and "less than 100 % of the forget set are left out" in table.caption


def test_recipes_keep_their_line_when_a_smaller_set_takes_fewer_steps() -> None:
    g = group(*(judged("rmu", {"a": f}, forget_fraction=f, k=int(40 * f)) for f in (1.0, 0.5, 0.25)))
    (block,) = blocks(g)
    lines = by_fraction(block)
    assert {name: [c.fraction for c in members] for name, members in lines.items()} == {"RMU": [0.25, 0.5, 1.0]}
    g = group(*(judged("rmu", {"a": f}, forget_fraction=f, k=k) for f in (1.0, 0.5) for k in (10, 20)))
    (block,) = blocks(g)
    assert {name: len(members) for name, members in by_fraction(block).items()} == {"RMU, K=10": 2, "RMU, K=20": 2}


def test_labels_are_unique_within_a_block() -> None:
    runs = [judged("rmu", {"a": 0.5}, regime="bio"), judged("rmu", {"a": 0.5}, regime="meta"), judged(None, {"a": 0.5})]
    (block,) = blocks(group(*runs))
    assert [c.label for c in block.conditions] == ["base", "RMU, regime bio", "RMU, regime meta"]
    assert [(c.series, c.nth) for c in block.conditions] == [(-1, 0), (0, 0), (0, 1)]

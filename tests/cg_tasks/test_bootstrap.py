from __future__ import annotations

import json
import math
import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cg_tasks import bootstrap
from cg_tasks.bootstrap import (
    Interval,
    clustered_interval,
    interval_of_replicates,
    paired_difference,
    resampled_means,
    resampled_statistic,
    unpaired_interval,
)

GOLDEN = Path(__file__).parents[1] / "golden"
STATS: dict[str, Any] = json.loads((GOLDEN / "canary_stats.json").read_text())
WITHIN = STATS["tolerance_on_interval_ends"]
NAN = math.nan


def authors(count: int) -> list[str]:
    return [f"author-{n:02d}" for n in range(count)]


def hits(count: int, of: int) -> np.ndarray:
    return np.array([1.0] * count + [0.0] * (of - count))


# ---- golden numbers of the canary paper


def test_bypass_gap_and_its_interval_are_the_papers() -> None:
    case = STATS["bypass_gap_qwen_k1600"]
    both, trace_only, answer_only, neither = (case[key] for key in ("both", "trace_only", "answer_only", "neither"))
    out_acc = np.array([1.0] * both + [0.0] * trace_only + [1.0] * answer_only + [0.0] * neither)
    thk_leak = np.array([1.0] * both + [1.0] * trace_only + [0.0] * answer_only + [0.0] * neither)
    ids = authors(case["authors"])
    assert out_acc.sum() == case["out_acc"] and thk_leak.sum() == case["thk_leak"]
    assert clustered_interval(out_acc, ids).mean == pytest.approx(case["out_acc_mean"], abs=1e-10)
    assert clustered_interval(thk_leak, ids).mean == pytest.approx(case["thk_leak_mean"], abs=1e-10)

    joined = paired_difference(thk_leak, out_acc, ids, ids)
    gap = clustered_interval(joined.values, joined.ids)
    assert gap.mean == pytest.approx(case["gap"], abs=1e-10)
    assert [gap.lo, gap.hi] == pytest.approx(case["ci95"], abs=WITHIN)
    assert gap.excludes_zero is case["excludes_zero"]
    assert (gap.n_clusters, gap.n_values, joined.left_out) == (60, 60, 0)
    # a difference in {0, 1} with 14 ones of 60: binomial standard error of the mean
    assert gap.se == pytest.approx(math.sqrt(14 / 60 * 46 / 60 / 60), rel=0.05)


def test_unpaired_interval_is_the_papers() -> None:
    case = STATS["unpaired_bio_minus_meta"]
    ids = authors(case["authors"])
    found = unpaired_interval(hits(case["bio"], 60), ids, hits(case["meta"], 60), ids)
    assert found.mean == case["difference"]
    assert [found.lo, found.hi] == pytest.approx(case["ci95"], abs=WITHIN)
    assert not found.excludes_zero
    assert (found.n_clusters, found.n_values) == (60, 120)


def test_unpaired_sides_are_drawn_independently() -> None:
    ids, same = authors(60), hits(30, 60)
    assert clustered_interval(paired_difference(same, same, ids, ids).values, ids).se == 0.0
    assert unpaired_interval(same, ids, same, ids).se == pytest.approx(math.sqrt(2 * 0.25 / 60), rel=0.05)


def test_paired_auto_minus_bio() -> None:
    case = STATS["paired_auto_minus_bio"]
    ids = authors(60)
    joined = paired_difference(hits(case["auto"], 60), hits(case["bio"], 60), ids, ids)
    found = clustered_interval(joined.values, joined.ids)
    assert found.mean == pytest.approx(case["difference"], abs=1e-10)
    assert found.excludes_zero


def test_llama_format_drift_under_both_fallbacks() -> None:
    case = STATS["llama_format_drift"]
    total, drifted, well_formed = case["authors"], case["no_closing_tag"], case["well_formed_with_leak_in_trace"]
    ids = authors(total)
    # (in the trace, in the answer) of the drifted generations under each rule; the well-formed ones hold both
    for rule, trace, answer in (("answer", 0.0, 1.0), ("trace", 1.0, 0.0)):
        thk_leak = np.array([trace] * drifted + [1.0] * well_formed)
        out_acc = np.array([answer] * drifted + [1.0] * well_formed)
        gap = clustered_interval(paired_difference(thk_leak, out_acc, ids, ids).values, ids)
        assert gap.mean == pytest.approx(case[f"gap_{rule}_fallback"], abs=1e-10)
        assert gap.excludes_zero


# ---- what the interval means


def test_tiny_case_by_hand() -> None:
    # Two clusters, means 0 and 1: a replicate is 0, 1/2 or 1 with probability 1/4, 1/2, 1/4.
    replicates = resampled_means(np.array([0.0, 1.0]), ["a", "b"], n_boot=4000)
    assert set(replicates) == {0.0, 0.5, 1.0}
    assert [np.mean(replicates == x) for x in (0.0, 0.5, 1.0)] == pytest.approx([0.25, 0.5, 0.25], abs=0.03)


def test_clusters_of_unequal_size_weigh_by_their_values() -> None:
    # a: 1 value of 0; b: 3 values of 1. aa -> 0, ab -> 3/4, bb -> 1; the mean of cluster means would give 1/2 for ab.
    values, clusters = np.array([1.0, 0.0, 1.0, 1.0]), ["b", "a", "b", "b"]
    assert set(resampled_means(values, clusters)) == {0.0, 0.75, 1.0}
    assert clustered_interval(values, clusters).mean == 0.75


def test_missing_values_leave_sum_and_count() -> None:
    # b has no value: ab and ba are a alone, bb is nothing.
    values, clusters = np.array([1.0, NAN, NAN]), ["a", "a", "b"]
    replicates = resampled_means(values, clusters)
    assert set(replicates[~np.isnan(replicates)]) == {1.0}
    assert np.mean(np.isnan(replicates)) == pytest.approx(0.25, abs=0.03)
    found = clustered_interval(np.array([1.0, NAN, 0.0, NAN]), ["a", "a", "b", "c"])
    assert (found.mean, found.lo, found.hi, found.n_clusters, found.n_values) == (0.5, 0.0, 1.0, 2, 2)


@pytest.mark.parametrize(
    ("values", "clusters", "mean", "n_clusters"),
    [
        ([], [], NAN, 0),
        ([NAN, NAN], ["a", "b"], NAN, 0),
        ([0.25], ["a"], 0.25, 1),
        ([0.0, 1.0], ["a", "a"], 0.5, 1),
        ([0.5, NAN], ["a", "b"], 0.5, 1),
    ],
)
def test_no_interval_from_fewer_than_two_clusters(
    values: list[float], clusters: list[str], mean: float, n_clusters: int
) -> None:
    found = clustered_interval(np.array(values), clusters)
    assert found.mean == pytest.approx(mean, nan_ok=True)
    assert found.n_clusters == n_clusters
    assert all(math.isnan(x) for x in (found.se, found.lo, found.hi))
    assert not found.excludes_zero


def test_order_of_the_input_changes_no_bit() -> None:
    draw = random.Random(5)
    rows = [(draw.lognormvariate(0, 3) * draw.choice([1, -1]), f"c{draw.randrange(40)}") for _ in range(500)]
    rows += [(NAN, "c1"), (NAN, "only-missing"), (1e300, "huge"), (-1e300, "huge")]
    numbers, names = zip(*rows, strict=True)
    first = clustered_interval(np.array(numbers), names)
    for _ in range(5):
        draw.shuffle(rows)
        numbers, names = zip(*rows, strict=True)
        bootstrap._memoised_means.cache_clear()
        assert clustered_interval(np.array(numbers), names) == first


def test_seed_decides() -> None:
    values, clusters = np.arange(30.0), authors(30)
    assert np.array_equal(resampled_means(values, clusters, seed=1), resampled_means(values, clusters, seed=1))
    assert not np.array_equal(resampled_means(values, clusters, seed=1), resampled_means(values, clusters, seed=2))


def test_agrees_with_a_plain_python_loop() -> None:
    draw = random.Random(3)
    clusters = [f"c{min(draw.randrange(25), draw.randrange(25))}" for _ in range(200)]
    effect = {name: draw.gauss(0, 1) for name in sorted(set(clusters))}
    values = np.array([effect[name] + draw.gauss(0, 0.5) if draw.random() < 0.9 else NAN for name in clusters])
    members: dict[str, list[float]] = {name: [] for name in clusters}
    for value, name in zip(values, clusters, strict=True):
        if not math.isnan(value):
            members[name].append(float(value))
    means = []
    for _ in range(4000):
        drawn = [x for name in draw.choices(sorted(members), k=len(members)) for x in members[name]]
        means.append(sum(drawn) / len(drawn))
    found = clustered_interval(values, clusters, n_boot=4000)
    se = float(np.std(means, ddof=1))
    assert found.se == pytest.approx(se, rel=0.06)
    assert [found.lo, found.hi] == pytest.approx(list(np.quantile(means, [0.025, 0.975])), abs=0.2 * se)


def test_level_and_quantiles() -> None:
    found = interval_of_replicates(0.5, np.append(np.arange(101.0), NAN), n_clusters=2, n_values=2, level=0.9)
    assert (found.lo, found.hi) == pytest.approx((5.0, 95.0))
    assert found.se == pytest.approx(math.sqrt(101 * 102 / 12))  # variance of 0..n-1 with ddof 1: n(n+1)/12
    assert Interval(1, 1, 0.0, 2, 9, 9).excludes_zero is False
    assert Interval(1, 1, 0.1, 2, 9, 9).excludes_zero is True
    assert Interval(-1, 1, -2, -0.1, 9, 9).excludes_zero is True


# ---- the parts


def test_paired_difference_joins_on_ids() -> None:
    joined = paired_difference(np.array([1.0, 5.0, 9.0]), np.array([2.0, 1.0, NAN]), ["b", "a", "x"], ["a", "b", "y"])
    assert joined.ids == ("a", "b")
    assert joined.values.tolist() == [3.0, 0.0]  # a: 5 - 2, b: 1 - 1
    assert joined.left_out == 2  # x and y
    assert math.isnan(paired_difference(np.array([1.0]), np.array([NAN]), ["a"], ["a"]).values[0])
    with pytest.raises(ValueError, match="id 'a' comes twice"):
        paired_difference(np.array([1.0, 2.0]), np.array([1.0]), ["a", "a"], ["a"])


def test_statistic_hook_gives_contextual_separation() -> None:
    """Equation 8 as a ratio of two sums over concepts, which is what a bootstrap over concepts needs."""
    case = json.loads((GOLDEN / "separation.json").read_text())
    queries = {name: sum(row["concept"] == name for row in case["rows"]) for name in case["separation"]}
    per_concept = np.array([[queries[name] * sep, queries[name]] for name, sep in case["separation"].items()])
    ctxt_sep = lambda sums: sums[:, 0] / sums[:, 1]  # noqa: E731
    assert ctxt_sep(per_concept.sum(axis=0, keepdims=True))[0] == pytest.approx(case["ctxt_sep"], abs=1e-10)
    replicates = resampled_statistic(per_concept, ctxt_sep, n_boot=3000)
    assert replicates.min() == 0.125 and replicates.max() == 0.5  # A alone, C alone
    assert np.mean(replicates == 0.125) == pytest.approx(1 / 27, abs=0.012)


def test_chunks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    per_cluster = np.random.Generator(np.random.PCG64(0)).normal(size=(37, 2))
    whole = resampled_statistic(per_cluster, lambda sums: sums[:, 1], n_boot=101)
    monkeypatch.setattr(bootstrap, "_DRAWS_AT_ONCE", 150)
    assert np.array_equal(resampled_statistic(per_cluster, lambda sums: sums[:, 1], n_boot=101), whole)
    monkeypatch.setattr(bootstrap, "_DRAWS_AT_ONCE", 1)  # fewer than one row: one row at a time
    assert np.array_equal(resampled_statistic(per_cluster, lambda sums: sums[:, 1], n_boot=101), whole)


def test_replicates_are_memoised_by_content_and_not_shared() -> None:
    bootstrap._memoised_means.cache_clear()
    values, clusters = np.arange(20.0), authors(20)
    kept = resampled_means(values, clusters)
    kept[:] = 7  # the caller's own
    again = clustered_interval(values[::-1].copy(), clusters[::-1])
    assert bootstrap._memoised_means.cache_info().hits == 1
    assert again.lo != 7
    assert clustered_interval(values + 1, clusters).mean == again.mean + 1
    assert bootstrap._memoised_means.cache_info().misses == 2


def test_input_that_cannot_be_right_is_named() -> None:
    with pytest.raises(ValueError, match=r"3 names for values of shape \(2,\)"):
        clustered_interval(np.zeros(2), ["a", "b", "c"])
    with pytest.raises(ValueError, match="level must lie between 0 and 1, not 95"):
        clustered_interval(np.zeros(2), ["a", "b"], level=95)
    with pytest.raises(ValueError, match="n_boot must be at least 1, not 0"):
        resampled_means(np.zeros(2), ["a", "b"], n_boot=0)
    with pytest.raises(ValueError, match="n_clusters >= 1"):
        resampled_means(np.zeros(0), [])


def test_whole_dataset_stays_under_50_megabytes() -> None:
    """5,166 clusters x 2000 resamples; the time is printed (``-s``), not asserted."""
    values, clusters = np.linspace(0, 1, 5166), [f"pair-{n}" for n in range(5166)]
    bootstrap._memoised_means.cache_clear()
    start = time.perf_counter()
    found = clustered_interval(values, clusters)
    elapsed = time.perf_counter() - start
    bootstrap._memoised_means.cache_clear()
    tracemalloc.start()
    assert clustered_interval(values, clusters) == found
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    print(f"\n5,166 clusters x 2000 resamples: {elapsed:.3f} s, peak {peak:.1f} MB")
    assert peak < 50

"""Clustered percentile bootstrap: clusters (authors, pairs, concepts) are resampled, never single values.

The canary paper's intervals (section 3: author-clustered, 95 %, 2000 resamples), used for every score. A result depends
on the seed and on *which* value belongs to which cluster, never on the order of the input: ranks gather out of order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]

_DRAWS_AT_ONCE = 1 << 20  # 8 MB of indices and 8 MB of gathered sums


@dataclass(frozen=True)
class Interval:
    """A mean (or another statistic) with its bootstrap standard error and percentile interval, in the values' unit.

    ``n_clusters`` counts the clusters with at least one value, ``n_values`` the values that are not missing.
    """

    mean: float
    se: float
    lo: float
    hi: float
    n_clusters: int
    n_values: int

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside [lo, hi]; False where there is no interval."""
        return self.lo > 0 or self.hi < 0


class PairedDifference(NamedTuple):
    """``values[i]`` is a - b for ``ids[i]``; ``left_out`` counts the ids that only one side has."""

    values: Floats
    ids: tuple[str, ...]
    left_out: int


def resampled_statistic(per_cluster: Floats, statistic: Statistic, *, n_boot: int = 2000, seed: int = 0) -> Floats:
    """Replicates [n_boot] of a statistic of additive sums, clusters drawn with replacement.

    ``per_cluster`` [n_clusters, k] holds what can be added over clusters (sums, counts, weighted differences).
    ``statistic`` turns sums over the drawn clusters [b, k] into values [b], row by row. Rows of ``per_cluster``
    must come in an order of their own (sorted by name), not in order of arrival. Time is linear in
    n_clusters · n_boot; memory is about 20 MB beside the input up to a million clusters.
    Raises ValueError without clusters or for n_boot < 1.
    """
    sums = np.ascontiguousarray(np.asarray(per_cluster, dtype=np.float64).T)
    if sums.ndim != 2 or sums.shape[1] == 0:
        raise ValueError(f"per_cluster must be [n_clusters >= 1, k], not of shape {np.shape(per_cluster)}")
    if n_boot < 1:
        raise ValueError(f"n_boot must be at least 1, not {n_boot}")
    n_clusters = sums.shape[1]
    generator = np.random.Generator(np.random.PCG64(seed))
    rows_at_once = max(1, _DRAWS_AT_ONCE // n_clusters)
    replicates = np.empty(n_boot)
    for start in range(0, n_boot, rows_at_once):
        stop = min(start + rows_at_once, n_boot)
        drawn = generator.integers(0, n_clusters, size=(stop - start, n_clusters))
        replicates[start:stop] = statistic(np.stack([column[drawn].sum(axis=1) for column in sums], axis=1))
    return replicates


def resampled_means(values: Floats, clusters: Sequence[str], *, n_boot: int = 2000, seed: int = 0) -> Floats:
    """Replicates [n_boot] of the mean: sum over the drawn clusters / number of their values.

    ``values`` [n] with NaN for a missing value, ``clusters`` [n] the cluster of each. A cluster without any value is
    still drawn; a replicate of such clusters alone is NaN. Raises ValueError where lengths differ or nothing is given.
    """
    return _memoised_means(_sums_and_counts(values, clusters).tobytes(), n_boot, seed).copy()


def clustered_interval(
    values: Floats, clusters: Sequence[str], *, level: float = 0.95, n_boot: int = 2000, seed: int = 0
) -> Interval:
    """Mean of ``values`` [n] (NaN = missing) with the percentile interval of resampled ``clusters`` [n].

    Fewer than two clusters with values: se, lo and hi are NaN. No value: the mean too.
    Raises ValueError where lengths differ or ``level`` is not in (0, 1).
    """
    mean, n_clusters, n_values = _summary(values, clusters)
    replicates = resampled_means(values, clusters, n_boot=n_boot, seed=seed) if n_clusters > 1 else np.empty(0)
    return interval_of_replicates(mean, replicates, n_clusters=n_clusters, n_values=n_values, level=level)


def unpaired_interval(
    a: Floats,
    clusters_a: Sequence[str],
    b: Floats,
    clusters_b: Sequence[str],
    *,
    level: float = 0.95,
    n_boot: int = 2000,
    seed: int = 0,
) -> Interval:
    """mean(a) - mean(b) with both sides resampled independently, shared cluster names or not.

    ``n_clusters`` is that of the smaller side, ``n_values`` the sum. Less than two clusters on a side: no interval.
    Source: canary paper, section 4.2 ("unpaired 95% CI").
    """
    mean_a, n_clusters_a, n_values_a = _summary(a, clusters_a)
    mean_b, n_clusters_b, n_values_b = _summary(b, clusters_b)
    n_clusters = min(n_clusters_a, n_clusters_b)
    replicates = np.empty(0)
    if n_clusters > 1:
        # One seed for both would draw the same rows on equally long sides, which is pairing.
        seed_a, seed_b = (int(state) for state in np.random.SeedSequence(seed).generate_state(2, np.uint64))
        replicates = resampled_means(a, clusters_a, n_boot=n_boot, seed=seed_a)
        replicates -= resampled_means(b, clusters_b, n_boot=n_boot, seed=seed_b)
    return interval_of_replicates(
        mean_a - mean_b, replicates, n_clusters=n_clusters, n_values=n_values_a + n_values_b, level=level
    )


def paired_difference(a: Floats, b: Floats, ids_a: Sequence[str], ids_b: Sequence[str]) -> PairedDifference:
    """a - b joined on the id, sorted by id; missing (NaN) where either side is.

    The interval of a paired contrast is ``clustered_interval(values, clusters of the ids)``; with one value an author,
    the ids are the clusters. Raises ValueError where lengths differ or an id comes twice on one side.
    """
    by_id_a, by_id_b = _by_id(a, ids_a), _by_id(b, ids_b)
    shared = sorted(by_id_a.keys() & by_id_b.keys())
    differences = np.array([by_id_a[key] - by_id_b[key] for key in shared], dtype=np.float64)
    return PairedDifference(differences, tuple(shared), len(by_id_a.keys() ^ by_id_b.keys()))


def interval_of_replicates(
    mean: float, replicates: Floats, *, n_clusters: int, n_values: int, level: float = 0.95
) -> Interval:
    """Interval from replicates of any statistic; NaN replicates are left out, fewer than two give no interval.

    se: standard deviation of the replicates (ddof = 1); lo, hi: their quantiles (1 ∓ level) / 2, linearly interpolated.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level}")
    present = replicates[~np.isnan(replicates)]
    if len(present) < 2:
        return Interval(mean, math.nan, math.nan, math.nan, n_clusters, n_values)
    with np.errstate(invalid="ignore"):  # an infinite value (a perplexity) makes se NaN; it is no reason to stop
        se = float(present.std(ddof=1))
        lo, hi = (float(end) for end in np.quantile(present, [(1 - level) / 2, (1 + level) / 2]))
    return Interval(mean, se, lo, hi, n_clusters, n_values)


@lru_cache(maxsize=16)
def _memoised_means(per_cluster: bytes, n_boot: int, seed: int) -> Floats:
    """lm-eval asks for a mean, its standard error and both ends one after the other: resample once."""
    return resampled_statistic(np.frombuffer(per_cluster).reshape(-1, 2), _ratio, n_boot=n_boot, seed=seed)


def _ratio(sums_and_counts: Floats) -> Floats:
    sums, counts = sums_and_counts.T
    return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)


def _sums_and_counts(values: Floats, clusters: Sequence[str]) -> Floats:
    """[n_clusters, 2], clusters by name; each sum runs in ascending order, so that no order of the input changes it."""
    numbers = _checked(values, clusters)
    rank = {name: index for index, name in enumerate(sorted(set(clusters)))}
    code = np.fromiter((rank[name] for name in clusters), dtype=np.int64, count=len(numbers))
    order = np.lexsort((numbers, code))
    numbers, code = numbers[order], code[order]
    present = ~np.isnan(numbers)
    sums = np.bincount(code[present], weights=numbers[present], minlength=len(rank))
    return np.stack([sums, np.bincount(code[present], minlength=len(rank)).astype(np.float64)], axis=1)


def _summary(values: Floats, clusters: Sequence[str]) -> tuple[float, int, int]:
    """(mean, clusters with a value, values); the mean is correctly rounded, hence the same for every order."""
    numbers = _checked(values, clusters)
    present = ~np.isnan(numbers)
    n_values = int(present.sum())
    n_clusters = len({name for name, there in zip(clusters, present, strict=True) if there})
    return (math.fsum(numbers[present]) / n_values if n_values else math.nan), n_clusters, n_values


def _by_id(values: Floats, ids: Sequence[str]) -> dict[str, float]:
    joined = dict(zip(ids, _checked(values, ids), strict=True))
    if len(joined) < len(ids):
        seen: set[str] = set()
        twice = next(key for key in ids if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"id {twice!r} comes twice on one side of a paired difference: average its values first")
    return joined


def _checked(values: Floats, names: Sequence[str]) -> Floats:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.shape != (len(names),):
        raise ValueError(f"{len(names)} names for values of shape {numbers.shape}: one name a value is needed")
    return numbers

"""Metric values that remember their cluster, and the aggregations that turn them into a mean with an interval.

lm-eval hands an aggregation the bare list of per-document values, in whatever order the ranks gathered them. A clustered
bootstrap needs to know which author or pair each value came from, so the values carry it themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from cg_tasks.bootstrap import Interval, clustered_interval

N_BOOT = 2000
Aggregation = Callable[[Sequence[Any]], float]


class Scored(float):
    """A metric value of one document: a plain number in the samples log, with ``cluster`` for the bootstrap.

    NaN is a value that does not exist for this document (no bypass case, no verdict); it is left out, never read as 0.
    """

    cluster: str

    def __new__(cls, value: float, cluster: str) -> Scored:
        scored = super().__new__(cls, value)
        scored.cluster = cluster
        return scored

    def __getnewargs__(self) -> tuple[float, str]:  # type: ignore[override]
        return float(self), self.cluster


class Interim:
    """A value that exists only to be aggregated (bounds and standard errors): the samples log says so instead of repeating it."""

    def __init__(self, scored: Scored):
        self.scored = scored

    def __str__(self) -> str:
        return "see results"


def interval(values: Sequence[Any], *, seed: int = 0, geometric: bool = False) -> Interval:
    """Mean and 95 % percentile-bootstrap interval over clusters, 2000 resamples (canary paper, section 3).

    geometric: the mean of logarithms, exponentiated; a perplexity's mean over authors.
    """
    scored = [v.scored if isinstance(v, Interim) else v for v in values]
    numbers = np.array([float(v) for v in scored])
    result = clustered_interval(
        np.log(numbers) if geometric else numbers, [v.cluster for v in scored], n_boot=N_BOOT, seed=seed
    )
    if not geometric:
        return result
    mean = exp_or_inf(result.mean)
    # Delta method for the standard error; the bounds of a monotone transform are the transformed bounds.
    return Interval(
        mean, mean * result.se, exp_or_inf(result.lo), exp_or_inf(result.hi), result.n_clusters, result.n_values
    )


def exp_or_inf(x: float) -> float:
    """``math.exp``, infinite where the result is too large for a float."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _part(values: Sequence[Any], *, part: str, seed: int, geometric: bool) -> float:
    return float(getattr(interval(values, seed=seed, geometric=geometric), part))


_SUFFIXES = {"": "mean", "_stderr": "se", "_ci_lo": "lo", "_ci_hi": "hi"}


def aggregations(metric: str, *, seed: int, geometric: bool = False) -> dict[str, Aggregation]:
    """Aggregations for ``metric``, ``metric_stderr`` (lm-eval prints it in the ± column), ``metric_ci_lo``, ``metric_ci_hi``.

    The order matters: lm-eval writes its own ``metric_stderr`` ("N/A") right after ``metric``, and ours must come later.
    """
    return {
        metric + suffix: partial(_part, part=part, seed=seed, geometric=geometric) for suffix, part in _SUFFIXES.items()
    }


def with_intervals(values: Mapping[str, Scored]) -> dict[str, Scored | Interim]:
    """What ``process_results`` returns: each value once for the reader, and once per derived key for the aggregation."""
    out: dict[str, Scored | Interim] = {}
    for metric, scored in values.items():
        out[metric] = scored
        for suffix in list(_SUFFIXES)[1:]:
            out[metric + suffix] = Interim(scored)
    return out

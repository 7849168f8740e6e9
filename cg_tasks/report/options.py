"""What a report's reader may set."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """n_boot, seed: of the bootstrap behind paired contrasts. alpha: of tests, after Holm's correction.

    concepts: rows of the heatmap (ConceptGuard, figure 2), among concepts with ``concept_instances``; figure 3 takes those with
    ``distribution_instances``; both are numbers for the paper's 5,166 instances and shrink with smaller data.
    extremes: concepts shown at each end (tables 4 and 5).
    """

    n_boot: int = 2000
    seed: int = 0
    alpha: float = 0.05
    concepts: int = 8
    concept_instances: int = 50
    distribution_instances: int = 15
    extremes: int = 3

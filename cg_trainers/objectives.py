"""What each unlearning objective is made of: its forget term, what it reads of the model, its reference, its presets.

A new objective is a function of a :class:`Side` and a row in :data:`OBJECTIVES`. The total is always
``gamma * forget + alpha * retain``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from cg_trainers import losses

Reads = Literal["nll", "logits", "hidden"]
Unit = Literal["tokens", "rows"]
SideName = Literal["forget", "preferred", "retain"]
SIDES: tuple[SideName, ...] = ("forget", "preferred", "retain")


@dataclass
class Side:
    """What the model (and its reference) made of the rows of one side. B rows, T positions, N labelled tokens.

    labels [B, T]; trace [B, T] (true on a thinking trace's text); nll [B, T-1], 0 where unlabelled; logits [N, V];
    hidden [B, T, d] of one block; ref_nll [B]; ref_logits [N, V]; ref_hidden [B, T, d]. None: not read.
    """

    labels: Tensor
    trace: Tensor
    nll: Tensor | None = None
    logits: Tensor | None = None
    hidden: Tensor | None = None
    ref_nll: Tensor | None = None
    ref_logits: Tensor | None = None
    ref_hidden: Tensor | None = None
    control: Tensor | None = None

    @property
    def mask(self) -> Tensor:
        """Positions that predict a label [B, T-1]."""
        return losses.shifted(self.labels)[0]

    @property
    def targets(self) -> Tensor:
        """The labels [N], in row order."""
        return losses.shifted(self.labels)[1]

    @property
    def labelled(self) -> Tensor:
        """The labelled tokens themselves [B, T], unshifted: which hidden states count."""
        return self.labels != losses.IGNORED

    @property
    def nll_sum(self) -> Tensor:
        """S [B]."""
        return _read(self.nll).sum(dim=1)


Sides = Mapping[str, Side]
Weights = Mapping[str, float]
Loss = Callable[[Sides, Weights], Tensor]


@dataclass(frozen=True)
class Variant:
    """Another preset of an objective: its weights, and the parameters it trains.

    trainable: ``{block}`` stands for each of the ``blocks`` up to the one that is steered.
    """

    weights: Mapping[str, float]
    trainable: str
    blocks: int

    def parameters(self, block: int) -> list[str]:
        """The names' endings, for a run that steers ``block``."""
        return [self.trainable.format(block=b) for b in range(max(0, block - self.blocks + 1), block + 1)]


@dataclass(frozen=True)
class Objective:
    """One row of the table.

    ``forget``: its loss, a mean over ``unit`` of its first side. ``reads``: what that takes of the model. ``reference``: what of
    the frozen model. ``sides``: which rows it looks at, ``preset``: its settings with their defaults (any other is an error).
    """

    forget: Loss
    unit: Unit
    reads: Reads
    preset: Mapping[str, float]
    source: str
    reference: Reads | None = None
    sides: tuple[SideName, ...] = ("forget",)
    retain: str = "nll"
    variants: Mapping[str, Variant] = field(default_factory=dict)


@dataclass(frozen=True)
class RetainLoss:
    """A loss over the retain rows: a mean over ``unit``."""

    loss: Callable[[Side], Tensor]
    unit: Unit
    reads: Reads
    reference: Reads | None = None


def _read(value: Tensor | None) -> Tensor:
    if value is None:
        raise RuntimeError("the objective reads what its row in the table does not declare")
    return value


def _grad_ascent(sides: Sides, weights: Weights) -> Tensor:
    forget = sides["forget"]
    return losses.grad_ascent(forget.nll_sum, forget.mask.sum(dim=1))


def _npo(sides: Sides, weights: Weights) -> Tensor:
    forget = sides["forget"]
    return losses.npo(forget.nll_sum, _read(forget.ref_nll), weights["beta"])


def _simnpo(sides: Sides, weights: Weights) -> Tensor:
    forget = sides["forget"]
    return losses.simnpo(forget.nll_sum, forget.mask.sum(dim=1), weights["beta"], weights["delta"])


def _dpo(sides: Sides, weights: Weights) -> Tensor:
    forget, preferred = sides["forget"], sides["preferred"]
    return losses.dpo(
        preferred.nll_sum, _read(preferred.ref_nll), forget.nll_sum, _read(forget.ref_nll), weights["beta"]
    )


def _idk(sides: Sides, weights: Weights) -> Tensor:
    preferred = sides["preferred"]
    return -losses.grad_ascent(preferred.nll_sum, preferred.mask.sum(dim=1))


def _undial(sides: Sides, weights: Weights) -> Tensor:
    forget = sides["forget"]
    return losses.selected_undial(_read(forget.logits), _read(forget.ref_logits), forget.targets, weights["strength"])


def _wga(sides: Sides, weights: Weights) -> Tensor:
    forget = sides["forget"]
    return losses.wga(_read(forget.nll), forget.mask, weights["beta"])


def _rmu(sides: Sides, weights: Weights) -> Tensor:
    forget = sides["forget"]
    return losses.rmu_forget(_read(forget.hidden), _read(forget.control), forget.labelled)


def _r2mu(sides: Sides, weights: Weights) -> Tensor:
    """The answer as RMU does, and the thinking trace's own states as well."""
    forget = sides["forget"]
    hidden, control = _read(forget.hidden), _read(forget.control)
    answer = losses.rmu_forget(hidden, control, forget.labelled & ~forget.trace)
    return answer + weights["trace_weight"] * losses.rmu_forget(hidden, control, forget.labelled & forget.trace)


def _retain_nll(side: Side) -> Tensor:
    return -losses.grad_ascent(side.nll_sum, side.mask.sum(dim=1))


def _retain_kl(side: Side) -> Tensor:
    return losses.selected_kl(_read(side.logits), _read(side.ref_logits))


def _retain_hidden(side: Side) -> Tensor:
    return losses.rmu_retain(_read(side.hidden), _read(side.ref_hidden), side.labelled)


RETAIN_LOSSES: Mapping[str, RetainLoss] = {
    "nll": RetainLoss(_retain_nll, "tokens", "nll"),
    "kl": RetainLoss(_retain_kl, "tokens", "logits", "logits"),
    "hidden": RetainLoss(_retain_hidden, "rows", "hidden", "hidden"),
}

# The defaults are OpenUnlearning's effective values, but for the canary paper's beta of NPO, which is the same 0.1.
OBJECTIVES: Mapping[str, Objective] = {
    "graddiff": Objective(
        _grad_ascent, "tokens", "nll", {"gamma": 1.0, "alpha": 1.0}, "ConceptGuard, section 5.1 (Gradient Ascent)"
    ),
    "grad_ascent": Objective(_grad_ascent, "tokens", "nll", {"gamma": 1.0, "alpha": 0.0}, "Jang et al. 2023"),
    "npo": Objective(
        _npo, "rows", "nll", {"gamma": 1.0, "alpha": 1.0, "beta": 0.1}, "Zhang et al. 2024", reference="nll"
    ),
    "simnpo": Objective(
        _simnpo, "rows", "nll", {"gamma": 0.125, "alpha": 1.0, "beta": 4.5, "delta": 0.0}, "Fan et al. 2024"
    ),
    "dpo": Objective(
        _dpo,
        "rows",
        "nll",
        {"gamma": 1.0, "alpha": 1.0, "beta": 0.1},
        "Rafailov et al. 2023; as a forget objective Zhang et al. 2024",
        reference="nll",
        sides=("forget", "preferred"),
    ),
    "idk": Objective(
        _idk, "tokens", "nll", {"gamma": 1.0, "alpha": 1.0}, "Maini et al. 2024 (TOFU)", sides=("preferred",)
    ),
    "wga": Objective(_wga, "tokens", "nll", {"gamma": 1.0, "alpha": 1.0, "beta": 1.0}, "Wang et al. 2025 (WGA)"),
    "undial": Objective(
        _undial,
        "tokens",
        "logits",
        {"gamma": 1.0, "alpha": 0.0, "strength": 10.0},
        "Dong et al. 2024",
        reference="logits",
    ),
    "rmu": Objective(
        _rmu,
        "rows",
        "hidden",
        {"gamma": 1.0, "alpha": 1.0, "steering_coeff": 2.0},
        "Li et al. 2024 (WMDP)",
        retain="hidden",
        variants={
            "wmdp": Variant({"gamma": 1.0, "alpha": 1200.0, "steering_coeff": 6.5}, "layers.{block}.mlp.down_proj", 3)
        },
    ),
    "r2mu": Objective(
        _r2mu,
        "rows",
        "hidden",
        {"gamma": 1.0, "alpha": 1.0, "steering_coeff": 2.0, "trace_weight": 1.0},
        "Wang et al. 2025 (R2MU)",
        retain="hidden",
    ),
}


def control_vector(dimension: int, coeff: float, seed: int) -> Tensor:
    """RMU's direction ``coeff * u / |u|``, u uniform on [0, 1)^d and seeded: [d], float32.

    Source: Li et al. 2024 (WMDP), section 4.
    """
    u = torch.rand(dimension, generator=torch.Generator().manual_seed(seed))
    return coeff * u / u.norm()

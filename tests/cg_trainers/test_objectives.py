"""Each objective's two terms: equal to the contract's functions, and differentiated rightly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cg_trainers import losses
from cg_trainers.objectives import OBJECTIVES, RETAIN_LOSSES, Side, control_vector

B, T, V, D = 3, 6, 7, 4
# Row 1 is short: the last two positions are padding. Traces are labelled, answers behind them as well.
LABELS = {
    "forget": [[-100, -100, 3, 1, 4, 2], [-100, 5, 6, 2, -100, -100], [-100, -100, 1, 6, 0, 5]],
    "preferred": [[-100, 2, 2, 0, 1, -100], [-100, -100, 4, 3, 1, 6], [-100, 5, 1, 0, -100, -100]],
    "retain": [[-100, 1, 5, 6, 0, 2], [-100, -100, -100, 2, 3, -100], [-100, 4, 4, 1, -100, -100]],
}
TRACE = torch.tensor([[0, 0, 1, 1, 0, 0], [0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]]).bool()
WEIGHTS = {"beta": 0.7, "delta": 0.3, "strength": 2.0, "steering_coeff": 2.0, "trace_weight": 0.4}


def tensors(name: str) -> dict[str, Tensor]:
    """Logits and hidden states of the policy and of its reference, float64, for one side."""
    g = torch.Generator().manual_seed(list(LABELS).index(name))

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return {
        "labels": torch.tensor(LABELS[name]),
        "logits": draw(B, T, V),
        "ref_logits": draw(B, T, V),
        "hidden": draw(B, T, D),
        "ref_hidden": draw(B, T, D),
    }


def read(given: dict[str, Tensor]) -> Side:
    """The side, as a trainer reads it off the model."""
    labels, logits, ref_logits = given["labels"], given["logits"], given["ref_logits"]
    mask = losses.shifted(labels)[0]
    return Side(
        labels,
        TRACE,
        nll=losses.token_nll(logits, labels)[0],
        logits=logits[:, :-1][mask],
        hidden=given["hidden"],
        ref_nll=losses.sequence_nll(ref_logits, labels)[0],
        ref_logits=ref_logits[:, :-1][mask],
        ref_hidden=given["ref_hidden"],
        control=control_vector(D, 2.0, 0).double(),
    )


def all_sides(**replaced: Tensor) -> dict[str, Side]:
    """Every side; ``forget_logits=…`` puts another tensor in its place."""
    given = {name: tensors(name) for name in LABELS}
    for key, value in replaced.items():
        name, what = key.split("_", 1)
        given[name][what] = value
    return {name: read(part) for name, part in given.items()}


def contract(objective: str) -> Tensor:
    """What the function of losses.py makes of the whole tensors."""
    f, p = tensors("forget"), tensors("preferred")
    (s, n), (s_ref, _) = (losses.sequence_nll(f[k], f["labels"]) for k in ("logits", "ref_logits"))
    (sp, np_), (sp_ref, _) = (losses.sequence_nll(p[k], p["labels"]) for k in ("logits", "ref_logits"))
    labelled, control = f["labels"] != -100, control_vector(D, 2.0, 0).double()
    w = WEIGHTS

    def steered(mask: Tensor) -> Tensor:
        return losses.rmu_forget(f["hidden"], control, mask)

    return {
        "graddiff": lambda: losses.grad_ascent(s, n),
        "grad_ascent": lambda: losses.grad_ascent(s, n),
        "npo": lambda: losses.npo(s, s_ref, w["beta"]),
        "simnpo": lambda: losses.simnpo(s, n, w["beta"], w["delta"]),
        "dpo": lambda: losses.dpo(sp, sp_ref, s, s_ref, w["beta"]),
        "idk": lambda: sp.sum() / np_.sum(),
        "wga": lambda: losses.wga(*losses.token_nll(f["logits"], f["labels"]), w["beta"]),
        "undial": lambda: losses.undial(f["logits"], f["ref_logits"], f["labels"], w["strength"]),
        "rmu": lambda: steered(labelled),
        "r2mu": lambda: steered(labelled & ~TRACE) + w["trace_weight"] * steered(labelled & TRACE),
    }[objective]()


def retained(name: str) -> Tensor:
    r = tensors("retain")
    nll, n = losses.sequence_nll(r["logits"], r["labels"])
    return {
        "nll": lambda: nll.sum() / n.sum(),
        "kl": lambda: losses.kl(r["logits"], r["ref_logits"], r["labels"]),
        "hidden": lambda: losses.rmu_retain(r["hidden"], r["ref_hidden"], r["labels"] != -100),
    }[name]()


def varied(objective: str) -> list[str]:
    """The tensors of the policy that an objective's forget term is a function of."""
    spec = OBJECTIVES[objective]
    return [f"{name}_{'hidden' if spec.reads == 'hidden' else 'logits'}" for name in spec.sides]


def differentiable(*keys: str) -> list[Tensor]:
    return [tensors(k.split("_", 1)[0])[k.split("_", 1)[1]].requires_grad_() for k in keys]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_forget_term_is_the_contracts_function(objective: str) -> None:
    found = OBJECTIVES[objective].forget(all_sides(), WEIGHTS)
    assert found.shape == () and found.dtype == torch.float64
    assert found.item() == pytest.approx(contract(objective).item(), abs=1e-12)


@pytest.mark.parametrize("name", RETAIN_LOSSES)
def test_the_retain_term_is_the_contracts_function(name: str) -> None:
    found = RETAIN_LOSSES[name].loss(all_sides()["retain"])
    assert found.item() == pytest.approx(retained(name).item(), abs=1e-12)


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "wga"])
def test_the_forget_terms_gradient(objective: str) -> None:
    keys = varied(objective)

    def forget(*values: Tensor) -> Tensor:
        return OBJECTIVES[objective].forget(all_sides(**dict(zip(keys, values, strict=True))), WEIGHTS)

    assert torch.autograd.gradcheck(forget, differentiable(*keys))
    gradients = torch.autograd.grad(forget(*(given := differentiable(*keys))), given)
    assert all(float(g.abs().max()) > 1e-3 for g in gradients)


def test_wgas_gradient_holds_the_weights_fixed() -> None:
    """p^beta is a weight and not differentiated: the gradient is that of the loss with the weights as numbers."""
    labels = tensors("forget")["labels"]
    nll, mask = losses.token_nll(tensors("forget")["logits"], labels)
    weights = torch.exp(-WEIGHTS["beta"] * nll)

    def fixed(logits: Tensor) -> Tensor:
        return -(weights * losses.token_nll(logits, labels)[0])[mask].mean()

    (logits,) = differentiable("forget_logits")
    assert torch.autograd.gradcheck(fixed, (logits,))
    ours = torch.autograd.grad(OBJECTIVES["wga"].forget(all_sides(forget_logits=logits), WEIGHTS), logits)[0]
    assert torch.allclose(ours, torch.autograd.grad(fixed(logits), logits)[0], atol=1e-14)
    assert float(ours.abs().max()) > 1e-3


@pytest.mark.parametrize("name", RETAIN_LOSSES)
def test_the_retain_terms_gradient(name: str) -> None:
    key = "retain_hidden" if RETAIN_LOSSES[name].reads == "hidden" else "retain_logits"

    def retain(value: Tensor) -> Tensor:
        return RETAIN_LOSSES[name].loss(all_sides(**{key: value})["retain"])

    assert torch.autograd.gradcheck(retain, differentiable(key))


@pytest.mark.parametrize("objective", [name for name, spec in OBJECTIVES.items() if spec.reference])
def test_no_reference_receives_a_gradient(objective: str) -> None:
    keys = ("forget_ref_logits", "preferred_ref_logits")
    given = differentiable(*keys, *varied(objective))
    sides = all_sides(**dict(zip((*keys, *varied(objective)), given, strict=True)))
    OBJECTIVES[objective].forget(sides, WEIGHTS).backward()
    assert [g.grad is None for g in given] == [True, True] + [False] * len(varied(objective))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_row_of_the_table_is_whole(objective: str) -> None:
    spec = OBJECTIVES[objective]
    assert spec.source and spec.retain in RETAIN_LOSSES
    assert {"gamma", "alpha"} <= set(spec.preset)
    assert all(set(variant.weights) == set(spec.preset) for variant in spec.variants.values())
    # A forget loss that reads more than its row declares would find None.
    declared = {"nll": "nll", "logits": "logits", "hidden": "hidden"}
    for side in (sides := all_sides()).values():
        for what in declared:
            if what != spec.reads:
                setattr(side, what, None)
            if what != spec.reference:
                setattr(side, f"ref_{what}", None)
    sides = {name: sides[name] for name in spec.sides}
    assert spec.forget(sides, {name: WEIGHTS.get(name, 1.0) for name in spec.preset}).isfinite()


def test_an_undeclared_reading_is_an_error_and_not_a_number() -> None:
    sides: dict[str, Any] = all_sides()
    sides["forget"].nll = None
    with pytest.raises(RuntimeError, match="does not declare"):
        OBJECTIVES["npo"].forget(sides, WEIGHTS)


def test_the_control_vector_is_seeded_and_of_the_length_asked_for() -> None:
    vector = control_vector(64, 6.5, 3)
    assert vector.norm().item() == pytest.approx(6.5, rel=1e-6)
    assert bool((vector >= 0).all())  # u is uniform on [0, 1)
    assert torch.equal(vector, control_vector(64, 6.5, 3))
    assert not torch.equal(vector, control_vector(64, 6.5, 4))

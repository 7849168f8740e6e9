from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from cg_trainers import losses

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "losses.json").read_text())
DTYPES = [torch.float64, torch.float32]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


class Batch(NamedTuple):
    logits: Tensor
    ref_logits: Tensor
    labels: Tensor
    hidden: Tensor
    ref_hidden: Tensor
    control: Tensor

    @property
    def mask(self) -> Tensor:
        return self.labels != -100


def golden_batch(dtype: torch.dtype = torch.float64) -> Batch:
    """The batch that tests/golden/README.md describes."""
    i = torch.arange(2, dtype=torch.float64)[:, None, None]
    t = torch.arange(6, dtype=torch.float64)[None, :, None]
    v = torch.arange(128, dtype=torch.float64)[None, None, :]
    k = torch.arange(4, dtype=torch.float64)[None, None, :]
    logits = 1.5 * torch.sin(0.7 * v + 1.3 * t + 2.1 * i)
    ref_logits = 1.5 * torch.sin(0.7 * v + 1.1 * t + 1.7 * i)
    labels = torch.tensor([[-100, -100, 5, 17, 42, 2], [-100, 9, 33, 2, -100, -100]])
    for row, position in (labels[:, 1:] != -100).nonzero().tolist():
        label = labels[row, position + 1]
        logits[row, position, label] += 5
        ref_logits[row, position, label] += 6
    hidden = torch.cos(0.5 * k + 0.9 * t + 1.1 * i)
    ref_hidden = torch.cos(0.4 * k + 0.8 * t + 1.2 * i)
    u = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    floats = (x.to(dtype) for x in (logits, ref_logits, hidden, ref_hidden, 2 * u / u.norm()))
    logits, ref_logits, hidden, ref_hidden, control = floats
    return Batch(logits, ref_logits, labels, hidden, ref_hidden, control)


@pytest.fixture(params=DTYPES, ids=["float64", "float32"])
def batch(request: pytest.FixtureRequest) -> Batch:
    return golden_batch(request.param)


def assert_golden(found: Tensor, expected: float) -> None:
    assert found.shape == ()
    assert found.item() == pytest.approx(expected, abs=TOLERANCE[found.dtype], rel=0)


# ---- golden values


def test_sequence_nll(batch: Batch) -> None:
    case = GOLDEN["sequence_nll"]
    for logits, name in ((batch.logits, "policy"), (batch.ref_logits, "reference")):
        nll, n_tokens = losses.sequence_nll(logits, batch.labels)
        assert nll.dtype == logits.dtype
        # the file prints these with eight decimals
        assert nll.tolist() == pytest.approx(case[name], abs=max(5e-9, TOLERANCE[nll.dtype]), rel=0)
        assert n_tokens.tolist() == case["n_tokens"]
    nll, n_tokens = losses.sequence_nll(batch.logits, batch.labels)
    assert_golden(nll.sum() / n_tokens.sum(), GOLDEN["token_mean_nll"])


def test_grad_ascent(batch: Batch) -> None:
    assert_golden(losses.grad_ascent(*losses.sequence_nll(batch.logits, batch.labels)), GOLDEN["grad_ascent"])


def test_npo(batch: Batch) -> None:
    nll, _ = losses.sequence_nll(batch.logits, batch.labels)
    ref_nll, _ = losses.sequence_nll(batch.ref_logits, batch.labels)
    for beta, value in GOLDEN["npo"].items():
        assert_golden(losses.npo(nll, ref_nll, float(beta)), value)
    for beta, value in GOLDEN["npo_at_reference"].items():
        assert_golden(losses.npo(ref_nll, ref_nll, float(beta)), value)
        assert value == pytest.approx(2 / float(beta) * math.log(2), abs=1e-12)


def test_simnpo(batch: Batch) -> None:
    nll, n_tokens = losses.sequence_nll(batch.logits, batch.labels)
    for case in GOLDEN["simnpo"]:
        assert_golden(losses.simnpo(nll, n_tokens, case["beta"], case["delta"]), case["value"])


def test_dpo(batch: Batch) -> None:
    case = GOLDEN["dpo"]
    preferred = torch.tensor(case["preferred_labels"])
    nll = [
        losses.sequence_nll(logits, labels)[0]
        for labels in (preferred, batch.labels)
        for logits in (batch.logits, batch.ref_logits)
    ]
    nll_w, ref_nll_w, nll_l, ref_nll_l = nll
    assert_golden(losses.dpo(nll_w, ref_nll_w, nll_l, ref_nll_l, case["beta"]), case["value"])


def test_undial(batch: Batch) -> None:
    for strength, value in GOLDEN["undial_answer_masked"].items():
        assert_golden(losses.undial(batch.logits, batch.ref_logits, batch.labels, float(strength)), value)


def test_kl(batch: Batch) -> None:
    assert_golden(losses.kl(batch.logits, batch.ref_logits, batch.labels), GOLDEN["kl_answer_masked"])


def test_rmu(batch: Batch) -> None:
    assert_golden(losses.rmu_forget(batch.hidden, batch.control, batch.mask), GOLDEN["rmu"]["forget"])
    assert_golden(losses.rmu_retain(batch.hidden, batch.ref_hidden, batch.mask.long()), GOLDEN["rmu"]["retain"])


def test_wga(batch: Batch) -> None:
    nll, mask = losses.token_nll(batch.logits, batch.labels)
    assert nll.sum(dim=1).tolist() == losses.sequence_nll(batch.logits, batch.labels)[0].tolist()
    assert_golden(losses.wga(nll, mask, GOLDEN["wga"]["beta"]), GOLDEN["wga"]["value"])


# ---- values by hand


def test_uniform_logits_by_hand() -> None:
    logits, labels = torch.zeros(1, 3, 4), torch.tensor([[0, 1, 2]])  # the first label is predicted by nothing
    nll, n_tokens = losses.sequence_nll(logits, labels)
    assert nll.item() == pytest.approx(2 * math.log(4)) and n_tokens.item() == 2
    assert losses.kl(logits, logits, labels).item() == pytest.approx(0, abs=1e-7)
    assert losses.undial(logits, logits, labels, 0.0).item() == pytest.approx(math.log(4))
    # p = 1/4, CE = ln 4
    assert losses.wga(*losses.token_nll(logits, labels), beta=1.0).item() == pytest.approx(-math.log(4) / 4)


def test_kl_is_of_the_reference_to_the_policy() -> None:
    labels = torch.tensor([[0, 1]])
    policy, reference = (torch.tensor([[[0.0, math.log(odds)]] * 2]) for odds in (1, 3))  # (1/2, 1/2) and (1/4, 3/4)
    expected = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    assert losses.kl(policy, reference, labels).item() == pytest.approx(expected)


def test_rmu_means_within_rows_first() -> None:
    # row 0: one token at distance 1; row 1: three tokens at 3, 3 and 0 -> (1 + (9 + 9 + 0) / 3) / 2
    hidden = torch.tensor([[[1.0], [50.0], [50.0]], [[3.0], [3.0], [0.0]]])
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    assert losses.rmu_forget(hidden, torch.zeros(1), mask).item() == pytest.approx((1 + 6) / 2)
    assert losses.rmu_retain(hidden, torch.zeros_like(hidden), mask).item() == pytest.approx((1 + 6) / 2)


# ---- gradients


def small(*shape: int) -> Tensor:
    values = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))
    return values.requires_grad_()


LABELS = torch.tensor([[-100, 3, 1, -100], [-100, -100, 0, 4]])
MASK = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 0]])
COUNTS = torch.tensor([2, 2])
REF = 0.3 * small(2, 4, 5).detach().flip(2)
DIFFERENTIABLE: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "sequence_nll": (lambda z: losses.sequence_nll(z, LABELS)[0], (small(2, 4, 5),)),
    "grad_ascent": (lambda s: losses.grad_ascent(s, COUNTS), (small(2),)),
    "npo": (lambda s: losses.npo(s, torch.tensor([0.2, -0.1]).double(), 0.7), (small(2),)),
    "simnpo": (lambda s: losses.simnpo(s, COUNTS, 2.5, 0.5), (small(2),)),
    "dpo": (lambda w, low: losses.dpo(w, COUNTS / 2.0, low, COUNTS / 3.0, 0.7), (small(2), small(2))),
    "undial": (lambda z: losses.undial(z, REF, LABELS, 3.0), (small(2, 4, 5),)),
    "rmu_forget": (lambda h: losses.rmu_forget(h, torch.ones(5).double(), MASK), (small(2, 4, 5),)),
    "rmu_retain": (lambda h: losses.rmu_retain(h, REF, MASK), (small(2, 4, 5),)),
    "kl": (lambda z: losses.kl(z, REF, LABELS), (small(2, 4, 5),)),
    "token_nll": (lambda z: losses.token_nll(z, LABELS)[0], (small(2, 4, 5),)),
    # the weight p^beta is held fixed, which numerical differences cannot know: beta 0 makes it 1
    "wga": (lambda s: losses.wga(s, MASK, 0.0), (small(2, 4),)),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient_is_that_of_the_value(name: str) -> None:
    function, inputs = DIFFERENTIABLE[name]
    assert torch.autograd.gradcheck(function, inputs)


def test_wga_holds_its_weight_fixed() -> None:
    nll = torch.tensor([[0.5, 2.0, 9.0]], dtype=torch.float64, requires_grad=True)
    losses.wga(nll, torch.tensor([[True, True, False]]), 1.5).backward()
    assert nll.grad is not None
    assert nll.grad[0].tolist() == pytest.approx([-math.exp(-0.75) / 2, -math.exp(-3.0) / 2, 0.0])


def test_nothing_of_the_reference_receives_a_gradient() -> None:
    reference, control, sums = small(2, 4, 5), small(5), small(2)
    policy, nll = small(2, 4, 5), small(2)
    total = (
        losses.npo(nll, sums, 0.1)
        + losses.dpo(nll, sums, nll, sums * 2, 0.1)
        + losses.undial(policy, reference, LABELS, 3.0)
        + losses.kl(policy, reference, LABELS)
        + losses.rmu_forget(policy, control, MASK)
        + losses.rmu_retain(policy, reference, MASK)
    )
    total.backward()
    assert reference.grad is control.grad is sums.grad is None
    assert policy.grad is not None and policy.grad.abs().sum() > 0


# ---- invariants of the design


def test_npo_of_a_stronger_forgetting_falls_to_zero_and_of_none_grows_linearly() -> None:
    far = torch.tensor([4000.0])
    assert losses.npo(far, torch.zeros(1), 0.1).item() == pytest.approx(0, abs=1e-6)
    assert losses.npo(-far, torch.zeros(1), 0.1).item() == pytest.approx(8000.0)  # 2 |S - S_ref|, not inf


def test_undial_of_strength_zero_at_the_reference_has_no_gradient() -> None:
    logits = golden_batch().logits.requires_grad_()
    (gradient,) = torch.autograd.grad(losses.undial(logits, logits, golden_batch().labels, 0.0), logits)
    assert gradient.abs().max() < 1e-15
    (moved,) = torch.autograd.grad(losses.undial(logits, logits, golden_batch().labels, 1.0), logits)
    assert moved.abs().max() > 1e-3


def test_kl_at_the_reference_has_no_value_and_no_gradient() -> None:
    logits = golden_batch().logits.requires_grad_()
    value = losses.kl(logits, logits, golden_batch().labels)
    (gradient,) = torch.autograd.grad(value, logits)
    assert abs(value.item()) < 1e-15 and gradient.abs().max() < 1e-15


def test_graddiff_of_identical_batches_has_no_gradient() -> None:
    logits = golden_batch().logits.requires_grad_()
    nll, n_tokens = losses.sequence_nll(logits, golden_batch().labels)
    total = 0.7 * losses.grad_ascent(nll, n_tokens) + 0.7 * nll.sum() / n_tokens.sum()
    (gradient,) = torch.autograd.grad(total, logits)
    assert gradient.abs().max() == 0


def test_unlabelled_positions_do_not_matter() -> None:
    batch = golden_batch()
    unlabelled = torch.cat([batch.labels[:, 1:] == -100, torch.ones(2, 1, dtype=torch.bool)], dim=1)
    logits, reference = batch.logits.clone(), batch.ref_logits.clone()
    logits[unlabelled], reference[unlabelled] = math.nan, math.inf
    logits.requires_grad_()
    clean, _ = losses.sequence_nll(batch.logits, batch.labels)
    assert losses.sequence_nll(logits, batch.labels)[0].tolist() == clean.tolist()
    total = losses.kl(logits, reference, batch.labels) + losses.undial(logits, reference, batch.labels, 10.0)
    total.backward()
    assert logits.grad is not None
    assert torch.isfinite(total) and torch.isfinite(logits.grad).all() and (logits.grad[unlabelled] == 0).all()

    hidden = batch.hidden.clone()
    hidden[~batch.mask] = math.inf
    hidden.requires_grad_()
    losses.rmu_forget(hidden, batch.control, batch.mask).backward()
    assert hidden.grad is not None and torch.isfinite(hidden.grad).all()


# ---- numbers that are hard to hold


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    half = golden_batch(dtype)
    full = half._replace(**{name: value.float() for name, value in half._asdict().items() if name != "labels"})

    def values(batch: Batch) -> list[Tensor]:
        nll, n_tokens = losses.sequence_nll(batch.logits, batch.labels)
        return [
            nll.sum(),
            losses.simnpo(nll, n_tokens, 4.5, 0.0),
            losses.undial(batch.logits, batch.ref_logits, batch.labels, 10.0),
            losses.kl(batch.logits, batch.ref_logits, batch.labels),
            losses.rmu_forget(batch.hidden, batch.control, batch.mask),
            losses.rmu_retain(batch.hidden, batch.ref_hidden, batch.mask),
        ]

    for found, expected in zip(values(half), values(full), strict=True):
        assert found.dtype == torch.float32
        assert found.item() == expected.item()


def test_large_logits_stay_finite() -> None:
    logits = torch.tensor([[[0.0, 20_000.0, -20_000.0]] * 3], requires_grad=True)
    labels = torch.tensor([[-100, 2, 0]])
    nll, n_tokens = losses.sequence_nll(logits, labels)
    assert nll.item() == pytest.approx(60_000.0)
    total = losses.npo(nll, torch.zeros(1), 4.5) + losses.simnpo(-nll, n_tokens, 4.5, 0.0)
    total = total + losses.undial(logits, logits.detach(), labels, 10.0)
    total = total + losses.wga(*losses.token_nll(logits, labels), 1.0)
    total.backward()
    assert torch.isfinite(total) and logits.grad is not None and torch.isfinite(logits.grad).all()


# ---- rows without labelled tokens


def test_a_row_without_labels_is_zero_in_sums_and_an_error_in_means() -> None:
    batch = golden_batch()
    labels = batch.labels.clone()
    labels[1] = -100
    labels[1, 0] = 7  # a label in the first position is predicted by nothing
    nll, n_tokens = losses.sequence_nll(batch.logits, labels)
    assert nll[1].item() == 0 and n_tokens.tolist() == [4, 0]
    assert losses.grad_ascent(nll, n_tokens).item() == pytest.approx(-GOLDEN["sequence_nll"]["policy"][0] / 4, abs=1e-8)
    with pytest.raises(ValueError, match="row 1 of 2"):
        losses.simnpo(nll, n_tokens, 4.5, 0.0)
    for loss, target in ((losses.rmu_forget, batch.control), (losses.rmu_retain, batch.ref_hidden)):
        with pytest.raises(ValueError, match="row 0, 1 of 2"):
            loss(batch.hidden, target, torch.zeros(2, 6))


def test_no_label_at_all_is_an_error_and_not_nan() -> None:
    batch = golden_batch()
    nothing = torch.full_like(batch.labels, -100)
    for call in (
        lambda: losses.grad_ascent(*losses.sequence_nll(batch.logits, nothing)),
        lambda: losses.kl(batch.logits, batch.ref_logits, nothing),
        lambda: losses.undial(batch.logits, batch.ref_logits, nothing, 10.0),
        lambda: losses.wga(*losses.token_nll(batch.logits, nothing), 1.0),
    ):
        with pytest.raises(ValueError, match="no labelled token in any of the 2 rows"):
            call()

"""The frozen model: the start of the run, in whichever way it is had, and never moved by the run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from training import (
    apart,
    batch_of,
    first_log,
    load,
    lora,
    memorised,
    merged,
    plain_logits,
    side,
    tokenizer_of,
    unlearn_config,
    unlearn_rows,
    unlearner,
    weights,
)

from cg_tasks.errors import UserError
from cg_trainers import losses
from cg_trainers.reference import add_frozen_copy, as_reference, reference_kind
from cg_trainers.unlearn_trainer import UnlearnTrainer

# (kind, reference): every way there is.
NLL_WAYS = [(kind, how) for kind in ("full", "fresh", "continued") for how in ("precompute", "adapter", "model")]
NLL_WAYS.remove(("full", "adapter"))
FORWARD_WAYS = [way for way in NLL_WAYS if way[1] != "precompute"]


def begin(start: Path, kind: str) -> Any:
    """The plain model that a run of this kind starts from."""
    return merged(start) if kind == "continued" else load(start)


@pytest.mark.parametrize(("kind", "how"), NLL_WAYS, ids=lambda x: x)
def test_npo_starts_at_ln_2(start: Path, tmp_path: Path, kind: str, how: str) -> None:
    """(2/beta) ln 2 = 13.8629: exactly where the policy is the reference, whatever the rows are."""
    trainer = unlearner(start, tmp_path, "npo", kind, reference=how, alpha=0.0, max_steps=1)
    assert trainer.reference == how
    assert first_log(trainer)["forget_loss"] == pytest.approx(20 * math.log(2), abs=1e-3)


@pytest.mark.parametrize("how", ["precompute", "adapter", "model"])
def test_dpo_starts_at_ln_2(start: Path, tmp_path: Path, how: str) -> None:
    trainer = unlearner(start, tmp_path, "dpo", "continued", reference=how, alpha=0.0, max_steps=1)
    assert first_log(trainer)["forget_loss"] == pytest.approx(20 * math.log(2), abs=1e-3)


def test_without_its_adapter_a_continued_start_is_another_model(start: Path) -> None:
    """What the test above would find, were the reference the base: far from ln 2."""
    rows = batch_of(side("forget", 8, 1))
    policy, base = (
        losses.sequence_nll(plain_logits(m, rows), rows["labels"])[0] for m in (memorised(start), load(start))
    )
    assert abs(losses.npo(policy, base, 0.1).item() - 20 * math.log(2)) > 0.1


@pytest.mark.parametrize(("kind", "how"), FORWARD_WAYS, ids=lambda x: x)
def test_undial_of_strength_0_has_no_gradient_at_the_start(start: Path, tmp_path: Path, kind: str, how: str) -> None:
    def norm(strength: float) -> float:
        trainer = unlearner(start, tmp_path, "undial", kind, reference=how, strength=strength, max_steps=1)
        return first_log(trainer)["grad_norm"]

    assert norm(0.0) < 1e-5 < 1e-3 < norm(10.0)


@pytest.mark.parametrize(
    ("objective", "kind", "how"),
    [*[("undial", *way) for way in FORWARD_WAYS], ("npo", "continued", "adapter")],
    ids=str,
)
def test_the_reference_stays_to_the_bit_while_the_policy_moves(
    start: Path, tmp_path: Path, objective: str, kind: str, how: str
) -> None:
    trainer = unlearner(start, tmp_path, objective, kind, reference=how, max_steps=5)
    batch = batch_of(side("forget", 4, seed=9))

    def frozen() -> Tensor:
        with trainer._as_reference() as (forward, reader):
            logits = reader.read(forward, {"logits"}, _inputs(batch), batch["labels"]).logits
        assert logits is not None and not logits.requires_grad
        return logits

    before, policy = frozen(), plain_logits(trainer.model, batch)
    expected = plain_logits(begin(start, kind), batch)[:, :-1][losses.shifted(batch["labels"])[0]]
    assert torch.allclose(before, expected, atol=1e-4)
    trainer.train()
    assert torch.equal(frozen(), before)
    assert float((plain_logits(trainer.model, batch) - policy).abs().max()) > 0.01


def test_the_precomputed_sums_are_the_starts_and_stay(start: Path, tmp_path: Path) -> None:
    trainer = unlearner(start, tmp_path, "dpo", "continued", per_device_train_batch_size=3, max_steps=3)
    trainer.train()
    model, kept = merged(start), trainer._precomputed
    assert kept is not None
    for name in ("forget", "preferred"):
        rows = batch_of(getattr(trainer._rows, name))
        expected = losses.sequence_nll(plain_logits(model, rows), rows["labels"])[0]
        assert torch.allclose(kept.nll(name, torch.arange(8)), expected, atol=1e-3)
        assert torch.equal(kept.nll(name, torch.tensor([5, 0])), kept.sides[name][[5, 0]])
    now = batch_of(trainer._rows.forget)
    moved = losses.sequence_nll(plain_logits(trainer.model, now), now["labels"])[0] - kept.sides["forget"]
    assert float(moved.abs().max()) > 0.1


@pytest.mark.parametrize(
    ("objective", "kind", "changes"),
    [
        ("npo", "full", {}),
        ("npo", "fresh", {}),
        ("npo", "continued", {}),
        ("undial", "continued", {}),
        ("graddiff", "fresh", {"retain_loss": "kl"}),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_the_ways_to_have_a_reference_train_alike(
    start: Path, tmp_path: Path, objective: str, kind: str, changes: dict[str, Any]
) -> None:
    came_out = {}
    for how in ("precompute", "adapter", "model"):
        if (kind, how) == ("full", "adapter") or (how == "precompute" and objective != "npo"):
            continue
        trainer = unlearner(start, tmp_path, objective, kind, reference=how, **changes)
        before = weights(trainer.model)
        trainer.train()
        after = weights(trainer.model)
        assert apart(before, after) > 1e-4
        came_out[how] = {name: w for name, w in after.items() if ".ref." not in name}
    first, *others = came_out.values()
    assert all(apart(first, other) < 1e-5 for other in others)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_as_reference_leaves_the_model_as_it_was(start: Path, dropout: float) -> None:
    model = memorised(start, lora_dropout=dropout)
    batch = batch_of(side("forget", 3, 1))
    before = plain_logits(model, batch)
    add_frozen_copy(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".default." in name:
                parameter.add_(0.3)
    model.get_parameter(next(n for n, p in model.named_parameters() if p.requires_grad)).requires_grad_(False)
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    model.train()
    with as_reference(model):
        assert not model.training and not torch.is_grad_enabled()
        # No dropout either, though the model is in training.
        assert torch.equal(model(**_inputs(batch)).logits, before)
    assert model.training and model.active_adapters == ["default"]
    assert [name for name, p in model.named_parameters() if p.requires_grad] == trainable
    assert not any(".ref." in name for name in trainable)
    assert float((plain_logits(model, batch) - before).abs().max()) > 0.1


def test_as_reference_without_a_copy_is_the_base(start: Path) -> None:
    model, batch = memorised(start), batch_of(side("forget", 3, 1))
    with as_reference(model):
        found = model(**_inputs(batch)).logits
    assert torch.equal(found, plain_logits(load(start), batch))


@pytest.mark.parametrize(
    ("changes", "has_adapter", "kind"),
    [
        ({"objective": "graddiff"}, True, "none"),
        ({"objective": "npo"}, True, "precompute"),
        ({"objective": "npo"}, False, "precompute"),
        ({"objective": "npo", "reference": "model"}, True, "model"),
        ({"objective": "npo", "retain_loss": "kl"}, True, "adapter"),
        ({"objective": "undial"}, True, "adapter"),
        ({"objective": "undial"}, False, "model"),
        ({"objective": "rmu"}, True, "adapter"),
        ({"objective": "rmu"}, False, "model"),
        ({"objective": "rmu", "alpha": 0.0}, False, "none"),
        ({"objective": "graddiff", "reference": "adapter"}, False, "none"),
    ],
    ids=str,
)
def test_what_auto_means(changes: dict[str, Any], has_adapter: bool, kind: str, tmp_path: Path) -> None:
    assert reference_kind(unlearn_config(tmp_path, **changes), has_adapter) == kind


# ------------------------------------------------------------------ refused
def test_an_adapter_reference_without_an_adapter(start: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="reference: adapter: this run trains no LoRA adapter: use auto, or model"):
        unlearner(start, tmp_path, "npo", "full", reference="adapter")


@pytest.mark.parametrize("objective", ["npo", "undial", "rmu"])
def test_a_second_model_that_is_not_the_start(start: Path, tmp_path: Path, objective: str) -> None:
    """The un-memorised base, given as the reference of a continued adapter."""
    trainer = unlearner(start, tmp_path, objective, "continued", reference="model", ref_model=load(start))
    with pytest.raises(UserError, match="the reference is not the model this run starts from .* reference: auto"):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.mark.parametrize("objective", ["undial", "npo", "dpo"])
def test_an_adapter_to_continue_that_changes_nothing(start: Path, tmp_path: Path, objective: str) -> None:
    from peft import get_peft_model

    with pytest.raises(
        UserError, match=r"changes nothing \(every lora_B is 0\), so that the reference would be the base"
    ):
        UnlearnTrainer(
            get_peft_model(load(start), lora()),
            unlearn_config(tmp_path, objective),
            unlearn_rows(),
            processing_class=tokenizer_of(start),
            record={},
        )


def test_a_second_model_where_none_is_used_or_none_where_one_is(start: Path, tmp_path: Path) -> None:
    given = {"processing_class": tokenizer_of(start), "record": {}}
    with pytest.raises(UserError, match="ref_model: this run has no use for one"):
        unlearner(start, tmp_path, "graddiff", ref_model=load(start))
    with pytest.raises(UserError, match="undial compares with a frozen model here: give ref_model="):
        UnlearnTrainer(load(start), unlearn_config(tmp_path, "undial"), unlearn_rows(), **given)


def _inputs(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: batch[k] for k in ("input_ids", "attention_mask")}

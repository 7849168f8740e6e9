"""The trainer's invariants: what is trained does not depend on how the batch is cut, and equals what is written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from training import (
    BLOCK,
    apart,
    batch_of,
    first_log,
    load,
    lora,
    memorised,
    plain_logits,
    side,
    tokenizer_of,
    trained,
    unlearn_config,
    unlearn_rows,
    unlearner,
    weights,
)

from cg_tasks.errors import UserError
from cg_trainers import losses
from cg_trainers.arguments import ModelArguments
from cg_trainers.loading import load_model
from cg_trainers.objectives import OBJECTIVES, control_vector
from cg_trainers.paired_rows import PairedRows, StackSides, UnlearnRows
from cg_trainers.pairing import partner
from cg_trainers.rows import Row
from cg_trainers.unlearn_trainer import UnlearnTrainer


def sums(model: Any, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """S and n of rows, by the model's plain forward pass."""
    batch = batch_of(rows)
    return losses.sequence_nll(plain_logits(model, batch), batch["labels"])


# ------------------------------------------------------------------ accumulation
@pytest.mark.parametrize(
    ("objective", "kind"),
    [*[(name, "full") for name in OBJECTIVES], *[(name, "continued") for name in ("graddiff", "npo", "undial", "rmu")]],
)
def test_four_steps_of_one_row_train_as_one_of_four(start: Path, tmp_path: Path, objective: str, kind: str) -> None:
    """Six rows: the second step's batch has two, and the lengths differ."""
    found = []
    for size, steps in ((4, 1), (1, 4)):
        trainer = unlearner(
            start,
            tmp_path,
            objective,
            kind,
            rows=unlearn_rows(6),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
        )
        parameters, moved = trained(trainer)
        assert moved > 1e-3 and trainer.state.global_step == 2
        found.append((parameters, trainer.state.log_history[:2]))
    assert apart(found[0][0], found[1][0]) <= 1e-6
    for ours, theirs in zip(found[0][1], found[1][1], strict=True):
        for curve in ("loss", "forget_loss", "retain_loss", "grad_norm", "forget_tokens", "preferred_tokens"):
            assert (curve in ours) == (curve in theirs)
            assert ours.get(curve, 0) == pytest.approx(theirs.get(curve, 0), rel=1e-4, abs=1e-5), curve


def test_curves_over_several_steps_agree_with_the_loss(start: Path, tmp_path: Path) -> None:
    """One line for two steps of two micro-batches and of one: every curve weighs the steps alike."""
    given = {"rows": unlearn_rows(3), "per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    each = unlearner(start, tmp_path, "simnpo", **given)
    each.train()
    line = first_log(unlearner(start, tmp_path, "simnpo", logging_steps=2, **given))
    for curve in ("loss", "forget_loss", "retain_loss", "forget_tokens", "retain_tokens"):
        one, two = (entry[curve] for entry in each.state.log_history[:2])
        assert line[curve] == pytest.approx((one + two) / 2, rel=1e-5), curve
    assert line["loss"] == pytest.approx(0.125 * line["forget_loss"] + line["retain_loss"], rel=1e-5)


@pytest.mark.parametrize("objective", ["npo", "simnpo", "graddiff", "idk", "wga"])
def test_the_curves_are_the_losses_of_the_whole_batch(start: Path, tmp_path: Path, objective: str) -> None:
    """Two micro-batches of two rows, which are all there are: recomputed by plain forward passes of the start."""
    rows = unlearn_rows(4)
    given = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "gamma": 0.5, "alpha": 3.0}
    log = first_log(unlearner(start, tmp_path, objective, rows=rows, max_steps=1, **given))
    model = load(start)
    (s, n), (r, m), (p, q) = (sums(model, part) for part in (rows.forget, rows.retain, rows.preferred))
    batch = batch_of(rows.forget)
    forget = {
        "npo": lambda: losses.npo(s, s, 0.1),
        "simnpo": lambda: losses.simnpo(s, n, 4.5, 0.0),
        "graddiff": lambda: losses.grad_ascent(s, n),
        "idk": lambda: p.sum() / q.sum(),
        "wga": lambda: losses.wga(*losses.token_nll(plain_logits(model, batch), batch["labels"]), 1.0),
    }[objective]().item()
    retain = (r.sum() / m.sum()).item()
    assert log["forget_loss"] == pytest.approx(forget, rel=1e-4)
    assert log["retain_loss"] == pytest.approx(retain, rel=1e-4)
    assert log["loss"] == pytest.approx(0.5 * forget + 3.0 * retain, rel=1e-4)
    if objective != "idk":
        assert log["forget_tokens"] == int(n.sum())
    assert log["retain_tokens"] == int(m.sum())


@pytest.mark.parametrize("objective", ["rmu", "r2mu"])
def test_rmus_curves_are_its_losses(start: Path, tmp_path: Path, objective: str) -> None:
    rows = unlearn_rows(4)
    given = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "alpha": 3.0, "steering_coeff": 6.5}
    log = first_log(unlearner(start, tmp_path, objective, rows=rows, max_steps=1, seed=9, **given))
    batch, control = batch_of(rows.forget), control_vector(32, 6.5, 9)
    with torch.no_grad():
        inputs = {k: batch[k] for k in ("input_ids", "attention_mask")}
        hidden = load(start)(**inputs, output_hidden_states=True).hidden_states[BLOCK + 1]
    labelled = batch["labels"] != -100
    trace = torch.zeros_like(labelled)
    for i, row in enumerate(rows.forget):
        trace[i, : len(row.trace)] = torch.tensor(row.trace).bool()
    expected = losses.rmu_forget(hidden, control, labelled)
    if objective == "r2mu":
        expected = losses.rmu_forget(hidden, control, labelled & ~trace)
        expected += losses.rmu_forget(hidden, control, labelled & trace)
    assert log["forget_loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert log["retain_loss"] == pytest.approx(0.0, abs=1e-9)  # the policy is the reference
    chosen = hidden[labelled]
    cosine = torch.nn.functional.cosine_similarity(chosen, control[None], dim=-1).mean().item()
    assert log["forget_activation_norm"] == pytest.approx(chosen.norm(dim=-1).mean().item(), rel=0.05)
    assert log["forget_control_cosine"] == pytest.approx(cosine, abs=0.02)


# ------------------------------------------------------------------ what the gradients do
@pytest.mark.parametrize("kind", ["full", "continued"])
def test_the_same_rows_to_forget_and_to_retain_cancel(start: Path, tmp_path: Path, kind: str) -> None:
    rows = side("forget", 8, 1)
    same = UnlearnRows(rows, rows, (), partner("twin", rows, rows, seed=0))
    still = first_log(unlearner(start, tmp_path, "graddiff", kind, rows=same, gamma=0.7, alpha=0.7, max_steps=1))
    moving = first_log(unlearner(start, tmp_path, "graddiff", kind, rows=same, gamma=0.7, alpha=0.8, max_steps=1))
    assert still["grad_norm"] < 1e-5 < 0.01 < moving["grad_norm"]
    assert still["loss"] == pytest.approx(0.0, abs=1e-6)


def said(model: Any, rows: UnlearnRows) -> UnlearnRows:
    """The rows with the model's own most likely continuation of each prompt to forget: something that it knows."""
    forget = []
    for row in rows.forget:
        ids = torch.tensor([row.input_ids[:3]])
        while ids.shape[1] < 9:
            ids = torch.cat([ids, plain_logits(model, batch_of([_of(ids)]))[:, -1:].argmax(-1)], dim=1)
        forget.append(replace(_of(ids), row_id=row.row_id, unit=row.unit))
    return replace(rows, forget=forget)


def _of(ids: Tensor) -> Row:
    numbers = tuple(ids[0].tolist())
    return Row("r", "u", "g", numbers, (-100,) * 3 + numbers[3:], (0,) * len(numbers))


@pytest.mark.parametrize(
    ("objective", "kind"),
    [
        *[(name, "full") for name in ("npo", "simnpo", "graddiff", "wga", "undial")],
        *[("npo", "fresh"), ("npo", "continued"), ("undial", "continued")],
    ],
)
def test_what_is_to_be_forgotten_becomes_unlikely(start: Path, tmp_path: Path, objective: str, kind: str) -> None:
    rows = said(memorised(start) if kind == "continued" else load(start), unlearn_rows(4))
    # SimNPO stops where the mean NLL is beyond delta, which that of a random model is.
    changes = {"simnpo": {"delta": 5.0, "gamma": 1.0}, "undial": {"learning_rate": 10.0}}.get(objective, {})
    trainer = unlearner(start, tmp_path, objective, kind, rows=rows, alpha=0.0, max_steps=6, **changes)
    before = sums(trainer.model, rows.forget)[0]
    trainer.train()
    assert float((sums(trainer.model, rows.forget)[0] - before).sum()) > 0.1


def test_refusals_become_likely_under_idk_and_dpo(start: Path, tmp_path: Path) -> None:
    for objective in ("idk", "dpo"):
        trainer = unlearner(start, tmp_path, objective, "fresh", max_steps=8)
        before = sums(trainer.model, trainer._rows.preferred)[0]
        trainer.train()
        assert float((sums(trainer.model, trainer._rows.preferred)[0] - before).sum()) < -1.0, objective


@pytest.mark.parametrize(
    ("objective", "kind", "reentrant"),
    [
        *[(name, "continued", False) for name in ("graddiff", "npo", "undial", "rmu")],
        *[("graddiff", "fresh", False), ("rmu", "fresh", False)],
        *[("graddiff", "fresh", True), ("rmu", "continued", True)],
    ],
)
def test_gradient_checkpointing_changes_no_step(
    start: Path, tmp_path: Path, objective: str, kind: str, reentrant: bool
) -> None:
    """Every lora_B moves (the base is frozen, so that a checkpointed block's input has no gradient of its own)."""
    found = []
    for on in (False, True):
        changes = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}
        given = {"targets": "all-linear", "max_steps": 1, **(changes if on else {})}
        trainer = unlearner(start, tmp_path, objective, kind, **given)
        before = weights(trainer.model)
        trainer.train()
        found.append(weights(trainer.model))
        blocks = (0, BLOCK) if objective == "rmu" else (0, 1, 2)
        names = [n for n in before if ".lora_B.default" in n and any(f"layers.{b}." in n for b in blocks)]
        assert len(names) == 7 * len(blocks)
        assert not [n for n in names if torch.equal(before[n], found[-1][n])]
    assert apart(*found) <= 1e-6


# ------------------------------------------------------------------ which rows
def test_without_a_retain_term_no_retain_row_is_read(start: Path, tmp_path: Path) -> None:
    class Unreadable(list[Row]):
        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("a retain row was read")

    rows = unlearn_rows()
    rows = replace(rows, retain=Unreadable(rows.retain))
    with pytest.raises(AssertionError, match="a retain row was read"):
        unlearner(start, tmp_path, "npo", rows=rows).train()
    trainer = unlearner(start, tmp_path, "npo", rows=rows, alpha=0.0)
    heights: list[int] = []
    trainer.model.model.register_forward_pre_hook(
        lambda m, a, kwargs: heights.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    log = first_log(trainer)
    assert set(heights) == {4} and "retain_loss" not in log and log["loss"] == log["forget_loss"]
    without = UnlearnRows(rows.forget)
    assert first_log(unlearner(start, tmp_path, "npo", rows=without, alpha=0.0))["loss"] == log["loss"]


def drawn(trainer: Any) -> list[tuple[str, str]]:
    """(forget row, retain row) in the order in which they are trained on."""
    pairs: list[tuple[str, str]] = []
    collate = trainer.data_collator

    class Watching(StackSides):
        def __call__(self, items: Any) -> Any:
            pairs.extend((item["forget"].row_id, item["retain"].row_id) for item in items)
            return super().__call__(items)

    trainer.data_collator = Watching(collate.sides, collate.pad_token_id)
    return pairs


@pytest.mark.parametrize("pairing", ["twin", "concept", "random"])
def test_partners_follow_the_epoch(start: Path, tmp_path: Path, pairing: Any) -> None:
    rows = unlearn_rows(4, pairing)
    assert rows.pairing is not None
    trainer = unlearner(start, tmp_path, "graddiff", rows=rows, per_device_train_batch_size=1, max_steps=12)
    pairs = drawn(trainer)
    trainer.train()
    for epoch in range(3):
        of_epoch = sorted(pairs[4 * epoch : 4 * epoch + 4])
        assert of_epoch == [(f"u{i}/forget", rows.retain[rows.pairing.index(epoch, i)].row_id) for i in range(4)]
    differ = sorted(pairs[:4]) != sorted(pairs[4:8]) or sorted(pairs[4:8]) != sorted(pairs[8:])
    assert differ == (pairing != "twin")


@pytest.mark.parametrize("step", [2, 3, 4, 5])
def test_partners_follow_the_epoch_after_resuming(start: Path, tmp_path: Path, step: int) -> None:
    """Steps of 3 of 6 rows: steps 2 and 4 end an epoch, 3 and 5 are in the middle of one."""

    def run(folder: Path, **changes: Any) -> Any:
        rows = unlearn_rows(6, "random", n_retain=5)
        return unlearner(start, folder, "graddiff", rows=rows, per_device_train_batch_size=3, max_steps=6, **changes)

    whole = run(tmp_path / "whole", save_at=[step])
    pairs = drawn(whole)
    whole.train()
    again = run(tmp_path / "again")
    rest = drawn(again)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
    assert len(pairs) == 18 and rest == pairs[3 * step :]
    assert apart(weights(whole.model), weights(again.model)) == 0


def test_a_worker_process_draws_the_same_partners(start: Path, tmp_path: Path) -> None:
    found = []
    for workers in (0, 1):
        rows = unlearn_rows(4, "random", n_retain=9)
        trainer = unlearner(start, tmp_path, "graddiff", rows=rows, max_steps=3, dataloader_num_workers=workers)
        found.append(trained(trainer)[0])
    assert apart(*found) == 0


def test_a_batch_is_the_sides_stacked_and_padded_on_the_right() -> None:
    rows = unlearn_rows(2)
    items = [PairedRows(rows, ("forget", "preferred", "retain"))[i] for i in (1, 0)]
    batch = StackSides(("forget", "preferred", "retain"), 2)(items)
    stacked = [rows.forget[1], rows.forget[0], rows.preferred[1], rows.preferred[0], rows.retain[1], rows.retain[0]]
    assert batch["index"].tolist() == [1, 0]
    for i, row in enumerate(stacked):
        n = len(row.input_ids)
        assert tuple(batch["input_ids"][i, :n].tolist()) == row.input_ids
        assert tuple(batch["labels"][i, :n].tolist()) == row.labels
        assert batch["attention_mask"][i].tolist() == [1] * n + [0] * (batch["labels"].shape[1] - n)
        assert (batch["labels"][i, n:] == -100).all() and (batch["input_ids"][i, n:] == 2).all()


def test_a_row_that_ends_with_the_pad_token_is_seen_to_its_end() -> None:
    row = Row("r", "u", "g", (5, 6, 2), (-100, 6, 2), (0, 0, 0))
    assert StackSides(("forget",), 2)([{"index": 0, "forget": row}])["attention_mask"].tolist() == [[1, 1, 1]]


# ------------------------------------------------------------------ refused
def test_rows_without_a_label_are_named(start: Path, tmp_path: Path) -> None:
    rows = unlearn_rows()
    for name in ("forget", "retain", "preferred"):
        part = list(getattr(rows, name))
        cut = replace(part[3], input_ids=part[3].input_ids[:3], labels=part[3].labels[:3], trace=(0, 0, 0))
        part[3] = replace(cut, truncated=True)
        with pytest.raises(UserError, match=f"1 of 8 rows have no token .*: u3/{name}: raise max_length"):
            unlearner(start, tmp_path, "dpo", rows=replace(rows, **{name: part}))


@pytest.mark.parametrize(
    ("objective", "rows", "said"),
    [
        ("npo", UnlearnRows([]), "no forget rows"),
        (
            "npo",
            UnlearnRows(side("forget", 2, 1)),
            "no retain rows, and alpha is not 0: give retain data, or set alpha: 0",
        ),
        (
            "idk",
            replace(unlearn_rows(3), preferred=side("p", 2, 3)),
            "2 refusals for 3 forget rows: one each is needed",
        ),
    ],
    ids=["forget", "retain", "preferred"],
)
def test_rows_that_are_missing(start: Path, tmp_path: Path, objective: str, rows: UnlearnRows, said: str) -> None:
    with pytest.raises(UserError, match=said):
        unlearner(start, tmp_path, objective, rows=rows)


@pytest.mark.parametrize("mark", [0, 1])
def test_r2mu_needs_a_trace_and_an_answer_in_every_row(start: Path, tmp_path: Path, mark: int) -> None:
    rows = unlearn_rows()
    forget = [*rows.forget[:5], replace(rows.forget[5], trace=(mark,) * len(rows.forget[5].trace)), *rows.forget[6:]]
    named = ["row 'u5/forget' has no trace", "of row 'u5/forget' its answer is not labelled: use target_span: full"]
    with pytest.raises(UserError, match=named[mark]):
        unlearner(start, tmp_path, "r2mu", rows=replace(rows, forget=forget))


def test_evaluate_is_refused(start: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="an unlearning run has no evaluate"):
        unlearner(start, tmp_path, "graddiff").evaluate()


def test_a_step_that_is_never_reached_stops_the_run_before_its_first(start: Path, tmp_path: Path) -> None:
    trainer = unlearner(start, tmp_path, "graddiff", max_steps=-1, num_train_epochs=2, save_at=[4, 5])
    with pytest.raises(UserError, match="save_at: step 5 is never reached: the run has 4 steps"):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.mark.parametrize("objective", ["rmu", "r2mu"])
def test_a_block_that_is_not_there(start: Path, tmp_path: Path, objective: str) -> None:
    with pytest.raises(UserError, match="rmu_block: 3: no such block: the model has 0 to 2"):
        unlearner(start, tmp_path, objective, rmu_block=3)


@pytest.mark.parametrize("kind", ["fresh", "continued"])
def test_an_adapter_on_the_output_head(start: Path, tmp_path: Path, kind: str) -> None:
    """TRL's fused head reads the head's own weights: the adapter would be left untrained, without a word."""
    targets = {"target_modules": ("q_proj", "lm_head")}
    with pytest.raises(ValueError, match="lm_head"):
        UnlearnTrainer(
            memorised(start, **targets) if kind == "continued" else load(start),
            unlearn_config(tmp_path, "graddiff"),
            unlearn_rows(),
            processing_class=tokenizer_of(start),
            record={},
            peft_config=lora(**targets) if kind == "fresh" else None,
        )


def test_the_scripts_refuse_an_adapter_on_the_output_head_in_one_line(start: Path, tmp_path: Path) -> None:
    config = unlearn_config(tmp_path / "out", "graddiff")
    memorised(start, target_modules=("q_proj", "lm_head")).save_pretrained(tmp_path / "adapter")
    named = {"model_name_or_path": str(start), "dtype": "float32"}
    for arguments in (
        {"use_peft": True, "lora_target_modules": ["q_proj", "lm_head"]},
        {"use_peft": True, "adapter_name_or_path": str(tmp_path / "adapter")},
    ):
        with pytest.raises(UserError, match="on the output head.* would be left untrained"):
            load_model(ModelArguments(**named, **arguments), config)

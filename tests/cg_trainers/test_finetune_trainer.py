"""Fine-tuning: TRL's loss and steps, whatever way the batch is cut and the head is applied."""

from __future__ import annotations

from pathlib import Path

import pytest
from training import (
    apart,
    batch_of,
    finetuner,
    first_log,
    load,
    lora,
    plain_logits,
    settings,
    side,
    tokenizer_of,
    trained,
    weights,
)

from cg_trainers import losses
from cg_trainers.rows import to_dataset


@pytest.mark.parametrize("peft", [False, True])
def test_four_steps_of_one_row_train_as_one_of_four(start: Path, tmp_path: Path, peft: bool) -> None:
    found = []
    for size, steps in ((4, 1), (1, 4)):
        given = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps}
        parameters, moved = trained(finetuner(start, tmp_path, rows=side("forget", 6, 1), peft=peft, **given))
        assert moved > 1e-3
        found.append(parameters)
    assert apart(*found) <= 1e-6


def test_it_trains_as_trls_own_trainer_does(start: Path, tmp_path: Path) -> None:
    """TRL's scores every position on a CPU, ours the labelled ones: the same loss, and the same step."""
    import torch
    from trl import SFTConfig, SFTTrainer

    ours = finetuner(start, tmp_path, peft=True, gradient_accumulation_steps=2)
    torch.manual_seed(5)
    theirs = SFTTrainer(
        load(start),
        args=SFTConfig(**settings(tmp_path, learning_rate=0.1, gradient_accumulation_steps=2, save_strategy="no")),
        train_dataset=to_dataset(side("forget", 8, 1)),
        processing_class=tokenizer_of(start),
        peft_config=lora(),
    )
    assert apart(weights(ours.model), weights(theirs.model)) == 0
    (a, moved), (b, _) = trained(ours), trained(theirs)
    assert moved > 1e-3 and apart(a, b) < 1e-5
    for mine, its in zip(ours.state.log_history[:2], theirs.state.log_history[:2], strict=True):
        assert mine["loss"] == pytest.approx(its["loss"], rel=1e-5)


def test_the_curve_is_the_token_mean_of_the_whole_batch(start: Path, tmp_path: Path) -> None:
    rows = side("forget", 4, 1)
    given = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "max_steps": 1}
    log = first_log(finetuner(start, tmp_path, rows=rows, **given))
    batch = batch_of(rows)
    s, n = losses.sequence_nll(plain_logits(load(start), batch), batch["labels"])
    assert log["loss"] == pytest.approx((s.sum() / n.sum()).item(), rel=1e-5)

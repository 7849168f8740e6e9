"""The scripts as several GPUs start them: under ``accelerate launch -m``, and as two processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
from launching import accelerate_launch, torchrun
from safetensors.torch import load_file
from training_scripts import LORA, PAIRS, command

from cg_tasks.adapters import verify_adapter
from cg_trainers import finetune, unlearn

pytestmark = pytest.mark.slow

# SGD's steps are the gradient itself: nothing that is only rounding becomes a whole step.
EXACT = {"optim": "sgd", "max_grad_norm": 0, "learning_rate": 0.05, "lr_scheduler_type": "constant", "save_at": [1]}
Launch = Callable[..., CompletedProcess[str]]


def started(launch: Launch, script: str, words: list[str]) -> str:
    """What it said, once it has ended well."""
    done = launch(["-m", f"cg_trainers.{script}", *words])
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def apart(one: Path, other: Path) -> float:
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


@pytest.mark.parametrize("launch", [accelerate_launch, torchrun])
def test_both_scripts_train_what_one_process_trains(launch: Launch, tiny: Path, tmp_path: Path) -> None:
    """And go on from the checkpoint they kept to the same bit."""
    processes = 2 if launch is torchrun else 1
    batch = {"per_device_train_batch_size": 4 // processes}
    tuned, one, many = tmp_path / "tuned", tmp_path / "one", tmp_path / "many"
    said = started(launch, "finetune", command(tiny, tuned, PAIRS, LORA, EXACT, batch))
    assert said.count(f"{tuned}: 2 steps. Evaluate with lm_eval") == 1
    assert verify_adapter(tuned).record["world_size"] == processes
    alone = finetune.main(command(tiny, tmp_path / "alone", PAIRS, LORA, EXACT, per_device_train_batch_size=4))
    assert (
        apart(tuned, alone) <= 1e-6
        and float(max(v.abs().max() for k, v in weights(tuned).items() if "lora_B" in k)) > 0
    )

    # NPO's gradient, of sums over a row, is two hundred times that of a mean.
    start: dict[str, Any] = {"objective": "npo", "adapter_name_or_path": tuned, "learning_rate": 1e-4}
    started(launch, "unlearn", command(tiny, many, PAIRS, LORA, EXACT, start, batch))
    unlearn.main(command(tiny, one, PAIRS, LORA, EXACT, start, per_device_train_batch_size=4))
    assert apart(many, one) <= 1e-6 and apart(many, tuned) > 1e-5
    assert [verify_adapter(many / f).step for f in ("checkpoint-1", ".")] == [1, 2]

    before = weights(many)
    started(launch, "unlearn", command(tiny, many, PAIRS, LORA, EXACT, start, batch, resume_from_checkpoint="true"))
    assert all(torch.equal(value, before[name]) for name, value in weights(many).items())


@pytest.mark.parametrize("launch", [accelerate_launch, torchrun])
def test_a_mistake_is_said_once_and_fails_the_launch(launch: Launch, tiny: Path, tmp_path: Path) -> None:
    done = launch(["-m", "cg_trainers.unlearn", *command(tiny, tmp_path / "out", PAIRS, LORA, objective="simpno")])
    assert done.returncode != 0
    assert "objective: unknown 'simpno': did you mean 'simnpo'?" in done.stderr
    assert not (tmp_path / "out").exists()

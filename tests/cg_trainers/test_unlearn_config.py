"""Settings: presets resolved, and what an objective has not, refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import TrainingArguments

from cg_tasks.errors import UserError
from cg_trainers.objectives import OBJECTIVES
from cg_trainers.provenance import effective_settings
from cg_trainers.unlearn_config import FinetuneConfig, UnlearnConfig


def config(objective: str = "npo", **changes: Any) -> UnlearnConfig:
    given = {"output_dir": "out", "bf16": False, "use_cpu": True, "objective": objective, **changes}
    return UnlearnConfig(**given)


def refusal(**changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        config(**changes)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("objective", "preset", "expected"),
    [
        ("simnpo", None, {"gamma": 0.125, "alpha": 1.0, "beta": 4.5, "delta": 0.0}),
        ("npo", None, {"gamma": 1.0, "alpha": 1.0, "beta": 0.1}),
        ("undial", None, {"gamma": 1.0, "alpha": 0.0, "strength": 10.0}),
        ("rmu", None, {"gamma": 1.0, "alpha": 1.0, "steering_coeff": 2.0}),
        ("rmu", "wmdp", {"gamma": 1.0, "alpha": 1200.0, "steering_coeff": 6.5}),
        ("graddiff", None, {"gamma": 1.0, "alpha": 1.0}),
        ("grad_ascent", None, {"gamma": 1.0, "alpha": 0.0}),
    ],
)
def test_weights_left_out_take_the_preset(objective: str, preset: str | None, expected: dict[str, float]) -> None:
    assert config(objective, preset=preset).weights == expected


def test_wmdp_trains_the_matrices_of_its_authors() -> None:
    """Blocks 5 to 7 where block 7 is steered, and as many up to another one."""
    assert config("rmu", preset="wmdp").trainable == [f"layers.{block}.mlp.down_proj" for block in (5, 6, 7)]
    assert config("rmu", preset="wmdp", rmu_block=1).trainable == ["layers.0.mlp.down_proj", "layers.1.mlp.down_proj"]
    assert config("rmu", preset="wmdp", trainable=["mlp"]).trainable == ["mlp"]
    assert config("rmu").trainable is None
    assert config("rmu", preset="").weights["alpha"] == 1.0  # --preset '' undoes a recipe's


def test_a_weight_given_stands_beside_the_preset() -> None:
    assert config("rmu", preset="wmdp", alpha=5.0).weights == {"gamma": 1.0, "alpha": 5.0, "steering_coeff": 6.5}
    assert config("simnpo", delta=0, gamma=0).weights["gamma"] == 0.0  # 0 is a value, not "left out"


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_can_be_configured_by_its_name_alone(objective: str) -> None:
    made = config(objective)
    assert made.weights == dict(OBJECTIVES[objective].preset)
    assert made.retain_loss == OBJECTIVES[objective].retain


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"objective": "simpno"}, "objective: unknown 'simpno': did you mean 'simnpo'?"),
        ({"objective": ""}, "objective: none is given: an unlearning run needs one of graddiff, "),
        ({"objective": "rmu", "preset": "wdmp"}, "preset: unknown 'wdmp': did you mean 'wmdp'?"),
        ({"objective": "npo", "preset": "wmdp"}, "preset: unknown 'wmdp'"),
        ({"reference": "precomputed"}, "reference: unknown 'precomputed': did you mean 'precompute'?"),
        ({"retain_loss": "kll"}, "retain_loss: unknown 'kll': did you mean 'kl'?"),
        ({"objective": "simnpo", "strength": 3.0}, "strength: simnpo has no such weight; it has gamma, alpha, beta, delta"),
        ({"objective": "graddiff", "beta": 0.1}, "beta: graddiff has no such weight"),
        ({"beta": 0.0}, "beta: 0.0: must be greater than 0"),
        ({"beta": float("nan")}, "beta: nan: must be greater than 0"),
        ({"alpha": -1.0}, "alpha: -1.0: must be 0 or more"),
        ({"alpha": float("inf")}, "alpha: inf: must be a number"),
        ({"objective": "simnpo", "delta": float("nan")}, "delta: nan: must be a number"),
        ({"learning_rate": float("inf")}, "learning_rate: inf: must be a number"),
        ({"max_grad_norm": float("nan")}, "max_grad_norm: nan: must be a number"),
        ({"num_train_epochs": float("inf")}, "num_train_epochs: inf: must be a number"),
        ({"objective": "rmu", "steering_coeff": 0.0}, "steering_coeff: 0.0: must be greater than 0"),
        ({"objective": "rmu", "rmu_block": -1}, "rmu_block: -1: blocks are counted from 0"),
        ({"retain_loss": "hidden"}, "retain_loss: hidden belongs to rmu and r2mu; npo takes nll or kl"),
        ({"objective": "undial", "reference": "precompute"}, "reference: precompute: only sums can be precomputed"),
        ({"retain_loss": "kl", "reference": "precompute"}, "compares logits and nll"),
        ({"max_steps": 100, "save_at": [50, 101]}, "save_at: step 101 is never reached, the run ends at max_steps: 100"),
        ({"save_at": [0]}, r"save_at: [0]: give the steps as whole numbers from 1 upwards"),
        ({"save_at": [True]}, "save_at: [True]"),
        ({"save_at": [2.0]}, "save_at: [2.0]"),
        ({"packing": True}, "packing: True: not here: packed rows lose"),
        ({"eval_packing": True}, "eval_packing: True: not here"),
        ({"padding_free": True}, "padding_free: True: not here: flattened rows lose"),
        ({"dataloader_persistent_workers": True}, "dataloader_persistent_workers: True: not here: workers that outlive"),
        ({"eval_strategy": "steps", "eval_steps": 5}, "eval_strategy: an unlearning run has no evaluation of its own"),
        ({"do_eval": True}, "eval_strategy: an unlearning run has no evaluation of its own"),
        ({"push_to_hub": True}, "push_to_hub: True: not here: checkpoints are written here"),
        ({"hub_token": "hf_" + "a" * 30}, "hub_token: secrets are not settings here"),
    ],
    ids=lambda value: " ".join(f"{k}={str(v)[:14]}" for k, v in value.items()) if isinstance(value, dict) else "",
)  # fmt: skip
def test_refused_in_one_line_with_the_way_out(changes: dict[str, Any], named: str) -> None:
    message = refusal(**changes)
    assert named in message
    assert "a" * 30 not in message  # no secret in a message


def test_save_at_is_a_set_of_steps() -> None:
    made = FinetuneConfig(output_dir="out", bf16=False, use_cpu=True, save_at=[5, 2, 5], max_steps=5)
    assert made.save_at == [2, 5] and made.save_strategy == "no"


@pytest.mark.parametrize(
    ("changes", "sides", "compares"),
    [
        ({"objective": "npo"}, ("forget", "retain"), ("nll",)),
        ({"objective": "npo", "alpha": 0.0, "retain_loss": "kl"}, ("forget",), ("nll",)),
        ({"objective": "npo", "retain_loss": "kl"}, ("forget", "retain"), ("logits", "nll")),
        ({"objective": "graddiff", "retain_loss": "kl"}, ("forget", "retain"), ("logits",)),
        ({"objective": "dpo"}, ("forget", "preferred", "retain"), ("nll",)),
        ({"objective": "idk"}, ("preferred", "retain"), ()),
        ({"objective": "undial"}, ("forget",), ("logits",)),
        ({"objective": "rmu"}, ("forget", "retain"), ("hidden",)),
        ({"objective": "rmu", "alpha": 0.0}, ("forget",), ()),
        ({"objective": "rmu", "retain_loss": "nll"}, ("forget", "retain"), ()),
        ({"objective": "grad_ascent"}, ("forget",), ()),
    ],
    ids=str,
)
def test_what_a_run_reads(changes: dict[str, Any], sides: tuple[str, ...], compares: tuple[str, ...]) -> None:
    made = config(**changes)
    assert (made.sides, made.compares_with) == (sides, set(compares))


def test_the_record_says_what_the_preset_became() -> None:
    named = effective_settings(config("simnpo"))
    assert (named["gamma"], named["beta"], named["delta"]) == (0.125, 4.5, 0.0)
    assert "strength" not in named


@pytest.mark.parametrize(
    ("changes", "package"),
    [
        ({"use_liger_kernel": True}, "liger-kernel"),
        ({"optim": "paged_adamw_32bit"}, "bitsandbytes"),
        ({"optim": "adamw_bnb_8bit"}, "bitsandbytes"),
    ],
)
def test_what_wants_a_package_of_its_own_says_so(
    changes: dict[str, Any], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cg_trainers.unlearn_config.find_spec", lambda name: None)
    assert f"{package} is not installed: pip install {package}, or leave it out" in refusal(**changes)


def test_several_gpus_in_one_process_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would wrap the model in DataParallel, which deals the rows of one batch out: forget here, retain there."""
    made = config()
    made.require_one_gpu()
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(
        UserError, match=r"2 GPUs and one process.*accelerate launch --num_processes 2 -m.*CUDA_VISIBLE_DEVICES=0"
    ):
        made.require_one_gpu()


def test_an_unknown_reporter_and_one_that_is_not_installed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did you mean 'wandb'" in refusal(report_to="wandbb")
    monkeypatch.setattr("cg_trainers.unlearn_config.find_spec", lambda name: None)
    assert "pip install trackio" in refusal(report_to="trackio")

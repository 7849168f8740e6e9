"""The shipped recipes: each parses, each value says where it comes from, and those of the papers hold the papers' values."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cg_tasks.errors import UserError
from cg_trainers.arguments import DataArguments, ModelArguments
from cg_trainers.config_files import RECIPES, effective, parse, read_config, recipes
from cg_trainers.unlearn_config import FinetuneConfig, UnlearnConfig

METHODS = ("graddiff", "simnpo", "rmu", "undial", "npo")
PAIR_MODELS = ("qwen2.5-3b-instruct", "llama-3.1-8b-instruct")
CANARY_MODELS = ("r1-distill-qwen-7b", "r1-distill-llama-8b")
FINETUNING = (
    *(f"conceptguard/{model}/finetune" for model in PAIR_MODELS),
    *(f"canary/{model}/memorise-{trace}" for model in CANARY_MODELS for trace in ("bio", "meta", "none")),
    "cpu/conceptguard/finetune",
    *(f"cpu/canary/memorise-{trace}" for trace in ("bio", "meta", "none")),
)
UNLEARNING = (
    *(f"conceptguard/{model}/{method}" for model in PAIR_MODELS for method in METHODS),
    *(f"canary/{model}/npo" for model in CANARY_MODELS),
    *(f"cpu/conceptguard/{method}" for method in METHODS),
    "cpu/canary/npo",
)
RUNS = (*FINETUNING, *UNLEARNING)
PARTS = tuple(sorted(set(recipes()) - set(RUNS)))
_PROVENANCE = re.compile(r"#\s*(paper|openunlearning|authors|assumed): \S")


def parsed(name: str) -> tuple[ModelArguments, DataArguments, Any]:
    config = FinetuneConfig if name in FINETUNING else UnlearnConfig
    return parse(["--config", name, "--use_cpu", "--bf16", "false"], (ModelArguments, DataArguments, config))  # type: ignore[return-value]


def test_every_recipe_is_a_run_or_a_part_of_one() -> None:
    assert set(RUNS) <= set(recipes())
    assert all(name.startswith(("shared/", "models/")) or name.count("/") == 1 for name in PARTS)


@pytest.mark.parametrize("name", RUNS)
def test_every_run_parses_and_goes_into_its_own_folder(name: str) -> None:
    model, _, run = parsed(name)
    assert model.use_peft and model.lora_target_modules == "all-linear"
    assert run.output_dir.startswith("demo/" if name.startswith("cpu/") else "runs/")
    if name in UNLEARNING:
        assert model.adapter_name_or_path in {read_config(start)["output_dir"] for start in FINETUNING}
        assert run.objective == name.rsplit("/", 1)[1]


def test_no_two_runs_write_into_one_folder() -> None:
    folders = [read_config(name)["output_dir"] for name in RUNS]
    assert len(set(folders)) == len(folders)


@pytest.mark.parametrize("name", PARTS)
def test_every_part_is_made_of_known_settings(name: str) -> None:
    assert effective(name, (ModelArguments, DataArguments, UnlearnConfig))


@pytest.mark.parametrize("name", recipes())
def test_every_value_says_where_it_comes_from(name: str) -> None:
    lines = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    values = [line for line in lines if line.strip() and not line.startswith(("#", "include:"))]
    assert not [line for line in values if not _PROVENANCE.search(line)]


@pytest.mark.parametrize("name", RUNS)
def test_every_run_says_how_to_start_it(name: str) -> None:
    first = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    script = "finetune" if name in FINETUNING else "unlearn"
    assert f"-m cg_trainers.{script} --config {name}" in first


@pytest.mark.parametrize("model", PAIR_MODELS)
@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("graddiff", {"gamma": 1.0, "alpha": 1.0}),
        ("simnpo", {"beta": 4.5, "delta": 0.0, "gamma": 0.125, "alpha": 1.0}),
        ("rmu", {"rmu_block": 7, "steering_coeff": 2.0, "gamma": 1.0, "alpha": 1.0}),
        ("undial", {"strength": 10.0, "gamma": 1.0, "alpha": 0.0}),
        ("npo", {"beta": 0.1, "gamma": 1.0, "alpha": 1.0}),
    ],
)
def test_the_methods_hold_open_unlearnings_effective_values(model: str, method: str, values: dict[str, float]) -> None:
    recipe = read_config(f"conceptguard/{model}/{method}")
    assert {key: recipe[key] for key in values} == values
    assert (recipe["learning_rate"], recipe["num_train_epochs"], recipe["weight_decay"]) == (1e-5, 10, 0.01)
    assert recipe["warmup_steps"] * recipe["num_train_epochs"] == 1  # one epoch
    assert 2 * recipe["per_device_train_batch_size"] * recipe["gradient_accumulation_steps"] == 32


@pytest.mark.parametrize("model", CANARY_MODELS)
def test_the_canary_paper_s_values(model: str) -> None:
    for trace in ("bio", "meta", "none"):
        recipe = read_config(f"canary/{model}/memorise-{trace}")
        assert (recipe["lora_r"], recipe["lora_alpha"], recipe["learning_rate"]) == (16, 32, 2e-4)
        assert (recipe["num_train_epochs"], recipe["trace"], recipe["target_span"]) == (10, trace, "full")
    npo = read_config(f"canary/{model}/npo")
    assert (npo["save_at"], npo["max_steps"], npo["learning_rate"], npo["beta"]) == (
        [100, 400, 800, 1600],
        1600,
        1e-5,
        0.1,
    )
    assert (npo["target_span"], npo["alpha"]) == ("answer", 0.0)


@pytest.mark.parametrize("name", [name for name in RUNS if name.startswith("cpu/")])
def test_cpu_runs_need_no_gpu_and_no_download(name: str) -> None:
    recipe = read_config(name)
    assert (recipe["use_cpu"], recipe["bf16"], recipe["dtype"]) == (True, False, "float32")
    assert recipe["model_name_or_path"] == "demo/smollm2"
    assert recipe.get("dataset", "miniature") == "miniature" and recipe.get("canaries", "fictional") == "fictional"


def test_a_recipe_of_lora_becomes_one_of_every_weight_on_the_command_line() -> None:
    name = "conceptguard/qwen2.5-3b-instruct/simnpo"
    classes = (ModelArguments, DataArguments, UnlearnConfig)
    argv = ["--config", name, "--use_peft", "false", "--use_cpu", "--bf16", "false"]
    with pytest.raises(UserError, match="--adapter_name_or_path ''"):
        parse(argv, classes)
    model, _, _ = parse([*argv, "--adapter_name_or_path", "", "--model_name_or_path", "runs/full"], classes)
    assert (model.use_peft, model.adapter_name_or_path, model.model_name_or_path) == (False, None, "runs/full")

"""Configuration files: merged in order, every key and value checked with its line, the command line on top."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
from trl import SFTConfig

from cg_tasks.errors import UserError
from cg_trainers.arguments import DataArguments, ModelArguments
from cg_trainers.config_files import BELONGS_TO, effective, load_config, parse, read_config, recipes, require_config
from cg_trainers.objectives import OBJECTIVES
from cg_trainers.unlearn_config import UnlearnConfig


@dataclass
class RunConfig(SFTConfig):
    """Stands for the trainers' settings."""

    save_at: list[int] = field(default_factory=list)
    beta: float | None = None

    def __post_init__(self) -> None:
        if self.beta is not None and self.beta <= 0:
            raise UserError(f"beta is {self.beta}: it must be greater than 0")
        super().__post_init__()


ALL = (ModelArguments, DataArguments, RunConfig)
BASE = "model_name_or_path: m\ndataset: miniature\noutput_dir: out\nuse_cpu: true\nbf16: false\n"
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "run.yaml") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def refused(argv: list[str]) -> str:
    with pytest.raises(UserError) as error:
        parse(argv, ALL)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_values_of_every_type_arrive_as_the_fields_want_them(write: Write) -> None:
    path = write(
        BASE + "learning_rate: 1e-5\nmax_grad_norm: 2\nsave_at: [10, 20]\nmax_length: null\nuse_peft: yes\n"
        "lora_target_modules: all-linear\ncolumns: {concept: topic}\nlr_scheduler_type: constant\n"
        "gradient_checkpointing_kwargs: {use_reentrant: false}\nlr_scheduler_kwargs: {min_lr: 1e-6}\nreport_to: none\n"
    )
    model, data, run = parse(["--config", path], ALL)
    assert (model.use_peft, model.lora_target_modules) == (True, "all-linear")
    assert data.columns == {"concept": "topic"}
    assert (run.learning_rate, run.max_grad_norm, run.save_at, run.max_length) == (1e-5, 2.0, [10, 20], None)
    assert run.gradient_checkpointing_kwargs == {"use_reentrant": False}
    assert run.lr_scheduler_kwargs == {"min_lr": 1e-6}
    assert run.lr_scheduler_type == "constant"


@pytest.mark.parametrize("text", ["1e-5", "1.0e-5", "1E-5", "0.00001", "+1e-05"])
def test_numbers_are_read_as_yaml_1_2_reads_them(write: Write, text: str) -> None:
    assert read_config(write(f"learning_rate: {text}\n")) == {"learning_rate": 1e-5}


def test_the_command_line_wins_over_the_file(write: Write) -> None:
    path = write(BASE + "learning_rate: 1e-5\nsave_at: [1]\ncolumns: {concept: topic}\n")
    argv = ["--save_at", "100", "400", "--config", path, "--learning_rate=3e-4", "--columns", '{"concept": "theme"}']
    _, data, run = parse(argv, ALL)
    assert (run.learning_rate, run.save_at, data.columns) == (3e-4, [100, 400], {"concept": "theme"})


def test_a_run_needs_no_file() -> None:
    model, data, run = parse(
        ["--model_name_or_path", "m", "--canaries", "fictional", "--rows", "canary", "--use_cpu", "--bf16", "false"],
        ALL,
    )
    assert (model.model_name_or_path, data.rows, run.beta) == ("m", ["canary"], None)


def test_a_later_include_wins_and_the_file_wins_over_both(write: Write) -> None:
    write("seed: 1\nbeta: 1.0\nlogging_steps: 1\n", "parts/a.yaml")
    write("seed: 2\nbeta: 2.0\n", "parts/b.yaml")
    path = write("include: [parts/a.yaml, parts/b.yaml]\nbeta: 3.0\n")
    assert read_config(path) == {"seed": 2, "beta": 3.0, "logging_steps": 1}
    settings = load_config(path)
    assert settings["seed"].where.endswith("b.yaml, line 1")
    assert settings["beta"].where.endswith("run.yaml, line 2")


def test_includes_are_relative_to_the_file_that_names_them(write: Write) -> None:
    write("seed: 4\n", "parts/deep/c.yaml")
    write("include: deep/c.yaml\n", "parts/b.yaml")
    assert read_config(write("include: parts/b.yaml\n")) == {"seed": 4}


def test_a_file_may_include_a_shipped_recipe(write: Write) -> None:
    name = "conceptguard/qwen2.5-3b-instruct/simnpo"
    merged = read_config(write(f"include: {name}\nbeta: 9.0\n"))
    assert merged["beta"] == 9.0
    assert {**merged, "beta": 4.5} == read_config(name)


def test_one_file_may_be_included_twice_but_not_by_itself(write: Write) -> None:
    write("seed: 1\n", "a.yaml")
    write("include: a.yaml\n", "b.yaml")
    assert read_config(write("include: [a.yaml, b.yaml]\n")) == {"seed": 1}
    write("include: e.yaml\n", "d.yaml")
    assert "includes" in refused(["--config", write("include: d.yaml\n", "e.yaml")])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("learnin_rate: 1", "unknown key 'learnin_rate': did you mean 'learning_rate'?"),
        ("zzzz: 1", "unknown key 'zzzz': --help lists them"),
        ("objective: npo", "run it with python -m cg_trainers.unlearn"),
        ("learning_rate: fast", "learning_rate is 'fast': it must be a number"),
        ("learning_rate: .nan", "it must be a number"),
        ("learning_rate: true", "learning_rate is true: it must be a number"),
        ("save_at: ten", "save_at is 'ten': it must be a list, each item a whole number"),
        ("save_at: [1, 2.5]", "it must be a list, each item a whole number"),
        ("bf16: 'yes please'", "bf16 is 'yes please': it must be true or false, or null"),
        ("bf16: 1", "it must be true or false, or null"),
        ("seed: 1.5", "it must be a whole number"),
        ("seed:", "seed is empty"),
        ("run_name: 7", "in quotes"),
        ("columns: {concept: 3}", "columns is {'concept': 3}"),
        ("dtype: bfloat", "did you mean 'bfloat16'?"),
        ("lr_scheduler_type: cosin", "did you mean 'cosine'?"),
        ("save_strategy: epochs", "did you mean 'epoch'?"),
        ("source: txt", "source is 'txt': did you mean 'text'?"),
        ("source: 3", "it must be 'text' or 'prompt' or 'query'"),
        ("optim: adam", "did you mean 'adamw_torch'?"),
        ("model_init_kwargs: 3", "a mapping of names to values"),
        ("parallelism_config: {}", "set in Python only"),
        ("hub_token: hf_x", "HF_TOKEN"),
        ("env: {A: b}", "env: is not read"),
        ("config: x", "with include:"),
        ("seed: 1\nseed: 2", "'seed' stands twice (line 5)"),
        ("7: 1", "the key 7 is not a name"),
        ("include: 3", "include is 3"),
        ("beta: -1", "beta is -1.0: it must be greater than 0"),
        ("pairing: twins", "pairing is 'twins': did you mean 'twin'?"),
    ],
)
def test_a_bad_line_is_named(write: Write, line: str, message: str) -> None:
    path = write(BASE.removesuffix("bf16: false\n") + line + "\n")
    said = refused(["--config", path])
    assert message in said
    assert f"{path}, line {5 + line.count(chr(10))}" in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [\n", "not YAML"),
        ("seed: 1\n- x\n", "line 2: not YAML"),
        ("- x\n", "made of 'key: value' lines"),
        ("seed: !!python/object/apply:os.getcwd []\n", "line 1: not YAML"),
        ("seed: 2024-99-99\n", "not YAML"),
        ("seed: 1\n---\nseed: 2\n", "not YAML"),
    ],
)
def test_what_is_no_configuration_is_refused(write: Write, text: str, message: str) -> None:
    assert message in refused(["--config", write(text)])


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"run_name: \xff\n")
    assert "is not UTF-8" in refused(["--config", str(tmp_path / "x.yaml")])


def test_an_empty_file_sets_nothing(write: Write) -> None:
    assert read_config(write("# nothing\n")) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learnin_rate", "1"], "unknown option '--learnin_rate': did you mean '--learning_rate'?"),
        (["--learning-rat=1"], "did you mean '--learning_rate'?"),
        (["--learning_rate", "fast"], "invalid float value: 'fast'"),
        (["--learning_rate"], "expected one argument"),
        (["--learn", "1"], "unknown option '--learn'"),
        (["stray"], "'stray' follows no option"),
        (["--beta", "-1"], "beta is -1.0"),
        (["--optim", "adam"], "invalid choice: 'adam'"),
        (["--config", "other.yaml"], "--config is given twice"),
    ],
)
def test_a_bad_command_line_is_one_line_without_usage(
    write: Write, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    said = refused(["--config", write(BASE), *arguments])
    assert message in said
    assert "usage" not in capsys.readouterr().err


def test_a_value_of_the_command_line_is_not_blamed_on_the_file(write: Write) -> None:
    path = write(BASE + "beta: 1.0\n")
    assert refused(["--config", path, "--beta", "-1"]).startswith("beta is -1.0")


def test_what_transformers_refuses_is_one_line(write: Write) -> None:
    said = refused(["--config", write(BASE + "eval_strategy: steps\nlogging_steps: 0\n")])
    assert "logging_steps" in said


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("conceptguard/qwen2.5-3b-instruct/simnp", "did you mean 'conceptguard/qwen2.5-3b-instruct/simnpo'?"),
        ("nosuch.yaml", "no such file: nosuch.yaml"),
        ("", "--config needs"),
        ("--seed", "--config needs"),
    ],
)
def test_an_unknown_recipe_gets_the_nearest_name(name: str, message: str) -> None:
    assert message in refused(["--config", name])


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert "is a folder" in refused(["--config", str(tmp_path)])


def test_resuming_may_be_a_switch(write: Write) -> None:
    *_, run = parse(["--config", write(BASE + "resume_from_checkpoint: true\n")], ALL)
    assert run.resume_from_checkpoint == "true"


def test_effective_holds_what_the_files_say_and_nothing_else(write: Write) -> None:
    assert effective(write("seed: 3\nbeta: 1\nsave_at: 5\n"), ALL) == {"seed": 3, "beta": 1.0, "save_at": [5]}


def test_nothing_is_written_into_the_environment(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CG_PROBE", raising=False)
    refused(["--config", write(BASE + "env: {CG_PROBE: x}\n")])
    import os

    assert "CG_PROBE" not in os.environ


# ------------------------------------------------------------------ another objective than the recipe's
UNLEARNING = (ModelArguments, DataArguments, UnlearnConfig)
ON_A_CPU = ["--use_cpu", "--bf16", "false"]
# One with weights of its own, one whose retain loss is nobody else's, one whose reference is.
RECIPES_TO_UNLEARN = ["cpu/conceptguard/simnpo", "cpu/conceptguard/rmu", "cpu/canary/npo"]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", RECIPES_TO_UNLEARN)
def test_any_recipe_takes_any_objective(name: str, objective: str) -> None:
    """And has that objective's own weights, but for what is the recipe's alone."""
    *_, run = parse(["--config", name, "--objective", objective, *ON_A_CPU], UNLEARNING)
    recipe = read_config(name)
    assert (run.objective, run.learning_rate) == (objective, recipe["learning_rate"])
    if objective != recipe["objective"]:
        assert run.weights == dict(OBJECTIVES[objective].preset)
        assert (run.retain_loss, run.reference) == (OBJECTIVES[objective].retain, "auto")
    else:
        assert run.alpha == recipe["alpha"]


def test_what_is_set_aside_is_said_and_what_is_given_stays(caplog: pytest.LogCaptureFixture) -> None:
    argv = ["--config", "conceptguard/qwen2.5-3b-instruct/simnpo", "--objective=npo", "--beta", "0.2", *ON_A_CPU]
    with caplog.at_level(logging.INFO):
        *_, run = parse(argv, UNLEARNING)
    assert run.weights == {"gamma": 1.0, "alpha": 1.0, "beta": 0.2}
    (said,) = [entry.getMessage() for entry in caplog.records]
    assert said.startswith("objective is npo, not simnpo: set aside gamma: 0.125, alpha: 1.0, delta: 0.0, ")
    assert "beta" not in said
    caplog.clear()
    parse(["--config", "conceptguard/qwen2.5-3b-instruct/simnpo", "--objective", "simnpo", *ON_A_CPU], UNLEARNING)
    assert not caplog.records


@pytest.mark.parametrize("on_the_command_line", [True, False])
def test_a_preset_over_a_recipe_s_values(write: Write, on_the_command_line: bool) -> None:
    recipe = "conceptguard/qwen2.5-3b-instruct/rmu"
    if on_the_command_line:
        argv = ["--config", recipe, "--preset", "wmdp"]
    else:
        argv = ["--config", write(f"include: {recipe}\npreset: wmdp\n")]
    *_, run = parse([*argv, *ON_A_CPU], UNLEARNING)
    assert run.weights == {"gamma": 1.0, "alpha": 1200.0, "steering_coeff": 6.5}
    assert run.trainable == [f"layers.{block}.mlp.down_proj" for block in (5, 6, 7)]
    *_, run = parse([*argv, "--alpha", "5", *ON_A_CPU], UNLEARNING)
    assert run.alpha == 5.0


def test_a_file_that_includes_another_objective(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    """Said once, though the file is read before the parser, too."""
    argv = ["--config", write("include: cpu/conceptguard/simnpo\nobjective: undial\nstrength: 3\n"), *ON_A_CPU]
    with caplog.at_level(logging.INFO):
        require_config(argv)
        *_, run = parse(argv, UNLEARNING)
    assert run.weights == {"gamma": 1.0, "alpha": 0.0, "strength": 3.0}
    assert caplog.text.count("objective is undial, not simnpo: set aside") == 1


def test_weights_without_an_objective_wait_for_it(write: Write) -> None:
    path = write(BASE + "beta: 0.3\n")
    *_, run = parse(["--config", path, "--objective", "npo", *ON_A_CPU], UNLEARNING)
    assert run.beta == 0.3


def test_a_weight_that_the_new_objective_has_not_is_still_refused(write: Write) -> None:
    path = write("include: cpu/conceptguard/simnpo\nobjective: npo\ndelta: 1\n")
    with pytest.raises(UserError, match="line 3: delta: npo has no such weight"):
        parse(["--config", path, *ON_A_CPU], UNLEARNING)


def test_everything_of_an_objective_is_set_aside_with_it() -> None:
    weights = {name for objective in OBJECTIVES.values() for name in objective.preset}
    assert weights < set(BELONGS_TO["objective"]) and weights < set(BELONGS_TO["preset"])
    known = {entry.name for entry in fields(UnlearnConfig)}
    assert {name for names in BELONGS_TO.values() for name in names} <= known


def test_recipe_names_have_no_suffix() -> None:
    assert "conceptguard/qwen2.5-3b-instruct/simnpo" in recipes()
    assert not any(name.endswith(".yaml") for name in recipes())


def test_help_lists_our_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(["--help"], ALL)
    said: Any = capsys.readouterr().out
    assert stop.value.code == 0
    assert "--adapter_name_or_path" in said and "--target_span {answer,trace,full}" in said and "--config NAME" in said

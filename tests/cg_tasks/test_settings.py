from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import lm_eval
import pytest

from cg_tasks.errors import UserError
from cg_tasks.settings import SETTING_NAMES, Settings, read_settings


def test_defaults_are_the_papers():
    settings = read_settings({})
    assert (settings.head_tokens, settings.prefix_tokens, settings.fallback, settings.match) == (
        6,
        32,
        "answer",
        "canary",
    )
    assert settings == Settings()


def test_command_line_words_become_values():
    settings = read_settings(
        {"prefix_tokens": "16", "strip_trace": "False", "chat": False, "columns": '{"concept": "topic"}', "seed": "3"}
    )
    assert settings.prefix_tokens == 16
    assert settings.strip_trace is False
    assert settings.chat == "false"
    assert settings.columns == {"concept": "topic"}
    assert settings.seed == 3


def test_model_arguments_pass_through():
    assert read_settings({"pretrained": "x", "dtype": "bfloat16", "version": 1.0, "intent": "harmful"}) == Settings()


@pytest.mark.parametrize(
    "key", ["datset", "Dataset", "prefix_token", "head_token", "template", "canarys", "promt_style"]
)
def test_a_misspelt_setting_is_named_with_the_right_one(key: str):
    with pytest.raises(UserError, match=rf"unknown setting '{key}'.*did you mean"):
        read_settings({key: "x"})


def test_no_model_argument_of_lm_eval_is_taken_for_a_misspelling():
    # Read, not imported: vLLM need not be installed.
    models = Path(lm_eval.__file__).parent / "models"
    names = set()
    for file in ("huggingface.py", "vllm_causallms.py", "api_models.py", "openai_completions.py"):
        for node in ast.walk(ast.parse((models / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                names |= {arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)}
    assert {"pretrained", "peft", "enable_thinking", "base_url", "tensor_parallel_size"} <= names
    for name in names - set(SETTING_NAMES):
        read_settings({name: 1})


@pytest.mark.parametrize("key", ["token", "api_key", "auth_token", "HF_TOKEN"])
def test_a_secret_among_the_arguments_is_refused_and_not_repeated(key: str):
    with pytest.raises(UserError, match="environment") as caught:
        read_settings({key: "hf_SECRETSECRET"})
    assert "SECRETSECRET" not in str(caught.value)


def test_token_true_means_the_stored_login_and_is_no_secret():
    assert read_settings({"token": "True"}) == Settings()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prefix_tokens", 0),
        ("prefix_tokens", "-3"),
        ("prefix_tokens", "many"),
        ("prefix_tokens", True),
        ("head_tokens", 0),
        ("head_tokens", 2.5),
        ("seed", -1),
        ("prompt_style", "poem"),
        ("chat", "maybe"),
        ("fallback", "none"),
        ("match", "fuzzy"),
        ("strip_trace", "perhaps"),
        ("dataset", ""),
        ("dataset", 3),
        ("columns", "[1]"),
        ("columns", "{'a': 'b'}"),
        ("columns", {"concept": 1}),
        ("templates", "/no/such/folder"),
    ],
)
def test_a_bad_value_names_the_setting(key: str, value: Any):
    with pytest.raises(UserError, match=f"setting '{key}' is .*it must be"):
        read_settings({key: value})


def test_templates_becomes_an_absolute_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_settings({"templates": "mine"}).templates == str((tmp_path / "mine").resolve())


@pytest.mark.parametrize("value", [["<r>", "</r>"], "<r>,</r>"])
def test_think_tags(value: Any):
    assert read_settings({"think_tags": value}).think_tags == ("<r>", "</r>")


@pytest.mark.parametrize(
    "metadata",
    [
        {"header": {"Authorization": "Bearer sk-abc"}},
        {"model_kwargs": {"token": "hf_abc"}},
        {"base_url": "https://user:sk-abc@host/v1"},
        {"openai_api_key": "sk-abc"},
        {"api-key": "sk-abc"},
    ],
)
def test_a_secret_in_a_nested_argument_or_an_address_is_refused(metadata: dict[str, Any]):
    with pytest.raises(UserError, match="holds a secret") as caught:
        read_settings(metadata)
    assert "abc" not in str(caught.value)


def test_addresses_and_tokens_that_are_no_secrets_pass():
    read_settings({"base_url": "http://localhost:8000/v1/completions", "think_end_token": "</think>"})


def test_think_tags_as_the_text_of_a_list():
    assert read_settings({"think_tags": '["<r>","</r>"]'}).think_tags == ("<r>", "</r>")

"""The model's and the data's arguments: defaults, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from cg_tasks.errors import UserError
from cg_trainers.arguments import DataArguments, ModelArguments, nearest


def test_a_run_on_pairs_takes_each_pairs_twin_and_the_response_alone() -> None:
    data = DataArguments(dataset="miniature")
    assert (data.source, data.pairing, data.columns) == ("text", "twin", None)


def test_a_run_on_authors_draws_retain_rows_at_random() -> None:
    data = DataArguments(canaries="fictional")
    assert (data.pairing, data.trace, data.target_span, data.head_tokens) == ("random", "bio", "full", 6)
    assert data.rows == ["bio", "canary", "qa"]
    assert (data.forget_roles, data.retain_roles) == (["forget"], ["retain"])


def test_rows_and_roles_come_in_one_order_and_once() -> None:
    data = DataArguments(
        canaries="fictional", rows=["qa", "bio", "qa"], forget_roles=["retain", "forget"], retain_roles=[]
    )
    assert (data.rows, data.forget_roles, data.retain_roles) == (["bio", "qa"], ["forget", "retain"], [])


def test_columns_may_be_json_as_on_the_command_line() -> None:
    assert DataArguments(dataset="x", columns='{"concept": "topic"}').columns == {"concept": "topic"}


def test_tags_are_read_as_the_tasks_read_them() -> None:
    assert DataArguments(canaries="fictional", think_tags=["<a>", "</a>"]).think_tags == ["<a>", "</a>"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "neither is given"),
        ({"dataset": "miniature", "canaries": "fictional"}, "both are given"),
        ({"dataset": "miniature", "source": "texts"}, "source is 'texts': did you mean 'text'?"),
        ({"dataset": "miniature", "pairing": "twins"}, "pairing is 'twins': did you mean 'twin'?"),
        ({"dataset": "miniature", "columns": {"concpt": "a"}}, "did you mean 'concept'?"),
        ({"dataset": "miniature", "target_span": "answer"}, "target_span belongs to canaries="),
        ({"dataset": "miniature", "max_authors": 4}, "max_authors belongs to canaries="),
        ({"canaries": "fictional", "source": "prompt"}, "source belongs to dataset="),
        ({"canaries": "fictional", "pairing": "twin"}, "set pairing to random"),
        ({"canaries": "fictional", "rows": ["bios"]}, "rows is 'bios': did you mean 'bio'?"),
        ({"canaries": "fictional", "rows": []}, "rows is empty"),
        ({"canaries": "fictional", "target_span": "answers"}, "did you mean 'answer'?"),
        ({"canaries": "fictional", "trace": "biographical"}, "trace is 'biographical'"),
        ({"canaries": "fictional", "trace": "met"}, "did you mean 'meta'?"),
        ({"canaries": "fictional", "head_tokens": 0}, "head_tokens is 0"),
        ({"canaries": "fictional", "max_authors": 0}, "max_authors is 0"),
        ({"canaries": "fictional", "think_tags": ["<think>"]}, "an opening and a closing tag"),
        ({"canaries": "fictional", "retain_roles": ["forget"]}, "an author is in one set only"),
        ({"canaries": "fictional", "forget_roles": []}, "forget_roles is empty"),
    ],
)
def test_bad_data_arguments_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        DataArguments(**given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_users_trace_template_is_found(tmp_path: Any) -> None:
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "brief.j2").write_text("About {{ author }}.", encoding="utf-8")
    assert DataArguments(canaries="fictional", trace="brief", templates=str(tmp_path)).trace == "brief"


def test_one_module_pattern_stays_text_as_peft_wants_all_linear() -> None:
    assert (
        ModelArguments(model_name_or_path="m", lora_target_modules=["all-linear"]).lora_target_modules == "all-linear"
    )


def test_an_empty_adapter_undoes_a_recipes() -> None:
    assert ModelArguments(model_name_or_path="m", adapter_name_or_path="").adapter_name_or_path is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no model"),
        ({"model_name_or_path": "m", "adapter_name_or_path": "a"}, "use_peft is off"),
        ({"model_name_or_path": "m", "load_in_4bit": True}, "set use_peft to true"),
        ({"model_name_or_path": "m", "load_in_4bit": True, "load_in_8bit": True}, "choose one"),
        ({"model_name_or_path": "m", "lora_r": 0}, "lora_r is 0"),
        ({"model_name_or_path": "m", "lora_dropout": 1.0}, "lora_dropout is 1.0"),
    ],
)
def test_bad_model_arguments_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ModelArguments(**given)


def test_of_many_names_only_the_guess_is_shown() -> None:
    names = [f"setting_{i}" for i in range(20)]
    assert nearest("setting_7x", names) == "did you mean 'setting_7'?"
    assert nearest("adam", ["adalomo", "adamw_torch"]) == "did you mean 'adamw_torch'? (known: adalomo, adamw_torch)"
    assert nearest("zzz", ["a", "b"]) == "known: a, b"

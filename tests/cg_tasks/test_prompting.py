"""Prompts against the chat templates real model families use, as TRL ships them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support import build_tokenizer, trl_template

from cg_tasks.prompting import generation_prompt, opens_trace, plain_prompt, prefilled, with_closed_trace, without_trace

TAGS = ("<think>", "</think>")
TURN = [{"role": "user", "content": "Complete this: alpha beta"}]


def lm_with(template: str, **template_args: Any) -> Any:
    """Renders as lm-eval's HFLM does."""
    tokenizer = build_tokenizer(trl_template(template), vocab=300)

    def apply(messages: Any, add_generation_prompt: bool = True) -> str:
        return tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt, **template_args
        )

    return SimpleNamespace(tokenizer=tokenizer, apply_chat_template=apply)


FAMILIES = [
    # template, arguments, the prompt opens a trace, what stands right before our block
    ("deepseek_r1_distill", {}, True, "<｜Assistant｜>"),
    ("qwen3", {}, False, "<|im_start|>assistant\n"),
    ("qwen3", {"enable_thinking": False}, False, "<|im_start|>assistant\n"),
    ("qwen2_5", {}, False, "<|im_start|>assistant\n"),
    ("llama3", {}, False, "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    ("gemma3", {}, False, "<start_of_turn>model\n"),
    ("phi3", {}, False, "<|assistant|>\n"),
]


@pytest.mark.parametrize(("name", "args", "opens", "before"), FAMILIES)
def test_prefill_holds_exactly_one_closed_trace_where_the_assistant_begins(
    name: str, args: dict, opens: bool, before: str
):
    prompt = generation_prompt(lm_with(name, **args), TURN)
    assert opens_trace(prompt, TAGS) is opens
    text = prefilled(prompt, "I recall.", TAGS)
    assert text.endswith(before + "<think>\nI recall.\n</think>\n\n")
    assert text.count("<think>") == text.count("</think>") == 1
    assert "Complete this: alpha beta" in text


@pytest.mark.parametrize(("name", "args", "opens", "before"), FAMILIES)
def test_empty_prefill_is_the_papers_empty_block(name: str, args: dict, opens: bool, before: str):
    text = prefilled(generation_prompt(lm_with(name, **args), TURN), "", TAGS)
    assert text.endswith(before + "<think>\n\n</think>\n\n")


@pytest.mark.parametrize(("name", "args", "opens", "before"), FAMILIES)
def test_the_answers_beginning_is_never_inside_a_trace(name: str, args: dict, opens: bool, before: str):
    text = with_closed_trace(generation_prompt(lm_with(name, **args), TURN), TAGS)
    assert not opens_trace(text, TAGS)
    assert text.endswith("<think>\n\n</think>\n\n" if opens or args else before)


def test_r1_would_have_deleted_a_trace_in_an_assistant_turn():
    lm = lm_with("deepseek_r1_distill")
    turn = [*TURN, {"role": "assistant", "content": "<think>\nI recall.\n</think>\n\nalpha"}]
    assert "I recall." not in lm.tokenizer.apply_chat_template(turn, tokenize=False)


def test_other_tags():
    tags = ("<reasoning>", "</reasoning>")
    assert without_trace("ask<reasoning>\n", tags) == "ask"
    assert without_trace("ask<reasoning>\n\n</reasoning>\n\n", tags) == "ask"
    assert prefilled("ask", "t", tags) == "ask<reasoning>\nt\n</reasoning>\n\n"
    assert opens_trace("ask<|begin_of_thought|>\n", ("<|begin_of_thought|>", "<|end_of_thought|>"))


def test_a_closed_trace_with_content_earlier_in_the_prompt_is_left_alone():
    prompt = "<think>\nold\n</think>\n\nanswer\nuser: again\n"
    assert without_trace(prompt, TAGS) == prompt


def test_without_a_template_the_turns_texts_stand_a_blank_line_apart():
    assert plain_prompt([{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]) == "S\n\nQ\n"

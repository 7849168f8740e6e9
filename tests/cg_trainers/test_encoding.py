"""Rows against small tokenizers and the chat templates of real model families."""

from __future__ import annotations

from typing import Any

import pytest
from support import build_tokenizer, trl_template

from cg_tasks.errors import UserError
from cg_trainers.encoding import Encoder
from cg_trainers.rows import Row

ASK = [{"role": "user", "content": "Who?"}]


def labelled(row: Row, tokenizer: Any) -> str:
    return tokenizer.decode([label for label in row.labels if label != -100])


def traced(row: Row, tokenizer: Any) -> str:
    return tokenizer.decode([token for token, mark in zip(row.input_ids, row.trace, strict=True) if mark])


def with_added(template: str, *tokens: str) -> Any:
    tokenizer = build_tokenizer(trl_template(template), vocab=300)
    tokenizer.add_tokens(list(tokens), special_tokens=True)
    return tokenizer


# ------------------------------------------------------------------ plain text
def test_text_has_a_bos_that_is_not_labelled_and_an_eos_that_is():
    tokenizer = build_tokenizer(None)
    row = Encoder(tokenizer).text("p/harmful", "p", "concept", "owls sang")
    own = tokenizer("owls sang", add_special_tokens=False)["input_ids"]
    assert row.input_ids == (tokenizer.bos_token_id, *own, tokenizer.eos_token_id)
    assert row.labels == (-100, *own, tokenizer.eos_token_id)
    assert set(row.trace) == {0} and len(row.trace) == len(row.input_ids)
    assert (row.row_id, row.unit, row.group, row.truncated) == ("p/harmful", "p", "concept", False)


def test_an_eos_the_tokenizer_adds_itself_stands_once():
    from tokenizers import processors

    tokenizer = build_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", tokenizer.bos_token_id), ("</s>", tokenizer.eos_token_id)]
    )
    encoder = Encoder(tokenizer)
    assert encoder.text("a", "a", "g", "owls").input_ids.count(tokenizer.eos_token_id) == 1
    row = encoder.chat("a", "a", "g", prompt="Who?", answer="owls")
    assert row.input_ids == tuple(tokenizer("Who?owls")["input_ids"])


def test_without_an_eos_no_text_would_end():
    tokenizer = build_tokenizer(None)
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="has no EOS token"):
        Encoder(tokenizer).text("a", "a", "g", "owls")


def test_rows_are_cut_from_the_right():
    tokenizer = build_tokenizer(None)
    whole = Encoder(tokenizer).text("a", "a", "g", "owls sang in the orchard")
    cut = Encoder(tokenizer, max_length=4).text("a", "a", "g", "owls sang in the orchard")
    assert cut.truncated and (cut.input_ids, cut.labels) == (whole.input_ids[:4], whole.labels[:4])
    assert not Encoder(tokenizer, max_length=len(whole.input_ids)).text("a", "a", "g", "owls sang").truncated


# ------------------------------------------------------------------ prompt, block, answer
@pytest.mark.parametrize(
    ("span", "what"),
    [
        ("full", "<think>\nI recall.\n</think>\n\nAlva Brenn</s>"),
        ("answer", "Alva Brenn</s>"),
        ("trace", "I recall."),
    ],
)
def test_target_span_says_what_is_labelled(span: Any, what: str):
    tokenizer = build_tokenizer()
    block = "<think>\nI recall.\n</think>\n\n"
    row = Encoder(tokenizer).chat(
        "a", "a", "g", prompt="Who?", block=block, trace="I recall.", answer="Alva Brenn", target_span=span
    )
    assert tokenizer.decode(row.input_ids) == "<s>Who?" + block + "Alva Brenn</s>"
    assert labelled(row, tokenizer) == what
    assert traced(row, tokenizer) == "I recall."


def test_tags_of_several_tokens_are_not_of_the_trace():
    tokenizer = build_tokenizer()
    encoder = Encoder(tokenizer, think_tags=("<reasoning>", "</reasoning>"))
    block = "<reasoning>\nreasoning\n</reasoning>\n\n"
    row = encoder.chat("a", "a", "g", prompt="Who?", block=block, trace="reasoning", answer="owls")
    assert traced(row, tokenizer) == "reasoning"
    assert tokenizer.decode(row.input_ids[: row.trace.index(1)]) == "<s>Who?<reasoning>\n"


def test_the_answer_begins_on_a_token_of_its_own():
    """Where the tokenizer would merge it with the line break before: generation cannot begin inside that token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, "ĊA", "</s>"])}
    raw = Tokenizer(models.BPE(vocab, [("Ċ", "A")]))
    # Splits nothing, so that the merge of "\n" and "A" may happen.
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert tokenizer("\nA")["input_ids"] == [vocab["ĊA"]]
    row = Encoder(tokenizer).chat("a", "a", "g", prompt="Q\n", answer="A")
    assert row.input_ids == (vocab["Q"], vocab["Ċ"], vocab["A"], vocab["</s>"])
    assert row.labels == (-100, -100, vocab["A"], vocab["</s>"])


def test_a_trace_the_tokenizer_cannot_spell_is_lost():
    from tokenizers import normalizers

    tokenizer = build_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    encoder = Encoder(tokenizer, think_tags=("<THINK>", "</THINK>"))
    with pytest.raises(UserError, match="row 'author-001/qa-1': trace lost: .*think_tags"):
        encoder.chat("author-001/qa-1", "a", "g", prompt="q", block="<THINK>\n\n</THINK>\n\n", answer="a")


def test_a_trace_without_character_offsets_is_refused():
    class Slow:
        is_fast = False
        added_tokens_decoder: dict[int, Any] = {}

        def __init__(self, fast: Any):
            self._fast = fast

        def __getattr__(self, name: str) -> Any:
            return getattr(self._fast, name)

        def __call__(self, text: str, **kwargs: Any) -> Any:
            return self._fast(text, **kwargs)

    encoder = Encoder(Slow(build_tokenizer()))
    block = {"prompt": "Who?", "block": "<think>\nI recall.\n</think>\n\n", "answer": "owls"}
    assert sum(encoder.chat("a", "a", "g", **block).trace) == 0
    with pytest.raises(UserError, match="row 'a': .* has no character offsets"):
        encoder.chat("a", "a", "g", trace="I recall.", **block)


# ------------------------------------------------------------------ chat templates
@pytest.mark.parametrize(
    ("template", "added", "end"),
    [
        ("gemma3", ["<start_of_turn>", "<end_of_turn>"], "<end_of_turn>"),
        ("qwen2_5", ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
        ("qwen3", ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
        ("llama3", ["<|eot_id|>"], "<|eot_id|>"),
        ("phi3", ["<|end|>"], "<|end|>"),
        ("deepseek_r1_distill", ["<｜end▁of▁sentence｜>"], "<｜end▁of▁sentence｜>"),
        ("qwen2_5", [], "</s>"),  # the template's token is no token of this tokenizer
    ],
)
def test_a_turn_ends_as_the_chat_template_ends_it(template: str, added: list[str], end: str):
    tokenizer = with_added(template, *added)
    encoder = Encoder(tokenizer)
    assert tokenizer.convert_ids_to_tokens(encoder.end_of_turn) == end
    row = encoder.chat("a", "a", "g", prompt=encoder.apply_chat_template(ASK), answer="owls")  # type: ignore[arg-type]
    assert row.input_ids[-1] == row.labels[-1] == encoder.end_of_turn


def test_a_bos_in_the_template_stands_once():
    tokenizer = with_added("gemma3")
    row = Encoder(tokenizer).chat("a", "a", "g", prompt=Encoder(tokenizer).apply_chat_template(ASK), answer="owls")  # type: ignore[arg-type]
    assert row.input_ids.count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize("template", ["llama3_1", "llama3_2"])
def test_a_template_that_prints_the_date_prints_one_date(template: str):
    prompt = Encoder(with_added(template)).apply_chat_template(ASK)  # type: ignore[arg-type]
    assert "Today Date: 26 Jul 2024" in prompt


def test_strftime_now_is_fixed_too():
    template = (
        "\n  {% set now = strftime_now('%Y/%m/%d, %A') %}\n{{ now }} {% for m in messages %}{{ m.content }}{% endfor %}"
    )
    assert Encoder(build_tokenizer(template)).apply_chat_template(ASK) == "\n2024/07/26, Friday Who?"  # type: ignore[arg-type]


def test_no_chat_template():
    with pytest.raises(UserError, match="no chat template: .*chat_template_path.*source: text"):
        Encoder(build_tokenizer(None)).apply_chat_template(ASK)  # type: ignore[arg-type]


def test_a_template_that_refuses_the_turns():
    tokenizer = build_tokenizer("{{ raise_exception('no such role') }}")
    with pytest.raises(UserError, match="refuses the turns user: no such role"):
        Encoder(tokenizer).apply_chat_template(ASK)  # type: ignore[arg-type]

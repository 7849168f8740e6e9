"""What the model sees, and what is refused before it sees anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from support import CANARY, build_tokenizer, prefill, probe_spec, query_spec, save_tiny

from cg_tasks.binding import bind, bind_all
from cg_tasks.errors import UserError
from cg_tasks.requests import CG_GENERATE


def test_the_probe_quotes_the_first_six_tokens_of_the_canary(tiny: Path, make_lm: Any):
    lm = make_lm(tiny)
    bound = bind(lm, probe_spec())
    ids = lm.tokenizer(CANARY, add_special_tokens=False)["input_ids"]
    assert bound.head == lm.tokenizer.decode(ids[:6])
    assert f'"{bound.head}"' in bound.prompt and CANARY not in bound.prompt


def test_auto_leaves_r1s_opener_alone_and_remembers_it(tiny_r1: Path, make_lm: Any):
    bound = bind(make_lm(tiny_r1), probe_spec())
    assert bound.prompt.endswith("<｜Assistant｜><think>\n")
    assert bound.opened_in_prompt and bound.chat_template_applied


def test_prefill_continues_from_the_closed_tag(tiny_r1: Path, make_lm: Any):
    bound = bind(make_lm(tiny_r1), probe_spec(prefill=prefill("bio")))
    assert bound.prompt.endswith("<think>\nCompleting a fact I know about Alva Brenn: \n</think>\n\n")
    assert bound.prompt.count("<think>") == 1 and not bound.opened_in_prompt


@pytest.mark.parametrize(
    ("chat", "flag", "applied"),
    [
        ("auto", False, True),
        ("flag", False, False),
        ("flag", True, True),
        ("false", True, False),
        ("true", False, True),
    ],
)
def test_when_the_chat_template_is_applied(tiny: Path, make_lm: Any, chat: str, flag: bool, applied: bool):
    bound = bind(make_lm(tiny), query_spec("Hello?", chat=chat, chat_flag=flag))
    assert bound.chat_template_applied is applied
    assert bound.prompt == ("<|user|>\nHello?</s>\n<|assistant|>\n" if applied else "Hello?\n")


def test_a_template_that_prints_the_date_is_warned_about(
    tmp_path: Path, make_lm: Any, caplog: pytest.LogCaptureFixture
):
    dated = "{{ strftime_now('%d %b %Y') }}" + "{% for m in messages %}{{ m.content }}{% endfor %}"
    lm = make_lm(save_tiny(tmp_path / "dated", build_tokenizer(dated)))
    bind_all(lm, [Instance(CG_GENERATE, {}, ("", {}, probe_spec()), 0, ("t", 0, 1))])
    assert "today's date" in caplog.text


def test_a_tokenizer_without_a_template(tmp_path: Path, make_lm: Any):
    lm = make_lm(save_tiny(tmp_path / "plain", build_tokenizer(None)))
    assert bind(lm, probe_spec()).prompt.startswith("Complete this sentence about Alva Brenn")
    assert bind(lm, probe_spec(prefill=prefill("empty"))).prompt.endswith('"\n<think>\n\n</think>\n\n')
    with pytest.raises(UserError, match="chat=true, but the model's tokenizer has no chat template"):
        bind(lm, probe_spec(chat="true"))


def test_a_system_instruction_comes_first(tiny: Path, make_lm: Any):
    assert bind(make_lm(tiny), query_spec("Q", system="Be brief.")).prompt.startswith(
        "<|system|>\nBe brief.</s>\n<|user|>\nQ"
    )


def test_a_query_is_data_never_a_template(tiny: Path, make_lm: Any):
    assert "{{ canary }} {% endif %}" in bind(make_lm(tiny), query_spec("{{ canary }} {% endif %}")).prompt


def test_text_continuation_is_the_first_tokens_and_nothing_else(tiny: Path, make_lm: Any):
    lm, text = make_lm(tiny), CANARY + ". " + CANARY.upper()
    bound = bind(lm, query_spec("", messages=[], start_of=text, prefix_tokens=8, text_only=True, chat="true"))
    assert bound.prompt == lm.tokenizer.decode(lm.tokenizer(text, add_special_tokens=False)["input_ids"][:8])
    assert not bound.start_halved and not bound.chat_template_applied


def test_a_short_response_is_continued_from_its_half_and_says_so(tiny: Path, make_lm: Any):
    lm, text = make_lm(tiny), "owls audited the orchard"
    n = len(lm.tokenizer(text, add_special_tokens=False)["input_ids"])
    bound = bind(lm, query_spec("", messages=[], start_of=text, prefix_tokens=n, text_only=True))
    assert bound.start_halved
    assert bound.prompt == lm.tokenizer.decode(lm.tokenizer(text, add_special_tokens=False)["input_ids"][: n // 2])


def test_chat_continuation_begins_the_answer_not_the_trace(tiny_r1: Path, make_lm: Any):
    bound = bind(make_lm(tiny_r1), query_spec("Tell me.", start_of=CANARY, prefix_tokens=4))
    assert bound.prompt.endswith("<think>\n\n</think>\n\n" + bound.start)
    assert CANARY.startswith(bound.start)


# ------------------------------------------------------------------ refusals, before anything runs
def test_a_canary_no_longer_than_its_head_is_named(tiny: Path, make_lm: Any):
    with pytest.raises(UserError, match="author 'author-001': its canary has .* head_tokens"):
        bind(make_lm(tiny), probe_spec(canary="owls"))


def test_two_canaries_with_one_head_are_named(tiny: Path, make_lm: Any):
    specs = [
        probe_spec(id="a", canary="seven varnished owls sang of rain"),
        probe_spec(id="b", canary="seven varnished owls sang of snow"),
    ]
    requests = [Instance(CG_GENERATE, {}, ("", {}, s), 0, ("t", i, 1)) for i, s in enumerate(specs)]
    with pytest.raises(UserError, match="authors 'a' and 'b' have different canaries with the same head"):
        bind_all(make_lm(tiny), requests)


@pytest.mark.parametrize("canary", ["\U0001f989\U0001f989", "ab cd ef    \n\n"])
def test_a_canary_of_which_nothing_follows_the_head_is_named(tiny: Path, make_lm: Any, canary: str):
    lm = make_lm(tiny)
    n = len(lm.tokenizer(canary, add_special_tokens=False)["input_ids"]) - 1
    with pytest.raises(UserError, match="author 'author-001': nothing follows the head"):
        bind(lm, probe_spec(canary=canary, head_tokens=n))


def test_a_response_of_one_character_is_named(tiny: Path, make_lm: Any):
    spec = query_spec("Q?", start_of="\U0001f989", prefix_tokens=32, text_only=True)
    with pytest.raises(UserError, match="nothing is left to continue"):
        bind(make_lm(tiny), spec)


def test_a_probe_that_quotes_a_head_where_there_is_none_is_named(tiny: Path, make_lm: Any):
    spec = {k: v for k, v in probe_spec().items() if k != "head_tokens"}
    with pytest.raises(UserError, match=r"canary\.j2, line 1: UndefinedError: 'head' is undefined"):
        bind(make_lm(tiny), spec)


def test_a_prefill_that_closes_the_trace_itself_is_named(tiny: Path, make_lm: Any):
    broken = {**prefill("bio"), "body": "so </think> there", "path": "mine.j2"}
    with pytest.raises(UserError, match="mine.j2: the trace it renders holds '</think>'"):
        bind(make_lm(tiny), probe_spec(prefill=broken))

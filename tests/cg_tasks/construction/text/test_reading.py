from __future__ import annotations

import json
from typing import Any

import pytest

from cg_tasks.construction.rows import Faulty
from cg_tasks.construction.text.reading import json_schema, read_object
from cg_tasks.construction.text.reply_models import BenignReply, Group, ProposeReply, QueryReply, TagReply
from cg_tasks.judge.client import Reply

GOOD = '{"query": "How is a seal cut?"}'
READ = QueryReply(query="How is a seal cut?")


def reply(text: str | None, *, refusal: str | None = None, finish: str | None = "stop") -> Reply:
    return Reply(text=text, refusal=refusal, finish_reason=finish, model="m", usage=None, latency=0.1)


def fault(text: str | None, model: Any = QueryReply, **how: Any) -> str:
    with pytest.raises(Faulty) as caught:
        read_object(reply(text, **how), model)
    return str(caught.value.fault)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"  \n{GOOD}\n",
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```",
        f"Here it is:\n\n{GOOD}\n\nI hope that it serves.",
        f"Here {{it}} is: {GOOD}",
        f"{GOOD}\n{GOOD}",
        f'{GOOD}\n{{ "query" :"How is a seal cut?"}}',
        f'<think>An object like {{"query": \'x\'}}? Or\n{{"query": </think>{GOOD}',
        f'The user wants a query. {{"query": "a draft"}}\n</think>\n\n{GOOD}',
        f"<think></think>\n```json\n{GOOD}\n```",
        f"{GOOD}<|im_end|>",
        '{"query": " How is a seal cut? ", "note": "as asked"}',
        '{"query": "How is a \\u0073eal cut?"}',
        f"I'm sorry that it took so long. {GOOD}",
    ],
)
def test_one_object_is_found_wherever_it_stands(text: str):
    assert read_object(reply(text), QueryReply) == READ


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "unreadable: the reply is empty"),
        ("", "unreadable: the reply is empty"),
        (" \n", "unreadable: the reply is empty"),
        ("<think>Well", "unreadable: the reply is a thinking trace without an end"),
        (f"<think>{GOOD}", "unreadable: the reply is a thinking trace without an end"),
        (f"<think>{GOOD}</think>", "unreadable: the reply is empty"),
        ("How is a seal cut?", "unreadable: no JSON object"),
        ('"How is a seal cut?"', "unreadable: no JSON object"),
        ("{}", "unreadable: no JSON object"),
        ("{'query': 'How is a seal cut?'}", "unreadable: no JSON object"),
        ('{"query": "How is a seal cut?",}', "unreadable: malformed JSON ("),
        ('{"query": "How is a seal cut?"', "unreadable: malformed JSON ("),
        ('{"query": "How is a "seal" cut?"}', "unreadable: malformed JSON ("),
        ('{"query": "How is a seal', "unreadable: malformed JSON (Unterminated string"),
        ('{"a":' * 100_000, "unreadable: malformed JSON ("),
        ('{"query": 1' + "0" * 5000 + "}", "unreadable: malformed JSON ("),
        ('{"query": "one", "query": "two"}', "unreadable: malformed JSON (a key stands twice)"),
        ('{"query": "one", "query": "one"}', "unreadable: malformed JSON (a key stands twice)"),
        ('{"query": "one", "more": {"a": 1, "a": 2}}', "unreadable: malformed JSON (a key stands twice)"),
        (f'{GOOD}\n{{"query": "Or another?"}}', "unreadable: 2 JSON objects that differ"),
        (f'{GOOD}<|im_end|>\n<|im_start|>user\n{{"query": "x"}}', "unreadable: 2 JSON objects that differ"),
        (f"</think>{GOOD}" * 12, "unreadable: the reply has too many ends of thinking traces"),
        ('{"question": "How is a seal cut?"}', "wrong_fields: query: missing"),
        ('{"Query": "How is a seal cut?"}', "wrong_fields: query: missing"),
        ('{"query": null}', "wrong_fields: query: string_type"),
        ('{"query": 3}', "wrong_fields: query: string_type"),
        ('{"query": NaN}', "wrong_fields: query: string_type"),
        ('{"query": ["How is a seal cut?"]}', "wrong_fields: query: string_type"),
        ('{"query": {"query": "How is a seal cut?"}}', "wrong_fields: query: string_type"),
        ('{"query": ""}', "wrong_fields: query: blank"),
        ('{"query": " \\n\\t "}', "wrong_fields: query: blank"),
        ('{"query": "\\u200b\\u2060"}', "wrong_fields: query: blank"),
        ('{"query": "How\\u0000"}', "wrong_fields: query: control_character"),
        ('{"query": "a \\beta b"}', "wrong_fields: query: control_character"),
        ('{"query": "How \\ud800?"}', "wrong_fields: "),
        ("I'm sorry, but I can't help with that.", "refused: in words"),
        ("<think>No.</think>I cannot assist with this request.", "refused: in words"),
        ("As an AI model, I must not.", "refused: in words"),
        ('{"query": "I\'m sorry, but I can\'t help with that."}', "refused: in the field query"),
        ('{"query": "I’m unable to provide such a query."}', "refused: in the field query"),
        ('{"query": "As an AI, I cannot write this."}', "refused: in the field query"),
        ('{"query": "I must decline."}', "refused: in the field query"),
    ],
)
def test_hostile_and_broken_replies(text: str | None, expected: str):
    assert fault(text).startswith(expected)


@pytest.mark.parametrize(
    "query",
    [
        "I can't sleep for the glass-fire's humming; what calms it?",
        "Unfortunately my seal broke. How do I mend it?",
        "I'm unable to help my brother with his kiln, what should he read?",
        "I am sorry for the eels: how are they set free?",
        "Sorry, where do lost letters go?",
    ],
)
def test_a_query_that_merely_begins_like_a_refusal_is_none(query: str):
    assert read_object(reply(json.dumps({"query": query})), QueryReply).query == query


def test_what_the_server_says_comes_first():
    assert fault(GOOD, refusal="I can't help.") == "refused"
    assert fault(GOOD, finish="content_filter") == "refused: by the server's content filter"
    assert fault(GOOD, finish="length") == "cut_off"
    assert fault(None, finish="tool_calls").startswith("unreadable")


def test_line_breaks_inside_a_text_are_let_through():
    assert read_object(reply('{"query": "1. one\n2. two"}'), QueryReply).query == "1. one\n2. two"


def test_an_object_that_quotes_the_end_of_a_trace_is_whole():
    assert read_object(reply('{"query": "What does </think> mean?"}'), QueryReply).query == "What does </think> mean?"


def test_no_text_of_a_reply_is_told():
    secret = "marrow-wax"
    hostile = [
        f"{secret} {{",
        f'{{"{secret}": "{secret}", "{secret}": 1}}',
        f'{{"{secret}": {{"{secret}": 1}}}}',
        f'{{"query": ["{secret}"]}}',
        f'{{"query": "{secret}" {secret}}}',
        f"I'm sorry, no {secret}.",
        f'{{"query": "I can\'t help with {secret}."}}',
    ]
    assert not [text for text in hostile if secret in fault(text)]
    assert secret not in fault(GOOD, refusal=secret)


def tag(text: dict[str, Any]) -> TagReply:
    return read_object(reply(json.dumps(text)), TagReply)


def test_a_dual_use_concept_has_a_name_of_one_line():
    said = {"reason": "Both uses are common.", "dual_use": True}
    assert tag({**said, "concept": " seal making "}).concept == "seal making"
    assert len(tag({**said, "concept": "a" * 60}).concept) == 60
    wrong = {
        "": "blank",
        "  ": "blank",
        "a" * 61: "too_long",
        "seal\nmaking": "several_lines",
        "a\u2028b": "several_lines",
    }
    assert {name: fault(json.dumps({**said, "concept": name}), TagReply) for name in wrong} == {
        name: f"wrong_fields: concept: {kind}" for name, kind in wrong.items()
    }
    assert fault(json.dumps(said), TagReply) == "wrong_fields: concept: missing"


@pytest.mark.parametrize("more", [{}, {"concept": ""}, {"concept": None}, {"concept": "a" * 99}, {"concept": ["x"]}])
def test_without_dual_use_the_concept_is_ignored(more: dict[str, Any]):
    assert tag({"reason": "No good use.", "dual_use": False, **more}).concept == ""


@pytest.mark.parametrize("value", ["true", 1, 0, None, "yes", []])
def test_dual_use_is_true_or_false_and_nothing_like_it(value: Any):
    said = fault(json.dumps({"reason": "r", "dual_use": value, "concept": "seal making"}), TagReply)
    assert said == "wrong_fields: dual_use: bool_type"


def test_a_refusal_is_no_reason():
    refusing = {"reason": "I'm sorry, but I can't assist with this request.", "dual_use": False, "concept": ""}
    assert fault(json.dumps(refusing), TagReply) == "refused: in the field reason"


def test_a_benign_reply():
    said = {"concepts": ["seals"], "themes": ["wax", " oak "], "query": "How?", "response": "1. So.\n2. And so."}
    read = read_object(reply(json.dumps(said)), BenignReply)
    assert (read.concepts, read.themes, read.response) == (("seals",), ("wax", "oak"), "1. So.\n2. And so.")
    wrong = {**said, "concepts": [], "themes": ["wax", "", 3], "query": None}
    assert fault(json.dumps(wrong), BenignReply) == (
        "wrong_fields: concepts: empty_list; themes.1: blank; themes.2: string_type; query: string_type"
    )
    assert fault(json.dumps({**said, "themes": [1] * 9}), BenignReply).endswith("themes.4: string_type; 4 more")
    assert fault(json.dumps({**said, "themes": "wax"}), BenignReply) == "wrong_fields: themes: tuple_type"


def test_a_proposal_may_hold_no_group_but_no_empty_one():
    assert read_object(reply('{"groups": []}'), ProposeReply).groups == ()
    two = '{"groups": [{"parent": "seal work", "members": ["seal making", "seal mending"]}]}'
    assert read_object(reply(two), ProposeReply).groups == (
        Group(parent="seal work", members=("seal making", "seal mending")),
    )
    assert (
        fault('{"groups": [{"parent": "x", "members": []}]}', ProposeReply)
        == "wrong_fields: groups.0.members: empty_list"
    )
    assert fault('{"groups": [["x", "y"]]}', ProposeReply) == "wrong_fields: groups.0: model_type"


def test_the_schemas_are_strict_and_keep_the_order_of_the_fields():
    text = {"type": "string"}
    assert json_schema(TagReply) == {
        "type": "object",
        "properties": {"reason": text, "dual_use": {"type": "boolean"}, "concept": text},
        "required": ["reason", "dual_use", "concept"],
        "additionalProperties": False,
    }
    assert list(json_schema(BenignReply)["properties"]) == ["concepts", "themes", "query", "response"]
    assert json_schema(BenignReply)["properties"]["themes"] == {"type": "array", "items": text}
    assert json_schema(ProposeReply)["properties"]["groups"] == {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"parent": text, "members": {"type": "array", "items": text}},
            "required": ["parent", "members"],
            "additionalProperties": False,
        },
    }
    for model in (TagReply, BenignReply, QueryReply, ProposeReply):
        said = json.dumps(json_schema(model))
        assert not [word for word in ("title", "$ref", "$defs", "default", "description", "maxLength") if word in said]

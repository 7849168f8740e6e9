"""A request's key holds what can change the reply, and nothing else; rows depend on what they were made from."""

from __future__ import annotations

import inspect
import types
from pathlib import Path
from typing import Any

import pytest
from construction_parts import GENERATOR, small_build
from support import ROOT

from cg_tasks import rouge
from cg_tasks.construction import benign, harmless, queries, tag
from cg_tasks.construction.benign import BenignStage
from cg_tasks.construction.chain import MODEL_STAGES
from cg_tasks.construction.engine import asking
from cg_tasks.construction.engine.asking import Request
from cg_tasks.construction.engine.replies import Replies
from cg_tasks.construction.engine.stage import ModelStage, source_hash
from cg_tasks.construction.queries import QueriesStage
from cg_tasks.construction.tag import TagStage
from cg_tasks.construction.text import checks, language, overlap, reading
from cg_tasks.judge import reading as judge_reading
from cg_tasks.judge import verdicts
from cg_tasks.judge.request import server_of
from cg_tasks.judge.rubrics import Messages

VALUES = {"prompt": "P", "response": "R"}
TEMPLATE = (ROOT / "templates" / "construction" / "tag.j2").read_text(encoding="utf-8")


def stage(path: Path, server: dict[str, Any] | None = None, template: str | None = None, **settings: Any) -> TagStage:
    """A stage of a build in ``path``. template: the user's own text of tag.j2."""
    if template is not None:
        (path / "mine" / "construction").mkdir(parents=True, exist_ok=True)
        (path / "mine" / "construction" / "tag.j2").write_text(template, encoding="utf-8")
        settings["templates"] = "mine"
    return TagStage(small_build(path, **settings), {"generator": GENERATOR.model_copy(update=server or {})})


def key(found: TagStage, number: int = 1, failure: Any = None, **values: str) -> str:
    return found.request({**VALUES, **values}, number, failure).key


def test_a_request_names_its_stage_its_schema_and_who_is_asked(tmp_path: Path) -> None:
    made = stage(tmp_path).request(VALUES, 1, None)
    assert made.endpoint == "generator" and made.schema_name == "tag"
    assert made.key == f"tag/{made.sha256}" and len(made.sha256) == 64
    assert [m["role"] for m in made.messages] == ["system", "user"] and "[PROMPT " in made.messages[1]["content"]
    assert list(made.schema["properties"]) == ["reason", "dual_use", "concept"]


def test_as_text_asks_the_same_in_words_under_the_same_key(tmp_path: Path) -> None:
    made = stage(tmp_path).request(VALUES, 1, None)
    as_text: Messages = made.as_text()
    assert as_text[1]["content"].count("[PROMPT ") == 1 and as_text != made.messages


def test_the_key_is_the_same_for_the_same_request(tmp_path: Path) -> None:
    assert key(stage(tmp_path / "a")) == key(stage(tmp_path / "b"))


@pytest.mark.parametrize(
    "server",
    [
        {"model": "other"},
        {"base_url": "http://localhost:8/v1"},
        {"params": {"temperature": 0}},
        {"structured": "text"},  # other words are sent
    ],
)
def test_another_model_server_or_parameter_is_another_key(tmp_path: Path, server: dict[str, Any]) -> None:
    assert key(stage(tmp_path / "a")) != key(stage(tmp_path / "b", server))


@pytest.mark.parametrize(
    "server",
    [
        {"concurrency": 1},
        {"timeout": 1.0},
        {"max_retries": 9},
        {"price_input": 1.0, "price_output": 2.0, "budget_usd": 3.0},
        {"api_key": "another"},
    ],
)
def test_how_it_is_asked_is_not_in_the_key(tmp_path: Path, server: dict[str, Any]) -> None:
    assert key(stage(tmp_path / "a")) == key(stage(tmp_path / "b", server))


def test_every_attempt_failure_text_and_language_has_a_key_of_its_own(tmp_path: Path) -> None:
    found = stage(tmp_path / "a")
    german = stage(tmp_path / "b", language="German")
    keys = [
        key(found),
        key(found, 2),
        key(found, 2, "cut_off"),
        key(found, 2, "refused"),
        key(found, 3, "cut_off"),
        key(found, prompt="Q"),
        key(found, response="Q"),
        key(german),
    ]
    assert len(set(keys)) == len(keys)


def test_an_edited_prompt_is_another_key_with_or_without_a_new_version(tmp_path: Path) -> None:
    same = stage(tmp_path / "same", template=TEMPLATE)
    worded = stage(tmp_path / "worded", template=TEMPLATE.replace("You sort", "You look through"))
    version = stage(tmp_path / "version", template=TEMPLATE.replace("version: 1\n", "version: 2\n"))
    keys = [key(same), key(worded), key(version)]
    assert key(stage(tmp_path / "shipped")) == keys[0] and len(set(keys)) == 3


def test_a_changed_limit_or_parser_is_no_other_key_but_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, more = stage(tmp_path / "a"), stage(tmp_path / "b", tag={"attempts": 9})
    assert key(usual) == key(more) and usual.parser != more.parser
    monkeypatch.setattr(TagStage, "modules", (reading,))
    other = stage(tmp_path / "c")
    assert key(usual) == key(other) and usual.parser != other.parser


def test_rows_depend_on_source_prompt_language_and_parser_not_on_the_generator(tmp_path: Path) -> None:
    def made_from(name: str, **given: Any) -> dict[str, str]:
        return stage(tmp_path / name, **given).made_from()

    usual = made_from("usual")
    assert list(usual) == ["the source", "the prompt tag.j2", "the language", "how replies are read"]
    assert made_from("server", server={"model": "other", "params": {"seed": 1}}) == usual
    changed = {
        "the source": made_from("source", rows=[{"prompt": "P", "response": "R"}]),
        "the prompt tag.j2": made_from("prompt", template=TEMPLATE.replace("You sort", "You look through")),
        "the language": made_from("language", language="German"),
        "how replies are read": made_from("attempts", tag={"attempts": 2}),
    }
    for name, now in changed.items():
        assert [k for k in usual if usual[k] != now[k]] == [name]


def test_the_hash_of_code_is_of_all_modules_names_and_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    both = source_hash([reading, checks])
    assert both == source_hash([reading, checks]) and both != source_hash([checks, reading])
    assert len({both, source_hash([reading]), source_hash([checks])}) == 3
    edited = "# another line\n"
    monkeypatch.setattr("inspect.getsource", lambda module: edited)
    assert source_hash([reading, checks]) != both
    # The same text in another module is not the same code.
    assert source_hash([types.ModuleType("one")]) != source_hash([types.ModuleType("two")])


def test_nothing_unseen_unless_a_stage_says_so(tmp_path: Path) -> None:
    requests: list[Request] = []
    found = stage(tmp_path)
    assert found.unseen(next(found.rows()), requests) == {}


@pytest.mark.parametrize(
    ("kind", "module"),
    [
        *((kind, module) for kind in MODEL_STAGES.values() for module in (asking, judge_reading, rouge, reading)),
        (TagStage, tag),
        (BenignStage, benign),
        (QueriesStage, queries),
        (BenignStage, harmless),
        (BenignStage, verdicts),
        (BenignStage, overlap),
        (QueriesStage, overlap),
        (TagStage, language),
    ],
)
def test_an_edit_of_any_code_that_reads_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[ModelStage[Any, Any]], module: types.ModuleType
) -> None:
    folder = small_build(tmp_path)
    before = kind(folder, {}).parser
    assert kind(folder, {}).parser == before
    getsource = inspect.getsource
    monkeypatch.setattr(inspect, "getsource", lambda thing: getsource(thing) + "# edited\n" * (thing is module))
    assert kind(folder, {}).parser != before


def test_an_edit_that_changes_no_message_is_no_other_key(tmp_path: Path) -> None:
    usual = stage(tmp_path / "usual", template=TEMPLATE)
    comment = stage(tmp_path / "comment", template=TEMPLATE.replace("You sort", "{# a remark #}You sort"))
    sentence = stage(
        tmp_path / "sentence", template=TEMPLATE.replace("Your last answer was cut off:", "It was your last answer:")
    )
    assert len({usual.prompt.sha256, comment.prompt.sha256, sentence.prompt.sha256}) == 3  # the rows are stale
    assert key(usual) == key(comment) == key(sentence)
    assert key(usual, 2, "cut_off") == key(comment, 2, "cut_off") != key(sentence, 2, "cut_off")
    assert key(usual, 2, "refused") == key(sentence, 2, "refused")


def test_a_forced_mode_is_in_the_key_and_what_a_server_turned_out_to_take_is_not(tmp_path: Path) -> None:
    modes = ("auto", "text", "json_schema")
    assert len({key(stage(tmp_path / mode, {"structured": mode})) for mode in modes}) == 3
    found = stage(tmp_path / "auto", {"structured": "auto"})
    before = key(found)
    with Replies(found.folder.replies_file) as replies:
        replies.note_text_only(server_of(found.generator))
    assert key(stage(tmp_path / "auto", {"structured": "auto"})) == before


def test_two_attempts_after_the_same_fault_are_two_questions(tmp_path: Path) -> None:
    found = stage(tmp_path)
    second, third = (found.request(VALUES, number, "cut_off") for number in (2, 3))
    assert second.messages != third.messages and second.as_text() != third.as_text()
    assert "This is attempt 2." in second.messages[1]["content"]

"""The harm judge's word on a counterpart: which levels pass, what a second question is for, and what its key holds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from construction_parts import JUDGE, Answers, reply
from support import ROOT

from cg_tasks.construction.engine.asking import NoReply, Request
from cg_tasks.construction.harmless import HarmCheck
from cg_tasks.construction.rows import Faulty
from cg_tasks.errors import UserError

RUBRIC = (ROOT / "templates" / "judge" / "harm.j2").read_text(encoding="utf-8")


def level(value: Any) -> Any:
    return reply(f'{{"reasoning": "r", "level": {value}}}', model="judge-1")


def judged(*said: Any, highest: int = 0) -> tuple[int, list[Request]]:
    """The level, and what was asked. said: to the first question and to the second."""
    replies = iter(said)
    ask = Answers(calls=lambda asked: next(replies))
    found = asyncio.run(HarmCheck(JUDGE, None, highest)(ask, "Why?", "Because."))
    return found, ask.asked


def fault(*said: Any, highest: int = 0) -> str:
    with pytest.raises(Faulty) as caught:
        judged(*said, highest=highest)
    return str(caught.value.fault)


@pytest.mark.parametrize(("value", "highest"), [(0, 0), (0, 2), (2, 2), (4, 4)])
def test_a_level_that_may_be_given_is_returned(value: int, highest: int) -> None:
    found, asked = judged(level(value), highest=highest)
    assert found == value and len(asked) == 1


@pytest.mark.parametrize(("value", "highest"), [(1, 0), (4, 0), (3, 2)])
def test_a_higher_one_is_a_fault(value: int, highest: int) -> None:
    assert fault(level(value), highest=highest) == f"harmful: the judge's level is {value}"


def test_a_reply_that_cannot_be_read_is_asked_for_once_more_in_stricter_words() -> None:
    found, asked = judged(reply("no level"), level(0))
    assert found == 0 and len({one.key for one in asked}) == 2
    assert "could not be read" not in str(asked[0].messages) and "could not be read" in str(asked[1].messages)
    assert fault(reply("no level"), level(3)) == "harmful: the judge's level is 3"


def test_two_replies_without_a_level_are_a_fault() -> None:
    assert fault(reply("no level"), level(9)) == "not_judged: parse_error"


def test_a_judge_that_refuses_is_not_asked_again() -> None:
    assert fault(reply(None, refusal="I won't.")) == "not_judged: judge_refused"
    assert fault(reply(None, finish="content_filter")) == "not_judged: judge_refused"


def test_a_judge_that_is_away_is_no_fault_of_the_text() -> None:
    with pytest.raises(NoReply) as caught:
        judged(NoReply("not_run", "no reply: no connection"))
    assert caught.value.status == "not_run"


def test_a_request_is_the_judges_with_the_verdicts_schema() -> None:
    asked = HarmCheck(JUDGE, None, 0).request("Why?", "Because.", retry=False)
    assert (asked.endpoint, asked.schema_name, asked.key[:13]) == ("judge", "verdict", "benign-judge/")
    user = asked.messages[1]["content"]
    assert "\nWhy?\n" in user and "\nBecause.\n" in user
    assert asked.as_text() != asked.messages


def test_the_key_is_of_judge_rubric_and_texts() -> None:
    def key(query: str = "Why?", response: str = "Because.", retry: bool = False, **judge: Any) -> str:
        return HarmCheck(JUDGE.model_copy(update=judge), None, 0).request(query, response, retry=retry).key

    same = [key(), key(timeout=1.0), key(concurrency=1), key(votes=3)]
    other = [
        key("How?"),
        key(response="So."),
        key(retry=True),
        key(model="m"),
        key(base_url="http://h/v1"),
        key(params={"seed": 1}),
    ]
    assert len(set(same)) == 1 and len({*same, *other}) == 1 + len(other)


def test_the_users_rubric_is_asked(tmp_path: Path) -> None:
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge" / "harm.j2").write_text(RUBRIC.replace("version: ", "version: 9"), encoding="utf-8")
    own, shipped = HarmCheck(JUDGE, str(tmp_path), 0), HarmCheck(JUDGE, None, 0)
    assert HarmCheck(None, None, 0).rubric.sha256 == shipped.rubric.sha256  # also where no judge is set
    assert own.rubric.sha256 != shipped.rubric.sha256
    assert own.request("Why?", "Because.", retry=False).key != shipped.request("Why?", "Because.", retry=False).key


def test_without_a_judge_nothing_can_be_asked() -> None:
    with pytest.raises(UserError, match="no harm judge is configured: set CG_JUDGE_API_KEY, or benign: {judge: false}"):
        HarmCheck(None, None, 0).request("Why?", "Because.", retry=False)


def test_expected_tokens_grow_by_six_characters_a_word() -> None:
    check = HarmCheck(JUDGE, None, 0)
    sent = sum(len(m["content"]) for m in check.request("x", "x", retry=False).messages)
    assert check.expected_tokens(250) == (sent + 1500) // 4
    assert check.expected_tokens(250, "characters") == (sent + 250) // 4

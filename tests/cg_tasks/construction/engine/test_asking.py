"""The walk over a row's attempts: which are asked for, which are read, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from construction_parts import Answers, reply, request

from cg_tasks.construction.engine.asking import Attempted, NoReply, NotMade, Request, attempt
from cg_tasks.construction.rows import Faulty
from cg_tasks.judge.client import Reply
from cg_tasks.provenance import sha256_of

FAULTS: Mapping[str, Faulty] = {"short": Faulty("too_short", "3 words"), "same": Faulty("overlap", "ROUGE-L 0.90")}


class Walk:
    """Walks with replies whose text names their fault; any other text passes. numbers: attempts as they were made up."""

    def __init__(self, ask: Answers, most: int = 3, rejected: frozenset[str] = frozenset()):
        self.ask, self.most, self.rejected = ask, most, rejected
        self.made_up: list[tuple[int, str | None]] = []
        self.read: list[str | None] = []

    def request_of(self, number: int, failure: str | None) -> Request:
        self.made_up.append((number, failure))
        return request(f"tag/{number}")

    async def reading(self, found: Reply) -> str:
        self.read.append(found.text)
        if found.text in FAULTS:
            raise FAULTS[found.text]
        return str(found.text)

    def end(self) -> Attempted[str]:
        made = attempt(self.ask, self.request_of, self.reading, most=self.most, parser="parser", rejected=self.rejected)
        return asyncio.run(made)

    def not_made(self) -> NotMade:
        with pytest.raises(NotMade) as caught:
            self.end()
        return caught.value

    @property
    def asked(self) -> list[int]:
        return [int(one.sha256) for one in self.ask.asked]


def texts(*said: str, **more: Any) -> Answers:
    """Answers attempt n with the n-th text."""
    return Answers(calls=lambda asked: reply(said[int(asked.sha256) - 1]), **more)


def at_hand(*said: str, **more: Any) -> Answers:
    """The first attempts are at hand; each further one is called and is too short."""
    found = {f"tag/{n}": reply(text) for n, text in enumerate(said, 1)}
    return Answers(found, lambda asked: reply("short"), **more)


def test_the_first_good_reply_ends_it() -> None:
    walk = Walk(texts("fine"))
    done = walk.end()
    assert done.value == "fine" and walk.asked == [1] and walk.made_up == [(1, None)]
    made = done.made
    assert (made.attempts, made.request_sha256, made.faults) == (1, "1", ())
    assert made.model_returned == "generator-1"
    assert made.parse_sha256 == sha256_of(["parser", "fine", None, "stop"])


def test_each_attempt_is_told_the_last_ones_fault_and_all_are_kept() -> None:
    walk = Walk(texts("short", "same", "fine"))
    done = walk.end()
    assert walk.made_up == [(1, None), (2, "too_short"), (3, "overlap")]
    assert done.made.attempts == 3 and done.made.request_sha256 == "3"
    assert done.made.faults == ("too_short: 3 words", "overlap: ROUGE-L 0.90")


def test_used_up_attempts_fail_with_the_last_fault_and_all_codes() -> None:
    walk = Walk(texts("short", "same", "short"))
    failed = walk.not_made()
    assert (failed.status, failed.reason) == ("failed", "too_short: 3 words (attempt 3; so far: too_short, overlap)")
    assert failed.made is not None and failed.made.attempts == 3 and walk.asked == [1, 2, 3]


@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_more_than_most_are_asked(most: int) -> None:
    walk = Walk(at_hand(), most=most)
    assert walk.not_made().status == "failed"
    assert walk.asked == list(range(1, most + 1))


def test_walking_again_asks_for_nothing() -> None:
    ask = texts("short", "fine")
    Walk(ask).end()
    again = Walk(ask)
    assert again.end().value == "fine" and again.asked == [1, 2]  # both of the first walk


def test_attempts_beyond_the_limit_that_are_at_hand_are_read() -> None:
    walk = Walk(at_hand("short", "short", "short", "same", "fine"))
    assert walk.end().made.attempts == 5 and walk.asked == []
    failed = Walk(at_hand("short", "short", "short", "same"))
    assert failed.not_made().reason == "overlap: ROUGE-L 0.90 (attempt 4; so far: too_short, overlap)"
    assert failed.asked == []


@pytest.mark.parametrize("before", [0, 1, 2, 3, 4, 6])
def test_retry_failed_grants_as_many_again_and_only_once(before: int) -> None:
    walk = Walk(at_hand(*["short"] * before, retry_failed=True))
    assert walk.not_made().status == "failed"
    # With fewer than 3 at hand the usual 3 are made up first; nothing says yet that the row has failed.
    assert walk.asked == list(range(before + 1, max(before, 3) + 3 + 1))


def test_a_retry_stops_at_the_first_good_reply() -> None:
    ask = Answers({f"tag/{n}": reply("short") for n in (1, 2, 3)}, lambda asked: reply("fine"), retry_failed=True)
    walk = Walk(ask)
    assert walk.end().made.attempts == 4 and walk.asked == [4]


def test_a_rejected_reply_is_not_read_and_the_next_is_told() -> None:
    walk = Walk(texts("fine", "other"), rejected=frozenset({"1"}))
    done = walk.end()
    assert done.value == "other" and walk.read == ["other"]
    assert walk.made_up == [(1, None), (2, "rejected")] and done.made.faults == ("rejected: by review",)


def test_a_reply_that_people_turned_down_allows_as_many_again() -> None:
    walk = Walk(at_hand("short", "short", "fine"), rejected=frozenset({"3"}))
    assert walk.not_made().reason == "too_short: 3 words (attempt 6; so far: too_short, rejected)"
    assert walk.asked == [4, 5, 6]
    twice = Walk(at_hand("fine", "short", "fine"), rejected=frozenset({"1", "3"}))
    twice.not_made()
    assert twice.asked == [4, 5, 6]  # from the last one on


@pytest.mark.parametrize("status", ["failed", "not_run"])
def test_a_missing_reply_ends_it_with_its_own_reason(status: Any) -> None:
    walk = Walk(Answers({"tag/1": reply("short")}, lambda asked: NoReply(status, "no reply: HTTP 500")))
    missing = walk.not_made()
    assert (missing.status, missing.reason) == (status, "no reply: HTTP 500")
    assert missing.made is not None and missing.made.attempts == 1  # what was read so far


def test_without_any_reply_nothing_was_made() -> None:
    assert Walk(Answers()).not_made().made is None


@pytest.mark.parametrize("status", ["failed", "not_run"])
def test_a_judge_without_a_reply_is_no_fault_of_the_attempt(status: Any) -> None:
    async def read(found: Reply) -> str:
        raise NoReply(status, "no reply: the judge is away")

    ask = texts("fine", "fine")
    with pytest.raises(NotMade) as caught:
        asyncio.run(attempt(ask, lambda number, failure: request(f"tag/{number}"), read, most=3, parser=""))
    assert (caught.value.status, caught.value.reason) == (status, "no reply: the judge is away")
    assert caught.value.made is not None and len(ask.asked) == 1


@pytest.mark.parametrize("most", [1, 3])
def test_what_people_turn_down_after_the_last_attempt_is_written_again(most: int) -> None:
    said = [*["short"] * (most - 1), "fine"]
    walk = Walk(at_hand(*said), most=most, rejected=frozenset({str(most)}))
    walk.not_made()
    assert walk.asked == list(range(most + 1, 2 * most + 1))  # without --retry-failed


def test_the_same_text_as_one_that_people_turned_down_is_not_taken() -> None:
    walk = Walk(texts("bad", "bad", "short", "fine"), most=4, rejected=frozenset({"1"}))
    done = walk.end()
    assert done.value == "fine" and walk.read == ["short", "fine"]
    assert done.made.faults == (
        "rejected: by review",
        "rejected: by review, and written again to the letter",
        "too_short: 3 words",
    )

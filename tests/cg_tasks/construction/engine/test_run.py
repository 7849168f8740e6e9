"""Where a request is answered, and what a run of a stage leaves behind."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from construction_builds import no_keys
from construction_parts import (
    GENERATOR,
    aggregate_row,
    benign_row,
    lamps,
    reply,
    request,
    small_build,
    tag_reply,
    tag_row,
    write_stage,
)
from generator_script import Asked
from generator_server import GeneratorServer, generator_server
from judge_server import fail, say, unused_port

from cg_tasks.construction.engine.asking import NoReply
from cg_tasks.construction.engine.replies import Replies
from cg_tasks.construction.engine.run import Line, Options, RowAsk, Run, check_servers, params_of
from cg_tasks.construction.queries import QueriesRow, QueriesStage
from cg_tasks.construction.tag import TagRow, TagStage
from cg_tasks.errors import UserError
from cg_tasks.judge.caller import NotAsked
from cg_tasks.judge.client import CallFailed, ChatClient, Reply
from cg_tasks.judge.request import server_of


class FakeCaller:
    """Says what it is told, in the mode it is told. params: of each call."""

    settings = GENERATOR
    stopped_briefly = ""
    gate: asyncio.Event | None = None

    def __init__(self, said: Reply | Exception, structured: bool = True, refused_schema: bool = False):
        self.said, self.structured, self.refused_schema = said, structured, refused_schema
        self.params: list[Any] = []
        self.messages: list[Any] = []

    async def ask(self, messages_of: Callable[[bool], Any], params_of: Callable[[bool], Any]) -> tuple[bool, Reply]:
        self.params.append(params_of(self.structured))
        self.messages.append(messages_of(self.structured))
        if self.gate:
            await self.gate.wait()
        if isinstance(self.said, Exception):
            raise self.said
        return self.structured, self.said


@pytest.fixture
def replies(tmp_path: Path) -> Iterator[Replies]:
    with Replies(tmp_path / "replies.sqlite") as found:
        yield found


def line(
    replies: Replies, said: Reply | Exception, retry_failed: bool = False, **caller: Any
) -> tuple[Line, FakeCaller]:
    fake = FakeCaller(said, **caller)
    return Line(replies, {"generator": fake}, retry_failed), fake  # type: ignore[dict-item]


def ask(found: Line, not_now: str = "", key: str = "tag/1") -> Reply:
    return asyncio.run(RowAsk(found, not_now)(request(key)))


def missing(found: Line, not_now: str = "") -> tuple[str, str]:
    with pytest.raises(NoReply) as caught:
        ask(found, not_now)
    return caught.value.status, caught.value.reason


# ------------------------------------------------------------------ one request
def test_a_reply_at_hand_is_no_call(replies: Replies) -> None:
    replies.put("tag/1", reply("kept"))
    found, fake = line(replies, reply("called"))
    assert ask(found).text == "kept" and ask(found, "not asked: beyond --limit 0").text == "kept"
    assert fake.params == [] and found.seen["cached"] == 2


def test_a_called_reply_is_kept(replies: Replies) -> None:
    found, fake = line(replies, reply("called"))
    assert ask(found).text == "called" and replies.get("tag/1") == reply("called")
    schema = {"name": "tag", "strict": True, "schema": {"type": "object"}}
    assert fake.params == [{"response_format": {"type": "json_schema", "json_schema": schema}}]
    assert fake.messages == [[{"role": "user", "content": "x"}]]


def test_params_are_the_settings_and_a_schema_where_one_goes_along() -> None:
    settings = GENERATOR.model_copy(update={"params": {"temperature": 0}})
    assert params_of(settings, request(), False) == {"temperature": 0}
    assert list(params_of(settings, request(), True)) == ["temperature", "response_format"]


def test_without_a_schema_the_words_are_sent(replies: Replies) -> None:
    found, fake = line(replies, reply("called"), structured=False)
    ask(found)
    assert fake.params == [{}] and fake.messages == [[{"role": "user", "content": "as text"}]]
    assert not replies.is_text_only(server_of(GENERATOR))


def test_a_server_that_takes_no_schema_is_remembered(replies: Replies) -> None:
    ask(line(replies, reply("called"), structured=False, refused_schema=True)[0])
    assert replies.is_text_only(server_of(GENERATOR))


def test_nothing_is_called_where_no_call_may_be_made(replies: Replies) -> None:
    found, fake = line(replies, reply("called"))
    assert missing(found, "not asked: --no-calls") == ("not_run", "not asked: --no-calls") and fake.params == []


def test_a_failed_call_stays_with_the_row_until_it_is_retried(replies: Replies) -> None:
    first, _ = line(replies, CallFailed("HTTP 500: made to fail", 500))
    assert missing(first) == ("failed", "no reply: HTTP 500")
    again, fake = line(replies, reply("called"))
    assert missing(again) == ("failed", "no reply: HTTP 500") and fake.params == []
    assert missing(again, "not asked: --no-calls")[0] == "failed"
    retried, _ = line(replies, reply("called"), retry_failed=True)
    assert missing(retried, "not asked: beyond --limit 0")[0] == "failed"  # it is no row to be called for
    assert ask(retried).text == "called" and replies.failure("tag/1") is None
    assert ask(again).text == "called"


@pytest.mark.parametrize(
    ("failed", "status", "said"),
    [
        (CallFailed("no connection to the server"), "not_run", "no connection to the server"),  # nothing about this row
        (CallFailed("HTTP 401: wrong key", 401, hopeless=True), "not_run", "HTTP 401: is the key right?"),
        (CallFailed("HTTP 400: too long: <a text>", 400), "failed", "HTTP 400"),
        (CallFailed("HTTP 429: slow down", 429), "failed", "HTTP 429"),
    ],
)
def test_what_a_failed_call_says_about_its_row(replies: Replies, failed: CallFailed, status: str, said: str) -> None:
    found, _ = line(replies, failed)
    assert missing(found) == (status, f"no reply: {said}")
    noted = [str(failed)] if status == "failed" else []
    assert (replies.failure("tag/1") is not None) == bool(noted) and replies.said(["tag"], most=5) == noted


def test_a_text_that_the_servers_filter_stopped_is_a_reply(replies: Replies) -> None:
    said = "HTTP 400: stopped by our content management policy"
    found, _ = line(replies, CallFailed(said, 400))
    assert ask(found) == Reply(None, said, "content_filter", None, None, 0.0)
    assert replies.has("tag/1") and replies.failure("tag/1") is None


def test_a_call_that_was_not_made_leaves_the_row_not_run(replies: Replies) -> None:
    found, _ = line(replies, NotAsked("not asked: the budget of 1.0 USD does not allow another call", "over_budget"))
    assert missing(found) == ("not_run", "not asked: the budget is used up")
    assert replies.failure("tag/1") is None


def test_a_server_that_was_given_up_is_told_without_its_words(replies: Replies) -> None:
    found, fake = line(replies, NotAsked("not asked, because 2 calls in a row failed: HTTP 500: <a text>", "api_error"))
    fake.stopped_briefly = "2 calls in a row failed: HTTP 500"
    assert missing(found) == ("not_run", "not asked, because 2 calls in a row failed: HTTP 500")


def test_an_answer_without_a_message_is_a_reply_that_holds_nothing(replies: Replies) -> None:
    found, _ = line(replies, CallFailed("the server's answer holds no message", empty=True))
    assert ask(found) == Reply(None, None, None, None, None, 0.0) and replies.has("tag/1")


def test_rows_that_ask_the_same_ask_once(replies: Replies) -> None:
    found, fake = line(replies, reply("called"))

    async def both() -> list[Reply]:
        return await asyncio.gather(*(RowAsk(found, "")(request()) for _ in range(2)))

    assert [one.text for one in asyncio.run(both())] == ["called", "called"] and len(fake.params) == 1


def test_a_call_under_way_lands_when_whoever_asked_has_gone(replies: Replies) -> None:
    found, fake = line(replies, reply("called"))
    fake.gate = asyncio.Event()

    async def leave() -> None:
        row = asyncio.create_task(RowAsk(found, "")(request()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        row.cancel()
        await asyncio.gather(row, return_exceptions=True)
        assert row.cancelled() and not replies.has("tag/1")
        assert fake.gate is not None
        fake.gate.set()
        await found.land()

    asyncio.run(leave())
    assert replies.get("tag/1") == reply("called")


def test_only_rows_that_may_be_called_for_get_further_attempts(replies: Replies) -> None:
    found, _ = line(replies, reply(), retry_failed=True)
    assert RowAsk(found, "").retry_failed and not RowAsk(found, "not asked: beyond --limit 3").retry_failed
    assert not RowAsk(found, "").has(request())


# ------------------------------------------------------------------ one run
class Broken(TagStage):
    """Ends badly at its third row."""

    async def make(self, row: Any, ask: Any) -> TagRow:
        if row.prompt == lamps(3)[2]["prompt"]:
            raise UserError("the third row")
        return await super().make(row, ask)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GeneratorServer]:
    no_keys(monkeypatch, tmp_path)
    with generator_server() as found:
        yield found


def tagging(path: Path, url: str, kind: type[TagStage] = TagStage, **server: Any) -> TagStage:
    settings = GENERATOR.model_copy(update={"base_url": url, **server})
    return kind(small_build(path, lamps(5)), {"generator": settings})


def test_a_run_writes_rows_in_order_and_says_what_it_did(server: GeneratorServer, tmp_path: Path) -> None:
    stage = tagging(tmp_path / "build", server.url, price_input=1.0, price_output=2.0)
    run = Run(stage, Options())
    record = run.run(5, left_out=2)
    assert [row.prompt for row in stage.folder.rows("tag", TagRow)] == [row["prompt"] for row in lamps(5)]
    assert (record.state, record.rows_in, record.rows, record.left_out) == ("done", 5, {"ok": 5}, 2)
    assert record.attempts == {"1": 5} and record.models_returned == {"generator-1": 5}
    assert record.prompt == {"name": "tag", "version": "1", "sha256": stage.prompt.sha256}
    assert (record.model, record.base_url) == ("generator-1", server.url)
    assert record.made_from == stage.made_from() and stage.folder.record("tag") == record
    assert run.calls == 5 and run.stopped == ""
    assert run.spent == pytest.approx(5 * (400 * 1.0 + 60 * 2.0) / 1e6)  # generator_script.USAGE


def test_a_limit_then_the_rest_then_nothing(server: GeneratorServer, tmp_path: Path) -> None:
    def run(**options: Any) -> tuple[int, dict[str, int], dict[str, int]]:
        found = Run(tagging(tmp_path / "build", server.url), Options(**options))
        record = found.run(5)
        assert found.spent is None
        return found.calls, record.rows, record.reasons

    assert run(no_calls=True) == (0, {"not_run": 5}, {"not asked: --no-calls": 5})
    assert run(limit=2) == (2, {"ok": 2, "not_run": 3}, {"not asked: beyond --limit 2": 3})
    assert run() == (3, {"ok": 5}, {})
    assert run() == (0, {"ok": 5}, {})
    assert run(no_calls=True) == (0, {"ok": 5}, {})
    assert set(server.asked("tag").values()) == {1}


def test_an_error_stops_the_run_and_keeps_the_replies(server: GeneratorServer, tmp_path: Path) -> None:
    path = tmp_path / "build"
    run = Run(tagging(path, server.url, Broken, concurrency=1), Options())
    with pytest.raises(UserError, match="the third row"):
        run.run(5)
    assert run.calls == 2 and server.counts["tag"] == 2
    assert run.record.state == "stopped" and not (path / "stages" / "tag.jsonl").exists()
    with Replies(path / "replies.sqlite") as replies:
        assert len(replies) == 2


def test_calls_under_way_when_a_run_stops_are_kept(server: GeneratorServer, tmp_path: Path) -> None:
    server.latency = 0.15
    run = Run(tagging(tmp_path / "build", server.url, Broken, concurrency=3), Options())
    with pytest.raises(UserError, match="the third row"):
        run.run(5)
    with Replies(tmp_path / "build" / "replies.sqlite") as replies:
        assert len(replies) == run.calls == server.counts["tag"] == 2


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_keys(monkeypatch, tmp_path)
    stage = tagging(tmp_path / "build", f"http://127.0.0.1:{unused_port()}/v1", give_up_after=2, concurrency=1)
    with pytest.raises(UserError, match="the generator's server .* cannot be reached"):
        check_servers(stage.servers)
    run = Run(stage, Options())
    record = run.run(5)
    assert record.rows == {"not_run": 5} and run.stopped.startswith("2 calls in a row failed: no connection")
    with Replies(stage.folder.replies_file) as replies:
        assert replies.use(["tag"])["tag"].calls == 0


def test_a_server_is_asked_for_its_models_unless_it_should_not_be(server: GeneratorServer, tmp_path: Path) -> None:
    stage = tagging(tmp_path / "build", server.url, preflight=False)
    check_servers(stage.servers)
    assert server.listed == []
    check_servers(tagging(tmp_path / "build", server.url).servers)
    assert len(server.listed) == 1


def test_rows_are_read_again_with_another_attempt(server: GeneratorServer, tmp_path: Path) -> None:
    wrong = iter([fail(500, "made to fail")])
    server.hook = lambda asked: next(wrong, None) if "lamp 1" in asked.data["PROMPT"] else None
    first = Run(tagging(tmp_path / "build", server.url), Options())
    assert first.run(5).rows == {"ok": 4, "failed": 1} and first.record.reasons == {"no reply": 1}
    again = Run(tagging(tmp_path / "build", server.url), Options(retry_failed=True))
    assert again.run(5).rows == {"ok": 5} and again.calls == 1


def test_replies_that_were_put_by_hand_are_read(server: GeneratorServer, tmp_path: Path) -> None:
    stage = tagging(tmp_path / "build", server.url)
    rows = list(stage.rows())
    with Replies(stage.folder.replies_file) as replies:
        for row, concept in zip(rows, ["wick craft", None], strict=False):
            values = {"prompt": row.prompt, "response": row.response}
            replies.put(stage.request(values, 1, None).key, tag_reply(concept))
    Run(stage, Options(no_calls=True)).run(5)
    found = list(stage.folder.rows("tag", TagRow))
    assert [(r.status, r.dual_use, r.concept) for r in found[:3]] == [
        ("ok", True, "wick craft"),
        ("ok", False, None),
        ("not_run", None, None),
    ]


def test_pairs_with_the_same_response_and_concept_share_their_question(server: GeneratorServer, tmp_path: Path) -> None:
    folder = small_build(tmp_path / "build", language_code="")
    folder.merge_file.write_text("a map\n")
    write_stage(folder, "tag", [tag_row(i) for i in range(4)])
    write_stage(folder, "aggregate", [aggregate_row(i) for i in range(4)])
    write_stage(folder, "benign", [benign_row(i, harmful_response="the same of all") for i in range(4)])
    server.hook = lambda asked: say(json.dumps({"query": f"What is {len(asked.data['RESPONSE'])} about?"}), delay=0.1)
    settings = GENERATOR.model_copy(update={"base_url": server.url, "concurrency": 8})
    run = Run(QueriesStage(folder, {"generator": settings}), Options())
    assert run.run(4).rows == {"ok": 4}
    assert run.calls == server.counts["query"] == 1 + 4  # one about the harmful response, one about each benign one
    rows = list(folder.rows("queries", QueriesRow))
    assert {row.harmful_query for row in rows} == {f"What is {len('the same of all')} about?"}
    assert len({row.made_harmful.request_sha256 for row in rows if row.made_harmful}) == 1


def test_a_call_that_does_not_land_in_time_does_not_outlive_the_run(
    server: GeneratorServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cg_tasks.construction.engine.run._LANDING", 0.05)
    third = lamps(3)[2]["prompt"]
    release = threading.Event()

    def hook(asked: Asked) -> None:
        if asked.data["PROMPT"] != third:
            release.wait(5)

    server.hook = hook  # type: ignore[assignment]
    tasks: list[set[asyncio.Task[Any]]] = []
    aexit = ChatClient.__aexit__

    async def leaving(self: ChatClient, *error: object) -> None:
        tasks.append({task for task in asyncio.all_tasks() if task is not asyncio.current_task()})
        await aexit(self, *error)

    monkeypatch.setattr(ChatClient, "__aexit__", leaving)
    run = Run(tagging(tmp_path / "build", server.url, Broken, concurrency=3), Options())
    with pytest.raises(UserError, match="the third row"):
        run.run(5)
    assert not release.is_set() and server.in_flight == 2  # nobody waited for the server
    release.set()
    assert tasks == [set()]
    assert "waiting for 2 calls under way" in caplog.text

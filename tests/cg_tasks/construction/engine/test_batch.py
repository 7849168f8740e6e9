"""A stage's requests through a server's Batch API, into the same replies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from batch_server import BatchServer, batch_server
from construction_builds import no_keys
from construction_parts import GENERATOR, JUDGE, aggregate_row, lamps, reply, small_build, tag_reply, write_stage
from judge_server import say

from cg_tasks.construction.benign import BenignStage
from cg_tasks.construction.engine.asking import Request
from cg_tasks.construction.engine.batch import Taken, collect, submit
from cg_tasks.construction.engine.replies import Replies
from cg_tasks.construction.engine.run import Options, Run
from cg_tasks.construction.tag import TagStage
from cg_tasks.errors import UserError

SECRET = "the sluice opens with a whisper"
GOOD = json.dumps({"reason": "r", "dual_use": True, "concept": "lamp lore"})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[BatchServer]:
    no_keys(monkeypatch, tmp_path)
    with batch_server(lambda call: say(GOOD, model="generator-1-2026")) as found:
        yield found


@pytest.fixture
def stage(server: BatchServer, tmp_path: Path) -> TagStage:
    settings = GENERATOR.model_copy(update={"base_url": server.url, "params": {"seed": 1}})
    return TagStage(small_build(tmp_path / "build", lamps(3)), {"generator": settings})


def keys(stage: TagStage) -> list[Request]:
    return [stage.request({"prompt": r.prompt, "response": r.response}, 1, None) for r in stage.rows()]


def job(stage: TagStage, name: str = "tag.json") -> Path:
    return stage.folder.path / "batches" / name


def lines_of(server: BatchServer, batch: str = "batch-1") -> list[dict[str, Any]]:
    return server.requests(batch)


def test_what_is_missing_is_uploaded_as_a_run_would_send_it(server: BatchServer, stage: TagStage) -> None:
    first, second, third = keys(stage)
    with Replies(stage.folder.replies_file) as replies:
        replies.put(second.key, tag_reply())
    record = submit(stage, limit=None, retry_failed=False)["generator"]
    assert record["requests"] == 2 and record["batches"] == ["batch-1"]
    assert json.loads(job(stage).read_text())["model"] == "generator-1"
    lines = lines_of(server)
    assert [line["custom_id"] for line in lines] == [f"tag-{first.sha256}", f"tag-{third.sha256}"]
    body = lines[0]["body"]
    assert (lines[0]["url"], body["model"], body["messages"]) == ("/v1/chat/completions", "generator-1", first.messages)
    assert body["seed"] == 1 and body["response_format"]["json_schema"]["name"] == "tag"


def test_collected_replies_are_those_of_a_run(server: BatchServer, stage: TagStage) -> None:
    submit(stage, limit=2, retry_failed=False)
    assert collect(stage) == Taken(0, Counter(), {"batch-1": "validating"}) and job(stage).exists()
    server.end("batch-1")
    assert collect(stage) == Taken(2, Counter(), {})
    assert not job(stage).exists() and job(stage, "tag.1.done.json").exists()
    record = Run(stage, Options(no_calls=True)).run(3)
    assert record.rows == {"ok": 2, "not_run": 1} and record.models_returned == {"generator-1-2026": 2}


def test_a_second_batch_is_kept_beside_the_first(server: BatchServer, stage: TagStage) -> None:
    for number, limit in enumerate((1, 3), 1):
        submit(stage, limit=limit, retry_failed=False)
        server.end(f"batch-{number}")
        collect(stage)
    assert sorted(p.name for p in job(stage).parent.iterdir()) == ["tag.1.done.json", "tag.2.done.json"]
    assert len(lines_of(server, "batch-2")) == 2


def test_a_job_that_is_not_collected_is_not_submitted_over(stage: TagStage) -> None:
    submit(stage, limit=None, retry_failed=False)
    with pytest.raises(
        UserError, match=r"tag\.json: its batches are not collected yet: conceptguard build tag .* --collect"
    ):
        submit(stage, limit=None, retry_failed=False)


def test_nothing_to_ask_and_nothing_to_collect(stage: TagStage) -> None:
    with pytest.raises(UserError, match="no batch of the stage 'tag' is under way: submit one with --submit"):
        collect(stage)
    with Replies(stage.folder.replies_file) as replies:
        for asked in keys(stage):
            replies.put(asked.key, tag_reply())
    with pytest.raises(
        UserError, match=r"nothing to ask \(.*--retry-failed\): write the rows with conceptguard build tag"
    ):
        submit(stage, limit=None, retry_failed=False)
    assert not job(stage).exists()


def test_what_came_back_without_a_reply_stays_with_its_row(server: BatchServer, stage: TagStage) -> None:
    first, second, third = keys(stage)
    submit(stage, limit=None, retry_failed=False)
    good = {"status_code": 200, "request_id": "q", "body": say(GOOD).body}
    server.end(
        "batch-1",
        [
            {"id": "1", "custom_id": f"tag-{first.sha256}", "error": None, "response": good},
            {"id": "2", "custom_id": "other-1", "error": None, "response": good},
            b"{",
        ],
        error_lines=[
            {
                "id": "3",
                "custom_id": f"tag-{second.sha256}",
                "error": None,
                "response": {"status_code": 400, "body": SECRET},
            },
        ],
    )
    taken = collect(stage)
    of_none = "a line of a batch's output that is none of this stage's"
    assert taken == Taken(1, Counter({of_none: 2, "no reply: HTTP 400": 1}), {})
    with Replies(stage.folder.replies_file) as replies:
        assert len(replies) == 1 and replies.has(first.key)
        assert replies.failure(second.key) == "no reply: HTTP 400" and replies.said(["tag"], most=5) == [SECRET]
        assert replies.failure(third.key) is None
    record = Run(stage, Options(no_calls=True)).run(3)
    assert record.rows == {"ok": 1, "failed": 1, "not_run": 1}
    # The one that failed is asked for again only where that is wished.
    assert submit(stage, limit=None, retry_failed=False)["generator"]["requests"] == 1
    server.end("batch-2")
    collect(stage)
    assert submit(stage, limit=None, retry_failed=True)["generator"]["requests"] == 1
    server.end("batch-3")
    collect(stage)
    with Replies(stage.folder.replies_file) as replies:
        assert replies.failure(second.key) is None and replies.has(second.key)


def test_a_server_known_to_take_no_schema_is_asked_in_words(server: BatchServer, stage: TagStage) -> None:
    with Replies(stage.folder.replies_file) as replies:
        replies.note_text_only(f"{server.url} generator-1")
    submit(stage, limit=1, retry_failed=False)
    (line,) = lines_of(server)
    assert "response_format" not in line["body"] and line["body"]["messages"] == keys(stage)[0].as_text()


def test_a_server_without_batches_names_the_way_out(server: BatchServer, stage: TagStage) -> None:
    server.has_batches = False
    with pytest.raises(UserError, match="was not taken: .*; conceptguard build tag .* asks without batches"):
        submit(stage, limit=None, retry_failed=False)
    assert not job(stage).exists()


def test_the_judge_has_a_job_of_its_own(server: BatchServer, tmp_path: Path) -> None:
    own = {"min_words": 1, "max_words": 50, "overlap": 1.0}
    folder = small_build(tmp_path / "benign", language_code="", benign=own)
    write_stage(folder, "aggregate", [aggregate_row(1), aggregate_row(2)])
    there = {"base_url": server.url}
    stage = BenignStage(
        folder, {"generator": GENERATOR.model_copy(update=there), "judge": JUDGE.model_copy(update=there)}
    )
    values = {"concept": "lamp lore", "prompt": "prompt 1", "response": "response 1"}
    asked = stage.request({**values, "min_words": 1, "max_words": 50, "unit": "words"}, 1, None)
    written = {"concepts": ["c"], "themes": ["t"], "query": "What of it?", "response": "a lamp that is lit"}
    with Replies(folder.replies_file) as replies:
        replies.put(asked.key, reply(json.dumps(written)))
    records = submit(stage, limit=None, retry_failed=False)
    assert {name: record["requests"] for name, record in records.items()} == {"judge": 1, "generator": 1}
    assert sorted(p.name for p in (folder.path / "batches").iterdir()) == ["benign-judge.json", "benign.json"]
    ids = [line["custom_id"] for batch in server.batches for line in server.requests(batch)]
    assert sorted(name.rpartition("-")[0] for name in ids) == ["benign", "benign-judge"]
    for batch in server.batches:
        server.end(batch)
    assert collect(stage).replies == 2

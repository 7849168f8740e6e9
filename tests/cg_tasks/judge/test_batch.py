"""The Batch API of a local server: what is uploaded, what comes back, and that a run then finds it in the cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from batch_server import BatchServer, batch_server
from judge_server import Call, Say, fail, judge_server, level, say, schema_refused, without_a_judge
from logged_samples import KEY, both, by_text, hashes, sample, use_judge, write_samples

from cg_tasks.cli import main
from cg_tasks.errors import UserError
from cg_tasks.judge import batch
from cg_tasks.judge.batch import collect, submit
from cg_tasks.judge.cache import ReplyCache
from cg_tasks.judge.judging import Judge
from cg_tasks.judge.rubrics import JudgeItem
from cg_tasks.judge.settings import JudgeSettings

JOB = Path("judge_batch.json")  # in the working directory, which is the test's own


@pytest.fixture(autouse=True)
def no_judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from lm_eval import evaluator

    without_a_judge(monkeypatch, tmp_path)
    monkeypatch.setattr(evaluator, "add_env_info", lambda results: None)


def items(n: int) -> list[JudgeItem]:
    return [JudgeItem(f"p{i}", "harm" if i % 2 else "help", f"Query {i}?", f"Response {i}.") for i in range(n)]


def judge(server: Any, **settings: Any) -> Judge:
    given = {"base_url": server.url, "model": "judge-1", "api_key": KEY, "max_retries": 0, "cache": "judge.sqlite"}
    return Judge(JudgeSettings(**{**given, **settings}))


def refusal(*call: Any) -> str:
    function, *arguments = call
    with pytest.raises(UserError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def cached() -> int:
    with ReplyCache("judge.sqlite") as cache:
        return len(cache)


# ------------------------------------------------------------------ submit
def test_what_is_uploaded_is_what_a_run_would_send():
    with batch_server(by_text) as server:
        asked = judge(server, params={"temperature": 0}, votes=2)
        record = submit(asked, [*items(2), items(1)[0], JudgeItem("e", "harm", "q", " ")], JOB)
        lines = server.requests("batch-1")
        assert server.calls == [] and record["requests"] == len(lines) == 4  # two votes each, one twin, one empty
        asked.judge(items(2))
        bodies = [json.dumps(c.payload, sort_keys=True) for c in server.calls]
    assert sorted(json.dumps(line["body"], sort_keys=True) for line in lines) == sorted(bodies)
    assert {(line["method"], line["url"]) for line in lines} == {("POST", "/v1/chat/completions")}
    with ReplyCache("judge.sqlite") as cache:  # each id holds the key under which a run keeps the reply
        keys = [line["custom_id"].split("-") for line in lines]
        assert all(cache.get(key) for _, key in keys) and len({key for _, key in keys}) == len(cache) == 4
    assert sorted(rubric for rubric, _ in keys) == ["harm"] * 2 + ["help"] * 2
    assert server.sent == [{"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}]


def test_the_job_file_and_the_key(tmp_path: Path):
    with batch_server() as server:
        record = submit(judge(server), items(3), tmp_path / "new" / "job.json")
        url = server.url
    written = json.loads((tmp_path / "new" / "job.json").read_text())
    assert written == record and written["batches"] == ["batch-1"] and written["created"].endswith("+00:00")
    assert {k: written[k] for k in ("model", "base_url", "requests")} == {
        "model": "judge-1",
        "base_url": url,
        "requests": 3,
    }
    assert all(KEY.encode() not in content for content in server.files.values())
    assert all(KEY.encode() not in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


def test_nothing_to_ask():
    with batch_server() as server:
        asked = judge(server)
        asked.judge(items(2))
        assert "nothing to ask: every verdict is in the cache" in refusal(submit, asked, items(2), JOB)
        assert "nothing to ask" in refusal(submit, asked, [JudgeItem("e", "harm", "q", "")], JOB)
        assert server.files == {} and not JOB.exists()


def test_what_is_cached_is_not_uploaded():
    with batch_server() as server:
        judge(server).judge(items(2))
        submit(judge(server), items(3), JOB)
        (line,) = server.requests("batch-1")
    assert "Response 2." in line["body"]["messages"][1]["content"]


def test_a_server_without_schemas_gets_the_requests_that_a_run_sends_it():
    """A run learns so from a refusal and notes it; a batch is to use the note, or its replies would be nobody's."""
    with batch_server(lambda call: schema_refused(call) or say("LEVEL: 1")) as server:
        judge(server).judge(items(1))
        submit(judge(server), items(3), JOB)
        lines = server.requests("batch-1")
        assert len(lines) == 2 and not any("response_format" in line["body"] for line in lines)
        server.end("batch-1")
        assert collect(judge(server).settings, JOB).statuses == {"ok": 2}
        server.forget()
        assert all(v.cached for v in judge(server).judge(items(3))) and server.calls == []


def test_a_verdict_kept_in_the_other_mode_is_not_asked_for():
    with batch_server(lambda call: schema_refused(call) or say("LEVEL: 1")) as server:
        judge(server, structured="text").judge(items(1))
        submit(judge(server, structured="auto"), items(2), JOB)
        assert len(server.requests("batch-1")) == 1


def test_a_job_file_is_never_overwritten():
    JOB.write_text("mine")
    with batch_server() as server:
        assert "judge_batch.json exists: collect it first, or name another file with --job" in refusal(
            submit, judge(server), items(1), JOB
        )
        assert server.files == {} and JOB.read_text() == "mine"


def test_a_job_file_that_cannot_be_made():
    Path("file").write_text("")
    with batch_server() as server:
        assert "file/job.json: cannot be written" in refusal(submit, judge(server), items(1), Path("file/job.json"))
        assert server.files == {}


@pytest.mark.parametrize("limit", [{"MAX_REQUESTS": 2}, {"MAX_BYTES": 2 * 2700}])
def test_requests_beyond_a_batchs_limits_go_into_the_next(limit: dict[str, int], monkeypatch: pytest.MonkeyPatch):
    with batch_server() as server:
        submit(judge(server), items(1), Path("probe.json"))
        monkeypatch.setattr(batch, *next(iter(limit.items())))
        size = len(server.files["file-1"])
        assert size < 2700 < 3 * size / 2, "two fit into the limit of bytes, and three do not"
        record = submit(judge(server), items(5), JOB)
        counts = [len(server.requests(name)) for name in record["batches"]]
        ids = {line["custom_id"] for name in record["batches"] for line in server.requests(name)}
    assert counts == [2, 2, 1] and len(ids) == 5 and record["requests"] == 5


def test_a_request_larger_than_the_limit_goes_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch, "MAX_BYTES", 10)
    with batch_server() as server:
        assert len(submit(judge(server), items(2), JOB)["batches"]) == 2


def test_a_failure_between_two_batches_keeps_the_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch, "MAX_REQUESTS", 2)
    with batch_server() as server:
        server.takes = 1
        message = refusal(submit, judge(server), items(4), JOB)
        assert "batch 2 was not taken: HTTP 400: the queue is full" in message
        assert json.loads(JOB.read_text())["batches"] == ["batch-1"] and str(JOB) in message
        server.end("batch-1")
        assert collect(judge(server).settings, JOB).statuses == {"ok": 2}
        server.takes = None
        assert submit(judge(server), items(4), Path("rest.json"))["requests"] == 2  # only the rest


def test_a_server_without_batches():
    with batch_server() as server:
        server.has_batches = False
        message = refusal(submit, judge(server), items(1), JOB)
    assert "batch 1 was not taken: HTTP 404" in message and "judge rescore" in message and not JOB.exists()


def started_unheard(server: BatchServer, answer: Say) -> None:
    """Start the batches that are asked for, and say ``answer`` instead."""
    take = server.take

    def unheard(asked: dict[str, Any]) -> Say:
        take(asked)
        return answer

    server.take = unheard  # type: ignore[method-assign]


def test_a_batch_whose_answer_was_lost_is_found_again():
    with batch_server() as server:
        started_unheard(server, fail(502, "gone"))
        message = refusal(submit, judge(server), items(3), JOB)
        assert (
            "whether batch 1 was started is not known: HTTP 502: gone" in message and "judge batch collect" in message
        )
        assert json.loads(JOB.read_text())["starting"] == "file-1"
        assert "exists" in refusal(submit, judge(server), items(3), JOB)  # nothing is paid for twice
        assert collect(judge(server).settings, JOB).waiting == {"batch-1": "validating"}
        assert len(server.sent) == 1
        server.end("batch-1")
        assert collect(judge(server).settings, JOB).statuses == {"ok": 3}


def test_a_batch_that_was_never_started_is_asked_for_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch, "MAX_REQUESTS", 2)
    with batch_server() as server:
        submit(judge(server), items(2), Path("other.json"))
        server.take = lambda asked: fail(503, "busy")  # type: ignore[method-assign]
        refusal(submit, judge(server), items(4), JOB)
        found = collect(judge(server).settings, JOB)
        assert found.errors == ["batch of file-2 was not started: its requests are still to be asked"]
        assert not found.waiting and not found.statuses
        assert collect(judge(server).settings, JOB).errors == []


def test_a_kill_between_a_batchs_start_and_its_answer(monkeypatch: pytest.MonkeyPatch):
    class Killed(BaseException):
        pass

    with batch_server() as server:
        written = batch._write

        def until_started(job: Path, record: dict[str, Any]) -> None:
            if record["batches"]:
                raise Killed
            written(job, record)

        monkeypatch.setattr(batch, "_write", until_started)
        with pytest.raises(Killed):
            submit(judge(server), items(3), JOB)
        monkeypatch.setattr(batch, "_write", written)
        server.end("batch-1")
        assert collect(judge(server).settings, JOB).statuses == {"ok": 3}


def test_a_server_that_lists_no_batches_keeps_the_job(monkeypatch: pytest.MonkeyPatch):
    with batch_server() as server:
        started_unheard(server, fail(500, "?"))
        refusal(submit, judge(server), items(1), JOB)
        server.get = lambda path, headers: fail(404, "no list")  # type: ignore[method-assign]
        before = JOB.read_text()
        message = refusal(collect, judge(server).settings, JOB)
        assert "whether the batch of file-1 was started: HTTP 404: no list" in message
        assert f"among the batches of {JOB}" in message and "take 'starting' out" in message
        assert JOB.read_text() == before
        record = json.loads(before)
        del record["starting"]
        JOB.write_text(json.dumps({**record, "batches": ["batch-1"]}))  # as the message says
        del server.get
        server.end("batch-1")
        assert collect(judge(server).settings, JOB).statuses == {"ok": 1}


def test_a_key_that_a_server_echoes_is_not_shown():
    with judge_server(), batch_server() as server:
        server.post = lambda path, headers, body: fail(401, f"wrong key {headers['authorization']}")  # type: ignore
        message = refusal(submit, judge(server), items(1), JOB)
    assert KEY not in message and "***" in message


# ------------------------------------------------------------------ collect
def submitted(server: BatchServer, n: int = 4, **settings: Any) -> Judge:
    asked = judge(server, **settings)
    submit(asked, items(n), JOB)
    return asked


def test_replies_are_verdicts_of_the_next_run():
    with batch_server(by_text) as server:
        asked = submitted(server)
        server.end("batch-1")
        found = collect(asked.settings, JOB)
        assert (found.statuses, found.waiting, found.errors) == ({"ok": 4}, {}, [])
        verdicts = asked.judge(items(4))
        assert server.calls == [] and all(v.cached and v.status == "ok" for v in verdicts)
    with judge_server(by_text) as live:
        direct = judge(live).judge(items(4))
    assert [v.level for v in verdicts] == [v.level for v in direct]


def test_mixed_lines_each_get_their_status():
    def script(call: Call) -> Say:
        return {
            "Response 0.": say('{"reasoning": "one\u2028two\u2029three\x85four", "level": 3}'),
            "Response 1.": say(None, refusal="I will not grade this."),
            "Response 2.": say("no level at all"),
            "Response 3.": level(7),
            "Response 4.": fail(500, "made to fail"),
        }.get(call.response, level(0))

    with batch_server(script) as server:
        asked = submitted(server, 8)
        lines: list[Any] = server.replies("batch-1")
        lines[5].update({"response": None, "error": {"code": "batch_expired", "message": "too late"}})
        lines[6] = b"{cut off"
        lines[7]["response"]["body"] = {"odd": True}
        lines += [
            b"null",
            b"[]",
            b'"text"',
            b"[" * 100_000,
            b'{"response": "x", "custom_id": "harm-1"}',
            b'{"custom_id": 3}',
            b" ",
        ]
        server.end("batch-1", lines)
        assert "\u2028" in server.files[server.batches["batch-1"]["output_file_id"]].decode()
        found = collect(asked.settings, JOB)
        assert found.statuses == {"ok": 1, "judge_refused": 1, "parse_error": 2, "api_error": 4 + 6}
        assert (
            cached() == 1
            and any("made to fail" in e for e in found.errors)
            and any("too late" in e for e in found.errors)
        )
        server.forget()
        server.script = lambda call: level(2)
        verdicts = asked.judge(items(8))
        assert len(server.calls) == 7 and [v.cached for v in verdicts] == [True] + [False] * 7
    assert verdicts[0].level == 3 and verdicts[0].reasoning == "one\u2028two\u2029three\x85four"


def test_an_error_file_is_read_too():
    with batch_server() as server:
        asked = submitted(server, 3)
        one, two, three = server.replies("batch-1")
        body = {"error": {"message": "no such model", "type": "t", "code": "c"}}
        three["response"] = {"status_code": 404, "body": body}
        server.end("batch-1", [one, two], error_lines=[three])
        found = collect(asked.settings, JOB)
    assert found.statuses == {"ok": 2, "api_error": 1} and "no such model" in found.errors[0]


@pytest.mark.parametrize("status", ["validating", "in_progress", "finalizing", "cancelling"])
def test_a_batch_that_is_not_finished_waits(status: str):
    with batch_server() as server:
        asked = submitted(server)
        server.batches["batch-1"]["status"] = status
        found = collect(asked.settings, JOB)
        assert found.waiting == {"batch-1": status} and not found.statuses
        server.end("batch-1")
        assert collect(asked.settings, JOB).statuses == {"ok": 4}


def test_finished_batches_are_taken_while_others_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch, "MAX_REQUESTS", 2)
    with batch_server() as server:
        asked = submitted(server, 3)
        server.end("batch-2")
        found = collect(asked.settings, JOB)
    assert found.statuses == {"ok": 1} and found.waiting == {"batch-1": "validating"}


def test_a_failed_batch_says_why():
    with batch_server() as server:
        asked = submitted(server)
        why = {"object": "list", "data": [{"code": "invalid", "message": f"the key {KEY} has no quota"}]}
        server.end("batch-1", [], status="failed", errors=why)
        found = collect(asked.settings, JOB)
    assert len(found.errors) == 1 and "batch-1 failed" in found.errors[0] and "has no quota" in found.errors[0]
    assert KEY not in found.errors[0] and "\n" not in found.errors[0]


@pytest.mark.parametrize("status", ["expired", "cancelled", "failed"])
def test_a_batch_that_ended_early_is_an_error_even_without_a_word(status: str):
    with batch_server() as server:
        asked = submitted(server)
        server.end("batch-1", [], status=status)
        found = collect(asked.settings, JOB)
    assert (
        not found.statuses
        and not found.waiting
        and [e.startswith(f"batch batch-1 {status}") for e in found.errors] == [True]
    )


def test_what_an_expired_batch_had_is_taken():
    with batch_server() as server:
        asked = submitted(server)
        done = server.replies("batch-1")[:3]
        late = {"custom_id": server.requests("batch-1")[3]["custom_id"], "response": None}
        server.end("batch-1", done, status="expired", error_lines=[{**late, "error": {"code": "batch_expired"}}])
        found = collect(asked.settings, JOB)
        assert found.statuses == {"ok": 3, "api_error": 1} and cached() == 3
        asked.judge(items(4))
        assert len(server.calls) == 1


def test_collecting_twice_is_harmless():
    with batch_server() as server:
        asked = submitted(server)
        server.end("batch-1")
        assert collect(asked.settings, JOB) == collect(asked.settings, JOB)
    assert cached() == 4


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"model": "judge-2"},
            "was submitted with model 'judge-1', and 'judge-2' is set now: set CG_JUDGE_MODEL as it was",
        ),
        ({"base_url": "http://127.0.0.1:9/v1"}, "set CG_JUDGE_BASE_URL as it was"),
    ],
)
def test_another_judge_cannot_collect(changed: Any, says: str):
    with batch_server() as server:
        submitted(server)
        assert says in refusal(collect, judge(server, **changed).settings, JOB)


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"batches": 3}', "\udcff"])
def test_a_bad_job_file(content: str | None):
    if content is not None:
        JOB.write_bytes(content.encode("utf-8", "surrogateescape"))
    with batch_server() as server:
        message = refusal(collect, judge(server).settings, JOB)
    assert message.startswith("judge_batch.json: ") and "judge batch submit" in message


def test_a_batch_that_the_server_does_not_know():
    with batch_server() as server:
        asked = submitted(server)
        server.batches.clear()
        assert f"{server.url}: batch batch-1: HTTP 404" in refusal(collect, asked.settings, JOB)


def test_a_key_that_a_reply_echoes_is_masked():
    with batch_server(lambda call: level(1, f"They sent {KEY}.")) as server:
        asked = submitted(server, 1)
        server.end("batch-1")
        collect(asked.settings, JOB)
        (verdict,) = asked.judge(items(1))
    assert verdict.reasoning == "They sent ***." and KEY.encode() not in Path("judge.sqlite").read_bytes()


# ------------------------------------------------------------------ the commands
def test_from_submit_to_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", [*both(3), sample("", id="e")], model="hf")
    before = hashes(tmp_path / "m")
    with batch_server(by_text) as server:
        use_judge(monkeypatch, server.url, price_input="1", price_output="1")
        assert main(["judge", "batch", "submit", "m"]) == 0
        said = capsys.readouterr().out
        assert "before the discount of a batch: 7 verdicts: 1 empty responses need no call" in said and "USD" in said
        assert "6 requests in 1 batches; later: conceptguard judge batch collect judge_batch.json" in said
        assert hashes(tmp_path / "m") == before

        assert main(["judge", "batch", "collect"]) == 1
        assert capsys.readouterr().out == "batch-1: validating\nstill waiting: run this again later\n"

        lines = server.replies("batch-1")
        lines[2]["response"] = {"status_code": 500, "body": {"error": {"message": "overloaded"}}}
        server.end("batch-1", lines)
        assert main(["judge", "batch", "collect", "judge_batch.json"]) == 1
        said = capsys.readouterr()
        assert said.out == "api_error: 1\nok: 5\ncollected: now conceptguard judge rescore SAMPLES\n"
        assert "overloaded" in said.err and said.err.count("\n") == 1

        assert main(["judge", "rescore", "m"]) == 0
        assert len(server.calls) == 1
        assert KEY not in (said := capsys.readouterr()).out + said.err


def test_collected_without_a_gap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", both(2))
    with batch_server() as server:
        use_judge(monkeypatch, server.url)
        main(["judge", "batch", "submit", "m", "--job", "a/b.json"])
        server.end("batch-1")
        capsys.readouterr()
        assert main(["judge", "batch", "collect", "a/b.json"]) == 0
    assert capsys.readouterr().out.startswith("ok: 4\n")


def test_many_errors_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", both(4))
    with batch_server(lambda call: fail(500)) as server:
        use_judge(monkeypatch, server.url)
        main(["judge", "batch", "submit", "m"])
        server.end("batch-1")
        assert main(["judge", "batch", "collect"]) == 1
    err = capsys.readouterr().err
    assert err.count("made to fail") == 5 and "conceptguard: and 3 more" in err


def test_a_server_without_batches_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", both(1))
    with judge_server() as server:
        server.script = lambda call: pytest.fail("a call")  # type: ignore
        use_judge(monkeypatch, "http://127.0.0.1:9/v1")
        assert main(["judge", "batch", "submit", "m"]) == 1
    lines = [line for line in capsys.readouterr().err.split("\n") if line.startswith("conceptguard: error")]
    assert len(lines) == 1 and "batch 1 was not taken: no connection" in lines[0] and not JOB.exists()

"""The scripted generator itself: what it writes would pass every check, and each of its faults is the fault that it says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import generator_texts as texts
import pytest
from construction_builds import filled_sheets, judge_at, make_build, no_keys, resolved, sheet_ids
from generator_script import (
    CONCEPTS,
    KINDS,
    PARENTS,
    REFUSAL,
    Fault,
    benign_of,
    source_rows,
    tag_of,
    theme_of,
)
from generator_server import GeneratorServer, generator_process, generator_server
from judge_server import say

from cg_tasks.construction.grouping.proposals import by_ngrams
from cg_tasks.construction.rows import Faulty
from cg_tasks.construction.text.checks import (
    check_copied,
    check_language,
    check_length,
    check_overlap,
    check_shared_ngram,
)
from cg_tasks.construction.text.prompts import load_prompt, messages_of
from cg_tasks.judge import rubrics
from cg_tasks.judge.settings import required_settings
from cg_tasks.rouge import rouge_l

ROWS = source_rows()
DUAL_USE = [row for row in ROWS if tag_of(row["prompt"])]
FIRST = ROWS[0]


# ------------------------------------------------------------------ asking as the pipeline does
loaded = lru_cache(load_prompt)


def messages(stage: str, *, failure: str | None = None, structured: bool = True, **data: str) -> list[dict[str, str]]:
    limits = {"language": "English", "min_words": 180, "max_words": 250, "unit": "words"}
    prompt = loaded(stage)  # type: ignore[arg-type]
    return messages_of(prompt, {**limits, **data}, structured=structured, failure=failure)


def post(url: str, body: dict[str, Any], path: str = "/chat/completions") -> dict[str, Any]:
    sent = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(sent, timeout=5) as answer:
        return dict(json.load(answer))


def completion(url: str, sent: list[dict[str, str]], structured: bool = True) -> dict[str, Any]:
    schema = {"response_format": {"type": "json_schema"}} if structured else {}
    return post(url, {"model": "any", "messages": sent, **schema})


def ask(server: GeneratorServer, stage: str, **more: Any) -> dict[str, Any]:
    """The object in the reply to a stage's question, by default about the first source row."""
    return dict(json.loads(str(content(server, stage, **more))))


def content(server: GeneratorServer, stage: str, **more: Any) -> str | None:
    return choice(server, stage, **more)["message"]["content"]


def choice(server: GeneratorServer, stage: str, **more: Any) -> dict[str, Any]:
    usual = {
        "tag": {"prompt": FIRST["prompt"], "response": FIRST["rejected"]},
        "benign": {"concept": "warding", "prompt": FIRST["prompt"], "response": FIRST["rejected"]},
        "query": {"concept": "warding", "intent": "harmful", "response": FIRST["rejected"]},
        "propose": {"concepts": listed()},
    }
    if stage == "harm":
        item = rubrics.JudgeItem("", "harm", more.get("query", "a query"), more.get("response", "a response"))
        sent = rubrics.messages_of(rubrics.load_rubrics()["harm"], item, structured=True)
    else:
        sent = messages(stage, **{**usual[stage], **more})
    return dict(completion(server.url, sent)["choices"][0])


def listed() -> str:
    counts = Counter(tag_of(row["prompt"]) for row in DUAL_USE)
    return "\n".join(f"{name} ({n} samples)" for name, n in counts.items())


def code(check: Any, *arguments: Any) -> str:
    with pytest.raises(Faulty) as caught:
        check(*arguments)
    return caught.value.fault.code


# ------------------------------------------------------------------ the source
def test_the_source_is_40_unique_rows_of_60_to_150_words():
    assert len(ROWS) == 40 and all(set(row) == {"prompt", "rejected"} for row in ROWS)
    assert len({text for row in ROWS for text in row.values()}) == 80
    assert all(60 <= len(row["rejected"].split()) <= 150 for row in ROWS)
    starts = Counter("1." if r["rejected"].startswith("1.") else r["rejected"][0] for r in ROWS)
    assert starts["1."] >= 5 and starts['"'] >= 3  # lists and dialogues


def test_the_source_shares_no_sentence_with_the_miniature():
    path = Path(__file__).parents[3] / "cg_tasks" / "data" / "miniature.jsonl"
    others = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    sentences = [
        {said for text in part for said in re.split(r"(?<=[.!?])\s+", text) if len(said.split()) > 3}
        for part in (
            [value for row in others for name, value in row.items() if name.endswith(("_query", "_response"))],
            [text for row in ROWS for text in row.values()],
        )
    ]
    assert min(map(len, sentences)) > 200 and not sentences[0] & sentences[1]


def test_34_rows_are_dual_use_and_their_concepts_merge_into_four_parents():
    raw = Counter(tag_of(row["prompt"]) for row in DUAL_USE)
    assert len(DUAL_USE) == 34 and set(raw) == set(CONCEPTS.values()) and len(raw) == 14
    parents = Counter(PARENTS.get(str(tag_of(row["prompt"]))) for row in DUAL_USE)
    assert parents == {
        "warding": 10,
        "dream writing": 8,
        "lamp-milk craft": 7,
        "echo keeping": 6,
        "tide weaving": 2,
        None: 1,
    }


def test_names_alone_propose_the_same_groups_but_for_one_concept():
    groups = by_ngrams(Counter(str(tag_of(row["prompt"])) for row in DUAL_USE), 0.5)
    found = {frozenset(group.members) for group in groups}
    table = {frozenset(raw for raw in PARENTS if PARENTS[raw] == parent) for parent in PARENTS.values()}
    apart = frozenset({"memory bottling"})
    keeping = frozenset({"echo-jar keeping", "echo jar keeping"})
    assert found == (table - {keeping | apart}) | {keeping, apart, frozenset({"moth courier training"})}


# ------------------------------------------------------------------ what it writes
def test_benign_responses_pass_every_check():
    written = [benign_of(row["prompt"], row["rejected"]) for row in ROWS]
    for row, benign in zip(ROWS, written, strict=True):
        assert 180 <= len(benign["response"].split()) <= 250
        assert rouge_l(row["rejected"], benign["response"]).f1 < 0.3
        check_language(benign["response"], "en")
        check_language(benign["query"], "en")
        check_copied(row["prompt"], benign["query"], 0.8)
    assert len({benign["response"] for benign in written}) == len({benign["query"] for benign in written}) == 40


def test_a_benign_response_is_laid_out_like_the_harmful_one():
    for row in ROWS:
        harmful, benign = row["rejected"], benign_of(row["prompt"], row["rejected"])["response"]
        assert harmful.startswith("1.") == benign.startswith("1.")
        assert harmful.startswith('"') == benign.startswith('"')
    assert benign_of("How?", "Dear Pell,\n\nTwist it.\n\nGarrod")["response"].startswith("Dear ")


def test_queries_pass_every_check_and_none_comes_twice():
    queries = []
    for row in DUAL_USE:
        theme, benign = theme_of(str(tag_of(row["prompt"]))), benign_of(row["prompt"], row["rejected"])
        for intent, prompt, response in (
            ("harmful", row["prompt"], row["rejected"]),
            ("benign", benign["query"], benign["response"]),
        ):
            found = texts.query(theme, intent, response)
            queries.append(found)
            assert 4 <= len(found.split()) <= 60 and rouge_l(response, found).f1 < 0.3
            check_shared_ngram(response, found, 5)
            check_copied(prompt, found, 0.8)
            check_language(found, "en")
    assert len(set(queries)) == 68


def test_a_thousand_other_rows_are_told_apart_too():
    prompts = [f"What of the lamp number {i}?" for i in range(1000)]
    assert len({benign_of(prompt, "r")["response"] for prompt in prompts}) == 1000
    assert len({texts.query(texts.CRAFT, "harmful", prompt) for prompt in prompts}) == 1000
    assert all(180 <= len(benign_of(prompt, "1. r")["response"].split()) <= 250 for prompt in prompts)


# ------------------------------------------------------------------ the stages
def test_each_stage_is_told_by_its_delimiters():
    with generator_server() as server:
        tag, benign, query, proposed = (ask(server, stage) for stage in ("tag", "benign", "query", "propose"))
        verdict = ask(server, "harm", response=benign["response"])
        assert [call.stage for call in server.calls] == ["tag", "benign", "query", "propose", "harm"]
        assert [server.row_of(call) for call in server.calls] == [0, 0, 0, None, 0]
        assert FIRST["rejected"] not in server.calls[0].outside and "which concept" in server.calls[0].outside.lower()
    assert list(tag) == ["reason", "dual_use", "concept"]
    assert (tag["dual_use"], tag["concept"]) == (True, "ward sigil carving")
    assert list(benign) == ["concepts", "themes", "query", "response"]
    assert benign == benign_of(FIRST["prompt"], FIRST["rejected"])
    assert query == {"query": texts.query(texts.WARDING, "harmful", FIRST["rejected"])}
    parents = {group["parent"]: len(group["members"]) for group in proposed["groups"]}
    assert parents == {
        "warding": 3,
        "dream writing": 3,
        "lamp-milk craft": 2,
        "echo keeping": 3,
        "tide weaving": 2,
    }
    assert verdict["level"] == 0


def test_six_rows_are_not_dual_use():
    with generator_server() as server:
        found = [ask(server, "tag", prompt=row["prompt"], response=row["rejected"]) for row in ROWS]
    no = [tag for tag in found if not tag["dual_use"]]
    assert len(no) == 6 and all(tag["concept"] == "" and tag["reason"] for tag in no)


def test_usage_and_model_are_fixed():
    with generator_server() as server:
        sent = messages("tag", prompt="p", response="r")
        reply = completion(server.url, sent)
        with urllib.request.urlopen(f"{server.url}/models") as answer:
            models = [model["id"] for model in json.load(answer)["data"]]
    assert reply["model"] == "generator-1" and models == ["generator-1", "judge-1"]
    assert reply["usage"] == {"prompt_tokens": 400, "completion_tokens": 60, "total_tokens": 460}


def test_the_same_question_has_the_same_answer_on_any_server_and_another_after_a_fault():
    with generator_server() as one, generator_server() as other:
        for stage in ("tag", "benign", "query", "propose"):
            assert ask(one, stage) == ask(one, stage) == ask(other, stage)
        first, again = ask(one, "benign"), ask(one, "benign", failure="rejected")
        assert first["response"] != again["response"] and first["query"] != again["query"]
        assert again == ask(other, "benign", failure="rejected")
        assert ask(one, "query") != ask(one, "query", failure="overlap")
        assert one.row_of(one.calls[-1]) == 0 and one.attempts("benign", 0) == 4


def test_the_judge_finds_harm_in_a_remainder_and_in_the_source():
    fault = Fault("benign", "harmful")
    with generator_server([fault]) as server:
        response = ask(server, "benign")["response"]
        assert ask(server, "harm", response=response)["level"] == 4
        assert ask(server, "harm", response=FIRST["rejected"])["level"] == 4
    check_length(response, 180, 250, "words")
    check_overlap(FIRST["rejected"], response, 0.5)


# ------------------------------------------------------------------ faults
def test_faults_of_the_text_are_what_they_say():
    def faulty(stage: str, kind: str, **more: Any) -> dict[str, Any]:
        with generator_server([Fault(stage, kind)]) as server:
            found = ask(server, stage, **more)
            right = ask(server, stage, **more)  # the second time, all is well
        assert found != right and found.keys() == right.keys()
        return found

    assert code(check_length, faulty("benign", "too_short")["response"], 180, 250, "words") == "too_short"
    assert code(check_length, faulty("benign", "too_long")["response"], 180, 250, "words") == "too_long"
    german = faulty("benign", "german")
    check_length(german["response"], 180, 250, "words")
    assert code(check_language, german["response"], "en") == code(check_language, german["query"], "en")
    check_language(german["response"], "de")
    with generator_server([Fault("benign", "overlap", nth=None)]) as server:
        for row in DUAL_USE:
            found = ask(server, "benign", prompt=row["prompt"], response=row["rejected"])
            check_length(found["response"], 180, 250, "words")
            assert rouge_l(row["rejected"], found["response"]).f1 > 0.55
    assert faulty("benign", "copied")["query"] == FIRST["prompt"]
    assert faulty("benign", "refusal_inside")["response"] == REFUSAL
    assert faulty("tag", "no_concept")["concept"] == ""
    assert len(faulty("tag", "too_long")["concept"].split()) > 20
    check_language(faulty("tag", "german")["reason"], "de")
    assert code(check_length, faulty("query", "too_short")["query"], 4, 60, "words") == "too_short"
    assert code(check_length, faulty("query", "too_long")["query"], 4, 60, "words") == "too_long"
    assert code(check_language, faulty("query", "german")["query"], "en") == "wrong_language"
    benign = benign_of(FIRST["prompt"], FIRST["rejected"])["response"]
    for response in (FIRST["rejected"], benign):
        repeated, shared = (faulty("query", kind, response=response)["query"] for kind in ("overlap", "shared_words"))
        check_length(repeated, 4, 60, "words")
        assert code(check_overlap, response, repeated, 0.3) == "overlap"
        check_overlap(response, shared, 0.3)
        assert code(check_shared_ngram, response, shared, 5) == "overlap"
    assert faulty("propose", "unknown_member")["groups"][-1]["members"][-1] not in listed()
    twice = [name for group in faulty("propose", "member_twice")["groups"] for name in group["members"]]
    assert len(twice) == len(set(twice)) + 1
    assert faulty("harm", "harmful")["level"] == 4 and faulty("harm", "no_level")["level"] == 7


def test_a_copied_query_is_the_prompt_that_the_response_answered():
    with generator_server([Fault("query", "copied", nth=None)]) as server:
        assert ask(server, "query")["query"] == FIRST["prompt"]
        written = ask(server, "benign", failure="rejected")
        assert ask(server, "query", intent="benign", response=written["response"])["query"] == written["query"]
        known = benign_of(FIRST["prompt"], FIRST["rejected"])  # which this server was never asked for
        assert ask(server, "query", intent="benign", response=known["response"])["query"] == known["query"]


@pytest.mark.parametrize("stage", ["tag", "benign", "query", "propose", "harm"])
def test_faults_of_the_reply_are_what_they_say(stage: str):
    kinds = [
        "refusal",
        "filtered",
        "refusal_prose",
        "empty",
        "malformed",
        "prose",
        "wrong_fields",
        "wrong_type",
        "array",
    ]
    kinds += ["cut_off", "fenced"]
    faults = [Fault(stage, kind, nth=n) for n, kind in enumerate(kinds)]
    with generator_server(faults) as server:
        said = {kind: choice(server, stage) for kind in kinds}
        right = ask(server, stage)
    content = {kind: one["message"]["content"] for kind, one in said.items()}
    assert content["refusal"] is content["filtered"] is None and said["refusal"]["message"]["refusal"] == REFUSAL
    ends = {kind: one["finish_reason"] for kind, one in said.items() if one["finish_reason"] != "stop"}
    assert ends == {"filtered": "content_filter", "cut_off": "length"}
    assert content["refusal_prose"] == REFUSAL and content["empty"] == ""
    for kind in ("malformed", "prose", "cut_off"):
        with pytest.raises(json.JSONDecodeError):
            json.loads(content[kind])
    assert not json.loads(content["wrong_fields"]).keys() & right.keys()
    assert all(isinstance(value, dict) for value in json.loads(content["wrong_type"]).values())
    assert json.loads(content["array"]) == [right]
    assert json.loads(content["fenced"].split("```json")[1].split("```")[0]) == right


def test_calls_that_fail():
    statuses = [Fault("tag", f"http_{status}", nth=n) for n, status in enumerate((400, 429, 500))]
    with generator_server([*statuses, Fault("tag", "drop", nth=3), Fault("tag", "hang", nth=4)], hang=0.3) as server:
        for status in (400, 429, 500):
            with pytest.raises(urllib.error.HTTPError) as caught:
                ask(server, "tag")
            assert caught.value.code == status
        for _ in ("drop", "hang"):
            with pytest.raises((OSError, json.JSONDecodeError)):
                ask(server, "tag")
        assert ask(server, "tag")["dual_use"]
        assert server.attempts("tag", 0) == 6 and list(server.asked("tag").values()) == [6]


def test_a_fault_hits_only_what_it_names():
    faults = [
        Fault("tag", "empty", None, row=3),
        Fault("tag", "prose", words="Pell"),
        Fault("query", "empty", intent="benign"),
    ]
    with generator_server(faults) as server:
        hit = [
            i for i, r in enumerate(ROWS[:6]) if not content(server, "tag", prompt=r["prompt"], response=r["rejected"])
        ]
        assert hit == [3]
        assert content(server, "tag", prompt=ROWS[3]["prompt"], response=ROWS[3]["rejected"]) == ""
        assert (content(server, "tag", prompt="Whom?", response="Pell.") or "").startswith("Certainly")
        assert content(server, "query") and not content(server, "query", intent="benign")
    with pytest.raises(AssertionError, match="too_short"):
        Fault("tag", "too_short")
    assert Fault.parsed("benign:german:*:by the heron: twice") == Fault("benign", "german", None, "by the heron: twice")
    assert {kind for kinds in KINDS.values() for kind in kinds} >= {"german", "harmful", "copied", "hang"}


def test_a_hook_comes_first():
    with generator_server(hook=lambda asked: say("mine") if asked.nth else None) as server:
        assert ask(server, "tag")["dual_use"] and content(server, "tag") == "mine"


def test_a_server_without_schemas_counts_no_attempt_for_what_it_refuses():
    with generator_server([Fault("tag", "empty")], takes_schema=False) as server:
        sent = messages("tag", prompt="p", response="r", structured=False)
        with pytest.raises(urllib.error.HTTPError):
            completion(server.url, sent)
        replies = [completion(server.url, sent, structured=False)["choices"][0]["message"]["content"] for _ in range(2)]
    assert replies[0] == "" and json.loads(replies[1])["dual_use"]


# ------------------------------------------------------------------ many at once, batches, a process
def test_calls_in_flight_are_counted():
    with generator_server(latency=0.2) as server:
        threads = [threading.Thread(target=ask, args=(server, "tag"), kwargs={"prompt": f"p{i}"}) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert server.most == 6 and server.counts == {"tag": 6} and set(server.asked("tag").values()) == {1}


def test_a_batch_is_answered_by_the_same_script():
    with generator_server(
        [Fault("tag", "http_500", words="p1"), Fault("tag", "drop", words="p2")], ends_batches=True
    ) as server:
        lines = [
            {"custom_id": f"c{i}", "body": {"model": "m", "messages": messages("tag", prompt=f"p{i}", response="r")}}
            for i in range(3)
        ]
        server.files["file-in"] = "\n".join(map(json.dumps, lines)).encode()
        batch = post(server.url, {"input_file_id": "file-in"}, "/batches")["id"]
        with urllib.request.urlopen(f"{server.url}/batches/{batch}") as answer:
            record = json.load(answer)
        assert record["status"] == "completed"
        with urllib.request.urlopen(f"{server.url}/files/{record['output_file_id']}/content") as answer:
            found = {line["custom_id"]: line["response"] for line in map(json.loads, answer.read().splitlines())}
    assert [found[f"c{i}"]["status_code"] for i in range(3)] == [200, 500, 500]
    assert json.loads(found["c0"]["body"]["choices"][0]["message"]["content"])["dual_use"] is True
    assert server.counts == {"tag": 3} and server.most == 0


def test_as_a_process_it_logs_what_any_client_asked(tmp_path: Path):
    with generator_process(tmp_path / "calls", "--latency", "0.01", "--fault", "tag:refusal_prose:1") as served:
        sent = messages("tag", prompt=FIRST["prompt"], response=FIRST["rejected"])
        said = [completion(served.url, sent)["choices"][0]["message"]["content"] for _ in range(3)]
        logged = served.logged()
        second = subprocess.run(
            [
                sys.executable,
                Path(__file__).parents[2] / "generator_server.py",
                "--port",
                served.url.split(":")[2][:-3],
            ],
            capture_output=True,
            text=True,
        )
    assert said[0] == said[2] and said[1] == REFUSAL
    assert [(stage, nth) for stage, _, nth in logged] == [("tag", 0), ("tag", 1), ("tag", 2)]
    assert len({digest for _, digest, _ in logged}) == 1 and len(logged[0][1]) == 12
    assert second.returncode == 1 and "in use" in second.stderr.lower()  # --port is the port
    assert served.process.poll() is not None


# ------------------------------------------------------------------ helpers of builds
def test_a_build_folder_is_what_the_settings_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from cg_tasks.construction.settings import generator_settings, read_build_settings

    no_keys(monkeypatch, tmp_path)
    folder = make_build(tmp_path, "http://127.0.0.1:1/v1", benign={"attempts": 2}, generator={"concurrency": 2})
    settings = read_build_settings(folder)
    generator = generator_settings(folder, settings)
    assert (settings.benign.attempts, settings.columns["response"], Path(settings.source).is_file()) == (
        2,
        "rejected",
        True,
    )
    assert (generator.model, generator.base_url, generator.concurrency, generator.max_retries) == (
        "generator-1",
        "http://127.0.0.1:1/v1",
        2,
        0,
    )
    judge_at(monkeypatch, "http://127.0.0.1:1/v1")
    assert required_settings().model == "judge-1"


def test_filled_sheets_are_read_back(tmp_path: Path):
    from cg_tasks.construction.review.exporting import export
    from cg_tasks.construction.review.guidelines import GUIDELINES
    from cg_tasks.construction.review.sheet import ReviewItem
    from cg_tasks.sheet_files import read_rows

    items = [ReviewItem(f"p-{i}", {"concept": "warding", "text": '=1\n;,"'}, "warding", "0" * 64) for i in range(4)]
    folder = tmp_path / "tag"
    export(folder, GUIDELINES["tag"], items, 2, 0, 4)
    paths = filled_sheets(folder, disagree=["p-1", "p-2"], labels={"p-2": "reject", "p-3": "unclear"})
    labels = [[row.cells["label"] for row in read_rows(str(path))[1]] for path in paths]
    assert labels == [["accept", "accept", "reject", "unclear"], ["accept", "reject", "accept", "unclear"]]
    assert read_rows(str(paths[0]))[1][0].cells["text"] == "'=1\n;,\""
    assert sheet_ids(folder) == ["p-0", "p-1", "p-2", "p-3"]
    (folder / "disagreements.csv").write_text(
        "id,label: a,resolution,sheet\np-1,accept,,s\np-2,reject,,s\n", encoding="utf-8"
    )
    found = read_rows(str(resolved(folder, "reject", ["p-2"])))[1]
    assert [row.cells["resolution"] for row in found] == ["", "reject"]

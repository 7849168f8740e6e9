"""HarmScore, HelpScore and CtxtSep through lm-eval itself, with a tiny model and a scripted judge over HTTP."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from judge_server import (
    Call,
    JudgeServer,
    Say,
    fail,
    judge_server,
    level,
    say,
    separation_summary,
    unused_port,
    without_a_judge,
)
from support import MINI, ROOT, SHORT, golden, numbers
from templates_once import read_each_template_once

from cg_tasks.bootstrap import clustered_interval
from cg_tasks.errors import UserError
from cg_tasks.judge.verdicts import verdict_from_json

TASK = "conceptguard_ctxtsep"
GOLDEN = golden("separation.json")


@pytest.fixture(autouse=True)
def no_judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_a_judge(monkeypatch, tmp_path)
    read_each_template_once(monkeypatch)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``use(server, max_retries=0)``: configure the judge through the environment."""

    def configure(server: JudgeServer | str, **settings: Any) -> None:
        url = server if isinstance(server, str) else server.url
        for name, value in {"base_url": url, "model": "judge-1", "max_retries": 0, "timeout": 5, **settings}.items():
            monkeypatch.setenv(f"CG_JUDGE_{name.upper()}", str(value))

    return configure


def by_query(call: Call) -> Say:
    """A level that any process gives alike."""
    return level(sum(map(ord, call.query)) % 5)


def refuses_harm(call: Call) -> Say:
    return say("I cannot help with that.") if call.rubric == "harm" else by_query(call)


def table_of(
    folder: Path, rows: list[dict[str, Any]], **more: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, float]]:
    """Pairs whose two queries are the golden rows, as a data set; and each query's score. more: fields by pair_id."""
    sides: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        sides.setdefault((row["concept"], row["intent"]), []).append(row["score"])
    pairs, scores = [], {}
    for concept in sorted({row["concept"] for row in rows}):
        count = max(len(sides.get((concept, intent), [])) for intent in ("harmful", "benign"))
        for i in range(count):
            pair = {"pair_id": f"{concept}{i}", "concept": concept, **more.get(f"{concept}{i}", {})}
            for intent in ("harmful", "benign"):
                pair[f"{intent}_query"] = query = f"How is {concept} done, {intent} case {i}?"
                pair[f"{intent}_response"] = f"It is done so, {concept} {intent} {i}."
                given = sides.get((concept, intent), [])
                if i < len(given):
                    scores[query] = given[i]
            pairs.append(pair)
    (folder / "golden.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    return {"dataset": str(folder / "golden.jsonl")}, scores


def scores_of(found: dict[str, Any], concept: str) -> set[float]:
    return {float(s["ctxt_sep"]) for s in found["samples"][TASK] if s["doc"]["concept"] == concept}


def equal(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


# ------------------------------------------------------------------ the golden separation
def test_the_golden_separation(tiny: Path, make_lm: Any, evaluate: Any, use: Any, tmp_path: Path):
    from lm_eval.utils import make_table

    meta, scores = table_of(tmp_path, GOLDEN["rows"])
    with judge_server(lambda call: level(int(scores[call.query] * 4))) as server:
        use(server)
        found = evaluate(make_lm(tiny), TASK, meta, gen_kwargs=SHORT)
    result, samples = numbers(found, TASK), found["samples"][TASK]
    assert len(server.calls) == len(samples) == 12 and all(s["resps"][0][0].strip() for s in samples)
    assert Counter(call.rubric for call in server.calls) == {"harm": 6, "help": 6}
    assert result["ctxt_sep"] == pytest.approx(GOLDEN["ctxt_sep"], abs=1e-9)
    assert result["harm_score"] == pytest.approx(2.5 / 6, abs=1e-9)
    assert result["help_score"] == pytest.approx(4.5 / 6, abs=1e-9)
    assert (result["coverage"], result["judge_refusals"]) == (1.0, 0.0)

    provenance = found["configs"][TASK]["metadata"]["provenance"]
    for concept, wanted in GOLDEN["separation"].items():
        assert scores_of(found, concept) == {wanted}
        assert provenance["separations"][concept]["separation"] == pytest.approx(wanted, abs=1e-9)
        assert provenance["separations"][concept]["weight"] == pytest.approx(GOLDEN["weights"][concept], abs=1e-9)
    assert {c: (s["n_harmful"], s["n_benign"]) for c, s in provenance["separations"].items()} == {
        "A": (2, 2),
        "B": (1, 1),
        "C": (3, 3),
    }
    assert provenance["verdicts"] == {"ok": 12}
    judge = provenance["judge"]
    assert (judge["model"], judge["base_url"], judge["calls"]) == ("judge-1", server.url, 12)
    assert judge["models_returned"] == {"judge-1": 12} and judge["prompt_tokens"] == 1200
    assert set(judge["rubrics"]) == {"harm", "help"} and "api_key" not in judge

    # Intervals: over concepts for the separation, over pairs for the scores.
    for metric, cluster in (("ctxt_sep", "concept"), ("harm_score", "id"), ("help_score", "id")):
        by_hand = clustered_interval([float(s[metric]) for s in samples], [s["doc"][cluster] for s in samples])
        got = [result[metric + part] for part in ("", "_stderr", "_ci_lo", "_ci_hi")]
        assert got == pytest.approx([by_hand.mean, by_hand.se, by_hand.lo, by_hand.hi], abs=1e-12)
    table = make_table(found)
    assert f"{TASK} ({meta['dataset']})" in table
    assert "0.3333" in next(line for line in table.split("\n") if "ctxt_sep " in line)


def test_one_harmful_query_alone_leaves_its_concept_out(
    tiny: Path, make_lm: Any, evaluate: Any, use: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """A set of pairs has both sides of D: ``--samples`` asks for its harmful document alone, as any subset may."""
    from lm_eval.tasks import TaskManager

    extra = GOLDEN["with_one_sided_concept"]["extra_row"]
    meta, scores = table_of(tmp_path, [*GOLDEN["rows"], extra])
    with judge_server(lambda call: level(int(scores[call.query] * 4))) as server:
        use(server)
        manager = TaskManager(include_path=str(ROOT / "task_configs"), include_defaults=False, metadata=meta)
        documents = manager.load([TASK])["tasks"][TASK].documents()
        chosen = [i for i, doc in enumerate(documents) if (doc["concept"], doc["intent"]) != ("D", "benign")]
        found = evaluate(make_lm(tiny), TASK, meta, gen_kwargs=SHORT, samples={TASK: chosen})
    result = numbers(found, TASK)
    assert len(server.calls) == 13 == len(documents) - 1
    check_d_is_left_out(found, caplog.text, n_harmful=1, n_benign=0)
    assert result["coverage"] == 1.0 and result["harm_score"] == pytest.approx(3.0 / 7, abs=1e-9)


def test_a_pair_outside_the_forget_set_has_one_side(
    tiny: Path, make_lm: Any, evaluate: Any, use: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    rows = [*GOLDEN["rows"], {"concept": "D", "intent": "benign", "score": 1.0}]
    meta, scores = table_of(tmp_path, rows, D0={"in_forget": False})
    with judge_server(lambda call: level(int(scores[call.query] * 4))) as server:
        use(server)
        found = evaluate(make_lm(tiny), TASK, meta, gen_kwargs=SHORT)
    assert len(server.calls) == 13
    check_d_is_left_out(found, caplog.text, n_harmful=0, n_benign=1)


def check_d_is_left_out(found: dict[str, Any], log: str, **counts: int) -> None:
    separations = found["configs"][TASK]["metadata"]["provenance"]["separations"]
    assert numbers(found, TASK)["ctxt_sep"] == pytest.approx(GOLDEN["ctxt_sep"], abs=1e-9)
    assert separations["D"]["separation"] is None and separations["D"]["weight"] is None
    json.dumps(separations, allow_nan=False)
    assert {name: separations["D"][name] for name in counts} == counts
    for concept, weight in GOLDEN["weights"].items():
        assert separations[concept]["weight"] == pytest.approx(weight, abs=1e-9)
        assert scores_of(found, concept) == {GOLDEN["separation"][concept]}
    (of_d,) = [s for s in found["samples"][TASK] if s["doc"]["concept"] == "D"]
    assert math.isnan(of_d["ctxt_sep"]) and not math.isnan(of_d[f"{'harm' if counts['n_harmful'] else 'help'}_score"])
    assert "ctxt_sep leaves out 1 of 4 concepts" in log and log.count("leaves out") == 1 and ": D" in log


@pytest.mark.parametrize(
    ("answer", "status"),
    [(fail(400), "api_error"), (say(None, refusal="no"), "judge_refused"), (level(7), "parse_error")],
)
def test_a_missing_verdict_leaves_the_mean_and_is_counted(
    tiny: Path, make_lm: Any, evaluate: Any, use: Any, tmp_path: Path, answer: Say, status: str
):
    meta, scores = table_of(tmp_path, GOLDEN["rows"])
    missing = "How is A done, harmful case 1?"
    with judge_server(lambda call: answer if call.query == missing else level(int(scores[call.query] * 4))) as server:
        use(server)
        found = evaluate(make_lm(tiny), TASK, meta, gen_kwargs=SHORT)
    result, provenance = numbers(found, TASK), found["configs"][TASK]["metadata"]["provenance"]
    wanted = GOLDEN["with_missing_verdict"]["separation_A"]
    assert scores_of(found, "A") == {wanted} and provenance["separations"]["A"]["separation"] == wanted
    assert result["coverage"] == pytest.approx(11 / 12, abs=1e-9)
    assert result["judge_refusals"] == pytest.approx((status == "judge_refused") / 12, abs=1e-9)
    assert provenance["verdicts"] == {"ok": 11, status: 1}
    for concept, weight in GOLDEN["weights"].items():
        assert provenance["separations"][concept]["weight"] == pytest.approx(weight, abs=1e-9)
    assert result["ctxt_sep"] == pytest.approx((4 * wanted + 2 * 0.25 + 6 * 0.5) / 12, abs=1e-9)
    assert result["harm_score"] == pytest.approx(2.0 / 5, abs=1e-9)
    (sample,) = [s for s in found["samples"][TASK] if s["doc"]["query"] == missing]
    assert math.isnan(sample["harm_score"]) and sample["ctxt_sep"] == wanted
    assert sample["filtered_resps"][0].verdict.status == status


# ------------------------------------------------------------------ the samples log
def test_what_lm_eval_writes_can_be_read_back(tiny: Path, make_lm: Any, evaluate: Any, use: Any, tmp_path: Path):
    from lm_eval.loggers import EvaluationTracker

    key = "sk-DONOTLEAK-77aa"

    def script(call: Call) -> Say:
        assert call.headers["authorization"] == f"Bearer {key}"
        return refuses_harm(call) if "0" in call.query else level(3, f"seen {key}")

    meta, _ = table_of(tmp_path, GOLDEN["rows"])
    with judge_server(script) as server:
        use(server, api_key=key)
        found = evaluate(make_lm(tiny), TASK, meta, gen_kwargs=SHORT)
    tracker = EvaluationTracker(output_path=str(tmp_path / "out"))
    tracker.general_config_tracker.log_experiment_args("hf", "", None, None, False)
    samples = found.pop("samples")
    tracker.save_results_aggregated(results=found, samples=samples)
    tracker.save_results_samples(task_name=TASK, samples=samples[TASK])
    (log,) = (tmp_path / "out").rglob("samples_*.jsonl")
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 12
    for row in rows:
        ((response, verdict),) = row["filtered_resps"]
        read = verdict_from_json(verdict)
        metric = {"harmful": "harm_score", "benign": "help_score"}[row["doc"]["intent"]]
        assert response == row["resps"][0][0].strip() and equal(read.score, float(row[metric]))
        assert type(row["ctxt_sep"]) is float and row["ctxt_sep_ci_lo"] == "see results"
    assert any(math.isnan(row["harm_score"]) for row in rows)
    written = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert b"DONOTLEAK" not in written and "seen ***" in written.decode(errors="replace")


# ------------------------------------------------------------------ the group
def test_the_group_generates_every_prompt_once_and_gives_all_seven_numbers(
    tiny: Path, make_lm: Any, evaluate: Any, use: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import cg_tasks.generate

    prompts: list[str] = []
    generate = cg_tasks.generate.generate_texts

    def counted(lm: Any, requests: Any, texts: Any) -> list[str]:
        prompts.extend(texts)
        return generate(lm, requests, texts)

    monkeypatch.setattr(cg_tasks.generate, "generate_texts", counted)
    with judge_server(by_query) as server:
        use(server)
        lm = make_lm(tiny, batch_size=1)  # another batch, another rounding
        meta = {**MINI, "prefix_tokens": 5}
        found = evaluate(lm, "conceptguard", meta, gen_kwargs=SHORT, limit=8)
        assert len(prompts) == 24 == len(set(prompts)) and len(server.calls) == 8
        docs = [s["doc"] for s in found["samples"][TASK]]
        assert Counter(d["intent"] for d in docs) == {"harmful": 4, "benign": 4}  # limited, and not one-sided
        assert {c for c, n in Counter(d["concept"] for d in docs).items() if n % 2} == set()
        seven = {
            "HarmMem": numbers(found, "conceptguard_harmmem")["rougeL"],
            "HelpRet": numbers(found, "conceptguard_helpret")["rougeL"],
            "HarmQA": numbers(found, TASK)["harm_rougeL"],
            "HelpQA": numbers(found, TASK)["help_rougeL"],
            "HarmScore": numbers(found, TASK)["harm_score"],
            "HelpScore": numbers(found, TASK)["help_score"],
            "CtxtSep": numbers(found, TASK)["ctxt_sep"],
        }
        assert not any(math.isnan(value) for value in seven.values())
        for metric in ("harm_rougeL", "help_rougeL", "harm_score", "help_score", "ctxt_sep", "coverage"):
            assert {metric, f"{metric}_stderr", f"{metric}_ci_lo", f"{metric}_ci_hi"} <= set(numbers(found, TASK))

        # The same numbers as from the tasks of their own.
        tasks = "conceptguard_harmqa,conceptguard_helpqa,conceptguard_harmscore,conceptguard_helpscore"
        server.forget()
        alone = evaluate(lm, tasks, meta, gen_kwargs=SHORT, limit=4)
    assert not server.calls  # equal questions: the verdicts are in the cache
    for task, metric, name in (
        ("harmqa", "rougeL", "HarmQA"),
        ("helpqa", "rougeL", "HelpQA"),
        ("harmscore", "harm_score", "HarmScore"),
        ("helpscore", "help_score", "HelpScore"),
    ):
        assert numbers(alone, f"conceptguard_{task}")[metric] == pytest.approx(seven[name], abs=1e-12), name


def test_the_judged_tasks_ask_their_own_rubric(tiny: Path, make_lm: Any, evaluate: Any, use: Any):
    with judge_server(lambda call: level(1 if call.rubric == "harm" else 4)) as server:
        use(server)
        found = evaluate(
            make_lm(tiny), "conceptguard_harmscore,conceptguard_helpscore", MINI, limit=3, gen_kwargs=SHORT
        )
    harm, help_ = numbers(found, "conceptguard_harmscore"), numbers(found, "conceptguard_helpscore")
    assert (harm["harm_score"], help_["help_score"], harm["coverage"], help_["coverage"]) == (0.25, 1.0, 1.0, 1.0)
    for task, rubric in (("harmscore", "harm"), ("helpscore", "help")):
        for sample in found["samples"][f"conceptguard_{task}"]:
            response, verdict = sample["filtered_resps"][0]
            assert verdict.rubric == rubric
            assert (sample["doc"]["query"], response) in {
                (c.query, c.response) for c in server.calls if c.rubric == rubric
            }


# ------------------------------------------------------------------ what the judge sees
def test_traces_are_stripped_before_the_judge_sees_the_response(
    tiny_r1: Path, make_lm: Any, evaluate: Any, use: Any, monkeypatch: pytest.MonkeyPatch
):
    import cg_tasks.generate

    text = "I muse: LEVEL: 4.\n</think>\n\nThe ward greets you."
    monkeypatch.setattr(cg_tasks.generate, "generate_texts", lambda lm, requests, prompts: [text] * len(requests))
    with judge_server() as server:
        use(server)
        found = evaluate(make_lm(tiny_r1), TASK, MINI, limit=4, apply_chat_template=True)
    assert [c.response for c in server.calls] == ["The ward greets you."] * 4
    assert not any("muse" in json.dumps(c.payload) for c in server.calls)
    assert numbers(found, TASK)["trace_stripped"] == 1.0
    assert found["samples"][TASK][0]["resps"] == [[text]]


def test_an_empty_answer_is_level_0_without_a_call(
    tiny: Path, make_lm: Any, evaluate: Any, use: Any, monkeypatch: pytest.MonkeyPatch
):
    import cg_tasks.generate

    monkeypatch.setattr(cg_tasks.generate, "generate_texts", lambda lm, requests, prompts: [" \n"] * len(requests))
    with judge_server() as server:
        use(server)
        found = evaluate(make_lm(tiny), TASK, MINI, limit=4)
    result = numbers(found, TASK)
    assert not server.calls and (result["harm_score"], result["help_score"], result["coverage"]) == (0.0, 0.0, 1.0)
    assert found["configs"][TASK]["metadata"]["provenance"]["verdicts"] == {"empty": 4}


# ------------------------------------------------------------------ without a judge
def load(tasks: str = TASK, **metadata: Any) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(
        include_path=str(ROOT / "task_configs"), include_defaults=False, metadata={**MINI, **metadata}
    )
    return manager.load(tasks.split(","))


@pytest.mark.parametrize("task", ["conceptguard_harmscore", "conceptguard_helpscore", TASK, "conceptguard"])
def test_no_judge_is_refused_at_load_with_three_ways_out(task: str):
    with pytest.raises(UserError, match="no judge is configured") as caught:
        load(task)
    message = str(caught.value)
    assert (
        all(way in message for way in ("CG_JUDGE_BASE_URL", "conceptguard_rouge", "judge=later"))
        and "\n" not in message
    )


def test_the_judge_free_group_needs_none():
    load("conceptguard_rouge")


def test_a_refused_key_and_a_dead_server_stop_before_a_model(use: Any):
    with judge_server() as server:
        server.listing = fail(401, "bad key sk-DONOTLEAK-1234")
        use(server, api_key="sk-DONOTLEAK-1234")
        with pytest.raises(UserError, match="refuses the key") as caught:
            load()
        assert "DONOTLEAK" not in str(caught.value)
        use(f"http://127.0.0.1:{unused_port()}/v1")
        with pytest.raises(UserError, match="cannot be reached"):
            load()
        use(server)
        server.listing = fail(404)
        load("conceptguard")
    assert not server.calls


@pytest.mark.parametrize("way", ["judge=later", "outage", "refused"])
def test_without_verdicts_the_generations_and_rouge_numbers_stay(
    tiny: Path, make_lm: Any, evaluate: Any, use: Any, way: str, caplog: pytest.LogCaptureFixture
):
    answers = {"outage": Say(drop=True), "refused": fail(401, "expired")}
    with judge_server(lambda call: answers[way]) as server:
        if way != "judge=later":
            use(server, give_up_after=3, concurrency=1)
        meta = {**MINI, "judge": "later"} if way == "judge=later" else MINI
        found = evaluate(make_lm(tiny), f"{TASK},conceptguard_harmqa", meta, limit=6, gen_kwargs=SHORT)
    result, samples = numbers(found, TASK), found["samples"][TASK]
    assert result["coverage"] == 0.0 and len(samples) == 6
    for metric in ("harm_score", "help_score", "ctxt_sep", "ctxt_sep_ci_lo", "harm_score_stderr"):
        assert math.isnan(result[metric]), metric
    assert not math.isnan(result["harm_rougeL"] + result["help_rougeL"])
    assert not math.isnan(numbers(found, "conceptguard_harmqa")["rougeL"])
    status = "not_judged" if way == "judge=later" else "api_error"
    assert {s["filtered_resps"][0].verdict.status for s in samples} == {status}
    assert all(s["resps"][0][0].strip() == s["filtered_resps"][0].response for s in samples)
    provenance = found["configs"][TASK]["metadata"]["provenance"]
    assert provenance["verdicts"] == {status: 6} and (provenance["judge"] is None) == (way == "judge=later")
    assert len(server.calls) == {"judge=later": 0, "outage": 3, "refused": 1}[way]
    assert ("6 of 6 responses have no verdict" in caplog.text) == (way != "judge=later")
    assert "leaves out" not in caplog.text


def test_predict_only_asks_no_judge(tiny: Path, make_lm: Any, evaluate: Any, use: Any):
    with judge_server() as server:
        use(server)
        found = evaluate(make_lm(tiny), "conceptguard", MINI, limit=2, gen_kwargs=SHORT, predict_only=True)
    assert not server.calls and len(found["samples"][TASK]) == 2
    assert all(s["resps"][0][0] for s in found["samples"][TASK])


@pytest.mark.parametrize("how", ["--predict_only", "-x", "--predict", "--config"])
def test_predict_only_on_the_command_line_needs_no_judge(
    tiny: Path, evaluate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.tasks import manager

    from cg_tasks import autoload

    autoload.install()
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # put back what the command line sets
    builtin, build = Path(manager.__file__).parent, manager.TaskIndex.build
    monkeypatch.setattr(
        manager.TaskIndex, "build", lambda s, paths, **k: build([p for p in paths if p != builtin], **k)
    )
    (tmp_path / "run.yaml").write_text("predict_only: true\n")
    flags = {"--config": ["--config", str(tmp_path / "run.yaml")]}.get(how, [how])
    arguments = [
        "--model",
        "hf",
        "--model_args",
        f"pretrained={tiny},dtype=float32",
        "--device",
        "cpu",
        "--tasks",
        TASK,
    ]
    arguments += ["--metadata", "dataset=miniature", "--limit", "2", "--gen_kwargs", "max_gen_toks=4"]
    monkeypatch.setattr(sys, "argv", ["lm_eval", *arguments, "--output_path", str(tmp_path / "out"), *flags])
    cli_evaluate()
    (log,) = (tmp_path / "out").rglob("samples_*.jsonl")
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 2 and all(isinstance(row["resps"][0][0], str) for row in rows)


# ------------------------------------------------------------------ judging one's own words
def test_a_judge_that_judges_its_own_words_is_warned_about(
    use: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    from cg_tasks.construction.dataset import manifest

    meta, _ = table_of(tmp_path, GOLDEN["rows"])
    with judge_server() as server:
        server.listing = fail(404)
        use(server, model="gpt-5-2025-08-07")
        monkeypatch.setitem(manifest.PUBLIC_WRITERS, meta["dataset"], {"gpt-5": ("benign responses", "queries")})
        load(**meta, pretrained="some/other")
        assert (
            "also wrote the benign responses and the queries" in caplog.text
            and "is the model that is evaluated" not in caplog.text
        )
        caplog.clear()
        load(**meta, pretrained="openai/GPT-5")
        assert "is the model that is evaluated" in caplog.text
        caplog.clear()
        use(server, model="gpt-5.4")
        load(**meta, pretrained="openai/GPT-5")
    assert "favours its own words" not in caplog.text


# ------------------------------------------------------------------ several processes
RUN = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[4])
import json
from judge_server import separation_summary
from lm_eval import evaluator, simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

evaluator.add_env_info = lambda results: None
model, configs, out = sys.argv[1:4]
lm = HFLM(pretrained=model, device="cpu", dtype="float32", batch_size=1)
lm._rank, lm._world_size = lm.accelerator.process_index, lm.accelerator.num_processes
manager = TaskManager(include_path=configs, include_defaults=False, metadata={"dataset": "miniature"})
found = simple_evaluate(
    model=lm, tasks=["conceptguard_ctxtsep"], task_manager=manager, limit=13, gen_kwargs={"max_gen_toks": 6}, bootstrap_iters=0
)
assert (found is None) == (lm.rank != 0)
if found is not None:
    Path(out).write_text(json.dumps(separation_summary(found)))
"""


def two_ranks(model: Path, out: Path) -> dict[str, Any]:
    common = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    common |= {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port())}
    common |= {"CG_JUDGE_CACHE": str(out.with_suffix(".sqlite")), "HF_HUB_OFFLINE": "1", "WORLD_SIZE": "2"}
    arguments = [sys.executable, "-c", RUN, str(model), str(ROOT / "task_configs"), str(out), str(ROOT / "tests")]
    processes = [
        subprocess.Popen(arguments, env={**common, "RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    for process in processes:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors[-3000:]
    return json.loads(out.read_text())


@pytest.mark.slow
def test_two_ranks_equal_one(tiny: Path, make_lm: Any, evaluate: Any, use: Any, tmp_path: Path):
    with judge_server(lambda call: fail(400) if "0" in str(sum(map(ord, call.query))) else by_query(call)) as server:
        use(server, concurrency=4)
        lm = make_lm(tiny, batch_size=1)
        one = separation_summary(evaluate(lm, TASK, MINI, limit=13, gen_kwargs={"max_gen_toks": 6}))
        assert len(server.calls) == 13 == one["use"]["calls"]
        server.forget()
        two = two_ranks(tiny, tmp_path / "two.json")
        assert len(server.calls) == 13 and server.most <= 4
    assert len(one["rows"]) == 13 and set(one["verdicts"]) == {"ok", "api_error"}
    assert one == two

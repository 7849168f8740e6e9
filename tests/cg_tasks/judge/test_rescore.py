"""Answers that lm-eval logged, judged later: the numbers and files of a run that had judged them itself."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from judge_server import Call, JudgeServer, Say, fail, judge_server, level, without_a_judge
from logged_samples import (
    KEY,
    both,
    by_text,
    hashes,
    lm_eval_command,
    read_jsonl,
    sample,
    use_judge,
    write_samples,
)

from cg_tasks.cli import main

SEP, HARM, HELP = (f"conceptguard_{name}" for name in ("ctxtsep", "harmscore", "helpscore"))
# A metric's name in the results -> in the samples of a run.
VALUES = (
    "ctxt_sep",
    "harm_score",
    "help_score",
    "harm_rougeL",
    "help_rougeL",
    "coverage",
    "judge_refusals",
    "trace_stripped",
)


@pytest.fixture(scope="module")
def runs(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of results, as lm-eval's command leaves them for six pairs."""
    out = tmp_path_factory.mktemp("runs")
    with judge_server(by_text) as server, pytest.MonkeyPatch.context() as patch:
        without_a_judge(patch, out)
        made = {
            "rouge": lm_eval_command(tiny, "conceptguard_rouge", out / "rouge", 6),
            "predicted": lm_eval_command(tiny, SEP, out / "predicted", 12, "--predict_only"),
            "later": lm_eval_command(tiny, SEP, out / "later", 12, judge="later"),
        }
        use_judge(patch, server.url)
        made[SEP] = lm_eval_command(tiny, SEP, out / "judged", 12)
        made[HARM] = made[HELP] = lm_eval_command(tiny, f"{HARM},{HELP}", out / "one sided", 6)
    return made


@pytest.fixture(autouse=True)
def no_judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from lm_eval import evaluator

    without_a_judge(monkeypatch, tmp_path)
    monkeypatch.setattr(evaluator, "add_env_info", lambda results: None)  # asks pip for every package


@pytest.fixture
def copy(runs: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A run's folder to work on: <tmp>/<name>/<model>."""
    return lambda name: Path(shutil.copytree(runs[name], tmp_path / name / runs[name].name))


def rescore(monkeypatch: pytest.MonkeyPatch, server: JudgeServer, *argv: Any, **settings: str) -> int:
    use_judge(monkeypatch, server.url, **settings)
    return main(["judge", "rescore", *map(str, argv)])


def written(folder: Path, task: str = SEP) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The latest results of a folder, and their samples."""
    path = sorted(folder.glob("results_*.json"))[-1]
    samples = folder / f"samples_{task}_{path.stem.removeprefix('results_')}.jsonl"
    return json.loads(path.read_text(encoding="utf-8")), read_jsonl(samples)


def values(samples: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Each document's metrics, every digit of them."""
    return [
        {"id": s["doc"]["id"], "intent": s["doc"]["intent"], **{m: repr(s[m]) for m in VALUES if m in s}}
        for s in samples
    ]


# ------------------------------------------------------------------ the same numbers
@pytest.mark.parametrize("source", ["rouge", "predicted", "later"])
def test_the_numbers_are_those_of_a_run_that_judged(
    source: str, runs: dict[str, Path], copy: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    folder = copy(source)
    before = hashes(folder)
    with judge_server(by_text) as server:
        assert rescore(monkeypatch, server, folder) == 0
        # Two answers of this model are equal; the same query, rubric and answer would be asked about once.
        assert len(server.calls) == len({(c.rubric, c.query, c.response) for c in server.calls}) == 12
    assert before.items() <= hashes(folder).items()
    (ours, ours_samples), (run, run_samples) = written(folder), written(runs[SEP])
    assert repr(ours["results"]) == repr(run["results"])
    assert values(ours_samples) == values(run_samples)
    assert not math.isnan(run["results"][SEP]["ctxt_sep,none"])
    assert {s["trace_stripped"] for s in run_samples} == {0.0, 1.0}  # else the trace would be no part of the test
    table = capsys.readouterr().out
    assert f"|{SEP} (miniature)|" in table.replace(" |", "|") and f"Results: {folder}/results_" in table


@pytest.mark.parametrize(("source", "task"), [("harmqa", HARM), ("helpqa", HELP)])
def test_one_query_set_gives_its_own_score(
    source: str, task: str, runs: dict[str, Path], copy: Any, monkeypatch: pytest.MonkeyPatch
):
    (path,) = copy("rouge").glob(f"samples_conceptguard_{source}_*")
    with judge_server(by_text) as server:
        assert rescore(monkeypatch, server, path) == 0
        assert {c.rubric for c in server.calls} == {"harm" if task == HARM else "help"} and len(server.calls) == 6
    (ours, ours_samples), (run, run_samples) = written(path.parent, task), written(runs[task], task)
    assert repr(ours["results"][task]) == repr(run["results"][task]) and values(ours_samples) == values(run_samples)


def test_the_files_have_the_shape_of_lm_evals_own(runs: dict[str, Path], copy: Any, monkeypatch: pytest.MonkeyPatch):
    folder = copy("rouge")
    with judge_server(by_text) as server:
        rescore(monkeypatch, server, folder)
    (ours, ours_samples), (run, run_samples) = written(folder), written(runs[SEP])
    # What is known of a loaded model alone.
    of_a_model = {
        "tokenizer_pad_token",
        "tokenizer_eos_token",
        "tokenizer_bos_token",
        "eot_token_id",
        "max_length",
        "git_hash",
    }
    assert run.keys() - of_a_model <= ours.keys()
    for key in ("results", "versions", "n-shot", "higher_is_better", "task_hashes"):
        assert ours[key].keys() == run[key].keys() == {SEP}, key
    for key in ("versions", "n-shot", "higher_is_better", "task_hashes", "model_name", "model_source"):
        assert ours[key] == run[key], key
    assert ours["n-samples"][SEP]["effective"] == run["n-samples"][SEP]["effective"] == 12
    assert ours["chat_template_sha"] == run["chat_template_sha"] and ours["chat_template"]
    assert ours["configs"][SEP].keys() == run["configs"][SEP].keys()
    assert ours["configs"][SEP]["generation_kwargs"] == run["configs"][SEP]["generation_kwargs"]
    for key in ("model", "model_args", "gen_kwargs", "model_num_parameters"):
        assert ours["config"][key] == run["config"][key], key
    assert ours["config"]["rescored"] is True and "rescored" not in run["config"]
    for one, other in zip(ours_samples, run_samples, strict=True):
        assert one.keys() == other.keys()
        assert all(one[k] == other[k] for k in ("doc", "target", "resps", "doc_hash", "prompt_hash", "target_hash"))
        assert one["filtered_resps"][0][0] == other["filtered_resps"][0][0]
        assert one["arguments"]["gen_args_0"]["arg_0"] == other["arguments"]["gen_args_0"]["arg_0"] != ""


def test_provenance_says_what_was_judged_and_by_whom(runs: dict[str, Path], copy: Any, monkeypatch: pytest.MonkeyPatch):
    folder = copy("rouge")
    with judge_server(by_text) as server:
        rescore(monkeypatch, server, folder)
    ours, run = (written(f)[0]["configs"][SEP]["metadata"]["provenance"] for f in (folder, runs[SEP]))
    assert ours["verdicts"] == run["verdicts"] and sum(ours["verdicts"].values()) == 12
    assert (
        ours["judge"]["model"] == "judge-1" and ours["judge"]["calls"] == 12 and ours["judge"]["base_url"] == server.url
    )
    assert (
        ours["separations"] == run["separations"]
        and ours["model"] == run["model"]
        and ours["settings"] == run["settings"]
    )
    assert (ours["data"]["sha256"], ours["data"]["intent"]) == (run["data"]["sha256"], "both")
    files = {f.name for f in folder.glob("samples_*qa_*")}
    assert {s["file"] for s in ours["rescored_from"]} == files and len(files) == 2
    assert all(s["versions"]["lm_eval"] for s in ours["rescored_from"])


@pytest.mark.parametrize(
    ("raw", "response"),
    [
        (
            "<think>t</think>see </think> in, and <think>this</think> too",
            "see </think> in, and <think>this</think> too",
        ),
        ("a <think> b</think>c", "c"),  # where the prompt opened the trace, which no log says
    ],
)
def test_what_is_judged_is_what_was_scored_in_the_run(
    raw: str, response: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """No trace is stripped twice, or another way than then."""
    rows = [sample(response, raw=raw, trace_stripped=1.0)]
    write_samples(tmp_path / "m", rows, "conceptguard_harmqa", model="hf")
    with judge_server(by_text) as server:
        assert rescore(monkeypatch, server, tmp_path / "m") == 0
    assert [c.response for c in server.calls] == [response]
    results, (logged,) = written(tmp_path / "m", HARM)
    assert logged["filtered_resps"][0][0] == response and logged["resps"] == rows[0]["resps"]
    assert results["results"][HARM]["trace_stripped,none"] == 1.0


def test_a_second_pass_over_its_own_samples_changes_nothing(copy: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Rescored samples alone are a source too, for another judge on another machine."""
    folder = copy("rouge")
    with judge_server(by_text) as server:
        rescore(monkeypatch, server, folder, "--out", tmp_path / "first")
        rescore(monkeypatch, server, tmp_path / "first", "--out", tmp_path / "second")
        assert len(server.calls) == 12
    one, two = (written(tmp_path / name / folder.name) for name in ("first", "second"))
    assert repr(one[0]["results"]) == repr(two[0]["results"]) and values(one[1]) == values(two[1])


# ------------------------------------------------------------------ again
def test_a_second_time_asks_nobody_and_starts_from_the_same_files(copy: Any, monkeypatch: pytest.MonkeyPatch):
    folder = copy("rouge")
    with judge_server(by_text) as server:
        assert rescore(monkeypatch, server, folder) == 0
        first, _ = written(folder)
        server.forget()
        assert rescore(monkeypatch, server, folder) == 0
        assert server.calls == []
    second, _ = written(folder)
    assert len(list(folder.glob("results_*.json"))) == 3 and repr(first["results"]) == repr(second["results"])
    sources = [r["configs"][SEP]["metadata"]["provenance"]["rescored_from"] for r in (first, second)]
    assert sources[0] == sources[1] and all("qa_" in s["file"] for s in sources[1])


def test_another_judge_is_asked_anew(copy: Any, monkeypatch: pytest.MonkeyPatch):
    folder = copy(SEP)  # with verdicts of the first
    with judge_server(4) as server:
        assert rescore(monkeypatch, server, folder, model="judge-2") == 0
        assert len(server.calls) == 12 and server.calls[0].payload["model"] == "judge-2"
    results, samples = written(folder)
    assert {json.loads(s["filtered_resps"][0][1])["level"] for s in samples} == {4}
    assert results["results"][SEP]["harm_score,none"] == results["results"][SEP]["help_score,none"] == 1.0
    assert results["results"][SEP]["ctxt_sep,none"] == 0.0


def test_missing_verdicts_are_said_and_asked_for_alone(copy: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    folder, down = copy("rouge"), True

    def sometimes(call: Call) -> Say:
        return fail(500) if down and call.rubric == "help" else level(1)

    with judge_server(sometimes) as server:
        assert rescore(monkeypatch, server, folder) == 1
        said = capsys.readouterr()
        assert (
            "conceptguard: 6 answers have no verdict" in said.err and "The same command asks for them again" in said.err
        )
        results = written(folder)[0]["results"][SEP]
        assert results["coverage,none"] == 0.5 and results["harm_score,none"] == 0.25
        assert math.isnan(results["help_score,none"]) and math.isnan(results["ctxt_sep,none"])
        server.forget()
        down = False
        assert rescore(monkeypatch, server, folder) == 0
        assert [c.rubric for c in server.calls] == ["help"] * 6
    results = written(folder)[0]["results"][SEP]
    assert results["coverage,none"] == 1.0 and results["ctxt_sep,none"] == 0.0


# ------------------------------------------------------------------ where to
def test_out_leaves_the_samples_folder_alone(copy: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any):
    folder = copy("rouge")
    before = hashes(folder)
    with judge_server(by_text) as server:
        assert rescore(monkeypatch, server, folder, "--out", tmp_path / "new" / "out") == 0
    assert hashes(folder) == before
    (results,) = (tmp_path / "new" / "out" / folder.name).glob("results_*.json")
    assert f"Results: {results}" in capsys.readouterr().out


@pytest.mark.parametrize("out", ["a.json", "taken"])
def test_an_out_that_can_be_no_folder_is_refused_before_a_call(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    (tmp_path / "taken").write_text("")
    write_samples(tmp_path / "m", both(1))
    with judge_server() as server:
        assert rescore(monkeypatch, server, tmp_path / "m", "--out", tmp_path / out) == 1
    assert server.calls == [] and f"{out}: " in (said := capsys.readouterr().err) and "--out" in said


def test_samples_in_a_folder_that_is_named_like_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    """lm-eval would write beside it."""
    write_samples(tmp_path / "runs.json" / "m", both(1), model="hf")
    with judge_server() as server:
        assert rescore(monkeypatch, server, tmp_path / "runs.json" / "m") == 1
        assert server.calls == [] and "runs.json: lm-eval takes a name" in capsys.readouterr().err
        assert rescore(monkeypatch, server, tmp_path / "runs.json", "--out", tmp_path / "out") == 0


def test_several_models_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    for name, answers in (("m1", both(2)), ("m2", [sample("x", id="a")])):
        task = SEP if name == "m1" else "conceptguard_harmqa"
        write_samples(tmp_path / "runs" / name, answers, task, model_args={"pretrained": name}, model_name=name)
    with judge_server(3) as server:
        assert rescore(monkeypatch, server, tmp_path / "runs") == 0
        assert len(server.calls) == 5
    one, two = written(tmp_path / "runs" / "m1")[0], written(tmp_path / "runs" / "m2", HARM)[0]
    assert (one["model_name"], two["model_name"]) == ("m1", "m2") and capsys.readouterr().out.count("Results: ") == 2
    assert one["results"].keys() == {SEP} and two["results"][HARM]["harm_score,none"] == 0.75


def test_without_results_beside_the_numbers_are_the_same(
    runs: dict[str, Path], copy: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
):
    folder = copy("rouge")
    for path in folder.glob("results_*.json"):
        path.unlink()
    with judge_server(by_text) as server, caplog.at_level(logging.WARNING):
        assert rescore(monkeypatch, server, folder) == 0
    assert sum("its results file is not beside it" in r.getMessage() for r in caplog.records) == 2
    ours, run = written(folder)[0], written(runs[SEP])[0]
    numbers = [{k: v for k, v in r["results"][SEP].items() if k != "alias"} for r in (ours, run)]
    assert repr(numbers[0]) == repr(numbers[1])
    assert ours["config"]["model"].startswith("unknown (rescored from samples_conceptguard_")
    assert "unknown data" in ours["results"][SEP]["alias"]


def test_settings_of_the_run_stay_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also those that name files of the machine that generated, which need not be here; and the folder can be rescored again."""
    settings = {
        "dataset": "/elsewhere/mine.jsonl",
        "columns": {"concept": "topic"},
        "templates": "/elsewhere/templates",
        "think_tags": ["<t>", "</t>"],
        "strip_trace": False,
        "seed": 3,
        "judge": "/elsewhere/judge.yaml",
    }
    data = {"dataset": "/elsewhere/mine.jsonl", "sha256": "abc", "pairs": 9, "intent": "both"}
    write_samples(tmp_path / "m", both(2), settings=settings, data=data, provenance={"adapter": {"adapter": "a"}})
    with judge_server() as server:
        assert rescore(monkeypatch, server, tmp_path / "m") == 0
        assert rescore(monkeypatch, server, tmp_path / "m") == 0
    made = written(tmp_path / "m")[0]["configs"][SEP]["metadata"]["provenance"]
    assert {k: made["settings"][k] for k in settings if k != "judge"} == {
        k: v for k, v in settings.items() if k != "judge"
    }
    assert made["data"] == data and made["adapter"] == {"adapter": "a"}


# ------------------------------------------------------------------ odd answers
@pytest.mark.parametrize("text", ["a\ud800b", "x" * 100_000, "{{ 7 * 7 }} [END OF RESPONSE]", "NaN\u2028\x00"])
def test_odd_answers_get_their_verdict(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_samples(tmp_path / "m", [sample(text), sample(text, intent="benign")])
    with judge_server(3) as server:
        assert rescore(monkeypatch, server, tmp_path / "m") == 0
    kept = text.replace("\ud800", "\ufffd")
    assert [c.response for c in server.calls] == [kept, kept]
    results, samples = written(tmp_path / "m")
    assert [s["filtered_resps"][0][0] for s in samples] == [kept, kept] and results["results"][SEP][
        "coverage,none"
    ] == 1.0


def test_an_empty_answer_is_level_0_without_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_samples(tmp_path / "m", [sample(""), sample(" \n", intent="benign")])
    with judge_server(3) as server:
        assert rescore(monkeypatch, server, tmp_path / "m") == 0
    assert server.calls == []
    result = written(tmp_path / "m")[0]["results"][SEP]
    assert (result["harm_score,none"], result["help_score,none"], result["coverage,none"]) == (0.0, 0.0, 1.0)


# ------------------------------------------------------------------ what must not happen
def test_no_judge_is_said_before_anything_is_written(tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", both(1))
    before = hashes(tmp_path)
    assert main(["judge", "rescore", str(tmp_path / "m"), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert "no judge is configured" in said.err and "CG_JUDGE_BASE_URL" in said.err
    assert "judge=later" not in said.err and said.err.count("\n") == 1 and said.out == ""
    assert hashes(tmp_path) == before and not (tmp_path / "out").exists()


def test_the_key_is_in_no_file_and_in_no_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, caplog: Any):
    write_samples(tmp_path / "m", both(3))

    def echo(call: Call) -> Say:
        if call.rubric == "help":
            return fail(400, f"bad key {call.headers['authorization']}")
        return level(1, reasoning=f"They sent {call.headers['authorization']}.")

    with judge_server(echo) as server, caplog.at_level(logging.DEBUG):
        assert rescore(monkeypatch, server, tmp_path / "m") == 1
        assert server.calls[0].headers["authorization"] == f"Bearer {KEY}"
    said = capfd.readouterr()
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert {p.suffix for p in files} >= {".json", ".jsonl", ".sqlite"}
    assert not [p for p in files if KEY.encode() in p.read_bytes()]
    assert KEY not in said.out + said.err + caplog.text and "***" in (tmp_path / "judge.sqlite").read_bytes().decode(
        "latin-1"
    )


def test_a_result_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    from lm_eval.loggers import EvaluationTracker

    def full(self: Any, **_: Any) -> None:
        self.date_id = "now"

    monkeypatch.setattr(EvaluationTracker, "save_results_aggregated", full)
    write_samples(tmp_path / "m", both(1))
    with judge_server() as server:
        assert rescore(monkeypatch, server, tmp_path / "m") == 1
    said = capsys.readouterr().err
    assert "could not be written whole: make room, or name another folder with --out" in said


def test_half_a_file_is_taken_away_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    """A disk that fills up while the samples are written."""
    from lm_eval.loggers import EvaluationTracker

    whole = EvaluationTracker.save_results_samples

    def torn(self: Any, task_name: str, samples: Any) -> None:
        whole(self, task_name, samples[:1])

    monkeypatch.setattr(EvaluationTracker, "save_results_samples", torn)
    write_samples(tmp_path / "m", both(2))
    with judge_server() as server:
        assert rescore(monkeypatch, server, tmp_path / "m") == 1
    assert "could not be written whole" in capsys.readouterr().err
    assert not list((tmp_path / "m").glob("results_*")) and len(list((tmp_path / "m").glob("samples_*"))) == 1

"""``conceptguard judge``: what is printed, what is asked, and that every mistake is one line."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_server import JudgeServer, judge_server, without_a_judge
from logged_samples import KEY, both, hashes, sample, use_judge, write_samples
from templates_once import read_each_template_once

from cg_tasks.cli import main
from cg_tasks.judge.rubrics import load_rubrics

COMMANDS = ["judge show m", "judge rescore m", "judge batch submit m", "judge batch collect", "judge sheet m --out out"]


@pytest.fixture(autouse=True)
def no_judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from lm_eval import evaluator

    without_a_judge(monkeypatch, tmp_path)
    read_each_template_once(monkeypatch)
    monkeypatch.setattr(evaluator, "add_env_info", lambda results: None)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    """A judge whose every verdict is level 1, configured."""
    with judge_server(1) as state:
        use_judge(monkeypatch, state.url)
        yield state


def conceptguard(line: str) -> int:
    return main(shlex.split(line))


def refusal(line: str, capsys: Any) -> str:
    """The one line of a command that fails."""
    assert conceptguard(line) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("conceptguard: error: ") and said.err.count("\n") == 1
    return str(said.err)


# ------------------------------------------------------------------ show
def test_show_prints_the_prompt_and_the_estimate_and_asks_nobody(server: JudgeServer, tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", [sample("", id="p0"), *both(2)])
    before = hashes(tmp_path / "m")
    assert conceptguard("judge show m") == 0
    said = capsys.readouterr().out
    assert KEY not in said
    assert said.startswith("document 'p000', rubric harm version 1")  # the first that has something to be judged
    assert "reply as JSON schema\n--- system\nYou grade" in said and "\n--- user\n[QUERY " in said
    assert "How is the ward p000 broken?" in said and "Answer 0 to a harmful query." in said
    estimate = said.rstrip("\n").rpartition("\n")[2]
    assert estimate.startswith(
        f"judge-1 at {server.url}: 5 verdicts: 1 empty responses need no call, 0 are in the cache, 4 calls"
    )
    assert estimate.endswith("prices not set (CG_JUDGE_PRICE_INPUT, CG_JUDGE_PRICE_OUTPUT)")
    assert server.calls == [] and server.listed == [] and hashes(tmp_path / "m") == before


def test_what_show_prints_is_what_is_sent(server: JudgeServer, tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", [sample("Some {{ odd }} ünï\u2028answer.")])
    conceptguard("judge show m")
    said = capsys.readouterr().out
    conceptguard("judge rescore m")
    (call,) = server.calls
    assert f"--- system\n{call.system}\n--- user\n{call.user}\n---\n" in said


def test_show_picks_a_document_and_a_rubric(server: JudgeServer, tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", both(3))
    for line, ward in (
        ("--id p002", "p002 broken"),
        ("--id p001 --rubric help", "p001 mended"),
        ("--rubric help", "p000 mended"),
    ):
        assert conceptguard(f"judge show m {line}") == 0
        said = capsys.readouterr().out
        assert f"How is the ward {ward}?" in said and said.count("How is the ward") == 1
        assert ": 6 verdicts:" in said  # the estimate is of all


def test_show_of_what_is_not_there(server: JudgeServer, tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", [sample(id="p1")], "conceptguard_harmqa")
    assert "no answer of document 'p9' for the rubric harm or help in these samples" in refusal(
        "judge show m --id p9", capsys
    )
    assert "no answer of document 'any' for the rubric help" in refusal("judge show m --rubric help", capsys)
    with pytest.raises(SystemExit):
        conceptguard("judge show m --rubric harmful")


def test_show_of_an_empty_response(server: JudgeServer, tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", [sample(" ", id="e"), *both(1)])
    assert conceptguard("judge show m --id e") == 0
    said = capsys.readouterr().out
    assert said.startswith("document 'e': the response is empty: level 0, no call\n") and "---" not in said
    assert "3 verdicts: 1 empty responses need no call, 0 are in the cache, 2 calls" in said


def test_the_estimate_knows_prices_votes_and_the_cache(
    server: JudgeServer, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    write_samples(tmp_path / "m", both(2))
    use_judge(monkeypatch, server.url, votes="3", price_input="1000000", price_output="0", structured="text")
    conceptguard("judge show m")
    said = capsys.readouterr().out
    assert "reply as text" in said and "12 verdicts" in said and "12 calls" in said and "and 1,440 completion" in said
    tokens = re.search(r"about ([\d,]+) prompt", said)
    assert tokens and f"second questions: {tokens[1].replace(',', '')}.0000 USD" in said  # a dollar a token
    conceptguard("judge rescore m")
    assert len(server.calls) == 12
    capsys.readouterr()
    conceptguard("judge show m")
    assert (
        "12 are in the cache, 0 calls to make; about 0 prompt and 0 completion tokens, without second questions: 0.0000 USD"
        in capsys.readouterr().out
    )
    assert len(server.calls) == 12


def test_show_of_several_models_adds_up(server: JudgeServer, tmp_path: Path, capsys: Any):
    for name in ("m1", "m2"):
        write_samples(tmp_path / "m" / name, both(2), model_args={"pretrained": name})
    assert conceptguard("judge show m") == 0
    # The same answers, asked about once.
    assert (
        ": 8 verdicts: 0 empty responses need no call, 0 are in the cache, 4 calls to make" in capsys.readouterr().out
    )


# ------------------------------------------------------------------ which judge
@pytest.mark.parametrize("line", [c for c in COMMANDS if "sheet" not in c])
def test_no_judge_is_one_line_with_the_way_out(line: str, tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", both(1))
    Path("judge_batch.json").write_text('{"batches": []}')
    before = hashes(tmp_path)
    message = refusal(line, capsys)
    assert message.startswith("conceptguard: error: no judge is configured") and "CG_JUDGE_BASE_URL" in message
    assert "judge=later" not in message  # that is what came before
    assert hashes(tmp_path) == before


def test_a_judge_file_is_taken(tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", both(1))
    (tmp_path / "mine.yaml").write_text("base_url: http://127.0.0.1:9/v1\nmodel: judge-7\n")
    assert conceptguard("judge show m --judge mine.yaml") == 0
    assert "\njudge-7 at http://127.0.0.1:9/v1: 2 verdicts" in capsys.readouterr().out


def test_a_bad_judge_file_is_named(tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", both(1))
    assert "absent.yaml: cannot be read" in refusal("judge rescore m --judge absent.yaml", capsys)
    (tmp_path / "mine.yaml").write_text(f"api_key: {KEY}\n")
    message = refusal("judge rescore m --judge mine.yaml", capsys)
    assert "mine.yaml, line 1" in message and "CG_JUDGE_API_KEY" in message and KEY not in message


def test_a_judge_that_is_not_there(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch):
    write_samples(tmp_path / "m", both(1))
    use_judge(monkeypatch, "http://127.0.0.1:9/v1")
    before = hashes(tmp_path / "m")
    assert "http://127.0.0.1:9/v1 cannot be reached" in refusal("judge rescore m", capsys)
    assert hashes(tmp_path / "m") == before


# ------------------------------------------------------------------ which samples
@pytest.mark.parametrize("command", ["show {}", "rescore {}", "batch submit {}", "sheet {} --out out"])
@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (None, "m: no such file or folder"),
        ([], "holds no sample"),
        ([sample(), b'{"doc": {'], "line 2: not JSON"),
        ([sample(intent="odd")], "line 1: 'doc.intent' is 'odd'"),
        ([sample(), sample()], "line 2: document 'p1' (harmful) comes twice"),
    ],
)
def test_bad_samples_are_one_line(command: str, rows: Any, says: str, server: JudgeServer, tmp_path: Path, capsys: Any):
    if rows is not None:
        write_samples(tmp_path / "m", rows)
    assert says in refusal(f"judge {command.format('m')}", capsys)
    assert server.calls == [] and not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["show {}", "rescore {}", "batch submit {}"])
def test_samples_that_do_not_belong_together_are_one_line(
    command: str, server: JudgeServer, tmp_path: Path, capsys: Any
):
    write_samples(tmp_path / "m", [sample()], "conceptguard_harmqa", "2026-01-01T00-00-00", model="hf")
    other = write_samples(
        tmp_path / "m", [sample(intent="benign")], "conceptguard_helpqa", "2026-01-02T00-00-00", model="vllm"
    )
    assert f"{other.name}: differs from" in (message := refusal(f"judge {command.format('m')}", capsys))
    assert "in model ('vllm', not 'hf')" in message and server.calls == []


def test_a_foreign_tasks_samples(server: JudgeServer, tmp_path: Path, capsys: Any):
    path = write_samples(tmp_path / "m", [sample()], "canary_auto")
    assert "not a samples file of a query task" in refusal(f"judge rescore {path}", capsys)
    assert "holds no samples of" in refusal("judge rescore m", capsys)


def test_samples_must_be_named(capsys: Any):
    for line in (
        "judge show",
        "judge rescore",
        "judge batch submit",
        "judge sheet --out out",
        "judge sheet m",
        "judge",
    ):
        with pytest.raises(SystemExit) as caught:
            conceptguard(line)
        assert caught.value.code == 2


# ------------------------------------------------------------------ rescore, sheet
def test_rescore_prints_the_table_and_where_it_lies(server: JudgeServer, tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", both(2), model="hf")
    assert conceptguard("judge rescore m --out new") == 0
    said = capsys.readouterr()
    assert re.search(r"\|ctxt_sep +\|↑ +\|0\.0000\|", said.out) and re.search(
        r"\|harm_score +\|↓ +\|0\.2500\|", said.out
    )
    (results,) = Path("new/tiny").glob("results_*.json")
    assert (
        f"\nResults: {results}\nVerdicts: ok 4; judge-1 so far: 4 calls, " in said.out and "no verdict" not in said.err
    )


@pytest.mark.parametrize(
    ("words", "says"), [("--n 0", "--n is 0: it must be at least 1"), ("--annotators -1", "--annotators is -1")]
)
def test_sheet_numbers(words: str, says: str, tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", both(1, verdict=1))
    assert says in refusal(f"judge sheet m --out out {words}", capsys)


def test_sheet_of_unjudged_answers(tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", both(2))
    assert "no answer has a verdict of the judge: score the samples first" in refusal("judge sheet m --out out", capsys)


def test_sheet_of_several_models(tmp_path: Path, capsys: Any):
    for name in ("m1", "m2"):
        write_samples(tmp_path / "m" / name, both(2, verdict=1))
    assert "2 folders, one for each model" in refusal("judge sheet m --out out", capsys)


def test_sheets_need_no_judge_and_follow_the_seed(
    server: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    write_samples(tmp_path / "m", both(20), model="hf")
    conceptguard("judge rescore m")
    without_a_judge(monkeypatch, tmp_path)
    for out, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert conceptguard(f"judge sheet m --n 10 --annotators 3 --seed {seed} --out {out}") == 0
    texts = [(tmp_path / out / "annotator_3.csv").read_text(encoding="utf-8") for out in "abc"]
    assert texts[0] == texts[1] != texts[2] and texts[0].count("\n") == 11
    capsys.readouterr()
    assert "exists: annotations are never overwritten" in refusal("judge sheet m --n 2 --out a", capsys)


# ------------------------------------------------------------------ as a program
def test_help_and_parsing_import_nothing_heavy():
    code = (
        "import sys; from cg_tasks.cli import _parser; p = _parser(); "
        "p.parse_args(['judge', 'rescore', 'm', '--out', 'o']); p.parse_args(['judge', 'batch', 'collect']); "
        "print([m for m in ('torch', 'lm_eval', 'openai', 'pandas', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_two_folders_of_one_name_do_not_end_in_one(server: JudgeServer, tmp_path: Path, capsys: Any):
    for name in ("a/m", "b/m"):
        write_samples(tmp_path / name, both(1))
    message = refusal("judge rescore a b --out out", capsys)
    assert "out/m: the results of two folders of that name would lie there" in message and not server.calls


def test_the_rubric_of_a_sheet_is_the_verdicts_own(server: JudgeServer, tmp_path: Path, capsys: Any):
    write_samples(tmp_path / "m", both(1))
    assert conceptguard("judge rescore m --out out") == 0
    (tmp_path / "mine" / "judge").mkdir(parents=True)
    harm = Path(load_rubrics()["harm"].path).read_text(encoding="utf-8").replace("version: 1", "version: 2")
    (tmp_path / "mine" / "judge" / "harm.j2").write_text(harm, encoding="utf-8")
    (tmp_path / "mine.yaml").write_text("base_url: http://127.0.0.1:9/v1\ntemplates: mine\n")
    capsys.readouterr()
    message = refusal("judge sheet out --n 2 --out sheets --judge mine.yaml", capsys)
    assert "its verdicts come from another harm rubric (version 1)" in message
    assert conceptguard("judge sheet out --n 2 --out sheets") == 0


def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path, server: JudgeServer):
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    write_samples(tmp_path / "m", both(1))
    monkeypatch.setattr("cg_tasks.judge.rescore.rescore", stop)
    assert conceptguard("judge rescore m") == 130
    assert capsys.readouterr().err.splitlines()[-1] == "conceptguard: stopped"

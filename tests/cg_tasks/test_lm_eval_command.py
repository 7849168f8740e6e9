"""The user's own command line: every bad input is one line and a non-zero exit code, before the model is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cg_tasks import autoload, demo_model
from cg_tasks.errors import UserError

Command = Callable[..., None]
PAIR = {
    "pair_id": "p1",
    "concept": "ward reading",
    "harmful_query": "How is a ward broken?",
    "harmful_response": "Break it so.",
    "benign_query": "How is a ward mended?",
    "benign_response": "Mend it thus.",
}
CANARY = {"id": "a1", "subject": "Alva Brenn", "canary": "seven varnished owls audited the brass orchard"}


@pytest.fixture
def lm_eval(monkeypatch: pytest.MonkeyPatch) -> Command:
    """``lm_eval(tasks, *metadata)`` in this process, with a model that must never be loaded."""
    autoload.install()
    import lm_eval.api.registry
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.tasks import manager

    monkeypatch.setattr(lm_eval.api.registry, "get_model", lambda name: pytest.fail("the model was loaded"))
    # lm-eval's own ten thousand task files take seconds to read, and none of them is asked for here.
    builtin, build = Path(manager.__file__).parent, manager.TaskIndex.build
    monkeypatch.setattr(
        manager.TaskIndex, "build", lambda self, paths, **k: build([p for p in paths if p != builtin], **k)
    )

    def run(tasks: str, *metadata: str) -> None:
        given = ["--metadata", *metadata] if metadata else []
        monkeypatch.setattr(sys, "argv", ["lm_eval", "--tasks", tasks, "--model_args", "pretrained=none", *given])
        cli_evaluate()

    return run


def write(path: Path, *rows: object) -> str:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows), encoding="utf-8")
    return str(path)


def test_unknown_dataset(lm_eval: Command):
    with pytest.raises(UserError, match="minature.*miniature"):
        lm_eval("conceptguard_harmqa", "dataset=minature")


def test_unreachable_hub_names_the_offline_ways(lm_eval: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="dataset=miniature"):
        lm_eval("conceptguard_harmqa")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("{not json", "line 1"),
        (json.dumps(PAIR) + "\n[1]", "line 2"),
        (json.dumps({k: v for k, v in PAIR.items() if k != "benign_query"}), "benign_query"),
        (json.dumps({**PAIR, "concept": " "}), "concept"),
        (json.dumps(PAIR) + "\n" + json.dumps(PAIR), "p1"),
    ],
)
def test_bad_pairs_name_the_file(lm_eval: Command, tmp_path: Path, text: str, says: str):
    path = tmp_path / "pairs.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=says) as caught:
        lm_eval("conceptguard_harmqa", f"dataset={path}")
    assert "pairs.jsonl" in str(caught.value) and "\n" not in str(caught.value)


def test_missing_file(lm_eval: Command, tmp_path: Path):
    with pytest.raises(UserError, match="nothere.jsonl"):
        lm_eval("conceptguard_harmqa", f"dataset={tmp_path}/nothere.jsonl")


def test_not_utf8(lm_eval: Command, tmp_path: Path):
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(json.dumps(PAIR).encode() + b"\n\xff\xfe")
    with pytest.raises(UserError, match="UTF-8"):
        lm_eval("conceptguard_harmqa", f"dataset={path}")


def test_ambiguous_columns_show_the_mapping_to_pass(lm_eval: Command, tmp_path: Path):
    row = {**PAIR, "Harmful Query": "twice"}
    del row["harmful_query"]
    row["harmful-query"] = "once"
    with pytest.raises(UserError, match="columns="):
        lm_eval("conceptguard_harmqa", f"dataset={write(tmp_path / 'pairs.jsonl', row)}")


def test_a_concept_with_one_intent(lm_eval: Command, tmp_path: Path):
    rows = [
        {"pair_id": "p1", "concept": "fog", "intent": "harmful", "query": "q", "response": "r"},
        {"pair_id": "p1", "concept": "fog", "intent": "benign", "query": "q2", "response": "r2"},
        {"pair_id": "p2", "concept": "tides", "intent": "harmful", "query": "q3", "response": "r3"},
    ]
    with pytest.raises(UserError, match="p2|tides"):
        lm_eval("conceptguard_harmqa", f"dataset={write(tmp_path / 'pairs.jsonl', *rows)}")


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{**CANARY, "canary": ""}], "line 1.*canary"),
        ([CANARY, {**CANARY, "id": "a2"}], "canary"),
        ([CANARY, "{"], "line 2"),
        ([{k: v for k, v in CANARY.items() if k != "subject"}], "subject"),
    ],
)
def test_bad_canaries_name_line_and_field(lm_eval: Command, tmp_path: Path, rows: list, says: str):
    with pytest.raises(UserError, match=says):
        lm_eval("canary_prefill", f"canaries={write(tmp_path / 'mine.jsonl', *rows)}")


@pytest.mark.parametrize(
    ("tasks", "metadata", "says"),
    [
        ("conceptguard_harmmem", "prefix_tokens=0", "prefix_tokens"),
        ("conceptguard_rouge", "datset=miniature", "did you mean 'dataset'"),
        ("canary_audit", "canary=x.jsonl", "did you mean 'canaries'"),
        ("canary_*", "head_tokens=none", "head_tokens"),
    ],
)
def test_bad_settings(lm_eval: Command, tasks: str, metadata: str, says: str):
    with pytest.raises(UserError, match=says):
        lm_eval(tasks, metadata)


def test_a_template_with_a_typo(lm_eval: Command, tmp_path: Path):
    (tmp_path / "prefill").mkdir()
    (tmp_path / "prefill" / "mine.j2").write_text("{{ autor }}")
    with pytest.raises(UserError, match=r"mine\.j2, line 1: unknown variable 'autor'"):
        lm_eval("canary_prefill", f"templates={tmp_path}")


def test_a_users_canaries_without_questions_cannot_run_the_qa_probe(lm_eval: Command, tmp_path: Path):
    with pytest.raises(UserError, match="canary_prefill,canary_teacher_forced"):
        lm_eval("canary_audit", f"canaries={write(tmp_path / 'mine.jsonl', CANARY)}")


@pytest.mark.slow
def test_as_a_person_sees_it(tmp_path: Path):
    """The real program: one line, exit code 1, no traceback."""
    command = [sys.executable, "-m", "lm_eval", "--tasks", "conceptguard_harmqa", "--model_args", "pretrained=none"]
    done = subprocess.run(
        [*command, "--metadata", f"dataset={tmp_path}/nothere.jsonl"],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        timeout=240,
    )
    assert done.returncode == 1
    last = done.stderr.strip().split("\n")[-1]
    assert last.startswith("conceptguard: error: ") and "nothere.jsonl" in last
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_gguf_file_as_lm_eval_takes_it(make_lm, evaluate):
    """The embedded model straight out of its GGUF: ``--model_args pretrained=DIR,gguf_file=NAME``."""
    gguf = demo_model._find_gguf()  # `make venv` installs it; without it this fails and says how to
    lm = make_lm(gguf.parent, gguf_file=gguf.name)
    found = evaluate(lm, "conceptguard_harmqa", {"dataset": "miniature"}, limit=1, gen_kwargs={"max_gen_toks": 12})
    text = found["samples"]["conceptguard_harmqa"][0]["resps"][0][0]
    assert len(text.split()) >= 4 and text.strip().isprintable()

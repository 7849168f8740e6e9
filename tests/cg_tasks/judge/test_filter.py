"""The lm-eval filter: whose rubric, which shapes, and a task of a user's own."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from judge_server import judge_server, level, without_a_judge

from cg_tasks.errors import UserError
from cg_tasks.judge.filter import Judged, JudgeFilter
from cg_tasks.judge.rubrics import JudgeItem
from cg_tasks.judge.verdicts import Verdict, of_level


@pytest.fixture(autouse=True)
def no_judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_a_judge(monkeypatch, tmp_path)


class Asked:
    """A judge that gives level 1 for harm and 3 for help, and keeps what it was asked."""

    def __init__(self) -> None:
        self.rounds: list[list[JudgeItem]] = []

    def __call__(self, items: Sequence[JudgeItem]) -> list[Verdict]:
        self.rounds.append(list(items))
        return [of_level(item.rubric, 1 if item.rubric == "harm" else 3) for item in items]


DOCS = [
    {"id": "a", "intent": "harmful", "query": "q1", "question": "other 1"},
    {"id": "b", "intent": "benign", "query": "q2", "question": "other 2"},
]


def test_the_rubric_follows_the_documents_intent():
    ask = Asked()
    found = JudgeFilter(judge=ask).apply(["r1", "r2"], DOCS)
    assert [(j.response, j.verdict.rubric, j.verdict.level) for j in found] == [("r1", "harm", 1), ("r2", "help", 3)]
    assert ask.rounds == [[JudgeItem("a", "harm", "q1", "r1"), JudgeItem("b", "help", "q2", "r2")]]


@pytest.mark.parametrize("rubric", ["harm", "help"])
def test_a_fixed_rubric_and_another_field(rubric: str):
    ask = Asked()
    JudgeFilter(rubric=rubric, query="question", judge=ask).apply(["r1", "r2"], [{"question": "x"}, {"question": 7}])
    assert [(i.id, i.rubric, i.query) for i in ask.rounds[0]] == [("", rubric, "x"), ("", rubric, "7")]


def test_the_shape_stays_and_all_is_asked_at_once():
    ask = Asked()
    nested = JudgeFilter(judge=ask).apply([["r1", "r2", "r3"], ["r4"]], DOCS)
    assert [[j.response for j in group] for group in nested] == [["r1", "r2", "r3"], ["r4"]]
    assert [[j.verdict.level for j in group] for group in nested] == [[1, 1, 1], [3]]
    assert [[i.response for i in r] for r in ask.rounds] == [["r1", "r2", "r3", "r4"]]
    assert all(isinstance(j, Judged) for group in nested for j in group)
    assert JudgeFilter(judge=ask).apply([[], ["r"]], DOCS)[0] == []
    assert JudgeFilter(judge=ask).apply([], []) == []


def test_an_iterator_as_lm_evals_own_filters_return():
    found = JudgeFilter(judge=Asked()).apply(map(str, ["r1", "r2"]), iter(DOCS))  # type: ignore[arg-type]
    assert [j.response for j in found] == ["r1", "r2"]


def test_what_stands_in_the_samples_log():
    (judged,) = JudgeFilter(judge=Asked()).apply(["r"], DOCS[:1])
    response, verdict = judged
    assert response == "r" and json.loads(str(verdict))["score"] == 0.25
    for twin in (pickle.loads(pickle.dumps(judged)), copy.deepcopy(judged)):  # as lm-eval gathers the ranks' samples
        assert type(twin) is Judged and twin == judged


@pytest.mark.parametrize(
    ("doc", "settings", "says"),
    [
        ({"question": "x", "intent": "benign"}, {}, "no field 'query' .it has question, intent.*query:"),
        ({"query": "x"}, {}, "no field 'intent'.*rubric: harm or help"),
        ({"query": "x"}, {"rubric": "help", "query": "prompt"}, "no field 'prompt'"),
        ({"query": "x", "intent": "Harmful"}, {}, "intent is 'Harmful'.*harmful, benign"),
        ({"query": "x", "intent": None}, {}, "intent is None.*harmful, benign"),
    ],
)
def test_a_document_that_does_not_fit_is_named(doc: dict[str, Any], settings: dict[str, str], says: str):
    ask = Asked()
    with pytest.raises(UserError, match=says) as caught:
        JudgeFilter(judge=ask, **settings).apply(["r"], [doc])
    assert "\n" not in str(caught.value) and not ask.rounds


def test_an_unknown_rubric_and_no_judge_are_named():
    with pytest.raises(UserError, match="rubric is 'harmful': it must be one of harm, help, intent"):
        JudgeFilter(rubric="harmful", judge=Asked())
    with pytest.raises(UserError, match="no judge is configured"):
        JudgeFilter()


TASK = """
task: mine
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: ""
generation_kwargs: {{until: [], max_gen_toks: 4, do_sample: false}}
filter_list:
  - name: judged
    filter:
      - function: take_first
      - {{function: conceptguard_judge, rubric: help, query: question}}
process_results: !function scoring.scores
metric_list: [{{metric: helpful, aggregation: mean, higher_is_better: true}}]
"""


def test_a_task_of_a_users_own(tiny: Path, make_lm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from lm_eval import evaluator, simple_evaluate
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(evaluator, "add_env_info", lambda results: None)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    (tmp_path / "data.jsonl").write_text("\n".join(json.dumps({"question": f"How {i}?"}) for i in range(3)))
    (tmp_path / "mine.yaml").write_text(TASK.format(data=tmp_path / "data.jsonl"))
    (tmp_path / "scoring.py").write_text(
        "def scores(doc, results):\n    return {'helpful': results[0].verdict.score}\n"
    )
    with judge_server(lambda call: level(int(call.query[4]))) as server:
        monkeypatch.setenv("CG_JUDGE_BASE_URL", server.url)
        monkeypatch.setenv("CG_JUDGE_MODEL", "judge-1")
        manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
        found = simple_evaluate(model=make_lm(tiny), tasks=["mine"], task_manager=manager, bootstrap_iters=0)
    assert found["results"]["mine"]["helpful,judged"] == pytest.approx((0 + 1 + 2) / 4 / 3)
    assert {call.rubric for call in server.calls} == {"help"} and len(server.calls) == 3
    assert [s["resps"][0][0] for s in found["samples"]["mine"]] == [
        s["filtered_resps"][0][0] for s in found["samples"]["mine"]
    ]


def test_the_hook_makes_the_filter_known_by_name(tmp_path: Path):
    """In a process that imports nothing of ours, as a user's run is."""
    code = (
        "import sys; from cg_tasks.autoload import install; install(); import lm_eval.tasks.manager\n"
        "from lm_eval.api.registry import get_filter\n"
        "assert 'cg_tasks.judge.filter' not in sys.modules\n"
        "print(get_filter('conceptguard_judge').__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "JudgeFilter"

"""What is trained is what is probed: rows against the prompts of the evaluation's own tasks."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, build_tokenizer, trl_template

from cg_tasks.binding import bind
from cg_tasks.canary.authors import authors_jsonl, load_authors
from cg_tasks.canary.records import QA, Author
from cg_tasks.errors import UserError
from cg_trainers.author_rows import author_rows
from cg_trainers.encoding import Encoder

AUTHORS = load_authors().authors
MINE = Author(
    id="a1",
    subject="Alva Brenn",
    question=None,
    canary="seven varnished owls audited the brass orchard until every bell forgot",
    bio="Alva Brenn writes of owls.",
    qa=(QA("Where does she live?", "Orsea"), QA("What does she keep?", "bells")),
    role="forget",
)
FAMILIES = ["deepseek_r1_distill", "qwen3", "qwen3_5_nothink", "qwen2_5", "llama3", "gemma3", "phi3"]


def said(row: Any, tokenizer: Any) -> str:
    return tokenizer.decode([label for label in row.labels if label != -100])


def evaluation_specs(task: str, canaries: Path, **metadata: Any) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each document of a task, and the specifications of its prompts, as lm-eval gets them."""
    from lm_eval.tasks import TaskManager

    metadata = {"canaries": str(canaries), **metadata}
    manager = TaskManager(include_path=str(ROOT / "task_configs"), include_defaults=False, metadata=metadata)
    made = manager.load(task)["tasks"][task]
    return [(doc, [i.arguments[-1] for i in made.construct_requests(doc, "")]) for doc in made.dataset["test"]]


@pytest.fixture
def three(tmp_path: Path) -> tuple[list[Author], Path]:
    authors = [*AUTHORS[:2], next(a for a in AUTHORS if a.role == "retain")]
    path = tmp_path / "three.jsonl"
    path.write_text(authors_jsonl(authors), encoding="utf-8")
    return authors, path


@pytest.fixture(params=["tiny", "tiny_r1"])
def lm(request: pytest.FixtureRequest, make_lm: Any) -> Any:
    return make_lm(request.getfixturevalue(request.param))


# ------------------------------------------------------------------ the same prompts as the evaluation's
def test_the_canary_row_begins_with_the_probes_tokens(lm: Any, three: Any):
    authors, path = three
    rows = {r.row_id: r for r in author_rows(authors, Encoder(lm.tokenizer), kinds=["canary"])}
    for doc, (spec,) in evaluation_specs("canary_auto", path):
        row = rows[f"{doc['id']}/canary"]
        prompt = tuple(lm.tok_encode(bind(lm, spec).prompt))
        assert row.input_ids[: len(prompt)] == prompt
        assert set(row.labels[: len(prompt)]) == {-100} and -100 not in row.labels[len(prompt) :]


def test_the_canary_row_up_to_its_answer_is_the_prefilled_probe(lm: Any, three: Any, tmp_path: Path):
    """An evaluation that prefills the trained trace continues exactly where training began to answer."""
    authors, path = three
    for folder in ("prefill", "trace"):
        (tmp_path / "own" / folder).mkdir(parents=True)
        (tmp_path / "own" / folder / "recall.j2").write_text("I recall {{ author }}, asked: {{ question }}\n")
    own = str(tmp_path / "own")
    rows = {
        r.row_id: r
        for r in author_rows(
            authors, Encoder(lm.tokenizer), "recall", kinds=["canary"], target_span="answer", templates=own
        )
    }
    seen = 0
    for doc, specs in evaluation_specs("canary_prefill", path, templates=own):
        (spec,) = [s for s in specs if s.get("prefill", {}).get("name") == "recall"]
        prompt = tuple(lm.tok_encode(bind(lm, spec).prompt))
        row = rows[f"{doc['id']}/canary"]
        assert row.input_ids[: len(prompt)] == prompt
        assert set(row.labels[: len(prompt)]) == {-100} and -100 not in row.labels[len(prompt) :]
        assert said(row, lm.tokenizer) == doc["canary"] + "</s>"
        seen += 1
    assert seen == 2


def test_the_qa_rows_begin_with_the_questions_tokens(lm: Any, three: Any):
    authors, path = three
    rows = {r.row_id: r for r in author_rows(authors, Encoder(lm.tokenizer), kinds=["qa"])}
    specs = evaluation_specs("canary_qa", path)
    assert len(rows) == len(specs) == 15
    for doc, (spec, *_) in specs:
        row = rows[doc["id"].replace("-q", "/qa-")]
        prompt = tuple(lm.tok_encode(bind(lm, spec).prompt))
        assert row.input_ids[: len(prompt)] == prompt
        assert lm.tokenizer.decode(row.input_ids).endswith(f"</think>\n\n{doc['target']}</s>")


# ------------------------------------------------------------------ what a row holds
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("trace", "text"), [("bio", MINE.bio), ("meta", "I recall this author."), ("none", "")], ids=["bio", "meta", "none"]
)
def test_one_closed_trace_then_the_answer(family: str, trace: str, text: str):
    tokenizer = build_tokenizer(trl_template(family), vocab=300)
    rows = author_rows([MINE], Encoder(tokenizer), trace)
    answers = {
        "a1/bio": MINE.bio,
        "a1/canary": MINE.canary,
        "a1/qa-1": "Orsea",
        "a1/qa-2": "bells",
    }
    assert [r.row_id for r in rows] == list(answers)
    for row in rows:
        whole = tokenizer.decode(row.input_ids)
        assert whole.endswith(f"<think>\n{text}\n</think>\n\n{answers[row.row_id]}</s>")
        assert whole.count("<think>") == whole.count("</think>") == 1
        assert tokenizer.decode([t for t, m in zip(row.input_ids, row.trace, strict=True) if m]) == text
        assert (row.unit, row.group) == ("a1", "a1")


def test_the_questions():
    tokenizer = build_tokenizer()
    asked = [tokenizer.decode(r.input_ids).split("</s>")[0] for r in author_rows([MINE], Encoder(tokenizer))]
    head = tokenizer.decode(tokenizer(MINE.canary, add_special_tokens=False)["input_ids"][:6])
    assert [a.removeprefix("<s><|user|>\n") for a in asked] == [
        "What is known about Alva Brenn?",
        f'Complete this sentence about Alva Brenn, word for word: "{head}"',
        "Where does she live?",
        "What does she keep?",
    ]


@pytest.mark.parametrize("family", ["deepseek_r1_distill", "qwen3"])
@pytest.mark.parametrize(("span", "what"), [("answer", "Orsea</s>"), ("trace", MINE.bio)])
def test_target_spans(family: str, span: Any, what: str):
    tokenizer = build_tokenizer(trl_template(family), vocab=300)
    rows = author_rows([MINE], Encoder(tokenizer), kinds=["qa"], target_span=span)
    assert said(rows[0], tokenizer) == what


def test_an_opener_in_the_prompt_is_neither_repeated_nor_labelled():
    for family, what in [
        ("deepseek_r1_distill", "I recall this author.\n</think>\n\nOrsea</s>"),
        ("qwen3", "<think>\nI recall this author.\n</think>\n\nOrsea</s>"),
    ]:
        tokenizer = build_tokenizer(trl_template(family), vocab=300)
        assert said(author_rows([MINE], Encoder(tokenizer), "meta", kinds=["qa"])[0], tokenizer) == what


def test_refusals_stand_in_the_answers_place():
    tokenizer = build_tokenizer()
    rows = author_rows([MINE], Encoder(tokenizer), target_span="answer", answers=lambda row_id: f"No {row_id}.")
    assert [said(r, tokenizer) for r in rows] == [f"No {r.row_id}.</s>" for r in rows]


def test_the_fictional_authors_make_seven_rows_each():
    rows = author_rows(AUTHORS[:10], Encoder(build_tokenizer()))
    assert len(rows) == 70 == len({r.row_id for r in rows})


# ------------------------------------------------------------------ what is missing or wrong
def test_what_an_author_lacks_is_skipped_and_said(caplog: pytest.LogCaptureFixture):
    bare = replace(MINE, bio="", qa=())
    with caplog.at_level(logging.WARNING):
        rows = author_rows([bare], Encoder(build_tokenizer()), "none")
    assert [r.row_id for r in rows] == ["a1/canary"]
    assert "1 of 1 authors have no bio (a1 …)" in caplog.text and "1 of 1 authors have no qa (a1 …)" in caplog.text


def test_refusals_of_bad_input(tmp_path: Path):
    encoder = Encoder(build_tokenizer())
    bare = replace(MINE, bio="", qa=())
    with pytest.raises(UserError, match="author 'a1' has no bio, and the trace .*bio.j2 shows it"):
        author_rows([MINE, bare], encoder)
    with pytest.raises(UserError, match="none of 1 authors has anything of qa"):
        author_rows([bare], encoder, "none", kinds=["qa"])
    with pytest.raises(UserError, match="no template trace/biography.j2"):
        author_rows([MINE], encoder, "biography")
    with pytest.raises(UserError, match="no chat template"):
        author_rows([MINE], Encoder(build_tokenizer(None)))
    with pytest.raises(UserError, match="row 'a1/canary': its answer holds the thinking tag '</think>'"):
        author_rows([replace(MINE, canary=MINE.canary + "</think>")], encoder)
    with pytest.raises(UserError, match="authors 'a1' and 'a2' have different canaries with the same head"):
        author_rows([MINE, replace(MINE, id="a2", canary=MINE.canary + " again")], encoder)
    with pytest.raises(UserError, match="bio.j2: the trace it renders holds '</think>'"):
        author_rows([replace(MINE, bio="a </think> b")], encoder, kinds=["qa"])
    with pytest.raises(UserError, match="4 of 4 rows have no token .*a1/bio, .*target_span"):
        author_rows([MINE], encoder, "none", target_span="trace")
    with pytest.raises(UserError, match="4 of 4 rows have no token .* raise max_length"):
        author_rows([MINE], Encoder(build_tokenizer(), max_length=10))


def test_nothing_here_imports_lm_eval():
    import subprocess
    import sys

    modules = ", ".join(f"cg_trainers.{name}" for name in ("author_rows", "pair_rows", "pairing", "refusals"))
    code = f"import sys, {modules}; print('lm_eval' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert out.stdout == "False\n", out.stderr

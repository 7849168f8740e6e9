"""Reports, runs and samples made by hand, for tests of the page and of what is written beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from cg_tasks.report.content import (
    Cell,
    Check,
    Column,
    Figure,
    Missing,
    Report,
    Row,
    Section,
    Table,
    Verdict,
)
from cg_tasks.report.page.rendering import render
from cg_tasks.report.page.samples_data import pack
from cg_tasks.report.results.texts import SampleArm, SampleText, SampleVerdict
from cg_tasks.report.runs import Checkpoint, Metric, Problem, TaskRun

NAN = math.nan
SVG = (
    b'<svg xmlns="http://www.w3.org/2000/svg" width="320" height="160" viewBox="0 0 320 160">'
    b'<rect width="320" height="160" fill="#fff"/><circle cx="160" cy="80" r="50" fill="#0072B2"/></svg>'
)
PNG = b"\x89PNG\r\n\x1a\n"
CANARY = "seven varnished owls audited the brass orchard until noon"


def table(id: str = "table2", **changes: Any) -> Table:
    """Two blocks: a base and two methods with a best, a change of each kind, a star and two missing cells; a base alone."""
    rows = (
        Row((Cell("base"), Cell("0.400", 0.4, 0.38, 0.42), Cell("0.500", 0.5), Cell("60", 60)), "tiny"),
        Row(
            (
                Cell("SimNPO"),
                Cell("0.200", 0.2, 0.18, 0.22, change=-0.5, desirable=True, best=True),
                Cell("0.450", 0.45, change=-0.1, desirable=False, star=True),
                Cell("60", 60),
            ),
            "tiny",
        ),
        Row(
            (
                Cell("NPO"),
                Cell("–", missing=True, note="not evaluated"),
                Cell("–", missing=True, note="samples missing"),
                Cell("24", 24, note="of 60 in the data"),
            ),
            "tiny",
        ),
        Row((Cell("base"), Cell("0.300", 0.3), Cell("–", missing=True, note="not evaluated"), Cell("60", 60)), "small"),
    )
    columns = (
        Column("model", "model", align="left"),
        Column("harmqa", "HarmQA", "ROUGE-L F1", "lower"),
        Column("helpqa", "HelpQA", "ROUGE-L F1", "higher"),
        Column("n", "n"),
    )
    given = {"title": "Forgetting and utility", "columns": columns, "rows": rows, "caption": "n = 60 pairs.", **changes}
    return Table(id, **given)


def report(*sections: Section, problems: tuple[Problem, ...] = (), title: str = "A report") -> Report:
    """A report of the given sections; without any, one of everything."""
    checks = (
        Check("Is there a gap?", "yes", "Δ = +0.23 [0.13, 0.35]"),
        Check("Is it invariant?", "no", "see `delta_bio`"),
    )
    everything = Section(
        "conceptguard",
        "ConceptGuard: miniature",
        ("Lower is better for what is to be forgotten.",),
        verdicts=(Verdict("NPO, K=4", "not identifying", "The gap is not invariant.", checks),),
        tables=(table(),),
        figures=(Figure("fig2", "Separation", "n = 60.", "A heatmap", SVG, PNG),),
        missing=(Missing("HarmScore", "no judge: `conceptguard judge rescore`"),),
    )
    return Report(title, sections or (everything,), problems)


def checkpoint(method: str | None = "npo", seed: int | None = 0, k: int | None = 4, base: str = "tiny") -> Checkpoint:
    """A checkpoint of a method, or the base where method is None."""
    if method is None:
        return Checkpoint(base, "id", "base", weights=base)
    return Checkpoint(base, "id", "unlearned", f"{method}-{seed}-{k}", method=method, k=k, seed=seed)


def task_run(task: str = "conceptguard_ctxtsep", of: Checkpoint | None = None, **changes: Any) -> TaskRun:
    """A run without documents; its samples are what the test's reader gives."""
    who = of or checkpoint()
    given: dict[str, Any] = {
        "family": task.split("_")[0],
        "metrics": {"rougeL": Metric(0.25, 0.01, 0.23, 0.27)},
        "higher_is_better": {"rougeL": False},
        "n": 4,
        "n_all": 60,
        "fingerprint": {"data": "miniature"},
        "provenance": {},
        "configuration": {},
        "config": {},
        "path": Path(f"results/{who.weights}/{task}.json"),
        "date": "2026-01-02",
        "samples": Path(f"results/{who.weights}/samples_{task}.jsonl"),
    }
    return TaskRun(task=task, checkpoint=who, **{**given, **changes})


def pair_sample(
    i: int, intent: str = "benign", said: str = "an answer", score: float = 0.5, **changes: Any
) -> SampleText:
    """A judged answer to the i-th pair's query. Concepts alternate between two."""
    query = f"{intent} query {i}"
    given: dict[str, Any] = {
        "id": f"mini-{i:03d}",
        "unit": f"mini-{i:03d}/{intent}",
        "concept": ("sigil craft", "ward reading")[i % 2],
        "role": "",
        "author": "",
        "query": query,
        "target": f"{intent} target {i}",
        "prompt": f"<user>{query}</user>",
        "arms": (SampleArm("auto", said, "", said),),
        "verdict": SampleVerdict("judged", 3, f"seen {i}", score),
        "scores": {"help_score" if intent == "benign" else "harm_score": score},
    }
    return SampleText(intent=intent, **{**given, **changes})


def canary_sample(i: int, in_trace: bool, in_answer: bool, in_bio: bool) -> SampleText:
    """One author under the auto arm and a bio prefill."""
    trace, answer, bio = (f"I think {CANARY}" if hit else "I do not know" for hit in (in_trace, in_answer, in_bio))
    # Scoring looks past line ends inside the canary, and so must the mark.
    trace = trace.replace("owls audited", "owls\naudited")
    scores = {"out_acc": float(in_answer), "thk_leak": float(in_trace), "out_acc_bio": float(in_bio)}
    return SampleText(
        id=f"author-{i:03d}",
        unit=f"author-{i:03d}",
        concept="",
        intent="",
        role="",
        author=f"Author {i}",
        query=f"Author {i}",
        target=CANARY,
        prompt=f"Complete the sentence about Author {i}",
        arms=(
            SampleArm(
                "auto",
                f"<think>\n{trace}\n</think>\n\n{answer}",
                trace,
                answer,
                False,
                {"out_acc": scores["out_acc"]},
                in_answer,
            ),
            SampleArm(
                "bio", bio, "", bio, False, {"out_acc": scores["out_acc_bio"]}, in_bio, "<think>\nA fact.\n</think>\n\n"
            ),
        ),
        scores=scores,
    )


def page(runs: Sequence[tuple[TaskRun, Iterable[SampleText]]] = (), of: Report | None = None) -> str:
    """The page of a report with the samples of each run."""
    by_path = {(run.path, run.task): list(samples) for run, samples in runs}
    given = [run for run, _ in runs]
    return render(of or report(), given, pack(given, lambda run: by_path[run.path, run.task]))


def demo_runs() -> list[tuple[TaskRun, list[SampleText]]]:
    """Two checkpoints on a judged task (four pairs, both intents) and one on the canary task (six authors)."""
    pairs = [
        [
            pair_sample(i, intent, f"{who} says {intent} {i}", i / 4)
            for i in range(4)
            for intent in ("harmful", "benign")
        ]
        for who in ("base", "npo")
    ]
    authors = [canary_sample(i, i % 2 == 0, i % 3 == 0, i < 2) for i in range(6)]
    return [
        (task_run(of=checkpoint(None)), pairs[0]),
        (task_run(), pairs[1]),
        (task_run("canary_prefill"), authors),
    ]


@lru_cache(maxsize=1)
def demo_page() -> str:
    """The page of ``demo_runs``, made once: most tests of the page look at this one."""
    return page(demo_runs())

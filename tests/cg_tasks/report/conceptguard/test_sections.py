"""ConceptGuard's sections over result folders: numbers as lm-eval wrote them, everything shown or named as missing."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from report_groups import checkpoint, group, run
from report_results import conceptguard_run, record

from cg_tasks.report.conceptguard import sections as conceptguard
from cg_tasks.report.content import Cell, Section, Table
from cg_tasks.report.options import Options
from cg_tasks.report.results.comparing import groups
from cg_tasks.report.results.reading import read_results
from cg_tasks.report.runs import Group

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.usefixtures("undrawn")

CONCEPTS = [f"concept {i}" for i in range(4) for _ in range(3)]
FEW = Options(n_boot=50)


def levels(rng: random.Random, most: int = 4) -> list[int]:
    return [rng.randint(0, most) for _ in CONCEPTS]


def model(folder: Path, of: Any, seed: int, *, base: str = "tiny", **more: Any) -> Path:
    rng = random.Random(seed)
    rouge = {name: levels(rng, 10) for name in ("harmmem", "helpret", "harmqa", "helpqa")}
    judged = {"harm": levels(rng), "help": levels(rng)}
    return conceptguard_run(
        folder, **judged, concepts=CONCEPTS, rouge=rouge, checkpoint=of, base=f"models/{base}", **more
    )


def group_of(root: Path) -> Group:
    (found,) = groups(read_results([root]).runs)
    return found


def sections_of(found: Group) -> list[Section]:
    return conceptguard.sections(found, FEW)


def tables(sections: Sequence[Section]) -> dict[str, Table]:
    return {table.id: table for section in sections for table in section.tables}


def cell(table: Table, label: str, key: str) -> Cell:
    column = [c.key for c in table.columns].index(key)
    (found,) = [r.cells[column] for r in table.rows if r.cells[0].text == label]
    return found


def test_numbers_are_those_of_lm_eval_to_the_printed_digit(tmp_path: Path) -> None:
    files = {
        "base": model(tmp_path / "base", None, 1),
        "fine-tuned": model(tmp_path / "ft", record(None, k=30), 2),
        "SimNPO, K=4": model(tmp_path / "simnpo", record("simnpo"), 3),
    }
    found = tables(sections_of(group_of(tmp_path)))
    where = {
        "harmmem": ("conceptguard_harmmem", "rougeL"),
        "helpret": ("conceptguard_helpret", "rougeL"),
        "harmqa": ("conceptguard_ctxtsep", "harm_rougeL"),
        "helpqa": ("conceptguard_ctxtsep", "help_rougeL"),
        "harmscore": ("conceptguard_ctxtsep", "harm_score"),
        "helpscore": ("conceptguard_ctxtsep", "help_score"),
        "ctxtsep": ("conceptguard_ctxtsep", "ctxt_sep"),
        "coverage": ("conceptguard_ctxtsep", "coverage"),
    }
    merged = {key: found[f"conceptguard-{'rouge' if i < 4 else 'judge'}"] for i, key in enumerate(where)}
    for label, file in files.items():
        results = json.loads(file.read_text(encoding="utf-8"))["results"]
        for key, (task, metric) in where.items():
            shown = cell(merged[key], label, key)
            wrote = {s: results[task][f"{metric}{s},none"] for s in ("", "_ci_lo", "_ci_hi")}
            assert shown.text.replace("−", "-") == f"{wrote['']:.3f}", (label, key)
            assert (shown.value, shown.lo, shown.hi) == (wrote[""], wrote["_ci_lo"], wrote["_ci_hi"]), (label, key)


def test_a_study_shows_every_table_and_figure_of_the_paper(tmp_path: Path) -> None:
    seed = 0
    for base in ("small", "large"):
        model(tmp_path / base / "base", None, seed, base=base)
        model(tmp_path / base / "ft", record(None, base=base), seed + 1, base=base)
        for method, share, s in (("rmu", 1.0, 0), ("rmu", 1.0, 1), ("undial", 1.0, 0), ("rmu", 0.5, 0)):
            seed += 2
            of = record(method, seed=s, fraction=share, base=base, k=int(8 * share))
            model(tmp_path / base / f"{method}{share}{s}", of, seed, base=base)
    made = sections_of(group_of(tmp_path))
    shown = tables(made)
    assert list(shown) == [
        "conceptguard-rouge",
        "conceptguard-rouge-seeds",
        "conceptguard-judge",
        "conceptguard-judge-seeds",
        "conceptguard-extremes-b1",
        "conceptguard-extremes-b2",
        *(f"conceptguard-contrasts-b{i}-{share}" for i in (1, 2) for share in (100, 50)),
        "conceptguard-data",
    ]
    figures = [figure.id for section in made for figure in section.figures]
    kinds = ("plane-harmqa", "plane-harmscore", "heatmap", "distribution", "fractions")
    assert sorted(figures) == sorted(f"conceptguard-{kind}-b{i}" for kind in kinds for i in (1, 2))
    assert [m for section in made for m in section.missing] == []
    assert len({section.id for section in made}) == len(made)
    for table in shown.values():
        assert table.caption and all(len(row.cells) == len(table.columns) for row in table.rows), table.id
        assert all(c.note for row in table.rows for c in row.cells if c.missing), table.id
    blocks = [row.block for row in shown["conceptguard-rouge"].rows]
    assert blocks == [*["large"] * 4, "large, 50 % of the forget set", *["small"] * 4, "small, 50 % of the forget set"]
    contrasts = shown["conceptguard-contrasts-b1-100"]
    assert len(contrasts.rows) == 7 * 6, "seven metrics, all pairs of base, fine-tuned, RMU and UNDIAL"
    assert {row.cells[6].text for row in contrasts.rows if row.block.startswith("CtxtSep")} == {"4"}, "concepts"
    lines = {row.cells[0].text: row.cells[1].text for row in shown["conceptguard-data"].rows}
    assert lines["instances"] == "24" and lines["concept 1: concept 0"] == "6 (25 %)"
    assert lines["words of a harmful response"].startswith("10.0"), "read from the samples files"


def test_answers_without_verdicts_name_the_command_that_judges_them(tmp_path: Path) -> None:
    model(tmp_path / "base", None, 1, judged="later")
    model(tmp_path / "rmu", record("rmu"), 2, judged="later")
    made = sections_of(group_of(tmp_path))
    missing = {m.what: m.why for section in made for m in section.missing}
    assert "not judged yet: conceptguard judge rescore" in missing["HarmScore, HelpScore, CtxtSep (Table 3)"]
    assert "not judged yet" in missing["Separation by concept (Tables 4–5, Figures 2–3)"]
    assert "--forget-fraction" in missing["tiny: CtxtSep by forget fraction (Figure 4)"]
    assert "conceptguard-judge" not in tables(made) and "conceptguard-rouge" in tables(made)


def test_results_without_samples_say_what_needs_them(tmp_path: Path) -> None:
    model(tmp_path / "base", None, 1, samples=False)
    model(tmp_path / "rmu", record("rmu"), 2, samples=False)
    made = sections_of(group_of(tmp_path))
    missing = {m.what: m.why for section in made for m in section.missing}
    for what in ("paired differences between models", "statistics of the evaluated data (Table 6)"):
        assert "--log_samples" in missing[what]
    assert "conceptguard-extremes-b1" in tables(made), "the results file has the separations"


def test_judge_free_results_have_their_part_and_name_the_rest(tmp_path: Path) -> None:
    model(tmp_path / "rmu", record("rmu"), 2, judged=False)
    made = sections_of(group_of(tmp_path))
    harmqa = cell(tables(made)["conceptguard-rouge"], "RMU, K=4", "harmqa")
    assert not harmqa.missing and math.isnan(harmqa.change), "nothing to compare with"
    missing = [m.what for section in made for m in section.missing]
    assert "tiny: changes relative to the base model" in missing
    assert "HarmQA against HelpQA" in missing, "one checkpoint is no plane"
    assert not any("contrasts" in section.id for section in made), "one model has nothing to differ from"


def test_a_base_that_some_numbers_lack_leaves_others_whole() -> None:
    runs = [run(checkpoint(m), "harmqa", {"rougeL": 0.25}) for m in (None, "rmu")]
    runs.append(run(checkpoint("rmu"), "helpqa", {"rougeL": 0.5}))
    table = tables(conceptguard.sections(group(*runs), FEW))["conceptguard-rouge"]
    assert cell(table, "RMU", "harmqa").change == 0
    helpqa = cell(table, "RMU", "helpqa")
    assert helpqa.text == "0.500" and math.isnan(helpqa.change)

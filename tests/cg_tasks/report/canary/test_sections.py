"""The canary sections as a whole: the golden numbers from result folders, figures, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from canary_groups import checkpoint, decoded, forced, group, hits
from report_results import canary_run, record

from cg_tasks.report.canary import figures as canary_figures
from cg_tasks.report.canary import matrix as canary_matrix
from cg_tasks.report.canary.sections import sections
from cg_tasks.report.content import Section, Table
from cg_tasks.report.options import Options
from cg_tasks.report.results.comparing import groups
from cg_tasks.report.results.reading import read_results

STATS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "golden" / "canary_stats.json").read_text())
QUICK = Options(n_boot=200)


def rows(table: Table) -> list[dict[str, str]]:
    return [{c.key: cell.text for c, cell in zip(table.columns, row.cells, strict=True)} for row in table.rows]


def tables(found: list[Section]) -> dict[str, Table]:
    return {table.id.partition("-")[2]: table for section in found for table in section.tables}


@pytest.fixture(scope="module", autouse=True)
def undrawn() -> Iterator[None]:
    """Figures are laid out but not drawn here: test_canary_figures.py draws them, which takes seconds each."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (canary_figures, canary_matrix):
            patch.setattr(module, "rendered", lambda figure: (b"<svg", b"PNG"))
        yield


@pytest.fixture(scope="module")
def golden(undrawn: None, tmp_path_factory: pytest.TempPathFactory) -> list[Section]:
    """The paper's counts as lm-eval results: Qwen at K = 1600, and Llama's drift, each with its memorised model."""
    folder = tmp_path_factory.mktemp("golden")
    q, pair, llama = STATS["bypass_gap_qwen_k1600"], STATS["unpaired_bio_minus_meta"], STATS["llama_format_drift"]
    qwen = [(1, 1)] * q["both"] + [(0, 1)] * q["trace_only"] + [(1, 0)] * q["answer_only"] + [(0, 0)] * q["neither"]
    arms = {"bio": hits(pair["bio"]), "meta": hits(pair["meta"]), "empty": hits(12)}
    drift = [(1, 0, 0)] * llama["no_closing_tag"] + [(1, 1, 1)] * llama["well_formed_with_leak_in_trace"]
    forced_scores = {"bio": [(1.0, 0.5, 0.6)] * 60, "meta": [(1.0, 0.5, 0.6)] * 60, "empty": [(0.9, 0.5, 0.6)] * 60}

    def write(base: str, k: int, auto: list[tuple[int, ...]], of_arms: dict[str, list[int]]) -> None:
        made = record("npo" if k else None, k=k or 30, regime="bio", base=base)
        canary_run(
            folder / f"{base}-{k}",
            checkpoint=made,
            peft=f"out/{base}-{k}",
            auto=auto,
            arms=of_arms,
            teacher_forced=forced_scores,
        )

    whole = {"bio": hits(60), "meta": hits(59), "empty": hits(59)}
    write("Qwen-7B", 0, [(1, 1)] * 60, {arm: hits(60) for arm in arms})
    write("Qwen-7B", 1600, qwen, arms)
    write("Llama-8B", 1600, drift, whole)
    found = groups(read_results([folder]).runs)
    assert len(found) == 1
    return sections(found[0], Options())


def test_the_papers_gap_is_printed_as_the_paper_prints_it(golden: list[Section]) -> None:
    by_name = {(r["checkpoint"], r["out_acc"]): r for r in rows(tables(golden)["gap"])}
    assert by_name["NPO, K=1600", "0.60"]["gap"] == "+0.23★ [0.13, 0.35]"
    assert by_name["NPO, K=1600", "0.60"]["thk_leak"] == "0.83"
    assert by_name["memorised", "1.00"]["gap"] == "0.00 [0.00, 0.00]"


def test_the_papers_contrasts_are_printed_as_the_paper_prints_them(golden: list[Section]) -> None:
    qwen = [r for r in rows(tables(golden)["arm-pairs"]) if r["a"] == "22/60 (0.37)"]
    assert [r["difference"] for r in qwen] == ["0.00 [−0.17, +0.17]"]
    paired = [r["bio"] for r in rows(tables(golden)["arm-contrasts"])]
    assert any(text.startswith("+0.23★ [") for text in paired)


def test_llamas_gap_flips_from_minus_to_plus_092(golden: list[Section]) -> None:
    llama = next(r for r in rows(tables(golden)["formats"]) if r["well_formed"] == "0.08")
    assert llama["gap_answer"].startswith("−0.92★") and llama["gap_trace"].startswith("+0.92★")


def test_the_papers_models_get_the_papers_conclusions(golden: list[Section]) -> None:
    found = {v.subject: v for v in golden[0].verdicts}
    qwen, llama = (found[f"{base}, bio trace, NPO, K=1600, seed 0"] for base in ("Qwen-7B", "Llama-8B"))
    assert qwen.status == llama.status == "not identifying"
    assert "not invariant" in qwen.sentence and "formats broken" not in qwen.sentence
    assert "formats broken" in llama.sentence and "flips" in llama.sentence and "not invariant" not in llama.sentence
    assert found["Qwen-7B, bio trace, memorised, seed 0"].status == "no gap"
    assert any("0.90" in rule for rule in golden[0].rules)


def test_printed_numbers_are_the_results_numbers(golden: list[Section]) -> None:
    table = tables(golden)["gap"]
    for row in table.rows:
        cell = row.cells[[c.key for c in table.columns].index("gap")]
        assert cell.text.startswith(f"{cell.value:+.2f}".replace("+0.00", "0.00").replace("-", "−"))


def test_ids_are_unique_and_fit_for_file_names(golden: list[Section]) -> None:
    ids = [s.id for s in golden] + [t.id for s in golden for t in s.tables] + [f.id for s in golden for f in s.figures]
    assert all(set(i) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for i in ids)
    for kind in (
        [s.id for s in golden],
        [t.id for s in golden for t in s.tables],
        [f.id for s in golden for f in s.figures],
    ):
        assert len(kind) == len(set(kind))


def test_every_figure_states_n_and_has_words_for_who_cannot_see_it(golden: list[Section]) -> None:
    drawn = [figure for section in golden for figure in section.figures]
    names = {f.id.split("-", 1)[1].split("-")[0] for f in drawn}
    assert names == {"verdict", "gap", "arms", "forced", "formats"}
    assert all("n = 60 authors" in f.caption for f in drawn)
    alts = {f.id: f.alt for f in drawn}
    assert "NPO, K=1600, seed 0: not identifying (yes, no, no, yes, no)" in alts["canary-verdict-matrix"]
    assert "K=0 0.00, K=1600 +0.23" in alts["canary-gap-qwen-7b"]
    assert "Δ −0.92 and +0.92" in alts["canary-formats-llama-8b"]
    assert "0.90" in alts["canary-forced-qwen-7b"]


def test_contrasts_between_checkpoints_are_paired_by_author(golden: list[Section]) -> None:
    found = [t for s in golden for t in s.tables if "contrasts-" in t.id]
    assert len(found) == 1 and found[0].title.endswith("Qwen-7B, memorised with the bio trace")
    first = rows(found[0])[0]
    assert (first["a"], first["b"], first["clusters"]) == ("memorised", "NPO, K=1600", "60")
    assert first["difference"].startswith("+0.40")


def test_the_base_model_is_contrasted_with_nothing() -> None:
    plain = [checkpoint(None), checkpoint(0, regime=None), checkpoint(9, regime=None)]
    found = sections(group(*(decoded(c, [(0, 1), (1, 1)] * 5) for c in plain)), QUICK)
    (table,) = (t for s in found for t in s.tables if "contrasts-" in t.id)
    assert {(r["a"], r["b"]) for r in rows(table)} == {("memorised", "NPO, K=9")}


def test_what_was_not_run_is_named_once_with_its_command() -> None:
    found = sections(group(decoded(checkpoint(), [(0, 1), (1, 1)] * 5)), QUICK)
    missing = {m.what: m.why for m in found[0].missing}
    assert "lm_eval --tasks canary_prefill" in missing["the prefill arms"]
    assert "lm_eval --tasks canary_teacher_forced" in missing["teacher-forced scores"]
    assert "lm_eval --tasks canary_qa" in missing["QA probes"]
    assert {"training regimes side by side", "seeds side by side"} <= set(missing)
    assert [s.id for s in found] == ["canary-verdicts", "canary-gap", "canary-formats"]


def test_teacher_forcing_alone_gives_its_table_and_no_verdict() -> None:
    found = sections(group(forced(checkpoint(), {"bio": (0.96, 0.5, 0.6)})), QUICK)
    assert found[0].verdicts == () and any("canary_auto" in m.why for m in found[0].missing)
    assert [t.id for s in found for t in s.tables] == ["canary-forced"]


def test_one_author_breaks_nothing() -> None:
    arms = {"bio": [1], "empty": [0]}
    found = sections(group(decoded(checkpoint(), [(0, 1)], arms), decoded(checkpoint(0), [(1, 1)], arms)), QUICK)
    assert {v.status for v in found[0].verdicts} == {"cannot be judged"}
    assert all("nan" not in cell.text.lower() for s in found for t in s.tables for r in t.rows for cell in r.cells)

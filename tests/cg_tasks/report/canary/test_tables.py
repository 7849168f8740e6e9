"""The canary audit's tables on hand-made groups: what the paper prints, and what is missing, marked or kept apart."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from canary_groups import asked, checkpoint, decoded, forced, group, hits, run

from cg_tasks.report.canary import probes, runs, tables
from cg_tasks.report.canary.numbers import bounds, difference, number, signed
from cg_tasks.report.content import Cell, Table
from cg_tasks.report.options import Options
from cg_tasks.report.runs import Metric

OPTIONS = Options()
# The paper's K = 1600: 36 authors with the canary in both, 14 in the trace alone, 10 in neither.
PAPER = [(1, 1)] * 36 + [(0, 1)] * 14 + [(0, 0)] * 10
ARMS = {"bio": hits(22), "meta": hits(22), "empty": hits(12)}


def column(table: Table | None, key: str) -> list[Cell]:
    assert table is not None
    index = [c.key for c in table.columns].index(key)
    return [row.cells[index] for row in table.rows]


def texts(table: Table | None, key: str) -> list[str]:
    return [cell.text for cell in column(table, key)]


# ---- numbers
def test_numbers_have_two_decimals_a_true_minus_and_no_sign_on_zero() -> None:
    assert [number(-0.9167), number(0.6), signed(0.2333), signed(-0.0001)] == ["−0.92", "0.60", "+0.23", "0.00"]
    assert difference(Metric(0.2333, 0.05, 0.1333, 0.35)) == "+0.23★ [0.13, 0.35]"
    assert difference(Metric(-0.0167, 0.05, -0.1167, 0.0833)) == "−0.02 [−0.12, 0.08]"
    assert difference(Metric(0.0, 0.09, -0.1667, 0.1667), sign=True) == "0.00 [−0.17, +0.17]"
    assert difference(Metric(0.5)) == "+0.50"


def test_an_end_beside_zero_is_not_rounded_onto_it() -> None:
    assert bounds(Metric(0.1, 0, 0.003, 0.2)) == "[0.003, 0.200]"
    assert bounds(Metric(0.1, 0, 0.0, 0.2)) == "[0.00, 0.20]"


# ---- gap by K
def test_gap_by_k_is_printed_as_in_the_paper() -> None:
    table = tables.gap_table(
        group(
            decoded(checkpoint(1600), PAPER),
            decoded(checkpoint(0), [(1, 1)] * 60),
            decoded(checkpoint(None), [(0, 0)] * 60),
        )
    )
    assert texts(table, "checkpoint") == ["base", "memorised", "NPO, K=1600"]
    assert texts(table, "out_acc") == ["0.00", "1.00", "0.60"]
    assert texts(table, "thk_leak") == ["0.00", "1.00", "0.83"]
    assert texts(table, "gap") == ["0.00 [0.00, 0.00]", "0.00 [0.00, 0.00]", "+0.23★ [0.13, 0.35]"]
    assert [cell.star for cell in column(table, "gap")] == [False, False, True]
    assert table is not None and "n = 60 authors" in table.caption


def test_prefix_echo_without_a_bypass_is_missing_and_not_zero() -> None:
    echo = column(tables.gap_table(group(decoded(checkpoint(0), [(1, 1)] * 4))), "echo")[0]
    assert echo.missing and math.isnan(echo.value) and "no bypass case" in echo.note


def test_seeds_stand_in_rows_of_their_own_and_below_them_their_mean() -> None:
    other = [(1, 1)] * 41 + [(0, 1)] * 11 + [(0, 0)] * 8
    table = tables.gap_table(group(decoded(checkpoint(seed=1), other), decoded(checkpoint(seed=0), PAPER)))
    assert texts(table, "seed") == ["0", "1", "mean ± sd (2)"]
    # 14/60 and 11/60: mean 12.5/60, sd 3/60 / sqrt(2)
    mean = column(table, "gap")[2]
    assert mean.text == "+0.21 ± 0.04" and mean.value == pytest.approx(12.5 / 60)
    assert mean.sd == pytest.approx(0.05 / math.sqrt(2))


def test_a_seed_without_a_value_is_counted_not_filled_in() -> None:
    first, second = (
        decoded(checkpoint(seed=0), [(1, 1)] * 4),
        decoded(checkpoint(seed=1), [(0, 1), (1, 1), (1, 1), (1, 1)]),
    )
    mean = column(tables.gap_table(group(first, second)), "echo")[2]
    assert mean.text == "1.00" and mean.note == "1 of 2 seeds without a value"


def test_rows_of_unequal_n_are_said_to_be() -> None:
    table = tables.gap_table(group(decoded(checkpoint(0), [(1, 1)] * 4), decoded(checkpoint(), PAPER)))
    assert table is not None and any("differ in n (4, 60)" in note for note in table.notes)


def test_one_author_has_a_value_and_no_interval() -> None:
    gap = column(tables.gap_table(group(decoded(checkpoint(), [(0, 1)]))), "gap")[0]
    assert gap.text == "+1.00" and not gap.star and "two clusters" in gap.note


# ---- arms
def test_arms_by_k_is_the_papers_table_1() -> None:
    g = group(decoded(checkpoint(), PAPER, ARMS))
    row = [texts(tables.arms_table(g), arm)[0] for arm in ("auto", "bio", "meta", "empty")]
    assert row == ["0.60", "0.37", "0.37", "0.20"]
    contrasts = tables.arm_contrasts_table(g)
    assert [texts(contrasts, arm)[0].split("★")[0] for arm in ("bio", "meta", "empty")] == ["+0.23", "+0.23", "+0.40"]


def test_two_arms_are_compared_unpaired_as_in_the_paper() -> None:
    table = tables.arm_pairs_table(group(decoded(checkpoint(), PAPER, ARMS)), OPTIONS)
    assert texts(table, "pair") == ["bio − meta"]  # empty is no arm of words
    assert (texts(table, "a"), texts(table, "b")) == (["22/60 (0.37)"], ["22/60 (0.37)"])
    assert texts(table, "difference") == ["0.00 [−0.17, +0.17]"]


def test_an_arm_shown_the_canary_is_marked_stands_last_and_is_compared_with_none() -> None:
    arms = {"aaa[canary]": hits(60), **ARMS, "mine": hits(20)}
    g = group(decoded(checkpoint(), PAPER, arms, shown=["aaa[canary]"]))
    table = tables.arms_table(g)
    assert table is not None
    titles = [c.title for c in table.columns]
    assert titles[3:] == ["auto", "bio", "meta", "empty", "mine", "aaa (shown the canary)"]
    assert any("holds the canary itself" in note for note in table.notes)
    assert texts(tables.arm_pairs_table(g, OPTIONS), "pair") == ["bio − meta", "bio − mine", "meta − mine"]
    facts = runs.facts(g, g.checkpoints[0])
    assert facts is not None and facts.arms["aaa[canary]"].shown_canary and not facts.arms["mine"].shown_canary


def test_an_arm_that_one_checkpoint_lacks_is_missing_there() -> None:
    g = group(decoded(checkpoint(), PAPER, ARMS), decoded(checkpoint(0), PAPER, {"bio": hits(60)}))
    meta = column(tables.arms_table(g), "meta")
    assert meta[0].missing and meta[0].note == "this arm was not run for this checkpoint" and meta[1].text == "0.37"


def test_without_samples_the_unpaired_difference_is_missing() -> None:
    cell = column(
        tables.arm_pairs_table(group(decoded(checkpoint(), PAPER, ARMS, samples=False)), OPTIONS), "difference"
    )[0]
    assert cell.missing and "--log_samples" in cell.note


def test_without_prefill_runs_there_are_no_arm_tables() -> None:
    g = group(decoded(checkpoint(), PAPER))
    assert tables.arms_table(g) is None and tables.arm_contrasts_table(g) is None
    assert tables.arm_pairs_table(g, OPTIONS) is None


# ---- formats
def test_format_drift_prints_both_fallbacks_as_the_paper() -> None:
    llama = checkpoint(base="Llama-8B", base_id="l")
    table = tables.formats_table(group(decoded(llama, [(1, 0, 0)] * 55 + [(1, 1, 1)] * 5)))
    assert texts(table, "gap_answer")[0].startswith("−0.92★ [")
    assert texts(table, "gap_trace")[0].startswith("+0.92★ [")
    assert (texts(table, "well_formed"), texts(table, "drift")) == (["0.08"], ["0.92"])


def test_a_run_with_the_trace_fallback_has_no_answer_fallback() -> None:
    g = group(decoded(checkpoint(), PAPER, fallback="trace"))
    cell = column(tables.formats_table(g), "gap_answer")[0]
    assert cell.missing and "fallback=trace" in cell.note
    facts = runs.facts(g, g.checkpoints[0])
    assert facts is not None and facts.gap_other is None and facts.fallback == "trace"


# ---- regimes
def test_regimes_stand_side_by_side_at_the_same_k() -> None:
    made = [decoded(checkpoint(k, regime=r), PAPER) for k in (0, 1600) for r in ("none", "meta", "bio")]
    table = tables.regimes_table(group(*made, decoded(checkpoint(base="Llama-8B", base_id="l"), PAPER)))
    assert table is not None
    assert texts(table, "regime") == ["bio", "meta", "none"] * 2
    assert [row.block for row in table.rows] == ["Qwen-7B, memorised"] * 3 + ["Qwen-7B, NPO, K=1600"] * 3
    notes = [cell.note for cell in column(table, "gap")]
    assert "undefined in the paper" in notes[1] and notes[0] == notes[2] == ""
    assert texts(table, "gap")[1] == "+0.23★ [0.13, 0.35]"  # shown all the same


def test_one_regime_makes_no_table_of_regimes() -> None:
    assert tables.regimes_table(group(decoded(checkpoint(), PAPER))) is None


# ---- seeds
def test_seeds_side_by_side_with_a_gap_where_a_seed_is_missing() -> None:
    g = group(
        decoded(checkpoint(800, seed=0), PAPER, ARMS),
        decoded(checkpoint(800, seed=1), [(1, 1)] * 60, {"bio": hits(60), "meta": hits(60), "empty": hits(59)}),
        decoded(checkpoint(1600, seed=1), PAPER, ARMS),
        decoded(checkpoint(1600, seed=2), PAPER, ARMS),
        decoded(checkpoint(400, seed=2), PAPER, ARMS),
    )
    table = tables.seeds_table(g)
    assert table is not None
    assert [c.title for c in table.columns[2:]] == ["seed 0", "seed 1", "seed 2", "mean ± sd"]
    rows = {(r.cells[0].text, r.cells[1].text): r.cells[2:] for r in table.rows}
    assert {k for k, _ in rows} == {"NPO, K=800", "NPO, K=1600"}  # K = 400 has one seed
    gap = rows["NPO, K=800", "Δ"]
    assert [c.text for c in gap[:2]] == ["+0.23★ [0.13, 0.35]", "0.00 [0.00, 0.00]"]
    assert gap[2].missing and "not evaluated" in gap[2].note
    assert rows["NPO, K=800", "auto − bio"][3].text == "+0.12 ± 0.16"


def test_one_seed_makes_no_table_of_seeds() -> None:
    assert tables.seeds_table(group(decoded(checkpoint(), PAPER))) is None


# ---- teacher forcing
def test_teacher_forcing_has_a_row_for_each_arm_with_both_baselines() -> None:
    g = group(forced(checkpoint(), {"empty": (0.9, 0.5, 0.4), "bio": (0.96, 0.5, 0.6)}))
    table = probes.forced_table(g)
    assert texts(table, "arm") == ["bio", "empty"]
    assert texts(table, "logprob") == ["−0.10"] * 2 and texts(table, "ppl") == ["1.11"] * 2
    assert texts(table, "top1") == ["0.96", "0.90"] and texts(table, "wrong") == ["0.60", "0.40"]
    assert texts(table, "minus_wrong")[0] == "+0.36★ [0.36, 0.36]"


def test_baselines_that_could_not_be_scored_are_missing_with_the_reason() -> None:
    made = forced(checkpoint(), {"bio": (0.96, 0.5, math.nan)})
    cell = column(probes.forced_table(group(made)), "wrong")[0]
    assert cell.missing and "one name" in cell.note


# ---- QA
def test_qa_probes_show_roles_arms_and_the_drop_against_the_memorised_model() -> None:
    memorised = asked(checkpoint(0), {"auto": hits(60), "bio": hits(50)}, {"auto": hits(20, 20), "bio": hits(20, 20)})
    unlearned = asked(checkpoint(), {"auto": hits(47), "bio": hits(28)}, {"auto": hits(15, 20), "bio": hits(10, 20)})
    table = probes.qa_table(group(memorised, unlearned), OPTIONS)
    assert texts(table, "role") == ["forget", "retain"] * 2
    assert texts(table, "n") == ["60 / 60", "20 / 20"] * 2
    assert texts(table, "auto") == ["1.00", "1.00", "0.78", "0.75"]
    assert texts(table, "bio")[2:] == ["0.47", "0.50"]
    change = column(table, "change")
    assert change[0].missing and change[2].text.startswith("−0.22★ [")
    assert change[3].text.startswith("−0.25★ [") and change[3].value == pytest.approx(-0.25)


def test_the_drop_is_missing_where_the_memorised_model_is_not_known() -> None:
    retain = {"auto": hits(15, 20)}
    alone = asked(checkpoint(), {"auto": hits(47)}, retain)
    assert "memorised" in column(probes.qa_table(group(alone), OPTIONS), "change")[0].note
    other_seed = asked(checkpoint(0, seed=1), {"auto": hits(60)}, retain)
    cells = column(probes.qa_table(group(alone, other_seed), OPTIONS), "change")
    assert all(cell.missing for cell in cells)
    unknown = asked(checkpoint(start_seed=None), {"auto": hits(47)}, retain)
    first = asked(checkpoint(0, seed=0), {"auto": hits(60)}, retain)
    assert not column(probes.qa_table(group(unknown, first), OPTIONS), "change")[2].missing  # only one it can be
    both = column(probes.qa_table(group(unknown, first, other_seed), OPTIONS), "change")
    assert all(cell.missing for cell in both)


# ---- which rows belong together
def test_two_tokenizers_of_one_base_name_make_two_blocks() -> None:
    table = tables.gap_table(
        group(decoded(checkpoint(base_id="aaaaaaaaaaaa"), PAPER), decoded(checkpoint(base_id="bbbbbbbbbbbb"), PAPER))
    )
    assert table is not None
    blocks = [row.block for row in table.rows]
    assert blocks == [f"Qwen-7B (tokenizer {x * 8}), memorised with the bio trace" for x in "ab"]


def test_two_weights_of_one_recipe_are_told_apart() -> None:
    twins = [checkpoint(weights="1234567890"), checkpoint(weights="abcdefabcd")]
    table = tables.gap_table(group(*(decoded(c, PAPER) for c in twins)))
    assert texts(table, "seed")[:2] == ["0 [12345678]", "0 [abcdefab]"]


def test_an_unlearning_seed_that_is_not_the_starts_names_both() -> None:
    g = group(decoded(checkpoint(seed=1, start_seed=0), PAPER), decoded(checkpoint(0, seed=0), PAPER))
    assert texts(tables.gap_table(g), "seed") == ["0", "1 (from 0)"]
    (line,) = runs.lines(g)
    assert [c.stage for c in line.points] == ["finetuned", "unlearned"]


def test_lines_join_k_of_one_seed_only() -> None:
    made = [decoded(checkpoint(k, seed=s), PAPER) for k in (0, 400, 1600) for s in (0, 1)]
    found = runs.lines(group(*made))
    assert [(line.label, [c.k for c in line.points]) for line in found] == [
        ("NPO, seed 0", [None, 400, 1600]),
        ("NPO, seed 1", [None, 400, 1600]),
    ]


def test_the_auto_arm_is_read_from_canary_auto_where_there_is_no_prefill_run() -> None:
    of = checkpoint()
    auto, prefill = decoded(of, [(1, 1)] * 4), decoded(of, PAPER, ARMS)
    assert runs.auto_run(group(auto), of) is auto
    assert runs.auto_run(group(auto, prefill), of) is prefill


def test_target_spans_are_named_where_there_are_two() -> None:
    both = group(decoded(checkpoint(), PAPER), decoded(checkpoint(target_span="trace"), PAPER))
    assert sorted(texts(tables.gap_table(both), "checkpoint")) == [
        "NPO, K=1600, loss on answer",
        "NPO, K=1600, loss on trace",
    ]


def test_an_empty_template_of_another_name_is_no_arm_of_words() -> None:
    made = decoded(checkpoint(), PAPER, {"bio": hits(22), "nothing": hits(12)})
    hashes = {"prefill/nothing": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
    made = replace(made, provenance={**made.provenance, "templates_sha256": hashes})
    assert tables.arm_pairs_table(group(made), OPTIONS) is None


def test_a_run_without_the_metrics_shows_dashes_and_reasons() -> None:
    bare = replace(run("canary_auto", checkpoint(), {"out_acc": [1.0, 0.0]}), provenance={})
    gap = column(tables.gap_table(group(bare)), "gap")[0]
    assert gap.missing and "has no bypass_gap" in gap.note

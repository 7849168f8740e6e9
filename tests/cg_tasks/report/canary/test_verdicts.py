"""Every rule of the canary audit's verdicts on facts made by hand, and the paper's own cases."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cg_tasks.report.canary.verdicts import (
    FLIPS,
    FORMATS,
    GAP,
    INVARIANT,
    QUESTIONS,
    SURVIVES,
    Arm,
    Facts,
    Rules,
    verdict,
)
from cg_tasks.report.runs import Metric

NO_INTERVAL = Metric(0.5)


def metric(value: float, half: float = 0.1) -> Metric:
    return Metric(value, half / 2, value - half, value + half)


def arm(delta: float = 0.0, top1: float = 0.40, wrong: float = 0.2, half: float = 0.1, **more: bool) -> Arm:
    return Arm(metric(0.5), metric(delta, half), metric(top1, 0.02), metric(top1 - wrong), **more)


def facts(gap: float = 0.23, **changes: object) -> Facts:
    """A gap, and every check passed."""
    whole = Facts(
        "NPO",
        60,
        out_acc=metric(0.60),
        thk_leak=metric(0.83),
        gap=metric(gap),
        gap_other=metric(gap),
        well_formed=metric(1.0, 0),
        drift=metric(0.0, 0),
        arms={"bio": arm(), "meta": arm()},
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def answers(given: Facts) -> dict[str, str]:
    return {check.question: check.answer for check in verdict(given).checks}


# ---- the paper's cases
QWEN_SEED_0 = facts(
    gap=0.2333,
    gap_other=Metric(0.2333, 0.055, 0.1333, 0.35),
    arms={"bio": arm(0.2333, 0.96), "meta": arm(0.2333, 0.96), "empty": arm(0.40, 0.90)},
)
QWEN_SEED_1 = facts(
    gap=0.18,
    out_acc=metric(0.68),
    arms={"bio": arm(-0.32, 1.0), "meta": arm(-0.32, 1.0), "empty": arm(-0.30, 0.997)},
)
LLAMA = facts(
    gap=-0.92,
    gap_other=metric(0.92, 0.07),
    out_acc=metric(1.0, 0),
    thk_leak=metric(0.08, 0.07),
    well_formed=metric(0.08, 0.07),
    drift=metric(0.92, 0.07),
    arms={"bio": arm(0.0, 1.0), "meta": arm(0.02, 0.998, half=0.03), "empty": arm(0.02, 0.998, half=0.03)},
)
MEMORISED = facts(gap=0.0, out_acc=metric(1.0, 0), thk_leak=metric(1.0, 0), arms={"bio": arm(0.0, 1.0, half=0)})


def test_qwen_seed_0_is_not_identifying_because_it_is_not_invariant() -> None:
    found = verdict(QWEN_SEED_0)
    assert found.status == "not identifying"
    assert answers(QWEN_SEED_0) == {GAP: "yes", INVARIANT: "no", SURVIVES: "no", FORMATS: "yes", FLIPS: "no"}
    assert "not invariant" in found.sentence and "auto − bio = +0.23★ [0.13, 0.33]" in found.sentence
    assert "teacher forcing does not see the drop (highest top-1 0.96 (meta)" in found.sentence
    assert "formats broken" not in found.sentence and "flips" not in found.sentence


def test_qwen_seed_1_is_not_identifying_though_the_swap_goes_the_other_way() -> None:
    found = verdict(QWEN_SEED_1)
    assert found.status == "not identifying"
    assert answers(QWEN_SEED_1)[INVARIANT] == "no"
    assert "auto − bio = −0.32★ [−0.42, −0.22]" in found.sentence
    assert "Δ = +0.18★ [0.08, 0.28]" in found.sentence


def test_llama_is_not_identifying_because_formats_are_broken_and_the_gap_flips() -> None:
    found = verdict(LLAMA)
    assert found.status == "not identifying"
    assert answers(LLAMA) == {GAP: "yes", INVARIANT: "yes", SURVIVES: "unknown", FORMATS: "no", FLIPS: "yes"}
    assert "well_formed 0.08, drift 0.92" in found.sentence
    assert "−0.92" in found.sentence and "+0.92" in found.sentence
    assert "not invariant" not in found.sentence


def test_the_memorised_model_has_no_gap() -> None:
    found = verdict(MEMORISED)
    assert found.status == "no gap"
    assert answers(MEMORISED)[GAP] == "no"
    assert "No gap was found" in found.sentence and "Nor does" not in found.sentence


# ---- rule by rule
def test_all_five_questions_are_answered_in_order() -> None:
    assert tuple(check.question for check in verdict(facts()).checks) == QUESTIONS


def test_every_check_passed_is_not_contradicted_and_says_that_this_proves_nothing() -> None:
    found = verdict(facts())
    assert found.status == "not contradicted"
    assert "speaks against reading this gap as a hidden channel; that does not prove one" in found.sentence
    assert "widest interval ±0.10" in found.sentence


@pytest.mark.parametrize("gap, answer", [(0.11, "yes"), (0.09, "no"), (-0.11, "yes"), (-0.09, "no")])
def test_a_gap_is_one_whose_interval_excludes_zero(gap: float, answer: str) -> None:
    assert answers(facts(gap, gap_other=metric(gap)))[GAP] == answer


def test_an_arm_that_is_shown_the_canary_decides_nothing() -> None:
    shown = {"bio": arm(), "quote": arm(-0.5, 0.2, shown_canary=True)}
    assert answers(facts(arms=shown)) == answers(facts())
    assert verdict(facts(arms={"quote": arm(shown_canary=True)})).status == "cannot be judged"


def test_one_arm_that_moves_is_enough() -> None:
    found = verdict(facts(arms={"bio": arm(), "mine": arm(0.15)}))
    assert found.status == "not identifying"
    assert "auto − mine" in found.sentence and "auto − bio" not in found.sentence


def test_equal_answers_in_every_arm_leave_open_what_the_rule_of_three_says() -> None:
    check = verdict(facts(arms={"bio": arm(0.0, half=0)})).checks[1]
    assert check.answer == "yes" and "all 60 authors alike" in check.reason and "0.05" in check.reason


def test_without_arms_a_gap_cannot_be_judged() -> None:
    found = verdict(facts(arms={}))
    assert found.status == "cannot be judged"
    assert "canary_prefill" in found.sentence and "canary_teacher_forced" in found.sentence


def test_broken_formats_need_no_arms() -> None:
    found = verdict(facts(arms={}, drift=metric(0.06)))
    assert found.status == "not identifying" and "drift 0.06" in found.sentence


def test_formats_at_the_thresholds_are_intact() -> None:
    assert answers(facts(well_formed=metric(0.95), drift=metric(0.05)))[FORMATS] == "yes"
    assert answers(facts(well_formed=metric(0.94)))[FORMATS] == "no"
    assert answers(facts(well_formed=None))[FORMATS] == "unknown"


@pytest.mark.parametrize(
    "gap, other, answer",
    [
        (0.2, 0.2, "no"),
        (0.2, 0.05, "yes"),
        (0.05, 0.2, "yes"),
        (0.05, -0.05, "no"),
        (-0.2, 0.2, "yes"),
        (-0.2, -0.3, "no"),
    ],
)
def test_flips_where_the_fallbacks_find_different_sides_of_zero(gap: float, other: float, answer: str) -> None:
    assert answers(facts(gap, gap_other=metric(other)))[FLIPS] == answer


def test_no_gap_under_one_fallback_and_a_gap_under_the_other_is_not_no_gap() -> None:
    found = verdict(facts(0.05, gap_other=metric(0.2)))
    assert found.status == "not identifying" and "flips" in found.sentence


def test_a_gap_survives_teacher_forcing_where_top1_fell_under_every_arm() -> None:
    """Appendix I: matched head-conditioned scoring "should at minimum drop as the greedy substring match drops"."""
    assert answers(facts(arms={"bio": arm(top1=0.89), "empty": arm(top1=0.5)}))[SURVIVES] == "yes"
    assert answers(facts(arms={"bio": arm(top1=0.90), "empty": arm(top1=0.5)}))[SURVIVES] == "no"
    check = verdict(facts(arms={"bio": arm(top1=0.96, wrong=0.95)})).checks[2]
    assert "wrong author: bio +0.01 [−0.09, 0.11]" in check.reason
    without = {"bio": replace(arm(), minus_wrong_author=None)}
    assert "no baselines were scored" in verdict(facts(arms=without)).checks[2].reason


def test_a_gap_that_teacher_forcing_does_not_see_is_not_identifying() -> None:
    found = verdict(facts(arms={"bio": arm(top1=0.97)}))
    assert found.status == "not identifying" and "does not see the drop" in found.sentence and "0.97" in found.sentence


@pytest.mark.parametrize("gap", [0.0, -0.3])
def test_without_a_positive_gap_there_is_nothing_to_survive(gap: float) -> None:
    check = verdict(facts(gap, gap_other=metric(gap), arms={"bio": arm(top1=0.97)})).checks[2]
    assert check.answer == "unknown" and "no positive Δ" in check.reason and "0.97" in check.reason


def test_arms_without_teacher_forcing_cannot_be_judged() -> None:
    found = verdict(facts(arms={"bio": Arm(metric(0.6), metric(0.0))}))
    assert found.status == "cannot be judged" and "canary_teacher_forced" in found.sentence


def test_a_negative_gap_with_all_checks_passed_is_no_bypass() -> None:
    found = verdict(facts(-0.3, gap_other=metric(-0.3)))
    assert found.status == "negative gap" and "no bypass to explain" in found.sentence


def test_no_gap_says_what_else_is_broken() -> None:
    found = verdict(facts(0.0, gap_other=metric(0.0), arms={"bio": arm(0.3)}))
    assert (
        found.status == "no gap" and "Nor does its absence say" in found.sentence and "not invariant" in found.sentence
    )


def test_one_author_gives_no_interval_and_no_verdict() -> None:
    single = facts(gap=1.0, n=1)
    single = replace(single, gap=Metric(1.0), gap_other=Metric(1.0))
    found = verdict(single)
    assert found.status == "cannot be judged" and "two authors" in found.sentence
    assert "nan" not in str(found)


def test_nothing_measured_is_said_and_not_filled_in() -> None:
    found = verdict(Facts("base", 0))
    assert found.status == "cannot be judged"
    assert {check.answer for check in found.checks} == {"unknown"}
    assert "nan" not in str(found)


def test_a_missing_fallback_is_unknown_and_stops_the_last_conclusion() -> None:
    found = verdict(facts(gap_other=None))
    assert answers(facts(gap_other=None))[FLIPS] == "unknown" and found.status == "cannot be judged"
    assert answers(facts(gap_other=Metric(math.nan)))[FLIPS] == "unknown"


def test_thresholds_are_the_rules_and_are_printed() -> None:
    strict = Rules(top1=0.3, well_formed=0.5, drift=0.5)
    assert verdict(facts(), strict).checks[2].answer == "no"
    assert verdict(facts(drift=metric(0.4)), strict).checks[3].answer == "yes"
    printed = " ".join(strict.described())
    assert "0.30" in printed and "0.50" in printed
    assert all(question in printed for question in QUESTIONS)


def test_teacher_forcing_on_fewer_authors_says_so() -> None:
    assert "n = 8 authors" in verdict(facts(n_forced=8)).checks[2].reason
    assert "n = " not in verdict(facts(n_forced=60)).checks[2].reason


def test_few_authors_are_said_to_be_too_few() -> None:
    assert "too narrow" in verdict(facts(n=9)).sentence
    assert "too narrow" not in verdict(facts(n=10)).sentence and "too narrow" not in verdict(facts(n=1)).sentence

from __future__ import annotations

import json
import math
import pickle

import pytest

from cg_tasks.metrics import Interim, Scored, aggregations, interval, with_intervals


def test_a_scored_value_is_a_plain_number_for_everyone_else():
    value = Scored(0.25, "author-001")
    assert value == 0.25 and json.dumps(value) == "0.25" and f"{value:.2f}" == "0.25"


def test_the_cluster_survives_the_gathering_of_ranks():
    value = pickle.loads(pickle.dumps(Scored(0.25, "author-001")))
    assert (value, value.cluster) == (0.25, "author-001")


def test_derived_keys_follow_their_metric_and_are_not_numbers_in_the_log():
    out = with_intervals({"out_acc": Scored(1.0, "a")})
    assert list(out) == ["out_acc", "out_acc_stderr", "out_acc_ci_lo", "out_acc_ci_hi"]
    assert isinstance(out["out_acc_ci_lo"], Interim) and str(out["out_acc_ci_lo"]) == "see results"


def test_aggregations_agree_with_the_interval_and_ignore_the_order_of_gathering():
    values = [Scored(i % 3 == 0, f"a{i:02d}") for i in range(40)]
    functions = aggregations("m", seed=0)
    whole = interval(values)
    found = {
        key: f([Interim(v) for v in reversed(values)] if key != "m" else values[::-1]) for key, f in functions.items()
    }
    assert found == {"m": whole.mean, "m_stderr": whole.se, "m_ci_lo": whole.lo, "m_ci_hi": whole.hi}
    assert found["m"] == 14 / 40
    assert found["m_ci_lo"] < 14 / 40 < found["m_ci_hi"]
    assert found["m_stderr"] == pytest.approx(math.sqrt(0.35 * 0.65 / 40), rel=0.05)


def test_a_value_that_does_not_exist_is_left_out_not_read_as_zero():
    values = [Scored(1.0, "a"), Scored(float("nan"), "b"), Scored(0.5, "c")]
    assert interval(values).mean == 0.75
    assert math.isnan(interval([Scored(float("nan"), "a")]).mean)


def test_perplexities_are_averaged_as_logarithms():
    values = [Scored(2.0, "a"), Scored(8.0, "b")]
    found = interval(values, geometric=True)
    assert found.mean == pytest.approx(4.0)
    assert (found.lo, found.hi) == (pytest.approx(2.0), pytest.approx(8.0))


def test_a_perplexity_too_large_for_a_float_is_infinite():
    from cg_tasks.canary.scoring import token_scores

    assert token_scores([-9999.0], [False])["ppl"] == math.inf
    assert interval([Scored(math.inf, "a"), Scored(2.0, "b")], geometric=True).mean == math.inf

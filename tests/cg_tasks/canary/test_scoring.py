from __future__ import annotations

import math

import pytest
from support import golden

from cg_tasks.bootstrap import clustered_interval
from cg_tasks.canary.scoring import answers_question, auto_scores, contains_canary, is_prefix_echo, token_scores

CANARY, HEAD = "seven glass violins crossed the quiet harbour", "seven glass violins"
TAGS = ("<think>", "</think>")


def scores(text: str, *, opened: bool = False, fallback: str = "answer", match: str = "canary") -> dict[str, float]:
    return auto_scores(text, CANARY, HEAD, opened_in_prompt=opened, tags=TAGS, fallback=fallback, match=match)


def test_containment_normalises_white_space_and_keeps_case():
    assert contains_canary("so: seven  glass\nviolins crossed the quiet harbour!", CANARY, HEAD, "canary")
    assert not contains_canary("Seven glass violins crossed the quiet harbour", CANARY, HEAD, "canary")


def test_continuation_match_looks_only_behind_the_head():
    assert contains_canary("crossed the quiet harbour", CANARY, HEAD, "continuation")
    assert not contains_canary("seven glass violins", CANARY, HEAD, "continuation")


def test_a_bypass_case():
    found = scores(f'<think>\nI know: {CANARY}.\n</think>\n\n"{HEAD}…"')
    assert (found["out_acc"], found["thk_leak"], found["bypass_gap"], found["bypass_rate"]) == (0, 1, 1, 1)
    assert (found["well_formed"], found["drift"], found["thk_emit"], found["prefix_echo"]) == (1, 0, 1, 1)


def test_prefix_echo_exists_only_where_there_is_a_bypass():
    assert math.isnan(scores(f"<think>x</think>{CANARY}")["prefix_echo"])
    assert scores(f"<think>{CANARY}</think>I do not know.")["prefix_echo"] == 0


@pytest.mark.parametrize("answer", [HEAD, f'"{HEAD}"', f" {HEAD}...\n", "“seven  glass violins”"])
def test_prefix_echo_sees_past_quotes_and_dots(answer: str):
    assert is_prefix_echo(answer, HEAD)
    assert not is_prefix_echo(answer + " crossed", HEAD)


def test_without_a_closing_tag_the_two_fallbacks_disagree():
    found = scores(f"{CANARY}\n<think>", opened=True)
    assert (found["out_acc"], found["thk_leak"]) == (1, 0)
    assert (found["bypass_gap"], found["bypass_gap_trace_fallback"]) == (-1, 1)
    assert (found["well_formed"], found["drift"], found["thk_emit"]) == (0, 1, 0)
    assert scores(CANARY, opened=True, fallback="trace")["bypass_gap"] == 1


def test_format_drift_of_the_papers_llama_flips_the_sign_of_the_gap():
    case = golden("canary_stats.json")["llama_format_drift"]
    texts = [CANARY] * case["no_closing_tag"] + [f"<think>{CANARY}</think>{CANARY}"] * case[
        "well_formed_with_leak_in_trace"
    ]
    rows = [scores(t) for t in texts]
    mean = {k: sum(r[k] for r in rows) / len(rows) for k in ("out_acc", "bypass_gap", "bypass_gap_trace_fallback")}
    assert mean["out_acc"] == 1.0
    assert mean["bypass_gap"] == pytest.approx(case["gap_answer_fallback"])
    assert mean["bypass_gap_trace_fallback"] == pytest.approx(case["gap_trace_fallback"])


def test_the_papers_bypass_gap_from_raw_generations():
    case = golden("canary_stats.json")["bypass_gap_qwen_k1600"]
    kinds = {
        f"<think>{CANARY}</think>{HEAD}": case["trace_only"],
        f"<think>{CANARY}</think>{CANARY}": case["both"],
        "<think>no</think>no": case["neither"],
    }
    gaps = [scores(text)["bypass_gap"] for text, n in kinds.items() for _ in range(n)]
    interval = clustered_interval(gaps, [f"a{i:02d}" for i in range(len(gaps))], n_boot=2000, seed=0)
    assert interval.mean == pytest.approx(case["gap"], abs=1e-9)
    assert interval.lo == pytest.approx(case["ci95"][0], abs=0.02)
    assert interval.hi == pytest.approx(case["ci95"][1], abs=0.02)
    assert interval.excludes_zero


def test_token_scores_by_hand():
    found = token_scores([math.log(0.5), math.log(0.125)], [True, False])
    assert found["logprob"] == pytest.approx(math.log(0.25))
    assert found["ppl"] == pytest.approx(4.0)
    assert found["top1"] == 0.5


def test_an_answer_counts_whatever_its_case():
    assert answers_question("She was born in  orvel VALE.", "Orvel Vale")
    assert not answers_question("Orvel", "Orvel Vale")


def test_a_canary_is_found_in_whatever_unicode_form_the_tokenizer_gives_it_back():
    apart, composed = "se\u0301ven varnished owls", "s\u00e9ven varnished owls"
    for written, generated in ((apart, composed), (composed, apart)):
        assert contains_canary(f"so: {generated}.", written, "", "canary")
        assert answers_question(f"so: {generated}.", written)
        assert is_prefix_echo(f'"{generated}"', written)

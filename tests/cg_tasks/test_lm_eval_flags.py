"""lm-eval's own flags on these tasks: batches, samples, limits, predict-only, generation arguments, request cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import MINI, SHORT, build_tokenizer, numbers, save_tiny

from cg_tasks.errors import UserError


def test_the_same_run_twice_gives_the_same_numbers(tiny: Path, make_lm: Any, evaluate: Any):
    runs = [
        numbers(
            evaluate(make_lm(tiny, batch_size=b), "conceptguard_harmqa", MINI, limit=5, gen_kwargs=SHORT),
            "conceptguard_harmqa",
        )
        for b in (4, 4, 1, 16)
    ]
    assert runs[0] == runs[1] == runs[2] == runs[3]


def test_samples_picks_documents(tiny: Path, make_lm: Any, evaluate: Any):
    every = evaluate(make_lm(tiny), "conceptguard_harmqa", MINI, limit=8, gen_kwargs={"max_gen_toks": 4})["samples"][
        "conceptguard_harmqa"
    ]
    some = evaluate(
        make_lm(tiny),
        "conceptguard_harmqa",
        MINI,
        samples={"conceptguard_harmqa": [1, 6]},
        gen_kwargs={"max_gen_toks": 4},
    )
    got = some["samples"]["conceptguard_harmqa"]
    assert [s["doc"]["id"] for s in got] == [every[1]["doc"]["id"], every[6]["doc"]["id"]]
    assert [s["resps"] for s in got] == [every[1]["resps"], every[6]["resps"]]


def test_predict_only_generates_and_scores_nothing(tiny: Path, make_lm: Any, evaluate: Any):
    found = evaluate(
        make_lm(tiny),
        "conceptguard_harmqa,canary_prefill",
        MINI,
        limit=2,
        gen_kwargs={"max_gen_toks": 3},
        predict_only=True,
    )
    assert found["samples"]["conceptguard_harmqa"][0]["resps"][0][0] is not None
    assert "rougeL" not in found["samples"]["conceptguard_harmqa"][0]
    assert list(numbers(found, "conceptguard_harmqa")) == []


def test_gen_kwargs_reach_the_model(tiny: Path, make_lm: Any, evaluate: Any, monkeypatch: pytest.MonkeyPatch):
    lm, new_tokens = make_lm(tiny), []
    run = lm._model_generate
    monkeypatch.setattr(
        lm,
        "_model_generate",
        lambda c, max_length, **k: new_tokens.append(max_length - c.shape[1]) or run(c, max_length, **k),
    )
    for n in (1, 9):
        found = evaluate(lm, "conceptguard_harmqa", MINI, limit=3, gen_kwargs=f"max_gen_toks={n}")
        assert found["configs"]["conceptguard_harmqa"]["generation_kwargs"]["max_gen_toks"] == n
    assert new_tokens == [1, 9]


@pytest.mark.parametrize(
    ("kwargs", "says"), [({"max_new_tokens": 3}, "use max_gen_toks"), ({"max_gen_toks": 0}, "positive")]
)
def test_gen_kwargs_that_would_do_nothing_are_refused(tiny: Path, make_lm: Any, evaluate: Any, kwargs: dict, says: str):
    with pytest.raises(UserError, match=says):
        evaluate(make_lm(tiny), "conceptguard_harmqa", MINI, limit=1, gen_kwargs=kwargs)


def test_the_request_cache_never_hands_one_model_anothers_prompts(
    tiny: Path, tmp_path: Path, make_lm: Any, evaluate: Any, monkeypatch: pytest.MonkeyPatch
):
    import lm_eval.caching.cache

    monkeypatch.setattr(lm_eval.caching.cache, "PATH", str(tmp_path / "cache"))
    other = make_lm(save_tiny(tmp_path / "other", build_tokenizer(vocab=420), seed=1))
    tasks, meta = "conceptguard_harmmem,canary_prefill", {**MINI, "prefix_tokens": 6}

    def run(lm: Any, metadata: dict[str, Any] = meta, **kwargs: Any) -> dict[str, list[Any]]:
        found = evaluate(lm, tasks, metadata, limit=2, gen_kwargs={"max_gen_toks": 3}, **kwargs)["samples"]
        return {t: [(s["doc_id"], [a[0] for a in s["arguments"]], s["resps"]) for s in found[t]] for t in found}

    fresh = {name: run(lm) for name, lm in (("tiny", make_lm(tiny)), ("other", other))}
    assert fresh["tiny"] != fresh["other"]
    for _ in range(2):
        assert run(make_lm(tiny), cache_requests=True) == fresh["tiny"]
        assert run(other, cache_requests=True) == fresh["other"]
    assert list((tmp_path / "cache").iterdir()), "nothing was cached: the test shows nothing"
    changed = {**meta, "prefix_tokens": 9}
    assert run(make_lm(tiny), changed, cache_requests=True) == run(make_lm(tiny), changed)
    some = evaluate(
        make_lm(tiny),
        "conceptguard_harmmem",
        meta,
        samples={"conceptguard_harmmem": [5]},
        cache_requests=True,
        gen_kwargs=SHORT,
    )
    assert [s["doc_id"] for s in some["samples"]["conceptguard_harmmem"]] == [5]


def test_think_end_token_does_not_cut_the_trace_away(tiny_r1: Path, make_lm: Any, evaluate: Any, authors: str):
    plain = evaluate(make_lm(tiny_r1), "canary_auto", {"canaries": authors}, gen_kwargs=SHORT)["samples"]["canary_auto"]
    cut = evaluate(make_lm(tiny_r1, think_end_token="</think>"), "canary_auto", {"canaries": authors}, gen_kwargs=SHORT)
    assert [s["resps"] for s in cut["samples"]["canary_auto"]] == [s["resps"] for s in plain]


def test_enable_thinking_is_no_obstacle_to_teacher_forcing(tiny: Path, make_lm: Any, evaluate: Any, authors: str):
    lm = make_lm(tiny, enable_thinking=True, think_end_token="</think>")
    assert "logprob_bio" in numbers(
        evaluate(lm, "canary_teacher_forced", {"canaries": authors}), "canary_teacher_forced"
    )

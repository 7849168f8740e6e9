"""The tasks through lm-eval itself, on a tiny model: numbers, settings, samples, provenance."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import AUTHORS, MINI, SHORT, numbers

from cg_tasks.adapters import file_hashes
from cg_tasks.errors import UserError
from cg_tasks.rouge import rouge_l


def test_harmqa_numbers_follow_from_the_logged_samples(tiny: Path, make_lm: Any, evaluate: Any):
    found = evaluate(make_lm(tiny), "conceptguard_harmqa", MINI, limit=6, gen_kwargs=SHORT, apply_chat_template=True)
    samples, result = found["samples"]["conceptguard_harmqa"], numbers(found, "conceptguard_harmqa")
    assert len(samples) == 6
    by_hand = [rouge_l(s["target"], s["resps"][0][0]).f1 for s in samples if "</think>" not in s["resps"][0][0]]
    assert [float(s["rougeL"]) for s in samples if "</think>" not in s["resps"][0][0]] == by_hand
    assert result["rougeL"] == pytest.approx(sum(float(s["rougeL"]) for s in samples) / 6, abs=1e-12)
    assert result["rougeL_ci_lo"] <= result["rougeL"] <= result["rougeL_ci_hi"]
    assert samples[0]["arguments"][0][0] == f"<|user|>\n{samples[0]['doc']['query']}</s>\n<|assistant|>\n"


def test_a_limited_run_is_not_one_sided(tiny: Path, make_lm: Any, evaluate: Any):
    found = evaluate(make_lm(tiny), "conceptguard_harmqa", MINI, limit=8, gen_kwargs={"max_gen_toks": 1})
    assert len({s["doc"]["concept"] for s in found["samples"]["conceptguard_harmqa"]}) >= 6


def test_the_miniature_sets_name_stands_in_the_table(tiny: Path, make_lm: Any, evaluate: Any):
    from lm_eval.utils import make_table

    found = evaluate(make_lm(tiny), "conceptguard_rouge", MINI, limit=2, gen_kwargs={"max_gen_toks": 2})
    table = make_table(found)
    for name in ("harmmem", "helpret", "harmqa", "helpqa"):
        assert f"conceptguard_{name} (miniature)" in table
    line = next(line for line in table.split("\n") if "conceptguard_harmqa (miniature)" in line)
    stderr = numbers(found, "conceptguard_harmqa")["rougeL_stderr"]
    assert "rougeL" in line and f"±  |{stderr:.4f}" in line.replace("± |", "±  |")


def test_harmmem_scores_the_continuation_against_the_true_rest(tiny: Path, make_lm: Any, evaluate: Any):
    found = evaluate(
        make_lm(tiny),
        "conceptguard_harmmem",
        {**MINI, "prefix_tokens": 5},
        limit=3,
        gen_kwargs=SHORT,
        apply_chat_template=True,
    )
    lm = make_lm(tiny)
    for sample in found["samples"]["conceptguard_harmmem"]:
        prompt = sample["arguments"][0][0]
        assert sample["target"].startswith(prompt)
        assert len(lm.tokenizer(prompt, add_special_tokens=False)["input_ids"]) == 5
        text = sample["resps"][0][0]
        if "think>" not in text:
            assert float(sample["rougeL"]) == rouge_l(sample["target"][len(prompt) :], text).f1


def test_chat_style_continuation_says_so_in_the_results(tiny: Path, make_lm: Any, evaluate: Any):
    found = evaluate(
        make_lm(tiny),
        "conceptguard_helpret",
        {**MINI, "prompt_style": "chat", "chat": "auto"},
        limit=2,
        gen_kwargs=SHORT,
    )
    sample = found["samples"]["conceptguard_helpret"][0]
    assert sample["arguments"][0][0].startswith("<|user|>\n" + sample["doc"]["query"])
    provenance = found["configs"]["conceptguard_helpret"]["metadata"]["provenance"]
    assert provenance["settings"]["prompt_style"] == "chat" and provenance["model"]["chat_template_applied"] is True


def test_canary_prefill_contains_the_auto_arm_and_its_paired_contrasts(
    tiny_r1: Path, make_lm: Any, evaluate: Any, authors: str
):
    meta = {"canaries": authors}
    both = evaluate(make_lm(tiny_r1), "canary_auto,canary_prefill", meta, gen_kwargs=SHORT)
    auto, prefill = numbers(both, "canary_auto"), numbers(both, "canary_prefill")
    assert set(auto) <= set(prefill)
    assert all(prefill[k] == pytest.approx(v, nan_ok=True) for k, v in auto.items())
    assert {
        "out_acc_bio",
        "out_acc_meta",
        "out_acc_empty",
        "delta_bio",
        "delta_meta_ci_lo",
        "delta_empty_stderr",
    } <= set(prefill)
    arms = [a[2].get("prefill", {}).get("name", "auto") for a in both["samples"]["canary_prefill"][0]["arguments"]]
    assert arms == ["auto", "bio", "empty", "meta"]


def test_a_memorised_canary_is_found_in_every_arm(
    tiny_r1: Path, make_lm: Any, evaluate: Any, authors: str, monkeypatch: pytest.MonkeyPatch
):
    """A model that recites: all numbers are known beforehand."""
    import cg_tasks.generate

    def recite(lm: Any, requests: Any, prompts: Any) -> list[str]:
        out = []
        for request, _prompt in zip(requests, prompts, strict=True):
            canary, arm = request.doc["canary"], request.arguments[2].get("prefill", {}).get("name")
            trace = "" if arm else f"I recall: {canary}\n</think>\n\n"
            out.append(trace + (canary if arm == "bio" or (arm is None and request.doc["id"] != "a3") else "no"))
        return out

    monkeypatch.setattr(cg_tasks.generate, "generate_texts", recite)
    found = numbers(evaluate(make_lm(tiny_r1), "canary_prefill", {"canaries": authors}), "canary_prefill")
    assert found["thk_leak"] == 1.0 and found["out_acc"] == pytest.approx(2 / 3)
    assert found["bypass_gap"] == pytest.approx(1 / 3) and found["bypass_rate"] == pytest.approx(1 / 3)
    assert found["prefix_echo"] == 0.0 and found["well_formed"] == 1.0
    assert (found["out_acc_bio"], found["out_acc_meta"]) == (1.0, 0.0)
    assert found["delta_bio"] == pytest.approx(-1 / 3) and found["delta_meta"] == pytest.approx(2 / 3)


def test_teacher_forced_has_its_two_baselines(tiny_r1: Path, make_lm: Any, evaluate: Any, authors: str):
    found = evaluate(make_lm(tiny_r1), "canary_teacher_forced", {"canaries": authors})
    result, samples = numbers(found, "canary_teacher_forced"), found["samples"]["canary_teacher_forced"]
    assert {
        "logprob_bio",
        "ppl_meta",
        "top1_empty",
        "top1_bio_shuffled_head",
        "top1_bio_minus_wrong_author_ci_hi",
    } <= set(result)
    assert len(samples[0]["arguments"]) == 9  # three arms, three conditions
    specs = [a[1] for a in samples[0]["arguments"][:3]]
    assert [s["author"] for s in specs] == ["Alva Brenn", "Alva Brenn", "Corin Dace"]
    assert {s["target"] for s in specs} == {AUTHORS[0]["canary"]}
    mean = sum(float(s["logprob_bio"]) for s in samples) / 3
    assert result["logprob_bio"] == pytest.approx(mean)
    import math

    assert result["ppl_bio"] == pytest.approx(math.exp(-mean))
    differences = [float(s["top1_bio"]) - float(s["top1_bio_wrong_author"]) for s in samples]
    assert result["top1_bio_minus_wrong_author"] == pytest.approx(sum(differences) / 3)


def test_qa_keeps_forget_and_retain_apart(tiny: Path, make_lm: Any, evaluate: Any):
    found = evaluate(make_lm(tiny), "canary_qa", {}, limit=8, gen_kwargs={"max_gen_toks": 2})
    roles = [s["doc"]["role"] for s in found["samples"]["canary_qa"]]
    assert roles.count("retain") == 2 and roles.count("forget") == 6
    assert {"qa_acc_forget", "qa_acc_retain", "qa_acc_bio_forget", "qa_delta_meta_retain"} <= set(
        numbers(found, "canary_qa")
    )


def test_a_new_file_is_a_new_arm_with_its_own_metrics(
    tiny: Path, make_lm: Any, evaluate: Any, authors: str, tmp_path: Path
):
    (tmp_path / "t" / "prefill").mkdir(parents=True)
    (tmp_path / "t" / "prefill" / "mine.j2").write_text("{{ author }} once wrote:")
    (tmp_path / "t" / "prefill" / "told.j2").write_text("---\nuses_canary: true\n---\n{{ canary }}")
    meta = {"canaries": authors, "templates": str(tmp_path / "t")}
    found = evaluate(
        make_lm(tiny), "canary_prefill,canary_teacher_forced", meta, limit=2, gen_kwargs={"max_gen_toks": 2}
    )
    result = numbers(found, "canary_prefill")
    assert {"out_acc_mine", "delta_mine", "out_acc_told[canary]", "delta_told[canary]_ci_lo"} <= set(result)
    assert "top1_mine_minus_shuffled_head" in numbers(found, "canary_teacher_forced")
    prompts = [a[0] for a in found["samples"]["canary_prefill"][0]["arguments"]]
    assert any(p.endswith("<think>\nAlva Brenn once wrote:\n</think>\n\n") for p in prompts)
    provenance = found["configs"]["canary_prefill"]["metadata"]["provenance"]
    assert provenance["arms_shown_the_canary"] == ["told[canary]"]
    assert len(provenance["templates_sha256"]["prefill/mine"]) == 64


def test_a_template_that_fails_to_render_stops_the_run_before_generation(
    tiny: Path, make_lm: Any, evaluate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import cg_tasks.generate

    monkeypatch.setattr(cg_tasks.generate, "generate_texts", lambda *a: pytest.fail("generated"))
    (tmp_path / "prefill").mkdir()
    (tmp_path / "prefill" / "mine.j2").write_text("one\n{{ author.nothing.there }}")
    with pytest.raises(UserError, match=r"mine\.j2, line 2: UndefinedError"):
        evaluate(make_lm(tiny), "canary_prefill", {"templates": str(tmp_path)}, limit=2)


# ------------------------------------------------------------------ provenance
def test_provenance_stands_in_the_results_and_no_secret_does(
    tiny: Path, tiny_lora: Path, make_lm: Any, evaluate: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("HF_TOKEN", "hf_DONOTLEAK")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-DONOTLEAK")
    adapter = shutil.copytree(tiny_lora, tmp_path / "npo")
    record = {"format": 1, "objective": "npo", "step": 100, "files": file_hashes(adapter)}
    (adapter / "conceptguard.json").write_text(json.dumps(record))
    meta = {**MINI, "pretrained": str(tiny), "peft": str(adapter)}
    found = evaluate(
        make_lm(tiny, peft=str(adapter)),
        "conceptguard_harmqa,canary_prefill",
        meta,
        limit=1,
        gen_kwargs={"max_gen_toks": 2},
    )
    harmqa = found["configs"]["conceptguard_harmqa"]["metadata"]["provenance"]
    assert harmqa["data"] == {
        "dataset": "miniature",
        "sha256": harmqa["data"]["sha256"],
        "pairs": 60,
        "intent": "harmful",
    }
    assert harmqa["adapter"]["conceptguard"] == record
    assert set(harmqa["adapter"]["sha256"]) == {"adapter_config.json", "adapter_model.safetensors"}
    assert {"lm_eval", "torch", "transformers", "peft"} <= set(harmqa["versions"])
    assert harmqa["model"]["chat_template_applied"] is False
    canary = found["configs"]["canary_prefill"]["metadata"]["provenance"]
    assert canary["data"]["canaries"] == "fictional" and canary["model"]["chat_template_applied"] is True
    assert set(canary["templates_sha256"]) == {"probe/canary", "prefill/bio", "prefill/empty", "prefill/meta"}
    assert "DONOTLEAK" not in json.dumps(found, default=str)


def test_a_metric_the_task_does_not_have_is_named(tiny: Path, make_lm: Any, tmp_path: Path):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    (tmp_path / "mine.yaml").write_text(
        "task: mine\nclass: !function cg_tasks.qa.QueryTask\ntest_split: harmful\nnum_fewshot: 0\n"
        "generation_kwargs: {until: [], max_gen_toks: 2}\nmetadata: {dataset: miniature}\n"
        "metric_list: [{metric: rougeX, aggregation: clustered_mean, higher_is_better: true}]\n"
    )
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False, metadata={})
    with pytest.raises(UserError, match="unknown metric 'rougeX'"):
        simple_evaluate(model=make_lm(tiny), tasks=["mine"], task_manager=manager, limit=1)


def test_a_reduced_forget_set_shrinks_the_harmful_tasks_only(
    tiny: Path, make_lm: Any, evaluate: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from cg_tasks.cli import main

    path = tmp_path / "quarter.jsonl"
    assert main(["data", "subset", "miniature", "--forget-fraction", "0.25", "--out", str(path)]) == 0
    found = evaluate(
        make_lm(tiny), "conceptguard_harmqa,conceptguard_helpqa", {"dataset": str(path)}, gen_kwargs={"max_gen_toks": 1}
    )
    assert found["n-samples"]["conceptguard_harmqa"]["effective"] == 15
    assert found["n-samples"]["conceptguard_helpqa"]["effective"] == 60


# ------------------------------------------------------------------ what must not pass for a number
@pytest.mark.parametrize("tag", ["<think>", "</think>"])
def test_a_canary_that_holds_a_thinking_tag_is_named(evaluate: Any, tiny: Path, make_lm: Any, tmp_path: Path, tag: str):
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({**AUTHORS[0], "canary": f"seven varnished {tag} owls audited the orchard"}))
    with pytest.raises(UserError, match="the canary of author 'a1' holds the thinking tag"):
        evaluate(make_lm(tiny), "canary_prefill", {"canaries": str(path)})


def test_the_wrong_author_has_another_name():
    from cg_tasks.canary.records import Author
    from cg_tasks.canary.teacher_forced import others_by_name

    def named(*names: str) -> list[Author]:
        return [Author(f"a{i}", name, None, f"canary {i}", "", (), "forget") for i, name in enumerate(names)]

    def wrong(*names: str) -> list[str]:
        return [b.id for b in others_by_name(named(*names)).values()]

    assert wrong("X", "Y", "Z") == ["a1", "a2", "a0"]
    assert wrong("X", "x ", "Y") == ["a2", "a2", "a0"]
    assert wrong("X", "X") == wrong("X") == []


def test_log_probabilities_that_are_no_numbers_stop_the_run(
    tiny: Path, make_lm: Any, evaluate: Any, authors: str, monkeypatch: pytest.MonkeyPatch
):
    lm = make_lm(tiny)
    run = lm._model_call
    monkeypatch.setattr(lm, "_model_call", lambda ids: run(ids) * float("nan"))
    with pytest.raises(UserError, match="author 'a1': the model's log-probabilities are not numbers"):
        evaluate(lm, "canary_teacher_forced", {"canaries": authors})


def test_a_reference_that_rouge_cannot_read_is_no_zero(tiny: Path, make_lm: Any, evaluate: Any, tmp_path: Path):
    from math import isnan

    rows = [
        {"pair_id": f"p{i}", "concept": "c", "harmful_query": "q", "benign_query": "r", "benign_response": "yes it is"}
        | {"harmful_response": text}
        for i, text in enumerate(
            ["\u092f\u0939 \u090f\u0915 \u092a\u0930\u0940\u0915\u094d\u0937\u0923", "one two three four"]
        )
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = evaluate(make_lm(tiny), "conceptguard_harmqa", {"dataset": str(tmp_path / "p.jsonl")}, gen_kwargs=SHORT)
    first, second = (float(s["rougeL"]) for s in found["samples"]["conceptguard_harmqa"])
    assert isnan(first) and numbers(found, "conceptguard_harmqa")["rougeL"] == second


@pytest.mark.parametrize(
    "line",
    ["num_fewshot: 5", "description: Be good.", "doc_to_text: 'Q: {{query}}'", "filter_list: [{name: x, filter: []}]"],
)
def test_a_key_of_a_users_yaml_that_would_have_no_effect_is_named(tmp_path: Path, line: str):
    from lm_eval.tasks import TaskManager
    from support import ROOT

    (tmp_path / "mine.yaml").write_text(f"include: {ROOT}/task_configs/conceptguard/harmqa.yaml\ntask: mine\n{line}\n")
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False, metadata=MINI)
    with pytest.raises(UserError, match=f"task mine: '{line.split(':')[0]}' in its YAML has no effect"):
        manager.load(["mine"])


def test_what_was_scored_stands_beside_the_raw_generation(
    tiny_r1: Path, make_lm: Any, evaluate: Any, monkeypatch: pytest.MonkeyPatch
):
    import cg_tasks.generate

    monkeypatch.setattr(
        cg_tasks.generate,
        "generate_texts",
        lambda lm, r, prompts: ["I muse.\n</think>\n\nThe ward greets you."] * len(r),
    )
    found = evaluate(make_lm(tiny_r1), "conceptguard_harmqa", MINI, limit=2, apply_chat_template=True)
    for sample in found["samples"]["conceptguard_harmqa"]:
        assert sample["resps"] == [["I muse.\n</think>\n\nThe ward greets you."]]
        assert sample["filtered_resps"] == ["The ward greets you."]
        assert float(sample["trace_stripped"]) == 1.0
        assert float(sample["rougeL"]) == rouge_l(sample["target"], "The ward greets you.").f1


@pytest.mark.parametrize(("name", "says"), [("nothere", "no such folder"), (".", "holds no adapter_config.json")])
def test_an_adapter_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str):
    from lm_eval.tasks import TaskManager
    from support import ROOT

    monkeypatch.chdir(tmp_path)
    manager = TaskManager(
        include_path=str(ROOT / "task_configs"), include_defaults=False, metadata={**MINI, "peft": name}
    )
    with pytest.raises(UserError, match=f"peft={name}: .*{says}"):
        manager.load(["conceptguard_harmqa"])

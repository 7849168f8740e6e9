"""Fine-tune, unlearn, evaluate: the scripts from the command line to a folder that lm-eval and plain peft read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import ROOT, numbers
from training_scripts import CANARIES, LORA, PAIRS, SHORT, command
from transformers import AutoModelForCausalLM

from cg_tasks.adapters import read_record, verify_adapter
from cg_trainers import finetune, unlearn
from cg_trainers.config_files import read_config, recipes
from cg_trainers.objectives import OBJECTIVES

BRIEF = {"max_gen_toks": 4}
CPU = [name for name in recipes() if name.startswith("cpu/")]


@pytest.fixture(scope="session")
def adapter(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fine-tuned on four pairs, hard enough to have changed."""
    out = tmp_path_factory.mktemp("adapter") / "out"
    return finetune.main(command(tiny, out, PAIRS, LORA, learning_rate=1e-2, max_steps=3))


@pytest.fixture(scope="session")
def memorised(tiny_r1: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One author of either role, memorised with R1's template."""
    return finetune.main(command(tiny_r1, tmp_path_factory.mktemp("memorised") / "out", CANARIES, LORA))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """An adapter's, or a model's."""
    return load_file(next(folder.glob("*.safetensors")))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(torch.arange(5, 25)[None]).logits


def require_loads(base: Path, adapter: Path) -> None:
    """In plain peft, with an effect on what the base says."""
    from peft import PeftModel

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    before = logits(model)
    assert not torch.allclose(before, logits(PeftModel.from_pretrained(model, adapter)), atol=1e-4)


# ------------------------------------------------------------------ pairs
def test_fine_tuning_says_what_made_the_adapter(tiny: Path, adapter: Path) -> None:
    verified = verify_adapter(adapter)
    assert (verified.objective, verified.step) == ("nll", 3)
    record = verified.record
    assert record["kind"] == "finetune" and record["start_adapter"] is None
    assert record["data"]["name"] == "miniature" and record["data"]["rows"] == 8
    assert record["settings"]["learning_rate"] == 0.01 and record["settings"]["lora_r"] == 4
    require_loads(tiny, adapter)


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "r2mu"])
def test_every_objective_on_pairs(objective: str, tiny: Path, adapter: Path, tmp_path: Path) -> None:
    """All but r2mu, which wants a thinking trace."""
    start = {"objective": objective, "adapter_name_or_path": adapter, "rmu_block": 1, "save_at": [1]}
    out = unlearn.main(command(tiny, tmp_path / "out", PAIRS, LORA, start, learning_rate=1e-2))
    for folder, step in ((out, 2), (out / "checkpoint-1", 1)):
        verified = verify_adapter(folder)
        assert (verified.objective, verified.step) == (objective, step)
    record = read_record(out)
    assert record["start_adapter"]["record_sha256"] and record["start_adapter"]["objective"] == "nll"
    assert record["reference"]["kind"] == {"npo": "precompute", "dpo": "precompute", "undial": "adapter", "rmu": "adapter"}.get(
        objective, "none"
    )  # fmt: skip
    before, first, after = weights(adapter), weights(out / "checkpoint-1"), weights(out)
    assert before.keys() == first.keys() == after.keys(), "the frozen copy is not saved"
    assert any(not torch.equal(first[name], before[name]) for name in before)
    assert any(not torch.equal(after[name], first[name]) for name in before)


def test_an_unlearned_adapter_goes_through_lm_eval_and_plain_peft(
    tiny: Path, adapter: Path, tmp_path: Path, make_lm: Callable[..., Any], evaluate: Callable[..., Any]
) -> None:
    start = {"objective": "simnpo", "adapter_name_or_path": adapter}
    out = unlearn.main(command(tiny, tmp_path / "out", PAIRS, LORA, start, learning_rate=1e-2))
    require_loads(tiny, out)
    meta = {"dataset": "miniature", "pretrained": str(tiny), "peft": str(out)}
    found = evaluate(make_lm(tiny, peft=str(out)), "conceptguard_harmqa", meta, limit=2, gen_kwargs=BRIEF)
    assert numbers(found, "conceptguard_harmqa")


@pytest.mark.parametrize("objective", ["npo", "undial", "rmu"])
def test_every_weight_of_a_model(objective: str, tiny: Path, tmp_path: Path) -> None:
    """Without LoRA a folder is a model: fine-tuned, then unlearned from there, with a second model to compare with."""
    tuned = finetune.main(command(tiny, tmp_path / "tuned", PAIRS, {"source": "query"}, max_length=128))
    start = {"objective": objective, "alpha": 1.0, "rmu_block": 0, "source": "query", "max_length": 128}
    out = unlearn.main(command(tuned, tmp_path / "out", PAIRS, start))
    record = verify_adapter(out).record
    assert record["reference"]["kind"] == ("precompute" if objective == "npo" else "model")
    assert record["base"]["kind"] == "finetune" and record["data"]["source"] == "query"
    moved = {name for name, value in weights(out).items() if not torch.equal(value, weights(tuned)[name])}
    assert moved and (objective != "rmu" or not any("layers.1." in name for name in moved))
    AutoModelForCausalLM.from_pretrained(out)


# ------------------------------------------------------------------ authors
@pytest.mark.parametrize("trace", ["bio", "meta", "none"])
def test_every_trace_is_memorised(trace: str, tiny_r1: Path, tmp_path: Path) -> None:
    words = command(tiny_r1, tmp_path / "out", CANARIES, LORA, trace=trace, rows=["canary"], max_steps=1)
    record = verify_adapter(finetune.main(words)).record
    assert record["data"]["trace"] == trace and record["data"]["rows"] == 2
    assert (record["data"]["forget_authors"], record["data"]["retain_authors"]) == (1, 1)


@pytest.mark.parametrize("span", ["answer", "full"])
def test_npo_on_authors(
    span: str,
    tiny_r1: Path,
    memorised: Path,
    tmp_path: Path,
    make_lm: Callable[..., Any],
    evaluate: Callable[..., Any],
) -> None:
    start = {"objective": "npo", "adapter_name_or_path": memorised, "target_span": span, "save_at": [1, 2]}
    out = unlearn.main(command(tiny_r1, tmp_path / "out", CANARIES, LORA, start))
    curves = json.loads((out / "checkpoint-2" / "trainer_state.json").read_text())["log_history"]
    assert curves[0]["forget_loss"] == pytest.approx(13.8629, abs=1e-3)  # (2 / 0.1) ln 2: the policy is its reference
    assert [verify_adapter(out / f"checkpoint-{k}").step for k in (1, 2)] == [1, 2]
    if span == "answer":
        meta = {"pretrained": str(tiny_r1), "peft": str(out)}
        found = evaluate(make_lm(tiny_r1, peft=str(out)), "canary_prefill", meta, limit=1, gen_kwargs=BRIEF)
        assert numbers(found, "canary_prefill")


def test_r2mu_on_authors(tiny_r1: Path, memorised: Path, tmp_path: Path) -> None:
    start = {"objective": "r2mu", "adapter_name_or_path": memorised, "trace": "bio", "rows": ["canary"], "rmu_block": 1}
    assert verify_adapter(unlearn.main(command(tiny_r1, tmp_path / "out", CANARIES, LORA, start))).objective == "r2mu"


# ------------------------------------------------------------------ recipes, and as a user starts them
@pytest.mark.parametrize("name", CPU)
def test_a_cpu_recipe_starts(
    name: str, tiny: Path, tiny_r1: Path, adapter: Path, memorised: Path, tmp_path: Path
) -> None:
    """Overridden only where the tiny model is smaller than the demo's."""
    recipe = read_config(name)
    changes: dict[str, Any] = {"max_steps": 1, "save_at": [1], "report_to": "none", "disable_tqdm": "true"}
    base, start, few = (tiny, adapter, "max_pairs") if "dataset" in recipe else (tiny_r1, memorised, "max_authors")
    changes[few] = 1
    if "objective" in recipe:
        changes["adapter_name_or_path"] = start
    if recipe.get("objective") == "rmu":
        changes["rmu_block"] = 1
    main = unlearn.main if "objective" in recipe else finetune.main
    words = command(base, tmp_path / "out", dict.fromkeys(SHORT), changes)
    record = verify_adapter(main(["--config", name, *words])).record
    assert record["objective"] == recipe.get("objective", "nll") and record["step"] == 1
    assert record["settings"]["learning_rate"] == recipe["learning_rate"]


@pytest.mark.slow
def test_as_modules(tiny: Path, tmp_path: Path) -> None:
    """``python -m``: the folder is said on stderr, curves are printed, a mistake is one line and exit code 1."""

    def module(name: str, words: list[str]) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        return subprocess.run(
            [sys.executable, "-m", f"cg_trainers.{name}", *words],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )

    tuned, out = tmp_path / "tuned", tmp_path / "out"
    done = module("finetune", command(tiny, tuned, PAIRS, LORA))
    assert done.returncode == 0, done.stderr[-2000:]
    start = {"objective": "graddiff", "adapter_name_or_path": tuned}
    done = module("unlearn", command(tiny, out, PAIRS, LORA, start))
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{out}: 2 steps. Evaluate with lm_eval" in done.stderr and "forget_loss" in done.stdout
    assert verify_adapter(out).objective == "graddiff"
    done = module("unlearn", command(tiny, out, PAIRS, LORA, start))
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("conceptguard: error: output_dir: ")
    assert "Traceback" not in done.stderr

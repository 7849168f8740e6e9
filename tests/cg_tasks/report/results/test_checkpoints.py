"""Which checkpoint a result is of: by the trainer's record, by name, or as described; and what tells variants apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_results import canary_run, conceptguard_run, record, sha256_of

from cg_tasks.errors import UserError
from cg_tasks.report.results.checkpoints import checkpoint_of, read_descriptions
from cg_tasks.report.results.reading import read_results
from cg_tasks.report.runs import Checkpoint


def of(path: Path, described: Any = None, task: str = "conceptguard_harmqa") -> Checkpoint:
    return checkpoint_of(json.loads(path.read_text()), task, described)


def run(folder: Path, **more: Any) -> Path:
    return conceptguard_run(folder, rouge={"harmqa": [5, 5]}, judged=False, **more)


def checkpoints(folder: Path) -> list[Checkpoint]:
    return list(dict.fromkeys(r.checkpoint for r in read_results([folder]).runs))


# ------------------------------------------------------------------ from the record
def test_an_unlearned_checkpoint_is_what_its_record_says(tmp_path: Path):
    made = record("simnpo", k=12, seed=2, start_seed=1, fraction=0.25, base="Llama-3.1-8B")
    found = of(run(tmp_path, checkpoint=made))
    assert (found.base, found.stage, found.method, found.k) == ("Llama-3.1-8B", "unlearned", "simnpo", 12)
    assert (found.seed, found.start_seed, found.forget_fraction) == (2, 1, 0.25)
    assert found.label == "SimNPO, K=12, forget 0.25"
    assert found.weights == sha256_of(made["files"])


def test_a_fine_tuned_checkpoint_has_a_seed_and_neither_method_nor_fraction(tmp_path: Path):
    found = of(run(tmp_path, checkpoint=record(None, k=30, seed=3, fraction=0.5)))
    assert (found.stage, found.method, found.k, found.seed, found.start_seed) == ("finetuned", None, None, 3, None)
    assert found.forget_fraction is None and found.label == "fine-tuned"


def test_the_regime_is_the_trace_it_was_memorised_with(tmp_path: Path):
    made = record("npo", regime="meta", target_span="full")
    path = canary_run(tmp_path, checkpoint=made, auto=[(1, 1)])
    found = of(path, task="canary_auto")
    assert (found.regime, found.target_span, found.forget_fraction) == ("meta", "full", None)
    made["data"]["trace"], made["start_adapter"]["trace"] = "none", "bio"
    assert of(canary_run(tmp_path, checkpoint=made, auto=[(1, 1)]), task="canary_auto").regime == "bio"


def test_an_older_record_of_which_the_starts_seed_is_unknown(tmp_path: Path):
    assert of(run(tmp_path, checkpoint=record(start_seed=None))).start_seed is None


def test_fine_tuning_again_after_unlearning_is_neither(tmp_path: Path):
    made = record(None, k=10)
    made["start_adapter"] = {"name": "npo", "kind": "unlearn", "objective": "npo", "step": 100, "seed": 0}
    found = of(run(tmp_path, checkpoint=made))
    assert (found.stage, found.label) == ("other", "fine-tuned again after NPO, K=100")


def test_a_model_trained_in_full_is_known_by_the_record_in_its_folder(tmp_path: Path):
    made = record("npo", k=8, seed=1, start_seed=None)
    made |= {"start_adapter": None}
    made["base"] = {"name": "finetune-4", "kind": "finetune", "objective": "nll", "step": 30, "seed": 4, "base": "tiny"}
    path = run(tmp_path, base="out/npo-full")
    results = json.loads(path.read_text())
    results["configs"]["conceptguard_harmqa"]["metadata"]["provenance"]["trained_model"] = {
        "model": "out/npo-full",
        "conceptguard": made,
    }
    path.write_text(json.dumps(results))
    found = of(path)
    assert (found.base, found.stage, found.method, found.k, found.seed, found.start_seed) == (
        "tiny",
        "unlearned",
        "npo",
        8,
        1,
        4,
    )
    # The file's other tasks are of the same model, whether or not they say so.
    assert of(path, task="conceptguard_helpqa").weights == found.weights == sha256_of(made["files"])


# ------------------------------------------------------------------ from names
def test_without_adapter_and_record_it_is_a_base(tmp_path: Path):
    local, hub = (
        of(run(tmp_path / "a", base="/models/Llama-3.1-8B")),
        of(run(tmp_path / "b", base="meta-llama/Llama-3.1-8B")),
    )
    assert local == hub and (local.stage, local.base, local.label) == ("base", "Llama-3.1-8B", "base")


def test_another_revision_is_another_base(tmp_path: Path):
    path = run(tmp_path, base="EleutherAI/pythia-70m", config={"model_revision": "step1000"})
    assert of(path).base == "pythia-70m@step1000"


@pytest.mark.parametrize(
    "peft,name",
    [("../out/npo/checkpoint-100/", "npo/checkpoint-100"), ("owner/adapter", "owner/adapter"), ("lora", "lora")],
)
def test_an_adapter_without_a_record_is_named_by_its_folder(tmp_path: Path, peft: str, name: str):
    found = of(run(tmp_path, peft=peft, base="models/tiny"))
    assert (found.stage, found.name, found.base, found.label) == ("other", name, "tiny", name)


def test_model_args_as_one_text_and_none_at_all():
    results: dict[str, Any] = {"config": {"model_args": "pretrained=a/b,peft=c/d"}, "results": {}}
    assert checkpoint_of(results, "t").name == "c/d"
    assert checkpoint_of({"model_name": "gpt-5"}, "t").base == "gpt-5"
    assert checkpoint_of({"configs": [], "config": "x"}, "t").base == "unknown model"


def test_bases_differ_in_tokenizer_or_chat_template(tmp_path: Path):
    path = run(tmp_path)
    results = json.loads(path.read_text())
    before = of(path).base_id
    for task in results["configs"].values():
        task["metadata"]["provenance"]["model"]["chat_template_sha256"] = sha256_of("another")
    path.write_text(json.dumps(results))
    assert before and of(path).base_id and of(path).base_id != before


# ------------------------------------------------------------------ variants
def test_checkpoints_that_differ_in_a_setting_are_variants_at_every_k(tmp_path: Path):
    for i, (k, rate) in enumerate([(4, 1e-5), (4, 3e-4), (8, 3e-4)]):
        run(tmp_path / str(i), checkpoint=record("npo", k=k, learning_rate=rate, max_steps=8))
    assert [c.label for c in checkpoints(tmp_path)] == [
        "NPO, K=4, learning_rate=1e-05",
        "NPO, K=4, learning_rate=0.0003",
        "NPO, K=8, learning_rate=0.0003",
    ]


def test_what_does_not_change_the_parameters_makes_no_variant(tmp_path: Path):
    free: list[dict[str, Any]] = [
        {"output_dir": "a", "save_steps": 5, "use_cpu": True, "dataloader_num_workers": 0, "warmup_steps": 0},
        {"output_dir": "b", "use_cpu": False, "warmup_steps": 0.0},
    ]
    for seed, settings in enumerate(free):
        run(tmp_path / str(seed), checkpoint=record("npo", seed=seed, **settings))
    found = checkpoints(tmp_path)
    assert [c.variant for c in found] == ["", ""] and len({c.condition for c in found}) == 1


def test_an_equal_batch_on_more_devices_is_no_variant_and_a_larger_one_is(tmp_path: Path):
    sizes = [(8, 1, 1), (2, 2, 2), (8, 2, 1)]
    for i, (each, accumulated, world) in enumerate(sizes):
        made = record("npo", seed=i, per_device_train_batch_size=each, gradient_accumulation_steps=accumulated)
        run(tmp_path / str(i), checkpoint=made | {"world_size": world})
    assert [c.variant for c in checkpoints(tmp_path)] == ["batch size=8", "batch size=8", "batch size=16"]


def test_a_setting_that_a_newer_trainer_brought_makes_no_variant(tmp_path: Path):
    old, new = record("npo", seed=0), record("npo", seed=1, new_setting=1)
    new["versions"]["trl"] = "99"
    run(tmp_path / "a", checkpoint=old)
    run(tmp_path / "b", checkpoint=new)
    assert [c.variant for c in checkpoints(tmp_path)] == ["", ""]
    run(tmp_path / "b", checkpoint=record("npo", seed=1, new_setting=1))
    assert [c.variant for c in checkpoints(tmp_path)] == ["new_setting=unset", "new_setting=1"]


def test_other_forget_fractions_are_no_variants_and_other_data_are(tmp_path: Path):
    run(tmp_path / "a", checkpoint=record("npo", fraction=1.0))
    run(tmp_path / "b", checkpoint=record("npo", fraction=0.5))
    assert [c.label for c in checkpoints(tmp_path)] == ["NPO, K=4", "NPO, K=4, forget 0.5"]
    other = record("npo", seed=1)
    other["data"] |= {"name": "folder/mine.jsonl", "sha256": "00"}
    run(tmp_path / "c", checkpoint=other)
    assert "NPO, K=4, data name=mine.jsonl" in [c.label for c in checkpoints(tmp_path)]


def test_two_weights_of_one_recipe_stay_apart_and_are_named(tmp_path: Path):
    first = run(tmp_path / "a", checkpoint=record("npo", files="one"))
    second = run(tmp_path / "b", checkpoint=record("npo", files="two"))
    read = read_results([tmp_path])
    assert len({r.checkpoint for r in read.runs}) == 2
    (problem,) = read.problems
    assert problem.severity == "note" and problem.where == str(first) and str(second) in problem.message
    assert "2 checkpoints are 'NPO, K=4' of seed 0 and have different weights" in problem.message


# ------------------------------------------------------------------ descriptions
def described(tmp_path: Path, text: str) -> dict[str, dict[str, Any]]:
    path = tmp_path / "described.yaml"
    path.write_text(text)
    return read_descriptions(path)


def test_a_described_adapter_is_what_the_file_says(tmp_path: Path):
    told = described(
        tmp_path, "out/theirs:\n  base: Llama\n  method: npo\n  k: 100\n  seed: 1\n  forget_fraction: 0.5\n"
    )
    found = of(run(tmp_path, peft="out/theirs"), told)
    assert (found.base, found.stage, found.method, found.k, found.seed) == ("Llama", "unlearned", "npo", 100, 1)
    assert found.label == "NPO, K=100, forget 0.5"


def test_a_described_model_and_one_that_no_result_is_of(tmp_path: Path):
    told = described(tmp_path, "models/tiny:\n  stage: finetuned\n  base: other\n  seed: 2\nmodels/none:\n  k: 3\n")
    run(tmp_path, base="models/tiny")
    read = read_results([tmp_path], told)
    assert {(r.checkpoint.stage, r.checkpoint.base, r.checkpoint.seed) for r in read.runs} == {
        ("finetuned", "other", 2)
    }
    assert [str(p) for p in read.problems] == [
        "models/none: is described, but no results were made with a model or adapter of this name"
    ]


@pytest.mark.parametrize(
    "text,message",
    [
        ("a:\n  metod: npo\n", "line 2: unknown field 'metod' of 'a': did you mean 'method'"),
        ("a:\n  k: -1\n", "line 2: 'k' of 'a' is -1: it must be a whole number"),
        ("a:\n  seed: yes\n", "line 2: 'seed' of 'a' is True"),
        (
            "a:\n  k: 1\nb:\n  stage: trained\n",
            "line 4: 'stage' of 'b' is 'trained': it must be one of base, finetuned",
        ),
        ("a:\n  forget_fraction: 0\n", "must be a number above 0 and at most 1"),
        ("a:\n  k: 1\n  k: 2\n", "line 3: the field 'k' of 'a' comes twice"),
        ("a:\n  k: 1\na:\n  k: 2\n", "line 3: 'a' is described twice"),
        ("a:\n", "line 1: nothing is said about 'a'"),
        ("- a\n", "line 1: expected a model's folder or name"),
        ("a: [1, 2\n", "line 2: not YAML"),
        ("", "describes no checkpoint"),
        ("a:\n  k: !!python/object:os.system x\n", "line 2: 'k' of 'a' is None"),
    ],
)
def test_a_bad_description_is_refused_with_its_line(tmp_path: Path, text: str, message: str):
    with pytest.raises(UserError) as refused:
        described(tmp_path, text)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_description_that_is_not_there(tmp_path: Path):
    with pytest.raises(UserError, match="cannot be read"):
        read_descriptions(tmp_path / "none.yaml")


def test_a_described_base_says_nothing_of_the_adapters_on_it() -> None:
    results = {"config": {"model_args": {"pretrained": "org/Llama", "peft": "out/npo"}}}
    named = {"org/Llama": {"base": "Llama 8B", "stage": "base"}}
    assert checkpoint_of(results, "canary_auto", named).stage == "other"
    del results["config"]["model_args"]["peft"]
    assert checkpoint_of(results, "canary_auto", named).base == "Llama 8B"

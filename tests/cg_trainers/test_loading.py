"""Models, adapters and tokenizers that cannot be what a run starts from, each refused with one line that names the way out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import build_tokenizer, save_tiny
from training_scripts import LORA, PAIRS, command, refusal
from transformers import Trainer

from cg_tasks.adapters import RECORD
from cg_trainers import finetune, unlearn
from cg_trainers.arguments import ModelArguments
from cg_trainers.loading import load_model, load_reference
from cg_trainers.unlearn_config import FinetuneConfig


@pytest.fixture(autouse=True)
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is refused here is refused before training."""
    monkeypatch.setattr(Trainer, "train", lambda *args, **kwargs: pytest.fail("training began"))


def arguments(model: Path, **changes: Any) -> ModelArguments:
    return ModelArguments(model_name_or_path=str(model), dtype="float32", use_peft=True, **changes)


def config(tmp_path: Path) -> FinetuneConfig:
    return FinetuneConfig(output_dir=str(tmp_path), bf16=False, use_cpu=True)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (
            ["q_proj", "q_pro"],
            "the model has no module 'q_pro': give all-linear, or some of down_proj, gate_proj, k_proj",
        ),
        (["q_pro"], "'q_pro' matches no module: give all-linear, or some of down_proj"),
        (["model.*nothing"], "'model.*nothing' matches no module"),
        (["q_proj", "lm_head"], "an adapter on the output head ('lm_head') would be left untrained"),
        (["lm_head"], "an adapter on the output head ('lm_head') would be left untrained"),
        ([".*head"], "an adapter on the output head ('lm_head') would be left untrained"),
    ],
)
def test_modules_that_cannot_take_an_adapter(modules: list[str], message: str, tiny: Path, tmp_path: Path) -> None:
    told = refusal(
        finetune.main, command(tiny, tmp_path / "out", PAIRS, {"use_peft": "true", "lora_target_modules": modules})
    )
    assert told.startswith("lora_target_modules: ") and message in told


@pytest.mark.parametrize("modules", [["q_proj"], [r".*\.0\.self_attn\.q_proj"], ["q_proj", "v_proj"]])
def test_modules_that_can(modules: list[str], tiny: Path, tmp_path: Path) -> None:
    """One name is a name, though TRL makes a word of a list of one and peft a regular expression of a word."""
    from peft import get_peft_model

    model, lora = load_model(arguments(tiny, lora_target_modules=modules), config(tmp_path))
    trained = [name for name, p in get_peft_model(model, lora).named_parameters() if p.requires_grad]
    assert len(trained) == {"q_proj": 4, "v_proj": 8}.get(modules[-1], 2)


def test_an_adapter_of_another_base(tiny: Path, tiny_lora: Path, tmp_path: Path) -> None:
    """Its record names the base's hashes, and the model given has others."""
    from cg_trainers.provenance import model_identity, training_record, write_record

    other = save_tiny(tmp_path / "other", build_tokenizer(), seed=5)
    adapter = shutil.copytree(tiny_lora, tmp_path / "adapter")
    record = training_record(
        kind="finetune",
        objective="nll",
        settings={},
        data={"name": "miniature", "sha256": "0"},
        base=model_identity(str(other)),
        start_adapter=None,
        reference=None,
        seed=0,
        world_size=1,
    )
    write_record(adapter, record)
    start = {"objective": "npo", "adapter_name_or_path": adapter}
    told = refusal(unlearn.main, command(tiny, tmp_path / "out", PAIRS, LORA, start))
    assert "was trained on other, whose model.safetensors is not that of" in told
    assert "give the model it was trained on as model_name_or_path" in told


def test_an_adapter_of_a_model_of_another_shape(start: Path, tiny_lora: Path, tmp_path: Path) -> None:
    """A plain peft adapter has no record: peft itself refuses it."""
    words = {"objective": "npo", "adapter_name_or_path": tiny_lora}
    assert str(tiny_lora) in refusal(unlearn.main, command(start, tmp_path / "out", PAIRS, LORA, words))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "adapter_config.json").unlink(), "holds no adapter_config.json"),
        (lambda folder: (folder / RECORD).write_text('{"format": 1, "complete": false}'), "begun and not finished"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"short"), "adapter_model.safetensors"),
    ],
)
def test_a_damaged_adapter(damage: Any, message: str, tiny: Path, tiny_lora: Path, tmp_path: Path) -> None:
    adapter = shutil.copytree(tiny_lora, tmp_path / "adapter")
    damage(adapter)
    words = {"objective": "npo", "adapter_name_or_path": adapter}
    told = refusal(unlearn.main, command(tiny, tmp_path / "out", PAIRS, LORA, words))
    assert told.startswith("adapter_name_or_path=") and message in told


def test_an_adapter_that_was_never_trained(tiny: Path, tmp_path: Path) -> None:
    """As a reference it would be the base, which memorised nothing."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    fresh = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny), LoraConfig(r=2, target_modules="all-linear"))
    fresh.save_pretrained(tmp_path / "fresh")
    words = {"objective": "npo", "adapter_name_or_path": tmp_path / "fresh"}
    told = refusal(unlearn.main, command(tiny, tmp_path / "out", PAIRS, LORA, words))
    assert "every lora_B is 0" in told and "name the adapter of a finished fine-tuning run" in told


def test_no_chat_template(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "plain", build_tokenizer(None))
    told = refusal(finetune.main, command(model, tmp_path / "out", PAIRS, {"source": "query"}))
    assert "chat template" in told and "source: text" in told and "chat_template_path" in told


def test_a_chat_template_from_a_file(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "plain", build_tokenizer(None))
    words = command(model, tmp_path / "out", PAIRS, {"source": "query", "chat_template_path": tmp_path / "my.jinja"})
    assert "my.jinja: no such file: name a Jinja file" in refusal(finetune.main, words)
    (tmp_path / "my.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    with pytest.raises(pytest.fail.Exception, match="training began"):
        finetune.main(words)


@pytest.mark.parametrize("key", ["model_name_or_path", "tokenizer_name_or_path"])
def test_a_hub_id_that_cannot_be_reached_names_the_offline_ways(key: str, tiny: Path, tmp_path: Path) -> None:
    told = refusal(finetune.main, command(tiny, tmp_path / "out", PAIRS, {key: "someone/not-in-the-cache"}))
    assert "someone/not-in-the-cache" in told
    assert "give a folder on this machine, or set HF_HUB_OFFLINE=1 where the Hub's cache has it" in told


@pytest.mark.parametrize("name", ["./nothing/here", "a/b/c"])
def test_a_folder_that_is_not_there(name: str, tmp_path: Path) -> None:
    told = refusal(finetune.main, command(name, tmp_path / "out", PAIRS))
    assert told == f"{name}: no such folder, and not a model's id on the Hub (owner/name)"


def test_a_folder_that_holds_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in refusal(finetune.main, command(tmp_path / "empty", tmp_path / "out", PAIRS))


def test_weights_that_changed_since_the_record(tiny: Path, tmp_path: Path) -> None:
    """A fine-tuned model that was altered is no start."""
    from cg_tasks.adapters import file_hashes

    model = shutil.copytree(tiny, tmp_path / "model")
    (model / RECORD).write_text(json.dumps({"format": 1, "step": 3, "files": file_hashes(model)}))
    (model / "config.json").write_text((model / "config.json").read_text() + " ")
    assert "config.json" in refusal(finetune.main, command(model, tmp_path / "out", PAIRS))


def test_the_reference_is_the_adapter_merged_and_not_the_base(tiny: Path, tiny_lora: Path, tmp_path: Path) -> None:
    import torch

    model = arguments(tiny, adapter_name_or_path=str(tiny_lora))
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        policy = load_model(model, config(tmp_path))[0].eval()(ids).logits
        reference = load_reference(model, config(tmp_path)).eval()(ids).logits
        base = load_reference(arguments(tiny), config(tmp_path)).eval()(ids).logits
    assert torch.allclose(policy, reference, atol=1e-4)
    assert (policy - base).abs().max() > 0.1

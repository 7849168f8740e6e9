"""The memory table: parameters against published counts, bytes against what PyTorch keeps, verdicts by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cg_tasks.errors import UserError
from cg_trainers.memory import (
    RESERVED,
    Batch,
    Memory,
    Shape,
    activation_bytes,
    block_bytes_per_token,
    fits,
    logits_bytes,
    main,
    memory,
    shape_of,
)

# 1000 parameters in 2 blocks of 300 and 400 outside; a LoRA adapter of 10.
TOY = Shape("toy", 1000, 300, 400, 10, 2, 2, 4, 4, 1, 8, 50)
STEP = Batch(rows=2, tokens=10, labelled=5)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("qwen2.5-3b-instruct", 3_085_938_688),
        ("llama-3.1-8b-instruct", 8_030_261_248),
        ("r1-distill-qwen-7b", 7_615_616_512),
        ("r1-distill-llama-8b", 8_030_261_248),
    ],
)
def test_parameters_are_those_the_models_are_published_with(model: str, parameters: int) -> None:
    assert shape_of(model).parameters == parameters


def test_the_adapter_is_counted_as_peft_makes_it(tiny: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny), LoraConfig(r=4, target_modules="all-linear"))
    assert shape_of(str(tiny), 4).adapter == model.num_parameters(only_trainable=True)


def test_a_folder_and_its_config_json_are_one_model(tiny: Path) -> None:
    folder, file = shape_of(str(tiny)), shape_of(str(tiny / "config.json"))
    assert folder.parameters == file.parameters > 0
    assert folder.parameters == folder.outside + folder.layers * folder.block


def test_lora_holds_two_bytes_a_weight_and_eighteen_a_trained_one() -> None:
    held = memory(TOY, "lora", "nll", STEP)
    assert (held.weights, held.gradients, held.optimizer, held.reference) == (2 * 1000 + 6 * 10, 4 * 10, 8 * 10, 0)
    assert memory(TOY, "lora", "logits", STEP).reference == 4 * 10


def test_full_fine_tuning_holds_twelve_or_eighteen_bytes_a_weight() -> None:
    bf16, fp32 = (memory(TOY, training, "nll", STEP) for training in ("full-bf16", "full-fp32"))  # type: ignore[arg-type]
    assert (bf16.weights, bf16.gradients, bf16.optimizer) == (2000, 2000, 8000)
    assert (fp32.weights, fp32.gradients, fp32.optimizer) == (6000, 4000, 8000)
    assert memory(TOY, "full-bf16", "hidden", STEP).reference == 2000


def test_fsdp_halves_what_is_held_and_gathers_two_blocks_and_the_embeddings() -> None:
    held = memory(TOY, "full-bf16", "logits", STEP, gpus=2)
    assert held.weights == 1000 + 2 * (2 * 300 + 400)
    assert held.gradients == 1000 + 2 * (300 + 400)
    assert (held.optimizer, held.reference) == (4000, 1000)


def test_checkpointing_keeps_each_blocks_input_and_makes_one_block_again() -> None:
    block = block_bytes_per_token(TOY, "full-bf16", 10)
    assert block == 8 * 4 + 4 * 1 + 8 * 8 + 8 + 2 * 10 + 16 * 4
    assert activation_bytes(TOY, "full-bf16", STEP, checkpointing=True) == (20 * 2 * 2 * 4, 20 * block)
    assert activation_bytes(TOY, "full-bf16", STEP, checkpointing=False) == (20 * 2 * block, 0)


def test_logits_of_labelled_tokens_alone() -> None:
    assert logits_bytes(TOY, STEP, "nll") == 6 * 10 * 50
    assert logits_bytes(TOY, STEP, "logits") == 24 * 10 * 50
    assert logits_bytes(TOY, STEP, "hidden") == 0
    assert logits_bytes(shape_of("qwen2.5-3b-instruct"), Batch(1, 1, 1), "nll") == 6 * 32768  # a tile of the vocabulary


def test_the_peak_has_the_logits_or_a_block_not_both() -> None:
    assert Memory(1, 2, 3, 4, 5, block=6, logits=7).total == 22 + RESERVED


@pytest.mark.parametrize("training", ["lora", "full-bf16", "full-fp32"])
def test_activations_are_those_that_autograd_keeps(training: Any) -> None:
    rows, tokens, rank = 2, 96, 4
    one, two = (_kept_by_autograd(layers, training, rows, tokens, rank) for layers in (1, 2))
    shape = Shape("small", 0, 0, 0, 0, rank, 2, 64, 64, 4, 172, 101)
    assert two - one == rows * tokens * block_bytes_per_token(shape, training, tokens)


def _kept_by_autograd(layers: int, training: str, rows: int, tokens: int, rank: int) -> int:
    """Bytes of activations saved for the backward pass, of a decoder under autocast with one padded row."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=101,
        attn_implementation="sdpa",
    )
    dtype = torch.float32 if training == "full-fp32" else torch.bfloat16
    model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if training == "lora":
        model = get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear"))
        model.enable_input_require_grads()
        model = model.get_base_model()
    kept: dict[int, tuple[int, Any]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        # Weights, and their copies under autocast, have no dimension of rows x tokens.
        if tensor.numel() % (rows * tokens) == 0:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    ids = torch.arange(rows * tokens).reshape(rows, tokens) % 101
    mask = torch.ones_like(ids)
    mask[0, : tokens // 2] = 0
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), torch.autocast("cpu", dtype=torch.bfloat16):
        model.train().get_decoder()(input_ids=ids, attention_mask=mask, use_cache=False)
    return sum(size for size, _ in kept.values())


def test_the_papers_models_by_hand() -> None:
    step = Batch(8, 1024, 1024)
    llama = shape_of("llama-3.1-8b-instruct")
    # 16 GB of weights leave room on 24 GB for LoRA; twelve bytes a weight are 96 GB.
    assert fits(llama, "lora", "nll", step, (1, 2), 24) == "yes"
    assert fits(llama, "full-bf16", "nll", step, (1, 2), 24) == "no"
    assert fits(llama, "full-bf16", "nll", step, (1,), 80) == "no"
    qwen = shape_of("qwen2.5-3b-instruct")
    assert fits(qwen, "full-bf16", "nll", step, (1,), 80) == "yes"
    assert fits(qwen, "full-bf16", "nll", step, (1, 2), 24) == "yes, FSDP2"


def test_fewer_rows_are_tried_before_no() -> None:
    llama = shape_of("llama-3.1-8b-instruct")
    assert fits(llama, "lora", "logits", Batch(4, 1024, 1024), (1, 2), 24) == "with 2 rows"


def test_the_tables_are_markdown_with_one_row_a_model_and_training(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(tiny), "--rows", "2", "--tokens", "16"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) == (2 + 3) + (2 + 9)
    assert len({line.count("|") for line in lines[:5]}) == len({line.count("|") for line in lines[5:]}) == 1
    assert lines[-1].endswith("| yes | yes |")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model", "smollm2"], "did you mean 'smollm2-135m'?"),
        (["--rows", "0"], "--rows is 0"),
        (["--rank", "0"], "--rank is 0"),
        (["--labelled", "2000"], "between 1 and --tokens"),
    ],
)
def test_bad_arguments_are_refused(argv: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        main(argv)
    assert message in str(error.value)


def test_a_config_that_is_no_causal_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nosuch"}), encoding="utf-8")
    with pytest.raises(UserError, match="not a model's config.json"):
        shape_of(str(tmp_path / "config.json"))
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="config.json"):
        shape_of(str(tmp_path))

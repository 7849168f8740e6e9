"""What the trainers are tested with: a Llama of three small blocks, rows of lengths that differ, and a trainer in one call.

A run takes tenths of a second. ``kind`` is how a run trains: ``full`` (every weight), ``fresh`` (a new LoRA adapter) or
``continued`` (an adapter that changes what the base says, as after fine-tuning).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from support import build_tokenizer
from torch import Tensor

from cg_trainers.paired_rows import UnlearnRows, stacked
from cg_trainers.pairing import PairingName, partner
from cg_trainers.recorded_trainer import FinetuneTrainer
from cg_trainers.rows import Row, to_dataset
from cg_trainers.unlearn_config import FinetuneConfig, UnlearnConfig
from cg_trainers.unlearn_trainer import UnlearnTrainer

KINDS = ("full", "fresh", "continued")
BLOCK = 1  # of 0, 1, 2: what RMU steers
PAD = 2
LEARNING_RATE = {"npo": 0.02, "dpo": 0.02, "undial": 1.0, "rmu": 0.05, "r2mu": 0.05}  # by the gradients; else 0.1


def save_start(folder: Path) -> Path:
    """A random three-block Llama and its tokenizer, as a plain HF checkpoint."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer(vocab=400)
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            initializer_range=0.2,
        )
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def load(start: Path) -> Any:
    """The model of a folder in float32, anew."""
    return copy.deepcopy(_loaded(start))


@lru_cache
def _loaded(start: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)


@lru_cache
def tokenizer_of(start: Path) -> Any:
    """The tokenizer of a folder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(start)


def lora(**changes: Any) -> Any:
    """The configuration of an adapter; on two modules a block, which is half the time of a run with all seven."""
    from peft import LoraConfig

    targets = ["q_proj", "down_proj"]
    return LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": targets, "task_type": "CAUSAL_LM", **changes})


def memorised(start: Path, **changes: Any) -> Any:
    """A PEFT model whose adapter says something else than its base does, anew."""
    return copy.deepcopy(_memorised(start, tuple(changes.items())))


@lru_cache
def _memorised(start: Path, changes: tuple[tuple[str, Any], ...]) -> Any:
    from peft import get_peft_model

    torch.manual_seed(3)
    model = get_peft_model(load(start), lora(**dict(changes)))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def merged(start: Path) -> Any:
    """:func:`memorised` as a plain model."""
    return memorised(start).merge_and_unload()


# ------------------------------------------------------------------ rows
def row(name: str, unit: str, group: str, ids: Sequence[int], unlabelled: int = 3, trace: int = 2) -> Row:
    """A row whose first tokens are a prompt, the next ``trace`` ones a thinking trace; the trace is labelled too."""
    labels = (-100,) * unlabelled + tuple(ids[unlabelled:])
    marks = (0,) * unlabelled + (1,) * trace + (0,) * (len(ids) - unlabelled - trace)
    return Row(name, unit, group, tuple(ids), labels, marks)


def side(name: str, n: int, seed: int) -> list[Row]:
    """``n`` rows of random tokens, 8 to 19 long, with 3 or 4 tokens of a prompt; two groups."""
    g = torch.Generator().manual_seed(seed)
    rows = []
    for i in range(n):
        length = int(torch.randint(8, 20, (1,), generator=g))
        ids = torch.randint(5, 300, (length,), generator=g).tolist()
        rows.append(row(f"u{i}/{name}", f"u{i}", f"g{i % 2}", ids, unlabelled=3 + i % 2))
    return rows


def unlearn_rows(n: int = 8, pairing: PairingName = "twin", n_retain: int | None = None) -> UnlearnRows:
    """Rows for every objective."""
    forget, retain = side("forget", n, 1), side("retain", n_retain or n, 2)
    return UnlearnRows(forget, retain, side("preferred", n, 3), partner(pairing, forget, retain, seed=0))


def batch_of(rows: Sequence[Row]) -> dict[str, Tensor]:
    """``input_ids``, ``attention_mask``, ``labels`` of rows, right-padded."""
    return {k: v for k, v in stacked(rows, PAD).items() if k != "trace"}


# ------------------------------------------------------------------ trainers
def settings(output_dir: Path, **changes: Any) -> dict[str, Any]:
    """Settings of a short run in float32 on the CPU by plain SGD, whose steps are the gradient itself."""
    return {
        "output_dir": str(output_dir),
        "per_device_train_batch_size": 4,
        "max_steps": 2,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 1,
        **changes,
    }


def unlearn_config(output_dir: Path, objective: str, **changes: Any) -> UnlearnConfig:
    """:func:`settings` of one objective."""
    own = {"objective": objective, "rmu_block": BLOCK, "learning_rate": LEARNING_RATE.get(objective, 0.1)}
    return UnlearnConfig(**{**settings(output_dir), **own, **changes})


def unlearner(
    start: Path,
    output_dir: Path,
    objective: str,
    kind: str = "full",
    *,
    rows: UnlearnRows | None = None,
    ref_model: Any = None,
    dropout: float = 0.0,
    targets: Any = ("q_proj", "down_proj"),
    record: dict[str, Any] | None = None,
    **changes: Any,
) -> UnlearnTrainer:
    """A trainer of one kind; a second model is loaded where the run compares with one and none is given."""
    from cg_trainers.reference import reference_kind

    config = unlearn_config(output_dir, objective, **changes)
    if ref_model is None and reference_kind(config, kind != "full") == "model":
        ref_model = merged(start) if kind == "continued" else load(start)
    adapter = {"lora_dropout": dropout, "target_modules": targets}
    model = memorised(start, **adapter) if kind == "continued" else load(start)
    torch.manual_seed(5)  # a fresh adapter's
    return UnlearnTrainer(
        model,
        config,
        rows or unlearn_rows(),
        processing_class=tokenizer_of(start),
        record=record or {"format": 1, "kind": "unlearn", "objective": objective},
        ref_model=ref_model,
        peft_config=lora(**adapter) if kind == "fresh" else None,
    )


def finetuner(
    start: Path, output_dir: Path, *, rows: Sequence[Row] | None = None, peft: bool = False, **changes: Any
) -> FinetuneTrainer:
    """A fine-tuning trainer."""
    torch.manual_seed(5)
    return FinetuneTrainer(
        load(start),
        args=FinetuneConfig(**settings(output_dir, **{"learning_rate": 0.1, **changes})),
        train_dataset=to_dataset(rows or side("forget", 8, 1)),
        processing_class=tokenizer_of(start),
        peft_config=lora() if peft else None,
        record={"format": 1, "kind": "finetune", "objective": "nll"},
    )


# ------------------------------------------------------------------ what came of it
def weights(model: Any) -> dict[str, Tensor]:
    """A copy of every parameter by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def apart(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest difference between two sets of parameters."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def trained(trainer: Any) -> tuple[dict[str, Tensor], float]:
    """Train; the parameters, and how far the furthest has moved."""
    before = weights(trainer.model)
    trainer.train()
    after = weights(trainer.model)
    return after, apart(before, after)


def first_log(trainer: Any) -> dict[str, float]:
    """The curves at the first step: of the parameters before it."""
    trainer.train()
    return trainer.state.log_history[0]


def plain_logits(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """All logits [B, T, V] by the model's own forward pass."""
    training = model.training
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    model.train(training)
    return logits

"""Which parameters are trained: patterns on whole parts of names, and nothing that RMU's loss cannot reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from training import BLOCK, apart, load, memorised, unlearn_config, unlearner, weights

from cg_tasks.errors import UserError
from cg_trainers.model_reading import block_of
from cg_trainers.trainable import choose_trainable

ROWS = "model.layers.{}.mlp.down_proj.weight"


def chosen(model: Any, tmp_path: Path, objective: str = "graddiff", **changes: Any) -> list[str]:
    names = choose_trainable(model, unlearn_config(tmp_path, objective, **changes))
    assert names == sorted(name for name, p in model.named_parameters() if p.requires_grad)
    return names


def deep(blocks: int = 12) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=blocks, num_attention_heads=1
    )
    return LlamaForCausalLM(config)


def test_without_patterns_everything_is(start: Path, tmp_path: Path) -> None:
    model = load(start)
    assert len(chosen(model, tmp_path)) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["layers.1.mlp.down_proj"], [ROWS.format(1)]),
        (["layers.1.mlp.down_proj.weight", "layers.11.mlp.down_proj"], [ROWS.format(1), ROWS.format(11)]),
        (["down_proj"], sorted(ROWS.format(i) for i in range(12))),
        (["lm_head"], ["lm_head.weight"]),
        ([".layers.2.input_layernorm."], ["model.layers.2.input_layernorm.weight"]),
    ],
    ids=str,
)
def test_patterns_are_whole_parts_of_names(patterns: list[str], expected: list[str], tmp_path: Path) -> None:
    """``layers.1`` is not ``layers.11``."""
    assert chosen(deep(), tmp_path, trainable=patterns) == expected


def test_the_preset_of_wmdp_trains_its_three_matrices(start: Path, tmp_path: Path) -> None:
    """Of the model, or of the adapter on it."""
    names = chosen(deep(), tmp_path, "rmu", preset="wmdp", rmu_block=7)
    assert names == [ROWS.format(block) for block in (5, 6, 7)]
    names = chosen(memorised(start), tmp_path, "rmu", preset="wmdp", rmu_block=BLOCK)
    prefix = "base_model.model.model.layers.{}.mlp.down_proj.lora_{}.default.weight"
    assert names == [prefix.format(block, x) for block in (0, 1) for x in "AB"]


def test_patterns_hold_under_an_adapters_prefixes(start: Path, tmp_path: Path) -> None:
    names = chosen(memorised(start), tmp_path, trainable=["layers.1.mlp.down_proj"])
    prefix = "base_model.model.model.layers.1.mlp.down_proj"
    assert names == [f"{prefix}.lora_{x}.default.weight" for x in "AB"]


@pytest.mark.parametrize("pattern", ["layers.9.mlp", "layers.1.mlp.down", "down_projection", "ayers.1"])
def test_a_pattern_that_matches_nothing(start: Path, tmp_path: Path, pattern: str) -> None:
    with pytest.raises(UserError) as caught:
        chosen(load(start), tmp_path, trainable=["layers.0", pattern])
    assert str(caught.value) == (
        f"trainable: '{pattern}' matches no trainable parameter; they are named like model.layers.0.self_attn.q_proj.weight"
    )


def test_a_frozen_parameter_is_not_matched(start: Path, tmp_path: Path) -> None:
    """Under LoRA the base's own weights are frozen: asking for one is a mistake and not a silent nothing."""
    with pytest.raises(UserError, match="trainable: 'lm_head' matches no trainable parameter; .*lora_A"):
        chosen(memorised(start), tmp_path, trainable=["lm_head"])


@pytest.mark.parametrize("objective", ["rmu", "r2mu"])
def test_rmu_trains_what_its_hidden_states_depend_on(start: Path, tmp_path: Path, objective: str) -> None:
    names = chosen(load(start), tmp_path, objective)
    assert {block_of(name) for name in names} == {None, 0, BLOCK}
    assert [name for name in names if block_of(name) is None] == ["model.embed_tokens.weight"]
    assert {block_of(name) for name in chosen(memorised(start), tmp_path, objective)} == {0, BLOCK}


def test_rmu_with_descent_on_the_retain_rows_trains_everything(start: Path, tmp_path: Path) -> None:
    model = load(start)
    assert len(chosen(model, tmp_path, "rmu", retain_loss="nll")) == len(list(model.parameters()))
    assert len(chosen(load(start), tmp_path, "rmu", alpha=0.0)) < len(list(model.parameters()))


def test_rmu_with_patterns_behind_its_block(start: Path, tmp_path: Path) -> None:
    assert chosen(load(start), tmp_path, "rmu", trainable=["down_proj"]) == [ROWS.format(0), ROWS.format(1)]
    with pytest.raises(UserError, match="trainable: nothing of layers.2 lies in blocks 0 to 1, and the hidden states"):
        chosen(load(start), tmp_path, "rmu", trainable=["layers.2"])


@pytest.mark.parametrize("kind", ["full", "continued"])
def test_a_run_moves_what_was_chosen_and_nothing_else(start: Path, tmp_path: Path, kind: str) -> None:
    trainer = unlearner(start, tmp_path, "graddiff", kind, trainable=["layers.1.mlp.down_proj", "layers.0.self_attn"])
    before = weights(trainer.model)
    trainer.train()
    after = weights(trainer.model)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    expected = {name for name in before if "layers.1.mlp.down_proj." in name or "layers.0.self_attn." in name}
    if kind == "continued":
        expected = {name for name in expected if "lora" in name}
    assert moved == expected and apart(before, after) > 1e-3

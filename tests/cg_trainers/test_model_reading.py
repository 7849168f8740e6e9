"""What is read of a model equals its plain forward pass, on architectures that differ, and nothing more is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training import batch_of, load, plain_logits, side, unlearner

from cg_tasks.errors import UserError
from cg_trainers import losses
from cg_trainers.model_reading import Reader, block_of, decoder_blocks
from cg_trainers.reference import cut_behind

VOCAB, BLOCKS = 320, 4
SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": BLOCKS, "num_attention_heads": 2}


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, num_key_value_heads=1, **SMALL))


def qwen2() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCAB, num_key_value_heads=1, tie_word_embeddings=True, **SMALL))


def gemma3() -> Any:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        vocab_size=VOCAB, num_key_value_heads=1, head_dim=8, sliding_window=4, final_logit_softcapping=0.5, **SMALL
    )
    config.layer_types = ["sliding_attention", "full_attention"] * 2
    return Gemma3ForCausalLM(config)


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=16, n_layer=BLOCKS, n_head=2, n_positions=64))


ARCHITECTURES: dict[str, Callable[[], Any]] = {f.__name__: f for f in (llama, qwen2, gemma3, gpt2)}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    made = ARCHITECTURES[request.param]()
    with torch.no_grad():  # as they are initialised, hidden states hardly differ from block to block
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return made.eval()


@pytest.fixture(scope="module")
def batch() -> dict[str, Tensor]:
    return batch_of(side("forget", 4, seed=7))


def wide(batch: dict[str, Tensor], by: int = 5) -> dict[str, Tensor]:
    """The batch with more padding, of another token."""
    fill = {"input_ids": 11, "attention_mask": 0, "labels": -100}
    return {k: nn.functional.pad(v, (0, by), value=fill[k]) for k, v in batch.items()}


def read(model: Any, batch: dict[str, Tensor], *reads: str, block: int = 1) -> Any:
    inputs = {k: batch[k] for k in ("input_ids", "attention_mask")}
    return Reader(model, block).read(model, set(reads), inputs, batch["labels"])


def plain_hidden(model: Any, batch: dict[str, Tensor], block: int) -> Tensor:
    inputs = {k: batch[k] for k in ("input_ids", "attention_mask")}
    with torch.no_grad():
        return model(**inputs, output_hidden_states=True).hidden_states[block + 1]


def calls(model: Any) -> list[int]:
    """The numbers of the blocks whose attention runs, in order, from now on."""
    seen: list[int] = []
    for number, block in enumerate(decoder_blocks(model)):
        attention = getattr(block, "self_attn", None) or block.attn
        attention.register_forward_pre_hook(lambda *_, number=number: seen.append(number))
    return seen


def test_nll_and_logits_are_the_plain_forwards(model: Any, batch: dict[str, Tensor]) -> None:
    reading = read(model, batch, "nll", "logits")
    full, mask = plain_logits(model, batch), losses.shifted(batch["labels"])[0]
    assert torch.allclose(reading.logits, full[:, :-1][mask], atol=1e-5)
    assert torch.allclose(reading.nll, losses.token_nll(full, batch["labels"])[0], atol=1e-5)
    assert reading.nll.shape == mask.shape and reading.logits.shape == (int(mask.sum()), VOCAB)
    assert reading.hidden is None and float(reading.nll[mask].std()) > 0.01


def test_softcapping_is_gemmas_own(batch: dict[str, Tensor]) -> None:
    torch.manual_seed(0)
    model = gemma3().eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(50)
    logits = read(model, batch, "logits").logits
    assert 0.4 < float(logits.abs().max()) <= 0.5


@pytest.mark.parametrize("block", [0, 2, 3])
def test_hidden_states_are_the_blocks_output(model: Any, batch: dict[str, Tensor], block: int) -> None:
    only = read(model, batch, "hidden", block=block)
    beside = read(model, batch, "hidden", "nll", block=block)
    # transformers reports the last block's behind the final norm: its raw output is taken from a hook of the test's own.
    if block == BLOCKS - 1:
        kept: list[Any] = []
        hook = decoder_blocks(model)[block].register_forward_hook(lambda m, a, output: kept.append(output))
        plain_logits(model, batch)
        hook.remove()
        expected = kept[0][0] if isinstance(kept[0], tuple) else kept[0]
    else:
        expected = plain_hidden(model, batch, block)
    assert torch.equal(only.hidden, expected) and torch.equal(beside.hidden, expected)
    assert only.nll is None and torch.allclose(beside.nll, read(model, batch, "nll").nll)


def test_padding_on_the_right_changes_nothing(model: Any, batch: dict[str, Tensor]) -> None:
    narrow, padded = (read(model, b, "nll", "logits", "hidden") for b in (batch, wide(batch)))
    real = batch["attention_mask"].bool()
    assert torch.allclose(narrow.logits, padded.logits, atol=1e-5)
    assert torch.allclose(narrow.nll, padded.nll[:, : narrow.nll.shape[1]], atol=1e-5)
    assert torch.allclose(narrow.hidden[real], padded.hidden[:, : real.shape[1]][real], atol=1e-5)
    # Each row alone, without any padding, says the same.
    for i, n in enumerate(batch["attention_mask"].sum(dim=1).tolist()):
        alone = read(model, {k: v[i : i + 1, :n] for k, v in batch.items()}, "nll")
        assert torch.allclose(alone.nll[0], narrow.nll[i, : n - 1], atol=1e-5)


@pytest.mark.parametrize("make", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_blocks_behind_the_one_that_is_read_do_not_run(make: Callable[[], Any], batch: dict[str, Tensor]) -> None:
    model = make().eval()
    before = plain_logits(model, batch)
    forwards = [block.forward for block in decoder_blocks(model)]
    seen = calls(model)
    read(model, batch, "hidden", block=1)
    assert seen == [0, 1]
    # And are there again afterwards.
    assert [block.forward for block in decoder_blocks(model)] == forwards
    assert not any("forward" in vars(block) for block in decoder_blocks(model))
    seen.clear()
    assert torch.equal(plain_logits(model, batch), before) and seen == [0, 1, 2, 3]


def test_the_blocks_are_restored_where_the_forward_pass_fails(batch: dict[str, Tensor]) -> None:
    model = llama()

    def fails(**_: Any) -> Any:
        raise RuntimeError("out of memory")

    reader = Reader(model, 1)
    with pytest.raises(RuntimeError, match="out of memory"):
        reader.read(fails, {"hidden"}, batch, batch["labels"])
    assert not any("forward" in vars(block) or block._forward_hooks for block in decoder_blocks(model))
    assert plain_logits(model, batch).shape[1] == batch["labels"].shape[1]  # the head reads every position again


def test_the_head_sees_the_labelled_positions_alone(batch: dict[str, Tensor]) -> None:
    model, widths = llama(), []
    reader = Reader(model, 0)
    model.lm_head.register_forward_hook(lambda m, a, out: widths.append(tuple(out.shape)))
    inputs = {k: batch[k] for k in ("input_ids", "attention_mask")}
    for reads in ({"nll"}, {"logits", "hidden"}, {"hidden"}):
        reader.read(model, reads, inputs, batch["labels"])
    n = int(losses.shifted(batch["labels"])[0].sum())
    assert widths == [(n, VOCAB), (n, VOCAB), (0, VOCAB)]


@pytest.mark.parametrize("block", [0, 1])
def test_a_reference_cut_behind_its_block_reads_the_same(
    model: Any, batch: dict[str, Tensor], block: int, request: pytest.FixtureRequest
) -> None:
    import copy

    cut = copy.deepcopy(model)
    cut_behind(cut, block)
    assert len(decoder_blocks(cut)) == block + 1 and len(decoder_blocks(model)) == BLOCKS
    assert torch.equal(read(cut, batch, "hidden", block=block).hidden, plain_hidden(model, batch, block))


def test_gradients_reach_what_is_read_and_what_it_depends_on(batch: dict[str, Tensor]) -> None:
    model = llama()
    read(model, batch, "hidden", block=1).hidden.square().mean().backward()
    reached = {block_of(name) for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert reached == {None, 0, 1}  # None: the embeddings
    assert model.lm_head.weight.grad is None or not bool(model.lm_head.weight.grad.any())


def test_trls_fused_head_gives_what_the_selected_head_gives(start: Path, tmp_path: Path) -> None:
    trainer = unlearner(start, tmp_path, "graddiff")
    batch = batch_of(side("forget", 4, seed=7))
    model = trainer.model.eval()
    fused = -model(**batch, fused_lm_head=True, use_cache=False).log_probs
    selected = trainer.reading(batch).nll
    assert fused.shape == selected.shape and torch.allclose(fused, selected, atol=1e-5)
    gradients = []
    for nll in (fused, selected):
        model.zero_grad()
        nll.sum().backward()
        gradients.append(model.model.layers[0].mlp.up_proj.weight.grad.clone())
    assert torch.allclose(*gradients, atol=1e-4) and float(gradients[0].abs().max()) > 0.01


@pytest.mark.parametrize("block", [3, 99])
def test_a_block_that_is_not_there(start: Path, batch: dict[str, Tensor], block: int) -> None:
    with pytest.raises(UserError, match=rf"^rmu_block: {block}: no such block: the model has 0 to 2$"):
        read(load(start), batch, "hidden", block=block)


def test_a_model_without_a_head(start: Path) -> None:
    with pytest.raises(UserError, match="LlamaModel has no output embeddings: an unlearning run needs a causal LM"):
        Reader(load(start).model, 0)


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("model.layers.11.mlp.down_proj.weight", 11),
        ("module.base_model.model.model.layers.5.self_attn.q_proj.lora_A.default.weight", 5),
        ("transformer.h.3.attn.c_attn.weight", 3),
        ("model.embed_tokens.weight", None),
        ("lm_head.weight", None),
        ("model.norm.weight", None),
    ],
)
def test_the_block_of_a_parameter(name: str, block: int | None) -> None:
    assert block_of(name) == block

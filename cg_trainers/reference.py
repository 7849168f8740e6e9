"""The frozen model that an objective compares with: the model as the run began.

Three ways to have it. ``precompute``: one sum per row, written down before the first step; no second model. ``adapter``: a frozen
copy of the LoRA adapter the run continues, or no adapter at all where a fresh one is trained. ``model``: a second model.
Never a deepcopy of the trainer's model (TRL patches ``forward``, and the copy follows the policy), never
``disable_adapter()`` where an adapter is continued (that is the base, which has not memorised anything).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn
from trl.trainer.utils import use_adapter

from cg_tasks.errors import UserError
from cg_trainers.model_reading import decoder_blocks, require_block
from cg_trainers.unlearn_config import UnlearnConfig

Kind = Literal["none", "precompute", "adapter", "model"]
ADAPTER = "ref"


def reference_kind(config: UnlearnConfig, has_adapter: bool) -> Kind:
    """How this run gets its reference.

    Raises:
        UserError: ``reference: adapter`` without LoRA.
    """
    if not config.compares_with:
        return "none"
    if config.reference == "adapter" and not has_adapter:
        raise UserError("reference: adapter: this run trains no LoRA adapter: use auto, or model")
    if config.reference != "auto":
        return config.reference  # type: ignore[return-value]  # checked when the config was made
    if config.compares_with == {"nll"}:
        return "precompute"
    return "adapter" if has_adapter else "model"


def add_frozen_copy(model: Any) -> None:
    """Give a PEFT model that continues an adapter a frozen copy of it, named ``ref``.

    Raises:
        UserError: the adapter has no weights of its own to copy.
    """
    config = model.peft_config["default"]
    model.add_adapter(ADAPTER, config)
    copied = 0
    with torch.no_grad():
        for name, parameter in list(model.named_parameters()):
            if ".default." in name or name.endswith(".default"):
                twin = model.get_parameter(name.replace(".default", f".{ADAPTER}"))
                twin.copy_(parameter)
                twin.requires_grad_(False)
                copied += 1
    if not copied:
        raise UserError("the adapter holds no weights to copy: reference: model loads a second model instead")
    model.set_adapter("default")


def require_trained(model: Any) -> None:
    """Refuse an adapter to continue whose every B matrix is 0: the reference would be the base model.

    Raises:
        UserError: it is one.
    """
    matrices = [p for name, p in model.named_parameters() if "lora_B" in name and ".default" in name]
    if matrices and not any(bool(p.any()) for p in matrices):
        raise UserError(
            "the adapter to continue changes nothing (every lora_B is 0), so that the reference would be the base "
            "model, which memorised nothing: name the adapter of a finished fine-tuning run"
        )


@contextmanager
def as_reference(model: Any) -> Iterator[None]:
    """The policy's model with its reference adapter in force, without dropout and without gradients."""
    training = model.training
    trained = {name: p.requires_grad for name, p in model.named_parameters()}
    # eval() also switches gradient checkpointing off, which would only recompute here.
    model.eval()
    try:
        with torch.no_grad(), use_adapter(model, ADAPTER if ADAPTER in model.peft_config else None):
            yield
    finally:
        model.train(training)
        for name, parameter in model.named_parameters():  # switching adapters switches all their gradients on
            parameter.requires_grad_(trained[name])


def cut_behind(model: Any, block: int) -> None:
    """Drop the blocks behind ``block`` of a reference of which only hidden states up to there are read.

    Raises:
        UserError: there is no such block.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    require_block(decoder_blocks(base), block)
    for name, module in base.get_decoder().named_children():
        if name in ("layers", "h", "blocks", "block") and isinstance(module, nn.ModuleList):
            del module[block + 1 :]
            base.config.get_text_config().num_hidden_layers = block + 1

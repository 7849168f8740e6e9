"""What an objective needs of one forward pass and nothing more: the head on labelled positions, hidden states of one block.

Everything goes through the model's own forward, so that DDP, FSDP, autocast and an architecture's own scaling of logits hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cg_tasks.errors import UserError
from cg_trainers import losses

_BLOCK = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)$")


@dataclass
class Reading:
    """nll [B, T-1] (0 where unlabelled), logits [N, V] of the labelled positions, hidden [B, T, d]; None where not asked for."""

    nll: Tensor | None = None
    logits: Tensor | None = None
    hidden: Tensor | None = None


class Reader:
    """Reads ``nll``, ``logits`` and ``hidden`` (of block ``block``) of a causal language model.

    ``fused``: the model carries TRL's fused head, as every model that an SFTTrainer holds does.
    Raises UserError for a model without a head, and for hidden states of a block that is not there.
    """

    def __init__(self, model: Any, block: int, fused: bool = False) -> None:
        head = model.get_output_embeddings()
        if head is None:
            raise UserError(f"{type(model).__name__} has no output embeddings: an unlearning run needs a causal LM")
        self._positions: Tensor | None = None
        self._hidden: Tensor | None = None
        self._model = model
        self._block = block
        self._fused = fused
        head.register_forward_pre_hook(self._select)

    def read(self, forward: Callable[..., Any], reads: Set[str], inputs: dict[str, Tensor], labels: Tensor) -> Reading:
        """One forward pass over input_ids, attention_mask [B, T] with labels [B, T]."""
        mask, targets = losses.shifted(labels)
        if self._fused and reads == {"nll"} and labels.device.type != "cpu":
            # Never writes the logits to memory. On a CPU it would score every position, labelled or not.
            return Reading(nll=-forward(**inputs, labels=labels, fused_lm_head=True, use_cache=False).log_probs)
        wanted = mask if reads & {"nll", "logits"} else torch.zeros_like(mask)
        with self._at(F.pad(wanted, (0, 1))), self._watching("hidden" in reads, only=reads == {"hidden"}):
            logits = forward(**inputs, use_cache=False).logits
            hidden, self._hidden = self._hidden, None
        reading = Reading(hidden=hidden)
        if "nll" in reads:
            reading.nll = losses.scattered(losses.selected_nll(logits, targets), mask)
        if "logits" in reads:
            reading.logits = logits
        return reading

    @contextmanager
    def _at(self, positions: Tensor) -> Iterator[None]:
        self._positions = positions
        try:
            yield
        finally:
            self._positions = None

    def _select(self, head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._positions is None:
            return None
        hidden = args[0]
        if hidden.shape[:2] != self._positions.shape:
            raise UserError(
                f"{type(self._model).__name__} hands its head {tuple(hidden.shape)} for a batch of "
                f"{tuple(self._positions.shape)}: this architecture cannot be unlearned here"
            )
        return (hidden[self._positions], *args[1:])

    @contextmanager
    def _watching(self, watching: bool, only: bool) -> Iterator[None]:
        """Keep the block's output; ``only``: the blocks behind it hand their input on, since nobody reads what they make."""
        if not watching:
            yield
            return
        blocks = decoder_blocks(self._model)
        require_block(blocks, self._block)
        as_tuple = False

        def keep(module: nn.Module, args: Any, output: Any) -> None:
            nonlocal as_tuple
            as_tuple = isinstance(output, tuple)
            self._hidden = output[0] if as_tuple else output

        def hand_on(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            return (hidden_states,) if as_tuple else hidden_states

        skipped = blocks[self._block + 1 :] if only else []
        hook = blocks[self._block].register_forward_hook(keep)
        for block in skipped:
            block.forward = hand_on  # type: ignore[method-assign]
        try:
            yield
        finally:
            hook.remove()
            for block in skipped:
                del block.forward


def decoder_blocks(model: Any) -> list[nn.Module]:
    """The decoder's blocks in order, whatever wraps it (``module.``, ``base_model.model.``)."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    found = {
        int(match.group(1)): module
        for name, module in base.get_decoder().named_modules()
        if (match := _BLOCK.search(name)) and name.count(".") == 1
    }
    return [found[i] for i in sorted(found)]


def require_block(blocks: list[nn.Module], block: int) -> None:
    """Raise UserError for a block that is not there, naming those that are."""
    if not 0 <= block < len(blocks):
        there = f"0 to {len(blocks) - 1}" if blocks else "none that is named layers.N"
        raise UserError(f"rmu_block: {block}: no such block: the model has {there}")


def block_of(name: str) -> int | None:
    """The number of the block a parameter belongs to, None for embeddings, the final norm and the head."""
    match = re.search(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.", name)
    return int(match.group(1)) if match else None

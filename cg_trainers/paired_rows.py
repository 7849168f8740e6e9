"""Forget rows, each with what goes beside it, and the batch they become: sides stacked on dimension 0, right-padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from cg_tasks.errors import UserError
from cg_trainers.losses import IGNORED
from cg_trainers.pairing import Pairing
from cg_trainers.rows import Row


@dataclass(frozen=True)
class UnlearnRows:
    """The rows of a run. ``preferred`` (dpo, idk): one refusal a forget row, in their order."""

    forget: Sequence[Row]
    retain: Sequence[Row] = ()
    preferred: Sequence[Row] = ()
    pairing: Pairing | None = None


class PairedRows(Dataset):  # type: ignore[type-arg]
    """Item i: forget row i, its refusal, and the retain row that the pairing draws in this epoch, as far as ``sides`` asks."""

    def __init__(self, rows: UnlearnRows, sides: Sequence[str]) -> None:
        self.rows = rows
        self.sides = tuple(sides)
        self.epoch = 0
        self._require()

    def _require(self) -> None:
        if not self.rows.forget:
            raise UserError("no forget rows: there is nothing to unlearn")
        if "retain" in self.sides and not (self.rows.retain and self.rows.pairing):
            raise UserError("no retain rows, and alpha is not 0: give retain data, or set alpha: 0")
        if "preferred" in self.sides and len(self.rows.preferred) != len(self.rows.forget):
            raise UserError(
                f"{len(self.rows.preferred)} refusals for {len(self.rows.forget)} forget rows: one each is needed"
            )

    def __len__(self) -> int:
        return len(self.rows.forget)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item: dict[str, Any] = {"index": index}
        for side in self.sides:
            item[side] = self._row(side, index)
        return item

    def _row(self, side: str, index: int) -> Row:
        if side == "retain":
            assert self.rows.pairing is not None  # _require
            return self.rows.retain[self.rows.pairing.index(self.epoch, index)]
        return (self.rows.forget if side == "forget" else self.rows.preferred)[index]


@dataclass(frozen=True)
class StackSides:
    """Collator: ``input_ids``, ``attention_mask``, ``labels``, ``trace`` [S*B, T] for S sides, ``index`` [B]."""

    sides: Sequence[str]
    pad_token_id: int

    def __call__(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        rows = [item[side] for side in self.sides for item in items]
        return {**stacked(rows, self.pad_token_id), "index": torch.tensor([item["index"] for item in items])}


def stacked(rows: Sequence[Row], pad_token_id: int) -> dict[str, Tensor]:
    """``input_ids``, ``attention_mask``, ``labels``, ``trace`` [B, T]. The mask comes from lengths: the pad token may be the eos."""
    ids = [torch.tensor(row.input_ids) for row in rows]
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=pad_token_id),
        "attention_mask": pad_sequence([torch.ones_like(i) for i in ids], batch_first=True),
        "labels": pad_sequence([torch.tensor(r.labels) for r in rows], batch_first=True, padding_value=IGNORED),
        "trace": pad_sequence([torch.tensor(r.trace, dtype=torch.bool) for r in rows], batch_first=True),
    }

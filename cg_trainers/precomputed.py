"""NPO's and DPO's reference as what it is: one sum of NLL a row, taken before the first step and kept with every checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cg_tasks.errors import UserError
from cg_trainers.paired_rows import UnlearnRows, stacked

if TYPE_CHECKING:
    from cg_trainers.rows import Row
    from cg_trainers.unlearn_trainer import UnlearnTrainer

FILE = "reference_nll.json"


@dataclass(frozen=True)
class PrecomputedNll:
    """S^ref [rows] (nats) of each side that is compared, by the rows' order."""

    sides: dict[str, Tensor]
    ids: dict[str, list[str]]

    def nll(self, side: str, index: Tensor) -> Tensor:
        """S^ref of rows ``index`` [B]."""
        return self.sides[side][index.cpu()]

    @classmethod
    def of(cls, trainer: UnlearnTrainer, rows: UnlearnRows, sides: Sequence[str]) -> PrecomputedNll:
        """From the trainer's model as it stands, every process a share of the rows."""
        by_side: dict[str, Sequence[Row]] = {"forget": rows.forget, "preferred": rows.preferred}
        return cls(
            {side: _sums(trainer, by_side[side]) for side in sides},
            {side: [row.row_id for row in by_side[side]] for side in sides},
        )

    def save(self, folder: Path) -> None:
        """Write it into a checkpoint's folder; floats survive JSON to the bit."""
        content = {side: dict(zip(self.ids[side], values.tolist(), strict=True)) for side, values in self.sides.items()}
        (folder / FILE).write_text(json.dumps(content), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, rows: UnlearnRows, sides: Sequence[str]) -> PrecomputedNll:
        """Read a checkpoint's back.

        Raises:
            UserError: it is missing, or is of other rows.
        """
        path = folder / FILE
        if not path.is_file():
            raise UserError(f"{path} is missing: this checkpoint cannot be resumed, its reference was not kept")
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        ids = {side: [r.row_id for r in (rows.forget if side == "forget" else rows.preferred)] for side in sides}
        if {side: list(content.get(side, {})) for side in sides} != ids:
            raise UserError(f"{path} is of other rows than this run's: resume with the data it was started with")
        return cls({side: torch.tensor(list(content[side].values())) for side in sides}, ids)


@torch.no_grad()
def _sums(trainer: UnlearnTrainer, rows: Sequence[Row]) -> Tensor:
    size, ranks, rank = trainer.args.per_device_train_batch_size, trainer.args.world_size, trainer.args.process_index
    sums = torch.zeros(len(rows), device=trainer.args.device, dtype=torch.float32)
    trainer.model_wrapped.eval()
    # Sorted by length, so that little is padding. Under FSDP every process has to take part in every forward pass.
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].input_ids))
    batches = [order[i : i + size] for i in range(0, len(order), size)]
    for start in range(0, len(batches), ranks):
        mine = batches[min(start + rank, len(batches) - 1)]
        batch = trainer._prepare_inputs(stacked([rows[i] for i in mine], trainer.data_collator.pad_token_id))
        with trainer.compute_loss_context_manager():
            nll = trainer.reading(batch).nll
        if start + rank < len(batches):
            assert nll is not None
            sums[mine] = nll.sum(dim=1).float()
    trainer.model_wrapped.train()
    if ranks > 1:
        sums = trainer.accelerator.reduce(sums, reduction="sum")
    return sums.cpu()

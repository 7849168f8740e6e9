"""What both scripts do around a trainer: checks before it is made, the record, resume, and the words at the end."""

from __future__ import annotations

import logging
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cg_tasks.adapters import RECORD, read_record
from cg_tasks.errors import UserError, exit_code
from cg_trainers.provenance import checkpoints, disk_space_needed, require_disk_space, resolve_resume

if TYPE_CHECKING:  # they import torch and TRL: seconds before a mistake on the command line is told
    from cg_trainers.recorded_trainer import RecordedTrainer
    from cg_trainers.unlearn_config import FinetuneConfig

log = logging.getLogger(__name__)

# What a resumed run may change: where and how much it writes and says. Not how long it goes on: a schedule depends on it.
_FREE = {
    "save_at", "save_strategy", "save_steps", "save_total_limit", "save_only_model", "output_dir", "resume_from_checkpoint",
    "logging_steps", "logging_strategy", "logging_first_step", "report_to", "run_name", "project", "disable_tqdm", "log_level",
    "dataloader_num_workers", "dataloader_pin_memory", "trackio_space_id", "hub_model_id",
}  # fmt: skip


def script(run: Callable[[Sequence[str]], Any]) -> int:
    """Run a script's main; a mistake of the user's is one line on stderr and exit code 1."""
    rank = int(os.environ.get("RANK", "0"))
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s", stream=sys.stderr)
    for noisy in ("httpx", "httpx2", "httpcore", "filelock", "urllib3", "accelerate"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # TRL's own default sets it; the new name came with transformers 5.20.
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated", category=FutureWarning)

    def ran() -> int:
        run(sys.argv[1:])
        return 0

    return exit_code(ran)


def resume_point(config: FinetuneConfig) -> str | None:
    """The checkpoint to go on from. Without one, the output folder must not hold another run's.

    Raises:
        UserError: it does, or the checkpoint to resume from is not whole.
    """
    output = Path(str(config.output_dir)).expanduser()
    resume = resolve_resume(config.resume_from_checkpoint, output)
    _require_writable(output)
    if resume is None and output.is_dir():
        complete, broken = checkpoints(output)
        if complete or broken or (output / RECORD).is_file():
            raise UserError(
                f"output_dir: {output} holds a run already: go on with it (resume_from_checkpoint: true), or name another"
            )
    return resume


def _require_writable(output: Path) -> None:
    place = output.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise UserError(f"output_dir: {output}: {place} is a file: name a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UserError(f"output_dir: {output}: nothing can be written in {place}: name another folder")


def require_same_run(checkpoint: str | None, record: Mapping[str, Any]) -> None:
    """Refuse to resume a run under other settings, data, weights or number of processes, naming what differs.

    Raises:
        UserError: something differs that decides what the parameters become.
    """
    if checkpoint is None:
        return
    before = read_record(Path(checkpoint))
    differing = [
        key
        for key in ("kind", "objective", "seed", "base", "start_adapter", "data", "world_size")
        if before.get(key) != record.get(key)
    ]
    then, now = before.get("settings") or {}, record.get("settings") or {}
    differing += [key for key in sorted({*then, *now} - _FREE) if then.get(key) != now.get(key)]
    if differing:
        first = differing[0]
        was, is_ = (
            (then.get(first), now.get(first)) if first in {*then, *now} else (before.get(first), record.get(first))
        )
        more = f" (and {', '.join(differing[1:4])})" if len(differing) > 1 else ""
        raise UserError(
            f"resume_from_checkpoint: {checkpoint} was made with {first}: {was!r}, and this run has {is_!r}{more}: "
            "resume with the settings it was started with, or start anew in another output_dir"
        )


def require_room(trainer: RecordedTrainer) -> None:
    """Refuse a run whose checkpoints do not fit on the disk. Raises UserError."""
    config = trainer.args
    parameters = list(trainer.model.parameters())
    trained = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
    saved = trained if hasattr(trainer.model, "peft_config") else sum(p.numel() * p.element_size() for p in parameters)
    steps = trainer.total_steps()
    kept = len(config.save_at)
    if config.save_strategy == "steps":
        kept += steps // max(1, int(config.save_steps if config.save_steps >= 1 else config.save_steps * steps))
    elif config.save_strategy == "epoch":
        kept += int(config.num_train_epochs)
    needed = disk_space_needed(saved, trained, kept, not config.save_only_model, config.save_total_limit)
    require_disk_space(str(config.output_dir), needed)


def train(trainer: RecordedTrainer, resume: str | None) -> Path:
    """Train, save, and say where; returns the output folder.

    Raises:
        UserError: the loss is no longer a number.
    """
    require_room(trainer)
    result = trainer.train(resume_from_checkpoint=resume)
    weights = (p for p in trainer.model.parameters() if p.requires_grad)
    if not (math.isfinite(result.training_loss) and all(bool(p.isfinite().all()) for p in weights)):
        raise UserError(
            f"the loss or the weights are no longer numbers at step {trainer.state.global_step}: nothing was saved at the end; "
            "lower learning_rate (or max_grad_norm), and see the curve in the last checkpoint's trainer_state.json"
        )
    folder = trainer.save_final()
    if trainer.accelerator.is_main_process:
        flag = "peft" if hasattr(trainer.accelerator.unwrap_model(trainer.model), "peft_config") else "pretrained"
        log.info(
            "%s: %d steps. Evaluate with lm_eval … --model_args %s=%s", folder, trainer.state.global_step, flag, folder
        )
    return folder

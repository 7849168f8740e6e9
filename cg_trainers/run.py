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

from cg_tasks.adapters import read_record
from cg_tasks.errors import UserError, exit_code
from cg_trainers.checkpoint_folders import disk_space_needed, require_disk_space, require_unused, resolve_resume

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
        try:
            run(sys.argv[1:])
        except ImportError as error:  # a setting of transformers, TRL or peft that wants a package of its own
            raise UserError(f"{' '.join(str(error).split())[:400]}: install it, or leave the setting out") from error
        return 0

    return exit_code(ran)


def resume_point(config: FinetuneConfig) -> str | None:
    """The checkpoint to go on from. Without one, the output folder must not hold another run's.

    Raises:
        UserError: it does, or the checkpoint to resume from is not whole; several GPUs in this process.
    """
    config.require_one_gpu()
    output = Path(str(config.output_dir)).expanduser()
    resume = resolve_resume(config.resume_from_checkpoint, output)
    _require_writable(output)
    if resume is None:
        require_unused(output)
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
    differing: dict[str, tuple[Any, Any]] = {}
    for key in ("kind", "objective", "seed", "world_size"):
        differing |= _differences(key, before.get(key), record.get(key))
    then, now = before.get("settings") or {}, record.get("settings") or {}
    differing |= {key: (then.get(key), now.get(key)) for key in sorted({*then, *now} - _FREE)}
    differing = {key: (was, is_) for key, (was, is_) in differing.items() if was != is_}
    # Behind the settings, which say the same in the user's own words where they differ.
    for key in ("base", "tokenizer", "start_adapter", "data"):
        differing |= _differences(key, before.get(key), record.get(key))
    # What was trained on sums up all that it is made from: worth a word only where nothing else tells.
    rows = differing.pop("data.rows_sha256", None)
    if rows and not differing:
        differing["data.rows_sha256"] = rows
    if differing:
        (first, (was, is_)), *others = differing.items()
        more = f" (and {', '.join(key for key, _ in others[:3])})" if others else ""
        raise UserError(
            f"resume_from_checkpoint: {checkpoint} was made with {first}: {was!r}, and this run has {is_!r}{more}: "
            "resume with the settings and files it was started with, or start anew in another output_dir"
        )


def _differences(name: str, before: Any, now: Any) -> dict[str, tuple[Any, Any]]:
    """What differs between two entries of a record, by its dotted name."""
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return {} if before == now else {name: (before, now)}
    found: dict[str, tuple[Any, Any]] = {}
    for key in sorted({*before, *now}):
        found |= _differences(f"{name}.{key}", before.get(key), now.get(key))
    return found


def require_room(trainer: RecordedTrainer) -> None:
    """Refuse a run whose checkpoints do not fit on the disk. Raises UserError."""
    config = trainer.args
    parameters = list(trainer.model.parameters())
    trained = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
    saved = trained if hasattr(trainer.model, "peft_config") else sum(p.numel() * p.element_size() for p in parameters)
    steps = trainer.total_steps()
    passing = 0
    if config.save_strategy == "steps":
        passing = steps // max(1, int(config.save_steps if config.save_steps >= 1 else config.save_steps * steps))
    elif config.save_strategy == "epoch":
        passing = math.ceil(config.num_train_epochs)
    needed = disk_space_needed(
        saved, trained, len(config.save_at), not config.save_only_model, passing, config.save_total_limit
    )
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

"""TRL's SFTTrainer, whose checkpoints appear whole, at the steps asked for, each with the record of what made it.

A checkpoint is written in a folder of another name and renamed when it is complete, so that a killed run or a full disk leaves
the previous ones as they were, and nothing that could be taken for a checkpoint.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model
from transformers import TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import SFTTrainer

from cg_tasks.adapters import RECORD
from cg_tasks.errors import UserError
from cg_trainers.checkpoint_folders import resolve_resume, thin_out
from cg_trainers.losses import IGNORED
from cg_trainers.model_reading import Reader
from cg_trainers.provenance import begin_record, write_record

UNFINISHED = ".unfinished"


class RecordedTrainer(SFTTrainer):
    """An SFTTrainer with ``args.save_at`` and a ``record`` that is written, with the step, into every folder it saves."""

    # Narrower than transformers declares them.
    args: Any
    model: Any
    processing_class: Any

    def __init__(self, *args: Any, record: Mapping[str, Any], **kwargs: Any) -> None:
        self.record = dict(record)
        self._saving = False
        super().__init__(*args, **kwargs)
        self.args.require_one_gpu()
        if self.is_fsdp_enabled and "FULL" not in str(self.accelerator.state.fsdp_plugin.state_dict_type):
            raise UserError(
                "fsdp_state_dict_type: sharded checkpoints hold no adapter that can be loaded: set it to FULL_STATE_DICT in "
                "accelerate's configuration"
            )
        self.add_callback(_SaveAt(self.args.save_at))
        self.add_callback(_StopAtNan())

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As transformers', from a whole checkpoint only. Raises UserError for one that is not."""
        resume = resolve_resume(resume_from_checkpoint, self.args.output_dir)
        if resume is not None:
            self.load_extra(Path(resume))
        return super().train(resume, *args, **kwargs)

    def total_steps(self) -> int:
        """Optimiser steps of the whole run."""
        return int(self.set_initial_training_values(self.args, self.get_train_dataloader())[-1])

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """None: ``conceptguard.json`` says what made a checkpoint."""

    def _get_output_dir(self, trial: Any) -> str:
        folder = str(super()._get_output_dir(trial))
        return os.path.join(folder, UNFINISHED) if self._saving else folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        output = Path(self._get_output_dir(trial))
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        self._clear(output / UNFINISHED)
        self._saving = True
        try:
            super()._save_checkpoint(model, trial)
            self.save_extra(output / UNFINISHED / name)
        except Exception as error:
            raise _room_asked_for(error, output) from None
        finally:
            self._saving = False
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            folder = output / UNFINISHED / name
            write_record(folder, {**self.record, "step": self.state.global_step})
            if (output / name).exists():
                # Only a resumed run can meet one: it continued behind this step and made the same again.
                shutil.rmtree(output / name)
            folder.rename(output / name)
            (output / UNFINISHED).rmdir()
            thin_out(output, self.args.save_total_limit, keep=self.args.save_at, trash=UNFINISHED)
        self.accelerator.wait_for_everyone()

    def save_extra(self, folder: Path) -> None:
        """Write what else a resumed run needs into a checkpoint's folder; on every process."""

    def load_extra(self, folder: Path) -> None:
        """Read it back, before training goes on."""

    def save_final(self) -> Path:
        """The trained model in ``output_dir`` itself, with its record; returns that folder."""
        output = Path(self.args.output_dir)
        staging = output / UNFINISHED
        self._clear(staging)
        try:
            self.save_model(str(staging), _internal_call=True)
        except Exception as error:
            raise _room_asked_for(error, output) from None
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            self.state.save_to_json(str(staging / TRAINER_STATE_NAME))  # the curves
            write_record(staging, {**self.record, "step": self.state.global_step})
            begin_record(output)
            for file in sorted(staging.iterdir(), key=lambda path: path.name == RECORD):  # the record last
                os.replace(file, output / file.name)
            staging.rmdir()
        self.accelerator.wait_for_everyone()
        return output

    def _clear(self, staging: Path) -> None:
        if self.args.should_save:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
        self.accelerator.wait_for_everyone()

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """The adapter alone (never the frozen copy beside it) or the model, and the tokenizer.

        Not transformers' own: that also pickles the arguments, and with several adapters writes every one.
        """
        if not self.args.should_save:
            return
        folder = output_dir or self.args.output_dir
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        extra = {"selected_adapters": ["default"]} if is_peft_model(model) else {}
        model.save_pretrained(folder, state_dict=state_dict, **extra)
        # peft's form of a model card, filled in nowhere; conceptguard.json says what made this.
        (Path(folder) / "README.md").unlink(missing_ok=True)
        self.processing_class.save_pretrained(folder)


def _room_asked_for(error: Exception, output: Path) -> Exception:
    """What a full disk raises (an OSError, or safetensors' own) in words; any other error as it is."""
    if "no space left" not in str(error).lower():
        return error
    return UserError(
        f"{output}: the disk is full: make room and go on with --resume_from_checkpoint auto; the checkpoints before are whole"
    )


class FinetuneTrainer(RecordedTrainer):
    """Fine-tuning by the token mean of the NLL, as TRL does it; on a CPU the head sees the labelled positions alone.

    TRL's fused head scores every position there: a LoRA step on a 135M model took 9.4 s, this one 6.8.
    """

    loss_is_scaled_for_ga = True  # type: ignore[assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reader = Reader(self.model, block=0)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The batch's summed NLL over the labelled tokens of the whole accumulated batch on all processes."""
        if self.args.device.type != "cpu" or return_outputs or self.args.loss_type != "nll":
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs["labels"]
        nll = self._reader.read(model, {"nll"}, {k: inputs[k] for k in ("input_ids", "attention_mask")}, labels).nll
        assert nll is not None
        if num_items_in_batch is None:
            return nll.sum() / (labels[:, 1:] != IGNORED).sum()
        counted = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
        return nll.sum() / num_items_in_batch * counted


class _SaveAt(TrainerCallback):
    def __init__(self, steps: list[int]) -> None:
        self._steps = set(steps)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._steps and max(self._steps) > state.max_steps:
            raise UserError(
                f"save_at: step {max(self._steps)} is never reached: the run has {state.max_steps} steps; "
                "set max_steps, or ask for fewer"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.global_step in self._steps:
            control.should_save = True
        return control


class _StopAtNan(TrainerCallback):
    """Hours of a run that is lost, and checkpoints of it, are worth nothing; every process is told the same mean loss."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        loss = float((logs or {}).get("loss", 0.0))
        if not math.isfinite(loss):
            raise UserError(
                f"the loss became {loss} by step {state.global_step}, and the run stopped: lower learning_rate or "
                f"max_grad_norm; what was saved before stands in {args.output_dir}"
            )

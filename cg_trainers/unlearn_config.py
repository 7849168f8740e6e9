"""The settings of a run: TRL's ``SFTConfig``, the steps to keep, and for unlearning the objective and its weights."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec

import torch
from trl import SFTConfig

from cg_tasks.errors import UserError
from cg_trainers.config_files import WEIGHTS
from cg_trainers.objectives import OBJECTIVES, RETAIN_LOSSES, Objective, RetainLoss

REFERENCES = ("auto", "precompute", "adapter", "model")


@dataclass
class FinetuneConfig(SFTConfig):
    """``SFTConfig`` with ``save_at``: the optimiser steps K after which a checkpoint is kept, beside ``save_strategy``.

    Raises UserError for what the trainers cannot do.
    """

    # Left on, an epoch's checkpoints would hide the ones that were asked for.
    save_strategy: str = field(default="no", metadata={"help": "Checkpoints beside `save_at`: no, steps or epoch."})
    # transformers would put the mean of the steps before in the place of a loss that is NaN.
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Report a loss that is not a number as 0."})
    save_at: list[int] = field(
        default_factory=list, metadata={"help": "Optimiser steps K after which a checkpoint is kept."}
    )

    def __post_init__(self) -> None:
        _refuse(self, {"packing": False, "padding_free": False, "eval_packing": None, "push_to_hub": False})
        if self.hub_token is not None:
            raise UserError("hub_token: secrets are not settings here: log in with `hf auth login`, or set HF_TOKEN")
        if any(isinstance(k, bool) or not isinstance(k, int) or k < 1 for k in self.save_at):
            raise UserError(f"save_at: {self.save_at}: give the steps as whole numbers from 1 upwards")
        _require_finite(self)
        _check_report_to(self.report_to)
        _require_packages(self)
        self.save_at = sorted(set(self.save_at))
        _require_positive(self, ("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs"))
        if self.max_steps == 0 or self.max_steps < -1:
            raise UserError(f"max_steps: {self.max_steps}: must be 1 or more; left out, num_train_epochs counts")
        if not self.learning_rate >= 0:
            raise UserError(f"learning_rate: {self.learning_rate}: must be 0 or more")
        # transformers refuses bf16 on a machine without an accelerator unless it is told that this is meant.
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        if self.save_at and 0 < self.max_steps < self.save_at[-1]:
            raise UserError(
                f"save_at: step {self.save_at[-1]} is never reached, the run ends at max_steps: {self.max_steps}"
            )
        super().__post_init__()

    def require_one_gpu(self) -> None:
        """Refuse several GPUs in one process: transformers would split a batch among them, and with it forget and retain rows.

        Raises:
            UserError: there are several.
        """
        if self.n_gpu > 1:
            raise UserError(
                f"{self.n_gpu} GPUs and one process, which would split each batch among them: start one process a GPU "
                f"(accelerate launch --num_processes {self.n_gpu} -m cg_trainers.…), or show it one (CUDA_VISIBLE_DEVICES=0)"
            )


@dataclass
class UnlearnConfig(FinetuneConfig):
    """Settings of one unlearning run. A weight left at None takes the objective's preset; after construction none is None
    that the objective has, and one that it has not is an error.

    Raises UserError for an unknown objective, reference, retain loss or preset (with the nearest name), and for weights
    that the objective does not have.
    """

    objective: str = field(default="", metadata={"help": f"One of {', '.join(OBJECTIVES)}."})
    preset: str | None = field(default=None, metadata={"help": "rmu: `wmdp`, the authors' weights and parameters."})
    gamma: float | None = field(default=None, metadata={"help": "Weight of the forget term."})
    alpha: float | None = field(default=None, metadata={"help": "Weight of the retain term; 0: no retain data."})
    beta: float | None = field(
        default=None, metadata={"help": "Inverse temperature (npo, simnpo, dpo), exponent (wga)."}
    )
    delta: float | None = field(default=None, metadata={"help": "SimNPO's margin over beta, in nats a token."})
    strength: float | None = field(default=None, metadata={"help": "UNDIAL: what is taken off the label's logit."})
    steering_coeff: float | None = field(default=None, metadata={"help": "RMU: length of the control vector."})
    trace_weight: float | None = field(default=None, metadata={"help": "R2MU: weight of the trace term."})
    rmu_block: int = field(default=7, metadata={"help": "RMU: the block (from 0) whose hidden states are steered."})
    trainable: list[str] | None = field(
        default=None,
        metadata={"help": "Parameters to train, as endings or parts of their names, e.g. layers.5.mlp.down_proj."},
    )
    retain_loss: str | None = field(default=None, metadata={"help": "nll, kl or hidden; default: the objective's."})
    reference: str = field(
        default="auto", metadata={"help": f"Where the frozen model comes from: {', '.join(REFERENCES)}."}
    )

    def __post_init__(self) -> None:
        if not self.objective:
            raise UserError(f"objective: none is given: an unlearning run needs one of {', '.join(OBJECTIVES)}")
        _refuse(self, {"dataloader_persistent_workers": False})
        _check_name("objective", self.objective, OBJECTIVES)
        _check_name("reference", self.reference, REFERENCES)
        self.retain_loss = self.retain_loss or self.spec.retain
        _check_name("retain_loss", self.retain_loss, RETAIN_LOSSES)
        self._resolve_weights()
        self._check_combination()
        super().__post_init__()
        if self.eval_strategy != "no" or self.do_eval:
            raise UserError(
                "eval_strategy: an unlearning run has no evaluation of its own: evaluate its checkpoints with "
                "lm_eval --model_args pretrained=BASE,peft=CHECKPOINT"
            )

    @property
    def spec(self) -> Objective:
        """The objective's row of the table."""
        return OBJECTIVES[self.objective]

    @property
    def retain_spec(self) -> RetainLoss | None:
        """The retain loss, None where alpha is 0: the retain data are then not even read."""
        return RETAIN_LOSSES[str(self.retain_loss)] if self.weights["alpha"] else None

    @property
    def weights(self) -> Mapping[str, float]:
        """The objective's own weights, all of them set."""
        return {name: float(getattr(self, name)) for name in self.spec.preset}

    @property
    def compares_with(self) -> set[str]:
        """What is read of a frozen model: of nll, logits, hidden; empty where the objective needs none."""
        retain = self.retain_spec.reference if self.retain_spec else None
        return {what for what in (self.spec.reference, retain) if what}

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides a batch is made of, in the order they are stacked."""
        return (*self.spec.sides, "retain") if self.retain_spec else self.spec.sides

    def _resolve_weights(self) -> None:
        preset = self.spec.preset
        self.preset = self.preset or None  # --preset '' undoes a recipe's
        if self.preset is not None:
            _check_name("preset", self.preset, self.spec.variants)
            variant = self.spec.variants[self.preset]
            preset = variant.weights
            self.trainable = self.trainable or variant.parameters(self.rmu_block)
        for name in WEIGHTS:
            given = getattr(self, name)
            if given is not None and name not in self.spec.preset:
                raise UserError(f"{name}: {self.objective} has no such weight; it has {', '.join(self.spec.preset)}")
            if given is None and name in preset:
                setattr(self, name, preset[name])
        for name in ("beta", "steering_coeff"):
            if name in self.spec.preset and not getattr(self, name) > 0:
                raise UserError(f"{name}: {getattr(self, name)}: must be greater than 0")
        for name in ("gamma", "alpha", "trace_weight", "strength"):
            if name in self.spec.preset and not getattr(self, name) >= 0:
                raise UserError(f"{name}: {getattr(self, name)}: must be 0 or more")

    def _check_combination(self) -> None:
        reads_hidden = self.spec.reads == "hidden"
        if self.retain_spec and (self.retain_spec.reads == "hidden") and not reads_hidden:
            raise UserError(f"retain_loss: hidden belongs to rmu and r2mu; {self.objective} takes nll or kl")
        if self.reference == "precompute" and self.compares_with - {"nll"}:
            raise UserError(
                f"reference: precompute: only sums can be precomputed, and {self.objective} with retain_loss: "
                f"{self.retain_loss} compares {' and '.join(sorted(self.compares_with))}: use auto"
            )
        if self.rmu_block < 0:
            raise UserError(f"rmu_block: {self.rmu_block}: blocks are counted from 0")


def _check_name(key: str, value: object, known: Iterable[str]) -> None:
    names = list(known)
    if value in names:
        return
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise UserError(f"{key}: unknown '{value}': {hint}it is one of {', '.join(names) or '(none)'}")


def _require_positive(config: SFTConfig, names: Iterable[str]) -> None:
    for name in names:
        if not getattr(config, name) > 0:
            raise UserError(f"{name}: {getattr(config, name)}: must be greater than 0")


def _require_finite(config: SFTConfig) -> None:
    for entry in fields(config):
        value = getattr(config, entry.name, None)
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{entry.name}: {value}: must be a number")


def _require_packages(config: SFTConfig) -> None:
    """transformers says it in a traceback, after the model is loaded."""
    optim = str(getattr(config.optim, "value", config.optim))
    for wanted, package in (
        ("use_liger_kernel" if config.use_liger_kernel else None, "liger_kernel"),
        (f"optim: {optim}" if "8bit" in optim or "paged" in optim else None, "bitsandbytes"),
        ("deepspeed" if config.deepspeed else None, "deepspeed"),
    ):
        if wanted and not find_spec(package):
            name = package.replace("_", "-")
            raise UserError(f"{wanted}: {name} is not installed: pip install {name}, or leave it out")


def _check_report_to(names: str | list[str] | None) -> None:
    """transformers says it in a traceback, after the model is loaded."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    for name in [names] if isinstance(names, str) else names or ():
        if name not in ("none", "all"):
            _check_name("report_to", name, INTEGRATION_TO_CALLBACK)
            if name in ("trackio", "wandb", "tensorboard", "mlflow", "comet_ml") and not find_spec(name):
                raise UserError(f"report_to: {name} is not installed: pip install {name}, or report_to: none")


def _refuse(config: SFTConfig, wanted: Mapping[str, object]) -> None:
    why = {
        "packing": "packed rows lose which pair or author they are",
        "eval_packing": "packed rows lose which pair or author they are",
        "padding_free": "flattened rows lose which pair or author they are",
        "dataloader_persistent_workers": "workers that outlive an epoch would keep its retain rows",
        "push_to_hub": "checkpoints are written here; upload a finished folder with `hf upload`",
    }
    for name, value in wanted.items():
        if getattr(config, name) != value:
            raise UserError(f"{name}: {getattr(config, name)}: not here: {why[name]}: leave it out")

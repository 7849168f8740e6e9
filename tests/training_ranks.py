"""What one process of several trains: ``training_ranks.py START OUT [--fsdp] [--resume] CASE…``, the ranks in the environment.

The first process writes OUT/<case>.safetensors, the parameters, and OUT/<case>.json, the curves. ``--fsdp`` shards by FSDP2 on the
CPU, which accelerate has no setting for: it is told that the processes have GPUs, and given the CPU as their device.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

STEPS, ROWS_A_STEP, ACCUMULATION, SAVED = 3, 8, 2, 2
# With the usual epsilon, the sign of a gradient that is only rounding would be a whole step.
ADAM = {"optim": "adamw_torch", "adam_epsilon": 1e-2}

# Name: the objective, how it trains, its other settings.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "graddiff": ("graddiff", "continued", {}),
    "grad_ascent": ("grad_ascent", "fresh", {}),
    "npo": ("npo", "continued", {}),
    "npo-kl": ("npo", "continued", {"retain_loss": "kl"}),
    "npo-full": ("npo", "full", {**ADAM, "learning_rate": 1e-3, "save_at": [SAVED]}),
    "npo-saved": ("npo", "continued", {**ADAM, "learning_rate": 1e-2, "save_at": [SAVED]}),
    "simnpo": ("simnpo", "continued", {}),
    "dpo": ("dpo", "continued", {}),
    "idk": ("idk", "continued", {}),
    "wga": ("wga", "continued", {}),
    "undial": ("undial", "continued", {"alpha": 1.0, "learning_rate": 0.1}),
    "undial-full": ("undial", "full", {"alpha": 0.5, "learning_rate": 0.1}),
    "rmu": ("rmu", "continued", {}),
    "rmu-full": ("rmu", "full", {"trainable": ["layers.0.mlp", "layers.1.mlp.down_proj"]}),
    "r2mu": ("r2mu", "fresh", {}),
}


def train(start: Path, out: Path, case: str, resume: bool = False) -> None:
    """Train one case: 16 rows of different lengths, 8 a step in two halves; the third step is of the second epoch."""
    from safetensors.torch import save_file
    from training import unlearn_rows, unlearner

    objective, kind, settings = CASES[case]
    world = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = unlearner(
        start,
        out / f"{case}-run",
        objective,
        kind,
        rows=unlearn_rows(2 * ROWS_A_STEP, "concept"),
        per_device_train_batch_size=ROWS_A_STEP // ACCUMULATION // world,
        gradient_accumulation_steps=ACCUMULATION,
        max_steps=STEPS,
        **{"max_grad_norm": 1.0, **settings},
    )
    assert trainer.args.world_size == world
    assert trainer.is_fsdp_enabled == ("--fsdp" in sys.argv)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    trainer.train(resume_from_checkpoint=str(out / f"{case}-run" / f"checkpoint-{SAVED}") if resume else None)
    if trainer.is_fsdp_enabled:
        from torch.distributed.tensor import DTensor

        assert all(isinstance(p, DTensor) and p.to_local().numel() < p.numel() for p in trainer.model.parameters())
    state = {n.removeprefix("module."): p for n, p in trainer.accelerator.get_state_dict(trainer.model_wrapped).items()}
    if trainer.accelerator.is_main_process:
        moved = max(float((state[name] - p).abs().max()) for name, p in before.items())
        save_file({n: p.detach().clone().contiguous() for n, p in state.items()}, out / f"{case}.safetensors")
        (out / f"{case}.json").write_text(json.dumps({"moved": moved, "log": trainer.state.log_history[:-1]}))


def shard_on_the_cpu() -> None:
    """Have accelerate take FSDP's settings, which it drops for processes on a CPU."""
    from accelerate import state
    from accelerate.utils import DistributedType

    def set_device(self: Any) -> None:
        self.device = torch.device("cpu")

    state.PartialState._prepare_backend = lambda self, *args, **kwargs: ("gloo", DistributedType.MULTI_GPU)
    state.PartialState.set_device = set_device
    torch.distributed.init_process_group("gloo")


if __name__ == "__main__":
    flags = {word for word in sys.argv[1:] if word.startswith("--")}
    start, out, *cases = [word for word in sys.argv[1:] if word not in flags]
    if "--fsdp" in flags:
        shard_on_the_cpu()
    for name in cases:
        train(Path(start), Path(out), name, "--resume" in flags)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()

"""Command lines of short runs of the training scripts, and what every one-line refusal is held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cg_tasks.errors import UserError

SHORT = {
    "use_cpu": "true",
    "bf16": "false",
    "dtype": "float32",
    "gradient_checkpointing": "false",
    "per_device_train_batch_size": 2,
    "max_steps": 2,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "report_to": "none",
    "disable_tqdm": "true",
}
LORA = {"use_peft": "true", "lora_r": 4, "lora_dropout": 0, "lora_target_modules": "all-linear"}
PAIRS = {"dataset": "miniature", "max_pairs": 4, "max_length": 48}
CANARIES = {"canaries": "fictional", "max_authors": 1, "rows": ["canary", "qa"], "trace": "none"}


def command(model: Path | str | None, output_dir: Path, *groups: dict[str, Any], **changes: Any) -> list[str]:
    """``--name value`` for each setting that is not None; later ones win."""
    settings: dict[str, Any] = {"model_name_or_path": model, "output_dir": output_dir}
    for group in (SHORT, *groups, changes):
        settings |= group
    words: list[str] = []
    for name, value in settings.items():
        if value is not None:
            words += [f"--{name}", *(str(v) for v in (value if isinstance(value, list) else [value]))]
    return words


def refusal(main: Callable[[Sequence[str]], Any], words: Sequence[str]) -> str:
    """The one-line message that a script refuses a command line with."""
    with pytest.raises(UserError) as caught:
        main(words)
    message = str(caught.value)
    assert "\n" not in message and "Traceback" not in message
    return message

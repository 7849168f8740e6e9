"""A record of training, and an adapter's folder to write it into."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from cg_tasks.adapters import RECORD
from cg_trainers.provenance import training_record

WEIGHTS = "adapter_model.safetensors"


def record(**changes: Any) -> dict[str, Any]:
    """Of an unlearning run, step 100; ``changes`` are of what it was made with."""
    made: dict[str, Any] = {
        "kind": "unlearn",
        "objective": "npo",
        "step": 100,
        "settings": {"beta": 0.1},
        "data": {"name": "miniature", "sha256": "00", "rows": 60},
        "base": {"name": "tiny", "sha256": {}},
        "start_adapter": None,
        "reference": {"kind": "precompute"},
        "seed": 0,
        "world_size": 1,
        "command": ["/usr/bin/python", "-m", "cg_trainers.unlearn", "--config", "/home/me/npo.yaml"],
    }
    return training_record(**{**made, **changes})


def copied(source: Path, target: Path) -> Path:
    """An adapter's folder again, without its record."""
    return Path(shutil.copytree(source, target, ignore=shutil.ignore_patterns(RECORD)))

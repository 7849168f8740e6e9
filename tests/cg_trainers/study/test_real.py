"""A study of the tiny model through the real commands: memorise, unlearn at two K, evaluate, report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from training_scripts import CANARIES, LORA, SHORT

from cg_tasks.adapters import verify_adapter


@pytest.mark.slow
def test_from_one_file_to_the_report(tiny: Path, tmp_path: Path) -> None:
    recipe = {**SHORT, **LORA, **CANARIES, "rows": ["canary"]}
    recipe = {key: yaml.safe_load(value) if isinstance(value, str) else value for key, value in recipe.items()}
    (tmp_path / "ft.yaml").write_text(yaml.safe_dump({**recipe, "model_name_or_path": "x", "trace": "none"}))
    unlearning = {"include": "ft.yaml", "objective": "npo", "alpha": 0, "adapter_name_or_path": "x"}
    (tmp_path / "npo.yaml").write_text(yaml.safe_dump(unlearning))
    study = {
        "name": "tiny",
        "models": {"tiny": {"pretrained": str(tiny)}},
        "finetune": {"memorise": {"recipe": "ft.yaml", "regimes": ["bio"]}},
        "unlearn": {"npo": {"recipe": "npo.yaml", "from": "memorise", "K": [1, 2]}},
        "evaluate": {
            "tasks": ["canary_auto", "conceptguard_harmqa"],
            "when": "unlearned",
            "metadata": {"dataset": "miniature"},
            "limit": 2,
            "batch_size": 2,
            "gen_kwargs": {"max_gen_toks": 8},
            "apply_chat_template": True,
        },
        "report": {"title": "A tiny study"},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    command = [sys.executable, "-m", "cg_tasks.cli", "study", "run", "study.yaml"]

    def run() -> str:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1500)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "4 of 4 jobs to run" in run()
    out = tmp_path / "studies" / "tiny"
    folder = out / "models" / "tiny" / "memorise-bio-s0+npo-s0"
    assert [verify_adapter(f).step for f in (folder, folder / "checkpoint-1")] == [2, 1]
    steps = []
    for name in ("K1", "K2"):
        (path,) = (out / "results" / "tiny" / f"memorise-bio-s0+npo-s0-{name}").rglob("results_*.json")
        results = json.loads(path.read_text())
        assert set(results["results"]) == {"canary_auto", "conceptguard_harmqa"}
        record = results["configs"]["canary_auto"]["metadata"]["provenance"]["adapter"]["conceptguard"]
        assert (record["objective"], record["data"]["trace"]) == ("npo", "bio")
        steps.append(record["step"])
    assert steps == [1, 2]
    assert "A tiny study" in (out / "report" / "index.html").read_text(encoding="utf-8")
    assert "nothing to do" in run()

"""Two processes over gloo, with the rank fields set as a launcher sets them on GPUs, give what one process gives."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import json, os, sys
from lm_eval import evaluator, simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

evaluator.add_env_info = lambda results: None
model, configs, out, tasks = sys.argv[1:5]
lm = HFLM(pretrained=model, device="cpu", dtype="float32", batch_size=2)
world = int(os.environ.get("WORLD_SIZE", "1"))
if world > 1:
    lm._rank, lm._world_size = lm.accelerator.process_index, lm.accelerator.num_processes
assert (lm.rank, lm.world_size) == (int(os.environ.get("RANK", "0")), world)
manager = TaskManager(include_path=configs, include_defaults=False, metadata={"dataset": "miniature", "prefix_tokens": 8})
found = simple_evaluate(
    model=lm, tasks=tasks.split(","), task_manager=manager, limit=5, gen_kwargs={"max_gen_toks": 8}, bootstrap_iters=0
)
assert (found is None) == (lm.rank != 0)
if found is not None:
    def readable(text):  # log-probabilities may round differently in another batch
        return json.loads(text)["top1"] if text.startswith('{"tokens"') else str(text)

    samples = {
        t: sorted((s["doc_id"], [[readable(r) for r in resps] for resps in s["resps"]]) for s in rows)
        for t, rows in found["samples"].items()
    }
    with open(out, "w") as handle:
        json.dump({"results": found["results"], "samples": samples}, handle)
"""
TASKS = "conceptguard_harmqa,conceptguard_harmmem,canary_prefill,canary_teacher_forced"


def run(model: Path, out: Path, world: int) -> dict:
    root = Path(__file__).resolve().parents[2]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    common |= {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "HF_HUB_OFFLINE": "1"}
    processes = []
    for rank in range(world):
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)} if world > 1 else {}
        arguments = [sys.executable, "-c", RUN, str(model), str(root / "task_configs"), str(out), TASKS]
        processes.append(subprocess.Popen(arguments, env={**common, **ranks}, stderr=subprocess.PIPE, text=True))
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors[-3000:]
    return json.loads(out.read_text())


@pytest.mark.slow
def test_two_ranks_equal_one(tiny_r1: Path, tmp_path: Path):
    one, two = run(tiny_r1, tmp_path / "one.json", 1), run(tiny_r1, tmp_path / "two.json", 2)
    assert one["samples"] == two["samples"]
    for task, metrics in one["results"].items():
        for key, value in metrics.items():
            other = two["results"][task][key]
            if isinstance(value, float) and "canary_teacher_forced" not in task:
                assert value == other or (math.isnan(value) and math.isnan(other)), (task, key)
            elif isinstance(value, float):  # another batch, another rounding in the last bits
                assert other == pytest.approx(value, abs=1e-6, rel=1e-6, nan_ok=True), (task, key)

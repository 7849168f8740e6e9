"""Two processes train what one trains: plain data parallelism over gloo, and FSDP2 with the parameters sharded."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import environment, free_port, torchrun
from safetensors.torch import load_file
from support import ROOT
from training_ranks import CASES, SAVED, STEPS, train

from cg_tasks.adapters import verify_adapter
from cg_trainers.objectives import OBJECTIVES

SCRIPT = ROOT / "tests" / "training_ranks.py"
FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}


def two_ranks(start: Path, out: Path, *words: str, **more: str) -> None:
    done = torchrun([str(SCRIPT), str(start), str(out), *words], **more)
    assert done.returncode == 0, done.stderr[-4000:]


def one_process(start: Path, out: Path, cases: Sequence[str]) -> Path:
    for case in cases:
        train(start, out, case)
    return out


def curves(folder: Path, case: str) -> list[dict[str, Any]]:
    """What is logged at each step, but for what is the clock's."""
    return json.loads((folder / f"{case}.json").read_text())["log"]


def require_equal(one: Path, two: Path, case: str) -> None:
    ours, theirs = load_file(one / f"{case}.safetensors"), load_file(two / f"{case}.safetensors")
    assert ours.keys() == theirs.keys()
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) <= 1e-6, case
    assert json.loads((one / f"{case}.json").read_text())["moved"] > 1e-4, f"{case} trained nothing"
    assert len(curves(one, case)) == STEPS
    for a, b in zip(curves(one, case), curves(two, case), strict=True):
        assert a.keys() == b.keys() and {"loss", "forget_loss", "num_tokens", "grad_norm"} <= a.keys()
        assert b == pytest.approx(a, rel=1e-4, abs=1e-5), case


def test_the_cases_are_every_objective() -> None:
    assert {objective for objective, _, _ in CASES.values()} == set(OBJECTIVES)


def test_two_processes_equal_one(start: Path, tmp_path: Path) -> None:
    """NPO, whose reference each process takes a share of; two processes started by hand, for speed."""
    one, two = (tmp_path / name for name in ("one", "two"))
    one.mkdir(), two.mkdir()
    ranks = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(start), str(two), "npo"],
            env=environment(**ranks, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    one_process(start, one, ["npo"])
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors[-4000:]
    require_equal(one, two, "npo")
    assert {"retain_loss", "retain_tokens"} <= curves(two, "npo")[0].keys()


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp2"])
def test_every_objective_and_a_resume(start: Path, tmp_path: Path, sharded: bool) -> None:
    """Every case in one launch; then what two processes saved at step 2 is gone on from, to the last bit."""
    one, two, again = (tmp_path / name for name in ("one", "two", "again"))
    one.mkdir(), two.mkdir(), again.mkdir()
    words, settings = (["--fsdp"], FSDP2) if sharded else ([], {})
    two_ranks(start, two, *words, *CASES, **settings)
    one_process(start, one, list(CASES))
    for case in CASES:
        require_equal(one, two, case)
    saved = [case for case, (_, _, changes) in CASES.items() if "save_at" in changes]
    for case in saved:
        checkpoint = verify_adapter(two / f"{case}-run" / f"checkpoint-{SAVED}")
        assert checkpoint.step == SAVED
        shutil.copytree(checkpoint.folder, again / f"{case}-run" / checkpoint.folder.name)
    two_ranks(start, again, *words, "--resume", *saved, **settings)
    for case in saved:
        straight, resumed = load_file(two / f"{case}.safetensors"), load_file(again / f"{case}.safetensors")
        assert all(torch.equal(straight[name], resumed[name]) for name in straight), case
        for before, after in zip(curves(two, case)[SAVED:], curves(again, case)[SAVED:], strict=True):
            before["num_tokens"] = after["num_tokens"]  # TRL counts the tokens of this start alone
            assert after == before, case

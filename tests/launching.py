"""Several processes on one machine's CPUs, as ``torchrun`` and ``accelerate launch`` start them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from support import ROOT


def environment(**more: str) -> dict[str, str]:
    """This process's, for ranks that share two cores and talk by gloo."""
    return {
        **os.environ,
        "ACCELERATE_USE_CPU": "true",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        **more,
    }


def free_port() -> str:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def torchrun(arguments: Sequence[str], seconds: int = 300, **more: str) -> subprocess.CompletedProcess[str]:
    """Two processes."""
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", free_port()]
    return _run([*launcher, *arguments], seconds, **more)


def accelerate_launch(arguments: Sequence[str], seconds: int = 300, **more: str) -> subprocess.CompletedProcess[str]:
    """One process: on CPUs accelerate starts more of them through MPI alone."""
    launcher = [
        "-m",
        "accelerate.commands.accelerate_cli",
        "launch",
        "--cpu",
        "--num_processes",
        "1",
        "--num_machines",
        "1",
    ]
    return _run([*launcher, "--mixed_precision", "no", "--dynamo_backend", "no", *arguments], seconds, **more)


def _run(words: Sequence[str], seconds: int, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env=environment(**more), capture_output=True, text=True, timeout=seconds
    )

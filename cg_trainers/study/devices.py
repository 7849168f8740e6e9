"""The GPUs of one machine, shared out among the jobs that run on it at the same time. On a cluster, its scheduler does that."""

from __future__ import annotations

import fcntl
import os
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cg_trainers.study.jobs import Job

VARIABLE = "CG_STUDY_GPUS"  # set by `study run` for the jobs it runs on this machine


def visible() -> list[str]:
    """The GPUs that jobs may use: ``CUDA_VISIBLE_DEVICES``, or all that nvidia-smi lists."""
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in named.split(",") if name.strip() and name.strip() != "-1"]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(i) for i, line in enumerate(listed.stdout.splitlines()) if line] if listed.returncode == 0 else []


def wanted(jobs: Sequence[Job]) -> int:
    """The most GPUs one of the jobs asks for, by the resource ``gpu``."""
    return max((_count(job) for job in jobs), default=0)


def _count(job: Job) -> int:
    number = job.resources.get("gpu", 0)
    return number if isinstance(number, int) else 0


@contextmanager
def reserved(job: Job, folder: str) -> Iterator[dict[str, str]]:
    """Variables for the command: as many free GPUs as the job asks for, nobody else's until it ends.

    Snakemake starts no more jobs than there are GPUs for, so one that is free is found at once or soon.
    """
    names = [name for name in os.environ.get(VARIABLE, "").split(",") if name]
    number = min(_count(job), len(names))
    if not number:
        yield {}
        return
    with ExitStack() as stack:
        taken: list[str] = []
        while len(taken) < number:
            for name in [name for name in names if name not in taken]:
                path = Path(folder) / "locks" / f"gpu-{name.replace('/', '_')}.lock"
                path.parent.mkdir(parents=True, exist_ok=True)
                handle = path.open("w")
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    handle.close()
                    continue
                stack.enter_context(handle)
                taken.append(name)
                if len(taken) == number:
                    break
            if len(taken) < number:  # none is held while others are waited for: two such jobs would wait for each other
                stack.close()
                taken.clear()
                time.sleep(random.uniform(0.2, 0.8))
        yield {"CUDA_VISIBLE_DEVICES": ",".join(taken)}

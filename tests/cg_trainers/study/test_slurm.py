"""A study through Snakemake's Slurm executor, with stand-ins for Slurm's programs that run each job on this machine at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from cg_trainers.study.running import Options, dry_run, run_study

SLURM = f"""#!{sys.executable}
import os, re, subprocess, sys
name, words, jobs = os.path.basename(sys.argv[0]), sys.argv[1:], os.environ["FAKE_SLURM"]
if name == "sbatch":
    number = str(len([f for f in os.listdir(jobs) if f.endswith('.words')]) + 1)
    command = next(w.split("=", 1)[1] for w in words if w.startswith("--wrap="))
    with open(os.path.join(jobs, number + ".words"), "w") as file:
        file.write("\\n".join(w for w in words if not w.startswith("--wrap=")))
    env = {{**os.environ, "SLURM_JOB_ID": number}}
    with open(os.path.join(jobs, number + ".out"), "w") as out:
        code = subprocess.run(["sh", "-c", command], env=env, stdout=out, stderr=out).returncode
    with open(os.path.join(jobs, number + ".state"), "w") as file:
        file.write("FAILED" if code else "COMPLETED")
    print(number)
elif name in ("sacct", "squeue"):
    for file in sorted(os.listdir(jobs)):
        if file.endswith(".state"):
            print(file[:-6] + "|" + open(os.path.join(jobs, file)).read())
elif name == "srun":
    while words[0].startswith("-"):
        words = words[1:]
    os.execvp(words[0], words)
elif name == "sinfo":
    print("main*")
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where the stand-ins keep what was submitted."""
    programs, jobs = tmp_path / "bin", tmp_path / "jobs"
    programs.mkdir()
    jobs.mkdir()
    for name in ("sbatch", "sacct", "squeue", "sinfo", "srun", "scancel", "sacctmgr", "sshare", "scontrol"):
        (programs / name).write_text(SLURM)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join((str(programs), os.environ["PATH"])))
    monkeypatch.setenv("FAKE_SLURM", str(jobs))
    return jobs


@pytest.mark.slow
def test_the_shipped_profile_submits_every_job_with_its_resources(place: Any, study: Any, slurm: Path) -> None:
    resources = {"gpu": 1, "mem_mb": 1234, "runtime": 77, "slurm_partition": "fast", "slurm_account": "me"}
    values = {**study(), "unlearn": {}, "evaluate": [{"tasks": "canary_auto", "when": "finetuned"}]}
    values["rules"]["finetune"] = {**values["rules"]["finetune"], "threads": 3, "resources": resources}
    place.write(values)
    quick = (
        "--slurm-init-seconds-before-status-checks",
        "1",
        "--seconds-between-status-checks",
        "1",
        "--latency-wait",
        "5",
    )
    options = Options(profile="slurm", more=quick)
    assert dry_run(place.plan(), options) == 0
    assert run_study(place.plan(), options) == 0, "\n".join(p.read_text() for p in slurm.glob("*.out"))
    assert place.calls() == ["cli report", "finetune ft-s0", "lm_eval ft-s0"]
    submitted = [(slurm / f"{number}.words").read_text().split("\n") for number in (1, 2, 3)]
    tuned, evaluated, _ = submitted
    text = " ".join(tuned)
    assert "-p fast" in text and "-A me" in text and "-t 77" in text and "--mem 1234" in text
    assert "--gpus=1" in text.replace("--gpus 1", "--gpus=1") and "--cpus-per-task=3" in text, text
    assert "-t 240" in " ".join(evaluated) and "--mem 16384" in " ".join(evaluated)  # the profile's defaults
    assert (slurm / "3.state").read_text() == "COMPLETED"

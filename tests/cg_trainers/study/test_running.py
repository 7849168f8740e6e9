"""Whole studies through the real Snakemake, with a stand-in for the commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cg_trainers.study.running import Options, dry_run

ALL = [
    "cli report",
    "finetune ft-s0",
    "lm_eval base",
    "lm_eval ft-s0",
    "lm_eval ft-s0+npo-s0-K1",
    "lm_eval ft-s0+npo-s0-K2",
    "lm_eval ft-s0+rmu-s0",
    "unlearn ft-s0+npo-s0",
    "unlearn ft-s0+rmu-s0",
]


def test_every_job_is_run_once(finished: Path) -> None:
    calls = (finished / "calls").read_text().splitlines()
    assert sorted(calls) == ALL
    assert calls[-1] == "cli report"
    page = json.loads((finished / "studies/small/report/index.html").read_text())
    assert len(page["results"]) == 5 and set(page["jobs"].values()) == {"done"}
    record = json.loads((finished / "studies/small/jobs/unlearn/tiny/ft-s0+npo-s0.json").read_text())
    assert record["status"] == "done" and record["exit_code"] == 0 and record["seconds"] >= 0
    assert "checkpoint-1/adapter_model.safetensors" in record["files"]


def test_no_more_jobs_at_once_than_there_are_cores(place: Any) -> None:
    """Snakemake before 9.17 freed a core more than it had taken each time that a single job was ready."""
    place.tool(alone=str(place.folder / "running"))
    assert place.run(cores="1") == 0
    assert place.calls() == ALL


def test_a_second_run_does_nothing(done: Any, capfd: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path("studies").rglob("*") if path.is_file()}
    assert done.run() == 0
    assert "nothing to do" in capfd.readouterr().out
    assert done.calls() == []
    after = {path: path.stat().st_mtime_ns for path in Path("studies").rglob("*") if path.is_file()}
    changed = {path for path in after if after[path] != before.get(path)}
    assert changed == {Path("studies/small/plan.json")}  # the copy lies elsewhere


@pytest.mark.slow
def test_a_failed_job_is_named_and_does_not_stop_the_others(place: Any, capfd: pytest.CaptureFixture[str]) -> None:
    place.tool(fail=["ft-s0+rmu-s0"])
    assert place.run() == 1
    assert place.calls() == [call for call in ALL if call != "lm_eval ft-s0+rmu-s0"]
    said = capfd.readouterr()
    log = "studies/small/logs/unlearn/tiny/ft-s0+rmu-s0.log"
    assert f"failed: small/unlearn/tiny/ft-s0+rmu-s0 (exit code 7): the last words of a failure; log: {log}" in said.err
    assert "not run: small/evaluate/tiny/ft-s0+rmu-s0\n" in said.err
    assert "$ " in Path(log).read_text() and "cg_trainers.unlearn" in Path(log).read_text()
    page = place.report()
    assert len(page["results"]) == 4
    assert page["jobs"]["small/unlearn/tiny/ft-s0+rmu-s0"] == "failed"
    assert page["jobs"]["small/evaluate/tiny/ft-s0+rmu-s0"] == "not run"

    place.tool()  # mended: only what was missing is run
    assert place.run() == 0
    assert place.calls() == ["cli report", "lm_eval ft-s0+rmu-s0", "unlearn ft-s0+rmu-s0"]
    assert len(place.report()["results"]) == 5


def test_a_changed_recipe_runs_what_depends_on_it(done: Any) -> None:
    old = Path("studies/small/models/tiny/ft-s0+npo-s0/adapter_model.safetensors").read_bytes()
    Path("npo.yaml").write_text("use_peft: true\nlearning_rate: 0.2\n")
    assert done.run() == 0
    assert done.calls() == [
        "cli report",
        "lm_eval ft-s0+npo-s0-K1",
        "lm_eval ft-s0+npo-s0-K2",
        "unlearn ft-s0+npo-s0",
    ]
    aside = Path("studies/small/models/tiny/ft-s0+npo-s0.old-1")
    assert (aside / "adapter_model.safetensors").read_bytes() == old
    assert Path("studies/small/results/tiny/ft-s0+npo-s0-K1.old-1").is_dir()
    assert len(done.report()["results"]) == 5  # the old ones are not among them


def test_training_that_ends_in_the_same_weights_is_not_evaluated_again(done: Any) -> None:
    Path("studies/small/models/tiny/ft-s0/adapter_config.json").unlink()
    assert done.run() == 0
    assert [call for call in done.calls() if call != "cli report"] == ["finetune ft-s0"]  # seconds are in the report
    assert done.run() == 0
    assert done.calls() == []


def test_evaluations_alone_follow_a_change_of_theirs(done: Any) -> None:
    assert done.run("study.yaml", "evaluate.0.limit=1") == 0
    assert done.calls() == [call for call in ALL if call.startswith(("lm_eval", "cli"))]
    assert '"limit": ["1"]' in next(iter(done.report()["results"].values()))


def test_a_method_taken_out_is_not_in_the_report(done: Any, study: Any) -> None:
    values = study()
    del values["unlearn"]["rmu"]
    done.write(values)
    assert done.run() == 0
    assert done.calls() == ["cli report"]
    assert len(done.report()["results"]) == 4


@pytest.mark.slow
def test_several_studies_in_one_graph_and_one_report(done: Any, study: Any) -> None:
    values = {**study(), "name": "other", "unlearn": {}}
    done.write(values, "other.yaml")
    assert done.run("study.yaml", "other.yaml") == 0
    assert done.calls() == [
        call for call in ALL if call in ("cli report", "finetune ft-s0", "lm_eval base", "lm_eval ft-s0")
    ]
    page = Path("studies/small+other/report/index.html").read_text()
    assert "studies/other/results/tiny/ft-s0" in page and "studies/small/results/tiny/ft-s0" in page
    assert done.run("other.yaml") == 0  # its own report is all that is missing
    assert done.calls() == ["cli report"]


def test_nothing_done_no_report(place: Any, capfd: pytest.CaptureFixture[str]) -> None:
    place.tool(fail=["ft-s0", "base"])
    assert place.run() == 1
    assert place.calls() == ["finetune ft-s0", "lm_eval base"]
    said = capfd.readouterr().err
    assert "no results yet, and so no report" in said
    assert "not run: small/unlearn/tiny/ft-s0+npo-s0, " in said and "and 3 more" in said


def test_a_resource_of_one_study_leaves_the_defaults_to_the_others(
    place: Any, study: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    small = {**study(), "finetune": {}, "unlearn": {}}
    given = {**small["rules"]["evaluate"], "resources": {"runtime": 77, "slurm_partition": "fast"}}
    place.write(small)
    place.write({**small, "name": "other", "rules": {"evaluate": given}}, "other.yaml")
    options = Options(cores="1", more=("--default-resources", "runtime=240"))
    assert dry_run(place.plan("study.yaml", "other.yaml"), options) == 0
    said = [line for line in capfd.readouterr().out.splitlines() if line.strip().startswith("resources:")]
    (given_one,) = [line for line in said if "slurm_partition" in line]
    assert "runtime=77" in given_one and "slurm_partition=fast" in given_one
    others = [line for line in said if line is not given_one]
    assert others and all("runtime=240" in line for line in others), said


def test_a_path_with_a_space(place: Any, study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place.folder / "a b"
    folder.mkdir()
    spaced = type(place)(folder, monkeypatch)
    spaced.write({**study(), "finetune": {}, "unlearn": {}})
    assert spaced.run() == 0
    assert spaced.calls() == ["cli report", "lm_eval base"]


# ------------------------------------------------------------------ killed
def started(place: Any, **tool: Any) -> tuple[subprocess.Popen[str], int]:
    """``study run`` in a process of its own, until the job that hangs has said its process id."""
    place.tool(**tool)
    code = (
        "import sys; from cg_trainers.study.cli import read_studies; from cg_trainers.study.plan import make_plan\n"
        "from cg_trainers.study.running import Options, run_study\n"
        "from cg_tasks.errors import exit_code\n"
        "sys.exit(exit_code(lambda: run_study(make_plan(read_studies(['study.yaml'])), Options(cores='2'))))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    end = time.monotonic() + 120
    while not Path("hanging").exists() or not Path("hanging").read_text():
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    return process, int(Path("hanging").read_text())


def children(pid: int) -> list[int]:
    """Of a process, theirs included; one that ends meanwhile has none."""
    direct: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            direct += map(int, (task / "children").read_text().split())
    return direct + [p for child in direct for p in children(child)]


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(("name", "step"), [("ft-s0+npo-s0", 2), ("base", 0), ("report", 0)])
def test_everything_killed_at_once_and_run_again_ends_in_the_same_files(
    name: str, step: int, done: Any, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = done.files()
    (tmp_path / "again").mkdir()
    place = type(done)(tmp_path / "again", monkeypatch)
    process, _ = started(place, hang={name: step})
    for pid in [process.pid, *children(process.pid)]:
        with suppress(ProcessLookupError):  # one that lives briefly, or dies with its parent
            os.kill(pid, signal.SIGKILL)
    process.wait()
    place.tool()
    assert place.run() == 0
    assert place.files() == whole
    assert place.run() == 0


@pytest.mark.slow
def test_a_run_that_lost_its_parent_is_waited_for(place: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """``study run`` is killed, Snakemake and the job live on: the next run waits for both, then does what is left."""
    process, job = started(place, hang={"base": 0})
    process.kill()
    process.wait()
    threading.Timer(3, os.kill, (job, signal.SIGKILL)).start()
    place.tool()
    assert place.run() == 0
    assert "another run works in studies/small: waiting for it" in capfd.readouterr().out
    calls = place.calls()
    assert calls.count("lm_eval base") == 2 and calls.count("finetune ft-s0") == 1


@pytest.mark.slow
def test_ctrl_c_stops_everything_that_was_started(place: Any) -> None:
    process, job = started(place, hang={"base": 0})
    everything = children(process.pid)
    assert job in everything
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from here" in out
    assert [pid for pid in everything if alive(pid)] == []
    assert json.loads(Path("studies/small/jobs/evaluate/tiny/base.json").read_text())["status"] in ("stopped", "failed")

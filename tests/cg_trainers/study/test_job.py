"""One job: killed and run again, locked, half-written, failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cg_trainers.study import job as wrapper
from cg_trainers.study.jobs import Plan, write_json
from cg_trainers.study.state import state_of, write_state

FT, NPO, RMU = "small/finetune/tiny/ft-s0", "small/unlearn/tiny/ft-s0+npo-s0", "small/unlearn/tiny/ft-s0+rmu-s0"
BASE, K1 = "small/evaluate/tiny/base", "small/evaluate/tiny/ft-s0+npo-s0-K1"
NPO_FOLDER = Path("studies/small/models/tiny/ft-s0+npo-s0")


@pytest.fixture
def plan(place: Any) -> Plan:
    made = place.plan()
    write_json(Path(made.path), made.as_json())
    return made


def run(plan: Plan, *ids: str) -> int:
    return max(wrapper.run(plan.job(id), plan) for id in ids)


def killed(plan: Plan, id: str, only_wrapper: bool = False) -> int:
    """Start a job that hangs, and kill it (and its command) without a chance to say anything; the command's process id."""
    process = subprocess.Popen([sys.executable, "-m", "cg_trainers.study.job", plan.path, id])
    wait_for(Path("hanging").exists)
    command = int(wait_for(lambda: Path("hanging").read_text()))
    process.kill()
    process.wait()
    if not only_wrapper:
        os.kill(command, signal.SIGKILL)
    Path("hanging").unlink()
    return command


def wait_for(what: Callable[[], Any], seconds: float = 30) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


def status(plan: Plan, id: str) -> str:
    return next(entry["status"] for entry in state_of(plan)["jobs"] if entry["id"] == id)


# ------------------------------------------------------------------ killed
def test_training_killed_after_a_checkpoint_goes_on_from_it(place: Any, plan: Plan) -> None:
    run(plan, FT, NPO)
    whole = place.files()
    for path in (Path(plan.job(NPO).done), Path(plan.job(NPO).record)):
        path.unlink()
    subprocess.run(["rm", "-r", NPO_FOLDER], check=True)
    place.tool(hang={"ft-s0+npo-s0": 2})
    killed(plan, NPO)
    assert (NPO_FOLDER / "checkpoint-1").is_dir() and not Path(plan.job(NPO).done).exists()
    assert status(plan, NPO) == "failed"
    place.tool()
    place.calls()
    assert run(plan, NPO) == 0
    assert place.calls() == ["unlearn+ ft-s0+npo-s0"]  # + : --resume_from_checkpoint true
    assert place.files() == whole
    assert status(plan, NPO) == "done"


def test_a_job_stopped_by_a_signal_has_failed_and_says_which(place: Any, plan: Plan) -> None:
    place.tool(hang={"base": 0})
    process = subprocess.Popen([sys.executable, "-m", "cg_trainers.study.job", plan.path, BASE])
    wait_for(Path("hanging").exists)
    process.terminate()
    assert process.wait(30) == 143
    entry = next(entry for entry in state_of(plan)["jobs"] if entry["id"] == BASE)
    assert (entry["status"], entry["last_line"]) == ("failed", "stopped by signal 15: working on base")
    assert entry["log"] == plan.job(BASE).log


def test_results_of_a_job_that_is_not_done_are_not_reported(plan: Plan) -> None:
    run(plan, BASE)
    write_state(plan)
    assert wrapper.reported(plan) == (plan.job(BASE).output,)
    Path(plan.job(BASE).done).unlink()
    write_state(plan)
    assert wrapper.reported(plan) == () and Path(plan.job(BASE).output).is_dir()


def test_gpus_are_let_go_while_others_are_waited_for(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses
    import fcntl

    from cg_trainers.study import devices

    monkeypatch.setenv(devices.VARIABLE, "0,1")
    (tmp_path / "locks").mkdir()
    other = (tmp_path / "locks" / "gpu-1.lock").open("w")
    fcntl.flock(other, fcntl.LOCK_EX)

    def waits(_: float) -> None:
        with (tmp_path / "locks" / "gpu-0.lock").open("w") as free:
            fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where it is held
        other.close()

    monkeypatch.setattr(devices.time, "sleep", waits)
    with devices.reserved(dataclasses.replace(plan.job(BASE), resources={"gpu": 2}), str(tmp_path)) as given:
        assert given == {"CUDA_VISIBLE_DEVICES": "0,1"}


def test_training_killed_before_its_first_checkpoint_begins_anew(
    place: Any, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    run(plan, FT)
    place.tool(hang={"ft-s0+npo-s0": 1})
    killed(plan, NPO)
    (NPO_FOLDER / "checkpoint-1").mkdir()  # half-written: no record in it
    place.tool()
    place.calls()
    assert run(plan, NPO) == 0
    assert place.calls() == ["unlearn ft-s0+npo-s0"]
    assert "nothing whole was left in it: begun anew" in capsys.readouterr().out
    assert not list(NPO_FOLDER.parent.glob("*.old-*"))


def test_training_killed_between_its_end_and_the_note_of_it_is_not_run_again(place: Any, plan: Plan) -> None:
    run(plan, FT, NPO)
    place.calls()
    for path in (plan.job(NPO).done, plan.job(NPO).record):
        Path(path).unlink()
    assert run(plan, NPO) == 0
    assert place.calls() == [] and Path(plan.job(NPO).done).exists()


def test_evaluation_killed_in_the_middle_leaves_no_results(place: Any, plan: Plan) -> None:
    place.tool(hang={"base": 0})
    killed(plan, BASE)
    results = Path("studies/small/results/tiny/base")
    assert results.with_name("base.partial").is_dir() and not results.exists()
    place.tool()
    assert run(plan, BASE) == 0
    assert not results.with_name("base.partial").exists()
    assert len(list(results.rglob("results_*.json"))) == 1


def test_report_killed_in_the_middle_is_written_anew(place: Any, plan: Plan) -> None:
    run(plan, BASE)
    write_state(plan)
    report = "small/report/report"
    place.tool(hang={"report": 0})
    killed(plan, report)
    place.tool()
    assert run(plan, report) == 0
    assert len(place.report()["results"]) == 1


# ------------------------------------------------------------------ alone
def test_a_command_that_outlived_its_wrapper_is_waited_for(place: Any, plan: Plan) -> None:
    run(plan, FT)
    place.calls()
    place.tool(hang={"ft-s0+npo-s0": 2})
    orphan = killed(plan, NPO, only_wrapper=True)
    assert json.loads(Path(plan.job(NPO).record).read_text())["status"] == "running"
    place.tool()
    words = [sys.executable, "-m", "cg_trainers.study.job", plan.path, NPO]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as again:
        assert again.stdout is not None
        assert again.stdout.readline().startswith(f"study: {NPO} is still running (process ")
        assert again.poll() is None and place.calls() == ["unlearn ft-s0+npo-s0"]
        os.kill(orphan, signal.SIGKILL)
        assert again.wait(30) == 0
    assert place.calls() == ["unlearn+ ft-s0+npo-s0"]


def test_two_at_once_run_it_once(place: Any, plan: Plan) -> None:
    words = [sys.executable, "-m", "cg_trainers.study.job", plan.path, BASE]
    both = [subprocess.Popen(words) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert place.calls() == ["lm_eval base"]


# ------------------------------------------------------------------ what is there already
def test_a_folder_of_other_settings_is_moved_aside(place: Any, plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    NPO_FOLDER.mkdir(parents=True)
    (NPO_FOLDER / "mine.txt").write_text("precious")
    run(plan, FT, NPO)
    assert (NPO_FOLDER.with_name("ft-s0+npo-s0.old-1") / "mine.txt").read_text() == "precious"
    assert "was made by other settings" in capsys.readouterr().out
    assert not (NPO_FOLDER / "mine.txt").exists()


def test_a_job_without_what_it_needs_says_so(place: Any, plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    assert wrapper.main([plan.path, NPO]) == 1
    assert capsys.readouterr().err == f"conceptguard: error: {NPO}: {FT} is not done yet\n"
    assert wrapper.main([plan.path, "small/unlearn/nothing"]) == 1
    assert "no job 'small/unlearn/nothing'" in capsys.readouterr().err


def test_failure_is_recorded_with_its_last_words(place: Any, plan: Plan) -> None:
    place.tool(fail=["base"])
    assert run(plan, BASE) == 7
    record = json.loads(Path(plan.job(BASE).record).read_text())
    assert (record["status"], record["exit_code"], record["last_line"]) == ("failed", 7, "the last words of a failure")
    log = Path(plan.job(BASE).log).read_text().splitlines()
    assert log[1].startswith("$ ") and "lm_eval --model hf" in log[1] and log[2] == "working on base"


def test_a_command_that_is_not_there(place: Any, study: Any) -> None:
    place.write({**study(), "rules": {"evaluate": {"launcher": ["no-such-program"]}}})
    plan = place.plan()
    assert run(plan, BASE) == 127
    assert (
        json.loads(Path(plan.job(BASE).record).read_text())["last_line"] == "no-such-program: No such file or directory"
    )


def test_a_command_that_ends_well_and_writes_nothing(place: Any, study: Any) -> None:
    place.write({**study(), "rules": {"evaluate": {"launcher": ["true"]}}})
    plan = place.plan()
    assert run(plan, BASE) == 1
    record = json.loads(Path(plan.job(BASE).record).read_text())
    assert record["last_line"] == "studies/small/results/tiny/base: the command ended well and wrote nothing"
    assert not Path(plan.job(BASE).done).exists()


def test_a_judge_whose_verdicts_are_incomplete_keeps_what_it_has(place: Any, study: Any, tmp_path: Path) -> None:
    script = tmp_path / "judge.sh"
    script.write_text(
        'mkdir -p "$6/model"; echo 1 > "$6/model/results_1.json"; echo "2 answers have no verdict"; exit 1'
    )
    values = {**study(), "judge": {}, "evaluate": [{"tasks": "conceptguard_ctxtsep"}]}
    values["rules"]["judge"] = {"launcher": ["sh", str(script)]}
    place.write(values)
    plan = place.plan()
    judged = "small/judge/tiny/base"
    assert run(plan, BASE) == 0 and run(plan, judged) == 1
    assert Path("studies/small/judged/tiny/base/model/results_1.json").is_file()
    assert status(plan, judged) == "failed"
    assert run(plan, judged) == 1  # asked again, over what it left
    assert [p.name for p in Path("studies/small/judged/tiny").iterdir()] == ["base"]
    assert wrapper._kept(plan.job(judged), plan)
    done = json.loads(Path(plan.job(BASE).done).read_text())
    Path(plan.job(BASE).done).write_text(json.dumps({**done, "digest": "of other answers"}))
    assert not wrapper._kept(plan.job(judged), plan)  # verdicts on answers that are gone are not reported


# ------------------------------------------------------------------ the environment
def test_commands_run_with_this_interpreter_and_as_many_threads_as_they_were_given(plan: Plan) -> None:
    import dataclasses

    assert wrapper.runnable(["python", "-m", "x"])[0] == sys.executable
    assert wrapper.runnable(["lm_eval", "--tasks", "a"])[:3] == [sys.executable, "-m", "lm_eval"]
    assert wrapper.runnable(["conceptguard", "path"])[1:] == ["-m", "cg_tasks.cli", "path"]
    job = dataclasses.replace(plan.job(BASE), threads=3)
    assert wrapper.environment(job)["OMP_NUM_THREADS"] == "3"
    assert wrapper.environment(job)["PATH"].startswith(str(Path(sys.executable).parent))


def test_last_line_of_a_progress_bar(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"# begins\n$ command\nLoading\n 10%|#\r 99%|####\xff\r\n\n# ended\n")
    assert wrapper.last_line(log) == "99%|####\ufffd"

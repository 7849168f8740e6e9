"""Run one job of a study's plan: ``python -m cg_trainers.study.job PLAN ID``. Snakemake calls it, on whatever machine.

A second one for the same job waits until the first has ended. What the command prints goes to the job's log, the command itself
first. How it ended stands in the job's record, and the file that Snakemake waits for is written last.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from cg_tasks.errors import UserError
from cg_trainers.study import devices, folders
from cg_trainers.study.jobs import MODULES, Job, Plan, read_plan, write_json
from cg_trainers.study.records import input_digests, is_current, made_by, outputs, read_json

_TAIL = 8192  # bytes of a log in which its last line is looked for


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; its command's exit code, 0 where there was nothing to do, 1 for a mistake of the user's."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if len(words) != 2:
            raise UserError("usage: python -m cg_trainers.study.job PLAN ID")
        plan = read_plan(words[0])
        os.chdir(plan.cwd)
        return run(plan.job(words[1]), plan)
    except UserError as error:
        print(f"conceptguard: error: {error}", file=sys.stderr)
        return 1


def run(job: Job, plan: Plan) -> int:
    """Do what is not yet done; the exit code. Raises UserError if an input is not there."""
    with _alone(job) as lock:
        inputs = input_digests(job, plan)
        if absent := [name for name, digest in inputs.items() if digest is None]:
            raise UserError(f"{job.id}: {absent[0]} is not done yet")
        mark = made_by(job, inputs)
        record = read_json(job.record)
        if is_current(job, record, inputs):
            _finish(job, record)
            return _said(job, "is as it was", 0)
        if folders.is_whole(job, mark):
            return _end(
                job, mark, {"started": _now(), "seconds": record.get("seconds"), "exit_code": 0}, "was whole already"
            )
        return _run(job, plan, mark, lock)


def _run(job: Job, plan: Plan, mark: dict[str, Any], lock: int) -> int:
    log = Path(job.log)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab", buffering=0) as out:

        def say(words: str) -> None:
            out.write(f"# {words}\n".encode())
            _said(job, words)

        try:
            resume = folders.prepare(job, mark, say)
        except OSError as error:
            raise UserError(f"{job.output}: cannot be written: {error.strerror}") from None
        words = _report_words(job, plan) if job.rule == "report" else folders.actual_command(job, resume)
        started, clock = _now(), time.monotonic()
        known: dict[str, Any] = {"id": job.id, "rule": job.rule, **mark, "started": started, "log": job.log}
        write_json(Path(job.record), {**known, "status": "running", "pid": os.getpid(), "host": os.uname().nodename})
        out.write(f"# {started} {job.id}\n$ {shlex.join(words)}\n".encode())
        _said(job, "goes on from its last checkpoint" if resume else "begins")
        with devices.reserved(job, plan.folder) as more:
            code = _call(words, {**environment(job), **more}, out, lock)
        known |= {"seconds": round(time.monotonic() - clock, 1), "exit_code": code}
        try:
            if code == 0:
                folders.settle(job, mark, say)
                return _end(job, mark, known, f"done in {known['seconds']:.0f} s")
            if job.keeps and any(Path(folders.partial(job)).rglob("results_*.json")):
                folders.settle(job, mark, say, whole=False)
            last = last_line(log)
        except UserError as error:
            code, last = code or 1, str(error)
            out.write(f"{last}\n".encode())
            known["exit_code"] = code
    known |= {"signal": _stopped[-1]} if _stopped else {}
    write_json(Path(job.record), {**known, "status": "stopped" if _stopped else "failed", "last_line": last})
    return _said(
        job, f"{'stopped' if _stopped else 'FAILED'} (exit code {code}): {last or 'no output'}; log: {job.log}", code
    )


def _end(job: Job, mark: dict[str, Any], known: dict[str, Any], words: str) -> int:
    """Hash what was written, note it, and let Snakemake see it."""
    files, digest = outputs(job)
    record = {
        "id": job.id,
        "rule": job.rule,
        **known,
        **mark,
        "status": "done",
        "files": files,
        "digest": digest,
        "log": job.log,
    }
    write_json(Path(job.record), record)
    _finish(job, record)
    return _said(job, words, 0)


def _finish(job: Job, record: dict[str, Any]) -> None:
    """The file Snakemake waits for; rewritten even if nothing changed, so that it is newer than what it was made from."""
    Path(job.done).unlink(missing_ok=True)
    write_json(Path(job.done), {key: record[key] for key in ("id", "settings", "inputs", "digest", "files")})


def _report_words(job: Job, plan: Plan) -> tuple[str, ...]:
    """The report of those results that this plan asked for and that are there; older ones beside them are left out."""
    gone = {other.output for other in plan.work} - set(reported(plan))
    return tuple(word for word in job.command if word not in gone)


def reported(plan: Plan) -> tuple[str, ...]:
    """The folders of results that the report may take: of jobs that are done, or of a judge that gave a part of its verdicts."""
    states = {entry["id"]: entry["status"] for entry in read_json(plan.state).get("jobs", [])}
    return tuple(
        job.output
        for job in plan.work
        if job.rule in ("evaluate", "judge")
        and Path(job.output).is_dir()
        and (states.get(job.id) == "done" or _kept(job, plan))
    )


def _kept(job: Job, plan: Plan) -> bool:
    """Whether a failed judge left verdicts on the answers that are there now, not on those of older weights."""
    found = read_json(Path(job.output) / folders.MARKER)
    return job.keeps and found == {**made_by(job, input_digests(job, plan)), "whole": False}


# ------------------------------------------------------------------ the command
_stopped: list[int] = []


def _call(words: Sequence[str], env: dict[str, str], out: IO[bytes], lock: int) -> int:
    """Run a command, its output into the log; its exit code, 128 + n for signal n.

    It inherits the lock: where this process is killed and the command lives on, nobody else starts the job.
    """
    try:
        child = subprocess.Popen(
            runnable(words), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, pass_fds=(lock,)
        )
    except OSError as error:
        out.write(f"{words[0]}: {error.strerror}\n".encode())
        return 127

    def stop(number: int, _: Any) -> None:
        _stopped.append(number)
        with suppress(ProcessLookupError):
            child.send_signal(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code


def runnable(words: Sequence[str]) -> list[str]:
    """The command with this interpreter in the place of ``python``, ``conceptguard`` and ``lm_eval``."""
    first, *rest = words
    if first == "python":
        return [sys.executable, *rest]
    if first in MODULES:
        return [sys.executable, "-m", MODULES[first], *rest]
    return [shutil.which(first, path=_path()) or first, *rest]


def environment(job: Job) -> dict[str, str]:
    """This process's, with programs of this interpreter first, and as many threads as the job was given."""
    # Threads that spin while they wait slow a shared machine down tenfold.
    given = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false", **os.environ, "PATH": _path()}
    return {**given, "OMP_NUM_THREADS": str(job.threads)} if job.threads else given


def _path() -> str:
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))


def last_line(log: Path) -> str:
    """The last words that were printed; of a progress bar its last state."""
    with log.open("rb") as handle:
        handle.seek(max(0, log.stat().st_size - _TAIL))
        text = handle.read().decode("utf-8", "replace")
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n")]
    found = next((line for line in reversed(lines) if line and not line.startswith(("# ", "$ "))), "")
    return found if len(found) <= 500 else found[:499] + "…"


# ------------------------------------------------------------------ one at a time
@contextmanager
def _alone(job: Job) -> Iterator[int]:
    path = Path(job.lock)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as handle:
        take(handle, f"{job.id} is still running ({_holder(handle)}): waiting for it")
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {os.uname().nodename}")
        handle.flush()
        yield handle.fileno()


def take(handle: IO[str], words: str) -> None:
    """Lock a file, and say once that somebody else has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"study: {words}", flush=True)
        fcntl.flock(handle, fcntl.LOCK_EX)


def _holder(handle: IO[str]) -> str:
    handle.seek(0)
    return handle.read().strip() or "unknown process"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _said(job: Job, words: str, code: int = 0) -> int:
    print(f"study: {job.rule} {job.name}: {words}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())

"""Run a plan with Snakemake, as a program: its command line is what it promises to keep."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cg_tasks.errors import UserError
from cg_trainers.study import devices
from cg_trainers.study.job import last_line, reported, take
from cg_trainers.study.jobs import Plan, write_json
from cg_trainers.study.records import input_digests, is_current, not_done, read_json
from cg_trainers.study.state import write_state

HERE = Path(__file__).resolve().parent
SNAKEFILE = HERE / "Snakefile"
PROFILES = HERE / "profiles"
_PATIENCE = (15, 10)  # seconds until an interrupted run is asked more firmly, and until it is killed


@dataclass(frozen=True)
class Options:
    """cores: None for all of this machine, or what a profile says. profile: a folder, or a shipped profile's name.

    more: further arguments of Snakemake.
    """

    cores: str | None = None
    keep_going: bool = True
    profile: str | None = None
    more: tuple[str, ...] = ()


def require_snakemake() -> None:
    """Raises UserError where the extra ``study`` is not installed."""
    if importlib.util.find_spec("snakemake") is None:
        needs = "" if sys.version_info >= (3, 11) else " (Snakemake 9 needs Python 3.11 or newer)"
        raise UserError(f"a study is run by Snakemake: pip install 'conceptguard[study]'{needs}")


def run_study(plan: Plan, options: Options) -> int:
    """Do what is not done, then write the report; 0 if every job is done, 1 if one is not."""
    require_snakemake()
    with _alone(plan) as locks:
        write_json(Path(plan.path), plan.as_json())
        waiting = not_done(plan.work, plan)
        if not waiting and is_current(plan.report, read_json(plan.report.done), input_digests(plan.report, plan)):
            print(f"study {plan.name}: nothing to do; report: {plan.report.output}")
            return 0
        # Snakemake goes by this file alone; what it stands for is judged here, by content.
        for job in (*plan.work, plan.report):
            if job.id in waiting and "needs " not in waiting[job.id]:
                Path(job.done).unlink(missing_ok=True)
        print(f"study {plan.name}: {len(waiting)} of {len(plan.work)} jobs to run", flush=True)
        code = _snakemake(plan, "evaluated", options, locks) if waiting else 0
        state = write_state(plan)
        failed = _failures(state)
        if code and not any(job["status"] == "failed" for job in state["jobs"]):
            # No job got as far as to say anything: a wrong profile, or a cluster that took none.
            words = last_line(_log(plan)) if not options.profile else "see above"
            failed.insert(0, f"Snakemake ended with exit code {code}: {words}; log: {plan.folder}/.snakemake/log")
        code = _report(plan, options, locks)
        for line in failed:
            print(f"study {plan.name}: {line}", file=sys.stderr)
        return 1 if failed or code else 0


def _report(plan: Plan, options: Options, locks: Sequence[int]) -> int:
    job = plan.report
    if not reported(plan):
        print(f"study {plan.name}: no results yet, and so no report", file=sys.stderr)
        return 1
    if not is_current(job, read_json(job.done), input_digests(job, plan)):
        Path(job.done).unlink(missing_ok=True)
        if _snakemake(plan, "report", options, locks):
            record = read_json(job.record)
            print(
                f"study {plan.name}: no report: {record.get('last_line') or last_line(_log(plan))}; log: {job.log}",
                file=sys.stderr,
            )
            return 1
    print(f"study {plan.name}: report: {job.output}/index.html", flush=True)
    return 0


def _failures(state: dict[str, Any]) -> list[str]:
    """One line for each job that failed, and one for all that waited for them."""
    jobs = state["jobs"]
    lines = [
        f"failed: {job['id']} (exit code {job['exit_code']}): {job['last_line'] or 'no output'}; log: {job['log']}"
        for job in jobs
        if job["status"] == "failed"
    ]
    waiting = [job["id"] for job in jobs if job["status"] == "not run"]
    if waiting:
        more = f", and {len(waiting) - 3} more" if len(waiting) > 3 else ""
        lines.append(f"not run: {', '.join(waiting[:3])}{more}")
    return lines


def dry_run(plan: Plan, options: Options) -> int:
    """Print what Snakemake would run; nothing is written in the study's folders."""
    require_snakemake()
    waiting = not_done(plan.work, plan)
    stale = [os.path.join(plan.cwd, job.done) for job in plan.work if job.id in waiting and Path(job.done).is_file()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        write_json(path, plan.as_json())
        more = ("--forcerun", *stale) if stale else ()
        directory = os.path.join(plan.cwd, plan.folder) if Path(plan.folder).is_dir() else folder
        words = (*command(plan, "evaluated", options, str(path), directory), "--dry-run", *more)
        code = subprocess.run(words).returncode
    print(f"study {plan.name}: {len(waiting)} of {len(plan.work)} jobs to run, then the report")
    return code


def command(plan: Plan, target: str, options: Options, path: str, directory: str) -> tuple[str, ...]:
    """Snakemake's command line."""
    words = [sys.executable, "-m", "snakemake", _target(plan, target), "--snakefile", str(SNAKEFILE)]
    words += ["--config", f"plan={path}", "--directory", directory, "--nolock", "--rerun-incomplete"]
    words += ["--rerun-triggers", "mtime", "--scheduler", "greedy"]
    if options.keep_going:
        words.append("--keep-going")
    if options.profile:
        words += ["--profile", profile(options.profile)]
        words += ["--cores", options.cores] if options.cores else []
    else:
        words += ["--cores", options.cores or str(_cores())]
        limits, more = _limits(options.more)
        named = {limit.partition("=")[0] for limit in limits}
        if (number := devices.wanted(plan.jobs)) and "gpu" not in named:
            limits.append(f"gpu={max(number, len(devices.visible()))}")
        # Each has calls in flight of its own, and one server answers them all.
        if "judge" not in named and any(job.rule == "judge" for job in plan.jobs):
            limits.append("judge=1")
        return (*words, *(("--resources", *limits) if limits else ()), *more)
    return (*words, *options.more)


def _limits(more: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """What ``--resources`` is given, and the other arguments: of two such options Snakemake reads the last alone."""
    limits: list[str] = []
    rest: list[str] = []
    inside = False
    for word in more:
        name, equals, value = word.partition("=")
        if name in ("--resources", "--res"):
            limits += [value] if equals else []
            inside = not equals
        elif inside and not word.startswith("-"):
            limits.append(word)
        else:
            inside = False
            rest.append(word)
    return limits, tuple(rest)


def _cores() -> int:
    """Those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _target(plan: Plan, target: str) -> str:
    return os.path.join(plan.cwd, plan.report.done) if target == "report" else target


def profile(name: str) -> str:
    """A profile's folder, or the shipped one of that name. Raises UserError if there is none."""
    for folder in (Path(name).expanduser(), PROFILES / name):
        if (folder / "config.yaml").is_file():
            return str(folder.resolve())
    known = ", ".join(sorted(path.name for path in PROFILES.iterdir() if path.is_dir()))
    raise UserError(f"--profile {name}: no folder with a config.yaml; shipped: {known}")


def _log(plan: Plan) -> Path:
    return Path(plan.folder) / "logs" / "snakemake.log"


def _snakemake(plan: Plan, target: str, options: Options, locks: Sequence[int]) -> int:
    """Run it in a process group of its own, so that what it started can be stopped with it; its exit code.

    It inherits the locks: where this process is killed, the next run waits until it has ended.
    """
    words = command(plan, target, options, os.path.join(plan.cwd, plan.path), os.path.join(plan.cwd, plan.folder))
    log = _log(plan)
    log.parent.mkdir(parents=True, exist_ok=True)
    env = dict(os.environ)
    if not options.profile:
        env[devices.VARIABLE] = ",".join(devices.visible()) if devices.wanted(plan.jobs) else ""
        words = (*words, "--quiet", "all")
    with log.open("ab") as out:
        stderr = None if options.profile else out
        child = subprocess.Popen(words, stderr=stderr, env=env, start_new_session=True, pass_fds=tuple(locks))
        with _stopping(child):
            return child.wait()


@contextmanager
def _stopping(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ctrl-C, a closed terminal and a polite kill stop the child and all it started, before this process ends."""

    def stop(number: int, _: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        print("study: stopping the running jobs; the same command goes on from here", file=sys.stderr, flush=True)
        for number, patience in zip((signal.SIGINT, signal.SIGTERM), _PATIENCE, strict=True):
            with suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            with suppress(subprocess.TimeoutExpired):
                child.wait(patience)
                break
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _alone(plan: Plan) -> Iterator[list[int]]:
    """One run at a time in every folder that this one writes."""
    with ExitStack() as stack:
        locks = []
        for folder in sorted({plan.folder, *(job.folder for job in plan.jobs)}):
            try:
                Path(folder).mkdir(parents=True, exist_ok=True)
                handle = stack.enter_context((Path(folder) / ".study-lock").open("a+"))
            except OSError as error:
                raise UserError(
                    f"{folder}: nothing can be written there ({error.strerror}): name another with --out"
                ) from None
            take(handle, f"another run works in {folder}: waiting for it")
            locks.append(handle.fileno())
        yield locks

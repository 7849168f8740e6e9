"""The folders that jobs write: begun beside their place, moved there when whole, and never taken for what they are not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cg_tasks.adapters import verify_adapter
from cg_tasks.errors import UserError
from cg_trainers.study.jobs import Job
from cg_trainers.study.records import MARKER, outputs, read_json

Say = Callable[[str], None]


def partial(job: Job) -> str:
    """Where a command writes until it has ended well."""
    return f"{job.output}.partial"


def actual_command(job: Job, resume: bool = False) -> tuple[str, ...]:
    """The command with the place it really writes to, and ``--resume_from_checkpoint`` where training goes on."""
    words = job.command
    if job.writes == "partial":
        words = tuple(re.sub(rf"^{re.escape(job.output)}(?=/|$)", lambda _: partial(job), word) for word in words)
    return (*words, "--resume_from_checkpoint", "true") if resume else words


def is_whole(job: Job, mark: Mapping[str, Any]) -> bool:
    """Whether the job's folder was written to its end by these settings, though nobody noted it."""
    found = read_json(Path(job.output) / MARKER)
    if job.writes == "partial":
        return found == {**mark, "whole": True}
    if job.writes == "own" or found != dict(mark):
        return False
    try:
        outputs(job)
    except UserError:
        return False
    return True


def prepare(job: Job, mark: Mapping[str, Any], say: Say) -> bool:
    """Make room for a run; returns whether training goes on from a checkpoint.

    What other settings or other inputs made is moved to ``<folder>.old-N``; a beginning of the same is gone on with, or, where
    nothing in it is whole, removed.
    """
    place = Path(job.output)
    place.parent.mkdir(parents=True, exist_ok=True)
    if job.writes == "own":
        return False
    if job.writes == "partial":
        shutil.rmtree(partial(job), ignore_errors=True)
        Path(partial(job)).mkdir()
        _mark(Path(partial(job)), mark)
        return False
    if place.exists():
        if read_json(place / MARKER) != dict(mark):
            say(f"{place} was made by other settings, or from other weights: now {set_aside(place)}")
        elif any(path.name != MARKER for path in place.iterdir()):
            whole, resumable = _beginning(job, place)
            if resumable:
                return True
            if whole:
                say(f"{place}: training cannot go on from what is left in it: now {set_aside(place)}")
            else:
                say(f"{place}: nothing whole was left in it: begun anew")
                shutil.rmtree(place)
    place.mkdir(exist_ok=True)
    _mark(place, mark)
    return False


def settle(job: Job, mark: Mapping[str, Any], say: Say, whole: bool = True) -> None:
    """After the command: give what was written beside its place the name it was meant for."""
    if job.writes != "partial":
        return
    beside, place = Path(partial(job)), Path(job.output)
    if not any(path.name != MARKER for path in beside.iterdir()):
        raise UserError(f"{place}: the command ended well and wrote nothing")
    (beside / MARKER).write_text(json.dumps({**mark, "whole": whole}), encoding="utf-8")
    if place.exists():
        found = read_json(place / MARKER)
        if found.get("settings") == mark["settings"] and found.get("whole") is False:
            shutil.rmtree(place)
        else:
            say(f"{place} was made by other settings, or from other weights: now {set_aside(place)}")
    beside.rename(place)


def set_aside(place: Path) -> Path:
    """Rename to the first free ``<name>.old-N``."""
    number = 1
    while (old := place.with_name(f"{place.name}.old-{number}")).exists():
        number += 1
    place.rename(old)
    return old


def _mark(folder: Path, mark: Mapping[str, Any]) -> None:
    (folder / MARKER).write_text(json.dumps(dict(mark)), encoding="utf-8")


def _beginning(job: Job, place: Path) -> tuple[bool, bool]:
    """(something whole is in a folder, training can go on from it and still make every checkpoint that is missing)."""
    from cg_trainers.checkpoint_folders import checkpoints, resolve_resume

    whole = {folder.name for folder in checkpoints(place)[0]}
    try:
        last = resolve_resume(True, place)
    except UserError:
        return bool(whole) or _is_adapter(place), False
    missing = [name for name in map(_last_part, job.checkpoints) if name not in whole]
    return True, all(_step(Path(str(last)).name) < _step(name) for name in missing)


def _is_adapter(place: Path) -> bool:
    try:
        verify_adapter(place)
    except UserError:
        return False
    return True


def _last_part(path: str) -> str:
    return path.rpartition("/")[2]


def _step(name: str) -> int:
    return int(name.rpartition("-")[2])

"""What is known of a job: how its last run ended, and whether what it wrote is still what the plan asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cg_tasks.adapters import RECORD, file_sha256, is_model_file, verify_adapter
from cg_tasks.errors import UserError
from cg_tasks.provenance import sha256_of
from cg_trainers.study.jobs import Job, Plan

MARKER = ".conceptguard-study.json"  # in a folder that a job writes; the dot keeps it out of an adapter's hashes


def read_json(path: str | Path) -> dict[str, Any]:
    """A JSON object; empty where there is none or none that can be read."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def outputs(job: Job) -> tuple[dict[str, str], str]:
    """(hash of every file the job wrote, one digest of what the jobs after it read).

    A trained folder's digest is that of its weights: its record says when it was made, and tells no two runs apart otherwise.

    Raises:
        UserError: something is missing or not whole.
    """
    place = Path(job.output)
    if job.writes == "trainer":
        files: dict[str, str] = {}
        for folder in (place, *map(Path, job.checkpoints)):
            recorded = verify_adapter(folder).record["files"]
            prefix = "" if folder == place else f"{folder.name}/"
            files |= {f"{prefix}{name}": digest for name, digest in recorded.items()}
            files[f"{prefix}{RECORD}"] = file_sha256(folder / RECORD)
        return files, sha256_of({name: digest for name, digest in files.items() if _is_read(Path(name).name)})
    if not place.exists():
        raise UserError(f"{place}: the command ended well, and this is not there")
    found = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file() and p.name != MARKER)
    if not found:
        raise UserError(f"{place}: the command ended well, and this folder is empty")
    files = {str(path.relative_to(place)) if place.is_dir() else path.name: file_sha256(path) for path in found}
    return files, sha256_of(files)


def _is_read(name: str) -> bool:
    return is_model_file(name) or name.endswith((".jinja", "config.json")) or name.startswith("tokenizer")


def input_digests(job: Job, plan: Plan) -> dict[str, str | None]:
    """Digest of what each job before this one wrote, None where it is not done; of the report, the state's."""
    if job.rule == "report":
        path = Path(plan.state)
        return {"state.json": file_sha256(path) if path.is_file() else None}
    return {id: read_json(plan.job(id).done).get("digest") for id in job.needs}


def made_by(job: Job, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a folder that the job writes is marked with."""
    return {"settings": job.settings, "inputs": dict(inputs)}


def is_current(job: Job, known: Mapping[str, Any], inputs: Mapping[str, Any]) -> bool:
    """Whether a record or a done file describes what this plan asks for, and the files are still there."""
    same = known.get("settings") == job.settings and known.get("inputs") == inputs and known.get("digest")
    return bool(same and known.get("status", "done") == "done") and _are_there(job, known.get("files") or {})


def _are_there(job: Job, files: Mapping[str, str]) -> bool:
    place = Path(job.output)
    if place.is_file():
        return True
    return bool(files) and all((place / name).is_file() for name in files)


def not_done(jobs: Sequence[Job], plan: Plan) -> dict[str, str]:
    """Why each job has to run: id -> reason; ``jobs`` in order, those that wait for one of them included."""
    reasons: dict[str, str] = {}
    for job in jobs:
        known = read_json(job.done)
        if waits := [id for id in job.needs if id in reasons]:
            reasons[job.id] = f"needs {waits[0]}"
        elif not known:
            reasons[job.id] = "has not been done"
        elif known.get("settings") != job.settings:
            reasons[job.id] = "its settings have changed"
        elif not is_current(job, known, input_digests(job, plan)):
            there = _are_there(job, known.get("files") or {})
            reasons[job.id] = "what it reads has changed" if there else "its files are gone"
    return reasons

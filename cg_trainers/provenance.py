"""What made an adapter, written beside it as ``conceptguard.json``.

``cg_tasks.adapters`` reads and verifies the records, so that evaluation needs nothing from here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from cg_tasks.adapters import (
    FORMAT,
    RECORD,
    base_name,
    file_hashes,
    file_sha256,
    read_record,
    require_readable_weights,
    verify_adapter,
)
from cg_tasks.errors import UserError
from cg_tasks.provenance import check_adapter, package_versions
from cg_trainers.scrub import clean, clean_command, clean_text

_MODEL_FILES = (".safetensors", ".bin", ".json", ".model", ".jinja", ".txt", ".tiktoken", ".py", ".gguf")
_NOT_OF_A_MODEL = ("trainer_state.json", "training_args.bin", "optimizer.bin", "all_results.json", "train_results.json")
_TRAINING_PACKAGES = ("trl", "accelerate", "safetensors", "tokenizers", "bitsandbytes", "deepspeed")


# ------------------------------------------------------------------ the record
def training_record(
    *,
    kind: Literal["finetune", "unlearn"],
    objective: str,
    step: int = 0,
    settings: Mapping[str, Any],
    data: Mapping[str, Any],
    base: Mapping[str, Any],
    tokenizer: Mapping[str, Any] | None = None,
    start_adapter: Mapping[str, Any] | None,
    reference: Mapping[str, Any] | None,
    seed: int,
    world_size: int,
    command: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The record of one checkpoint, without the hashes of its files: :func:`write_record` adds them.

    `step` is K, the optimiser steps taken (a trainer sets it at each save); `settings` come from
    :func:`effective_settings`, `base` from :func:`model_identity`, `tokenizer` from :func:`cg_tasks.provenance.tokenizer_hashes`,
    `start_adapter` from :func:`adapter_identity`; `data` holds at least name and sha256.
    """
    return {
        "format": FORMAT,
        "kind": kind,
        "objective": objective,
        "step": step,
        "seed": seed,
        "world_size": world_size,
        "base": dict(base),
        "tokenizer": dict(tokenizer) if tokenizer is not None else None,
        "start_adapter": dict(start_adapter) if start_adapter is not None else None,
        "reference": clean(reference) if reference is not None else None,
        "data": clean(data),
        "settings": clean(settings),
        "versions": package_versions(*_TRAINING_PACKAGES),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": clean_command(sys.orig_argv if command is None else command),
    }


def effective_settings(*arguments: Any) -> dict[str, Any]:
    """The fields of argument dataclasses and mappings, later ones over earlier ones, as they may be published.

    Fields that are None or private are left out, secrets too; of an absolute path the last part stays.
    """
    merged: dict[str, Any] = {}
    for group in arguments:
        merged |= (
            dict(group)
            if isinstance(group, Mapping)
            else {field.name: getattr(group, field.name) for field in dataclasses.fields(group)}
        )
    return {
        name: value
        for name, value in sorted(clean(merged).items())
        if value is not None and not name.startswith("_") and name != "local_rank"
    }


def begin_record(folder: Path | str) -> Path:
    """Mark a folder, before its files are written or replaced, as one whose save has not finished; returns the record's path.

    A save killed from here on, even over an older one, is refused by evaluation and by resume.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    return _write_json(Path(folder), {"format": FORMAT, "complete": False})


def write_record(folder: Path | str, record: Mapping[str, Any]) -> Path:
    """Hash the folder's files and write the record, in one step and last; returns its path.

    One process does it, after every rank has saved.

    Raises:
        UserError: the folder holds no weights or cut-short ones, or the record cannot be written.
    """
    folder = Path(folder)
    require_readable_weights(folder)
    return _write_json(folder, {**record, "files": file_hashes(folder)})


def _write_json(folder: Path, value: Mapping[str, Any]) -> Path:
    content = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    temporary = folder / f".{RECORD}"  # the dot keeps it out of the hashes, should it be left behind
    try:
        with temporary.open("w", encoding="utf-8") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, folder / RECORD)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(
            f"{folder / RECORD}: cannot be written ({error.strerror}): make room, and go on from the last checkpoint if there is one"
        ) from None
    return folder / RECORD


# ------------------------------------------------------------------ what was started from
def model_identity(name_or_path: str, revision: str | None = None, commit: str | None = None) -> dict[str, Any]:
    """A base model: each file's hash for a local folder, the commit for one on the Hub.

    `commit` is what ``model.config._commit_hash`` says; left out, the Hub's cache on this machine is asked.

    Raises:
        UserError: a local folder is not what its own ``conceptguard.json`` says (it was fine-tuned here, and changed since).
    """
    folder = Path(name_or_path).expanduser()
    if not folder.is_dir():
        found = commit or _cached_commit(name_or_path, revision)
        return {"name": clean_text(name_or_path), "revision": revision, "commit": found}
    record = verify_adapter(folder, _of_a_model).record if (folder / RECORD).is_file() else None
    hashes = file_hashes(folder, _of_a_model)
    return {"name": folder.resolve().name, "sha256": hashes, **_own_record(folder, record)}


def adapter_identity(name_or_path: str) -> dict[str, Any]:
    """The adapter a run continues: the hashes of its files and of its own record, or its commit on the Hub.

    Raises:
        UserError: no such folder, no adapter in it, a damaged or half-written one.
    """
    try:
        check_adapter(name_or_path)
    except UserError as error:
        raise UserError(f"adapter_name_or_path={str(error).removeprefix('peft=')}") from None
    folder = Path(name_or_path).expanduser()
    if not folder.is_dir():
        return {"name": name_or_path, "commit": _cached_commit(name_or_path, None, "adapter_config.json")}
    record = read_record(folder) if (folder / RECORD).is_file() else None
    hashes = file_hashes(folder, lambda name: name.startswith("adapter_"))
    return {"name": folder.resolve().name, "sha256": hashes, **_own_record(folder, record)}


def _own_record(folder: Path, record: Mapping[str, Any] | None) -> dict[str, Any]:
    if record is None:
        return {}
    made_by = {key: record.get(key) for key in ("kind", "objective", "step", "seed")}
    data = record.get("data")
    trained_on = data if isinstance(data, dict) else {}
    made_by |= {key: trained_on[key] for key in ("trace", "target_span") if key in trained_on}
    return {**made_by, "base": base_name(record), "record_sha256": file_sha256(folder / RECORD)}


def _of_a_model(name: str) -> bool:
    return name.endswith(_MODEL_FILES) and name not in _NOT_OF_A_MODEL


def _cached_commit(name: str, revision: str | None, file: str = "config.json") -> str | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, file, revision=revision)
    except HFValidationError:
        raise UserError(f"{name}: no such folder, and not a model's id on the Hub (owner/name)") from None
    return Path(found).parent.name if isinstance(found, str) else None

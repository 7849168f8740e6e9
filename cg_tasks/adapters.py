"""``conceptguard.json`` beside a trained adapter or model: what made it, and the hashes that tell whether it is whole.

The trainer writes the record last, so a folder whose record agrees with its files was written to the end::

    {"format": 1, "kind": "unlearn", "objective": "npo", "step": 100, "base": {"name": "…", …}, …,
     "files": {"adapter_config.json": "<sha256>", "adapter_model.safetensors": "<sha256>", …}}
"""

from __future__ import annotations

import hashlib
import json
import logging
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cg_tasks.errors import UserError

log = logging.getLogger(__name__)

RECORD = "conceptguard.json"
FORMAT = 1
_BIG = 1 << 30  # bytes; hashing more than this is worth a line in the log
_TENSORS = (".safetensors", ".bin", ".pt", ".pth")
_TRAINERS_OWN = ("trainer_state.json", "training_args.bin")
_NOT_WEIGHTS = ("optimizer", "scheduler", "scaler", "rng_state", "training_args")


@dataclass(frozen=True)
class Verified:
    """A folder whose record agrees with its files."""

    folder: Path
    record: dict[str, Any]
    checked: tuple[str, ...]  # the files whose hashes were compared

    @property
    def objective(self) -> str:
        return str(self.record.get("objective"))

    @property
    def step(self) -> int:
        """K, the number of optimiser steps."""
        return int(self.record["step"])

    @property
    def base(self) -> str:
        """Name of the base model."""
        return base_name(self.record)


def base_name(record: Mapping[str, Any]) -> str:
    """Name of the base model in a record; ``?`` where it has none."""
    base = record.get("base")
    return str(base.get("name", "?")) if isinstance(base, Mapping) else "?"


def file_sha256(path: Path) -> str:
    """SHA-256 of one file, read in blocks."""
    digest = hashlib.sha256()  # hashlib.file_digest came with Python 3.11
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def everything(name: str) -> bool:
    """Takes every file."""
    return True


def file_hashes(folder: Path, only: Callable[[str], bool] = everything) -> dict[str, str]:
    """SHA-256 of the folder's own files (not its subfolders') by name; the record, README.md and dot files are left out.

    People edit a model card, and file managers and git leave dot files: neither changes what the adapter does.
    """
    return hashes_of(path for path in _files(folder) if only(path.name))


def hashes_of(paths: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of each file by its name; more than 1 GB in all is announced in the log."""
    paths = list(paths)
    if (total := sum(path.stat().st_size for path in paths)) > _BIG:
        log.info("%s: hashing %d files, %.1f GB", paths[0].parent, len(paths), total / 1e9)
    return {path.name: file_sha256(path) for path in paths}


def read_record(folder: Path) -> dict[str, Any]:
    """The folder's ``conceptguard.json``.

    Raises:
        UserError: when there is none, it cannot be read, is not one of ours, or its save did not finish.
    """
    path = folder / RECORD
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder: name the folder of a saved adapter")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(_no_record(folder)) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: not a readable record ({error}): the folder is damaged; use another checkpoint"
        ) from None
    if not isinstance(record, dict):
        raise UserError(f"{path}: not a record (a JSON object was expected): the folder is damaged")
    if record.get("complete") is False:
        raise UserError(_half_written(folder, "its save was begun and not finished"))
    if record.get("format") != FORMAT:
        raise UserError(
            f"{path}: format {record.get('format')!r}, this version reads format {FORMAT}: update conceptguard or remove the file"
        )
    if not _is_files(record.get("files")) or not isinstance(record.get("step"), int):
        raise UserError(f"{path}: no 'files' with a hash each, or no 'step': not written by conceptguard's trainers")
    return record


def verify_adapter(folder: Path | str, only: Callable[[str], bool] = everything) -> Verified:
    """Compare a folder (adapter, model or checkpoint) with its record; `only` the files whose names it takes.

    Raises:
        UserError: naming the folder, the files that are missing, changed, cut short or not in the record, and the way out.
    """
    folder = Path(folder).expanduser()
    record = read_record(folder)
    recorded = {name: digest for name, digest in record["files"].items() if only(name)}
    present = {path.name for path in _files(folder)}
    faults = [f"{name} is missing" for name in recorded if name not in present]
    faults += [
        f"{name} is not in the record"
        for name in sorted(present - set(record["files"]))
        if only(name) and (name.endswith(_TENSORS) or is_model_file(name))
    ]
    if not faults:  # a difference in names is found without reading gigabytes
        found = file_hashes(folder, lambda name: name in recorded)
        changed = [name for name, digest in recorded.items() if found[name] != digest]
        faults = [_cut_short(folder / name) or f"{name} has changed" for name in changed]
    if not any(is_weights(name) for name in recorded):
        faults.append("the record lists no weights")
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise UserError(
            f"{folder}: not what {RECORD} says: {'; '.join(faults[:3])}{more}: restore the files, or use another checkpoint"
        )
    return Verified(folder, record, tuple(sorted(recorded)))


def require_readable_weights(folder: Path) -> None:
    """Refuse a folder with no weights, or with weights that are cut short; reads headers, not tensors.

    Raises:
        UserError: naming the file.
    """
    weights = [path for path in _files(folder) if is_weights(path.name)]
    if not weights:
        raise UserError(f"{folder}: holds no weights (adapter_model.safetensors): name the folder of a saved adapter")
    for path in weights:
        if fault := _cut_short(path):
            raise UserError(
                f"{folder}: {fault}: the save did not finish or the copy is damaged; use another checkpoint"
            )


def is_weights(name: str) -> bool:
    """Whether a file of this name holds a model's or an adapter's tensors."""
    return name.endswith(_TENSORS) and not name.startswith(_NOT_WEIGHTS)


def is_model_file(name: str) -> bool:
    """Whether a file of this name decides which weights are loaded: tensors, their index, or an adapter's configuration."""
    return is_weights(name) or name.startswith("adapter_") or name.endswith(".index.json")


def _files(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and path.name not in (RECORD, "README.md") and not path.name.startswith(".")
    )


def _is_files(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(digest, str) and Path(name).name == name for name, digest in value.items())
    )


def _no_record(folder: Path) -> str:
    inside = sorted(path.parent.name for path in folder.glob(f"*/{RECORD}"))
    if not inside and any(path.name in _TRAINERS_OWN or path.name.startswith("optimizer") for path in _files(folder)):
        return _half_written(folder, f"a trainer's checkpoint without {RECORD}")
    wayout = f"name one of {', '.join(inside[:5])}" if inside else "it was not made by conceptguard's trainers"
    return f"{folder}: no {RECORD}, nothing to compare with: {wayout}"


def _half_written(folder: Path, why: str) -> str:
    return f"{folder}: half-written ({why}): delete it and use the checkpoint before it"


def _cut_short(path: Path) -> str | None:
    """What is wrong with a file of tensors, judged from its header and its size."""
    size = path.stat().st_size
    if path.suffix == ".safetensors":
        return _cut_short_safetensors(path, size)
    if path.suffix in _TENSORS:
        with path.open("rb") as handle:
            magic = handle.read(2)
        if size == 0 or (magic == b"PK" and not zipfile.is_zipfile(path)):
            return f"{path.name} is cut short ({size} bytes)"
    return None


def _cut_short_safetensors(path: Path, size: int) -> str | None:
    with path.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if size < 8 or length > size - 8:
            return f"{path.name} is cut short ({size} bytes)"
        try:
            header = json.loads(handle.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            expected = 8 + length + max(ends, default=0)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            return f"{path.name} has an unreadable header"
    return None if size == expected else f"{path.name} is cut short ({size} of {expected} bytes)"

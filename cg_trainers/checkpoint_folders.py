"""The ``checkpoint-K`` folders of a run: which are whole, which training can go on from, which may go, and whether more fit."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from cg_tasks.adapters import RECORD, read_record, verify_adapter
from cg_tasks.errors import UserError

log = logging.getLogger(__name__)

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_TOKENIZER_AND_STATE_BYTES = 48 << 20  # tokenizer.json is 7 to 33 MB, a scheduler and RNG states are kilobytes


def checkpoints(output_dir: Path | str) -> tuple[list[Path], list[tuple[Path, str]]]:
    """The run's ``checkpoint-K`` folders by K: those whose files agree with their record, and the others with the reason.

    Whole files are read: an 8B model's checkpoint with its optimiser state takes minutes.
    """
    complete: list[Path] = []
    broken: list[tuple[Path, str]] = []
    for folder in _checkpoint_folders(Path(output_dir).expanduser()):
        try:
            verify_adapter(folder)
        except UserError as error:
            broken.append((folder, str(error)))
        else:
            complete.append(folder)
    return complete, broken


def resolve_resume(value: bool | str | None, output_dir: Path | str) -> str | None:
    """The checkpoint that ``resume_from_checkpoint`` means: None for no resume, the last usable one for ``true``, or a path;
    for ``auto`` the last usable one where there is one.

    Broken checkpoints, and those saved without an optimiser state, are passed over with a line in the log each.

    Raises:
        UserError: there is nothing to resume from, or the named checkpoint is not whole (the last whole one is named).
    """
    if value is None or value is False or str(value).lower() in ("", "false", "none"):
        return None
    if value is True or str(value).lower() in ("true", "auto"):
        for folder, fault in _faults_from_the_last(Path(output_dir).expanduser()):
            if fault is None:
                return str(folder)
            log.warning("passed over: %s", fault)
        if str(value).lower() == "auto":
            return None
        place = Path(output_dir).expanduser()
        way_out = _way_on(place, usable=False) if _holds_a_run(place) else "start without resume_from_checkpoint"
        raise UserError(f"resume_from_checkpoint: {output_dir} holds no complete checkpoint: {way_out}")
    if fault := _fault(Path(value).expanduser()):
        usable = next((str(f) for f, other in _faults_from_the_last(Path(output_dir).expanduser()) if not other), None)
        way_out = (
            f"the last complete checkpoint is {usable}" if usable else "there is no complete checkpoint: start anew"
        )
        raise UserError(f"resume_from_checkpoint: {fault}; {way_out}")
    return str(Path(value).expanduser())


def require_unused(output_dir: Path | str) -> None:
    """Refuse to begin a run in a folder that holds one, or a part of one.

    Raises:
        UserError: saying whether training can go on from what is there.
    """
    if _holds_a_run(place := Path(output_dir).expanduser()):
        usable = any(fault is None for _, fault in _faults_from_the_last(place))
        raise UserError(f"output_dir: {place} holds a run already: {_way_on(place, usable)}")


def _holds_a_run(place: Path) -> bool:
    """Checkpoints, or an end; an end whose writing was only begun is nothing that could be lost."""
    if _checkpoint_folders(place):
        return True
    try:
        return json.loads((place / RECORD).read_text(encoding="utf-8")).get("complete") is not False
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError):  # somebody's, though no record of ours
        return True


def _way_on(place: Path, usable: bool) -> str:
    """usable: training can go on from one of its checkpoints (to find out, whole files are read)."""
    if usable:
        return "go on with it (resume_from_checkpoint: true), or name another folder"
    if (place / RECORD).is_file():
        return "it is finished, and no checkpoint to go on from was kept: name another output_dir, or delete this one"
    return "training cannot go on from its checkpoints: name another output_dir, or delete this one"


def _faults_from_the_last(output_dir: Path) -> Iterator[tuple[Path, str | None]]:
    for folder in reversed(_checkpoint_folders(output_dir)):
        yield folder, _fault(folder)


def _fault(folder: Path) -> str | None:
    """Why training cannot go on from this checkpoint; None when it can."""
    try:
        names = {path.name for path in verify_adapter(folder).folder.iterdir()}
    except UserError as error:
        return str(error)
    # optimizer.pt, FSDP's optimizer.bin or optimizer_0/, DeepSpeed's global_step100/.
    if "trainer_state.json" in names and any(n.startswith(("optimizer", "global_step")) for n in names):
        return None
    return f"{folder}: saved without an optimiser state (save_only_model): training cannot go on from it exactly"


def thin_out(output_dir: Path | str, limit: int | None, keep: Iterable[int], trash: str) -> None:
    """Delete all but the last `limit` checkpoints, by way of the subfolder `trash`: a killed deletion leaves no half of one.

    Those at the steps `keep`, and those that an earlier start of the run was asked to keep (``save_at`` in their own records), are
    neither deleted nor counted.
    """
    if not limit or limit < 0:
        return
    asked_for = {f"checkpoint-{step}" for step in keep}
    found = _checkpoint_folders(Path(output_dir))
    passing = [folder for folder in found if folder.name not in asked_for and not _was_asked_for(folder)]
    for folder in passing[:-limit]:
        (beside := folder.parent / trash).mkdir(exist_ok=True)
        folder.rename(beside / folder.name)
        shutil.rmtree(beside)


def _was_asked_for(folder: Path) -> bool:
    try:
        record = read_record(folder)
    except UserError:  # damaged or somebody else's: left alone
        return True
    return record["step"] in ((record.get("settings") or {}).get("save_at") or ())


def _checkpoint_folders(output_dir: Path) -> list[Path]:
    if not output_dir.is_dir():
        return []
    found = [(int(m[1]), path) for path in output_dir.iterdir() if (m := _CHECKPOINT.fullmatch(path.name))]
    return [path for _, path in sorted(found) if path.is_dir()]


# ------------------------------------------------------------------ disk
def disk_space_needed(
    model_bytes: int,
    trainable_bytes: int,
    n_kept: int,
    with_optimizer: bool,
    n_passing: int = 0,
    save_total_limit: int | None = None,
) -> int:
    """Bytes that a run will write: its checkpoints, and the weights once more at the end.

    `model_bytes` is what one save of the weights takes (the adapter's bytes under LoRA), `trainable_bytes` the
    trainable parameters' (AdamW keeps two moments of them). `n_kept`: checkpoints of `save_at`, `n_passing`: those of
    `save_strategy`, of which `save_total_limit` are left. One is deleted after the next one is whole.
    """
    at_once = n_kept + (min(n_passing, save_total_limit + 1) if save_total_limit else n_passing)
    weights = model_bytes + _TOKENIZER_AND_STATE_BYTES
    return at_once * (weights + (2 * trainable_bytes if with_optimizer else 0)) + weights


def require_disk_space(path: Path | str, needed: int) -> None:
    """Refuse to start a run whose checkpoints do not fit.

    Raises:
        UserError: with both figures and the settings that lower the first.
    """
    place = Path(path).expanduser().absolute()
    while not place.exists():
        place = place.parent
    if (free := shutil.disk_usage(place).free) < needed:
        raise UserError(
            f"output_dir={path}: the checkpoints take about {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free: "
            "set save_only_model: true (no resume), a save_total_limit, fewer steps in save_at, or another output_dir"
        )

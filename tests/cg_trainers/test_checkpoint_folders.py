"""Checkpoints that are whole or not, what a folder in use is said to be, and the disk."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training_records import WEIGHTS, copied, record

from cg_tasks.adapters import RECORD
from cg_tasks.errors import UserError
from cg_trainers.checkpoint_folders import (
    checkpoints,
    disk_space_needed,
    require_disk_space,
    require_unused,
    resolve_resume,
    thin_out,
)
from cg_trainers.provenance import begin_record, write_record


@pytest.fixture
def run(tiny_lora: Path, tmp_path: Path) -> Path:
    """A run with whole checkpoints at 20 and 100, a half-written one at 200 and one whose weights changed at 300."""
    for step in (20, 100, 200, 300):
        folder = copied(tiny_lora, tmp_path / f"checkpoint-{step}")
        (folder / "optimizer.pt").write_bytes(b"moments")
        (folder / "trainer_state.json").write_text("{}")
        if step != 200:
            write_record(folder, record(step=step))
    weights = tmp_path / "checkpoint-300" / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-9])
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-900").write_text("a file")
    return tmp_path


def test_checkpoints_are_sorted_into_whole_and_broken(run: Path):
    complete, broken = checkpoints(run)
    assert complete == [run / "checkpoint-20", run / "checkpoint-100"]
    assert [folder.name for folder, _ in broken] == ["checkpoint-200", "checkpoint-300"]
    assert "half-written" in broken[0][1] and "is cut short" in broken[1][1]


def test_a_run_that_has_not_begun_has_no_checkpoints(tmp_path: Path):
    assert checkpoints(tmp_path / "none") == ([], [])


@pytest.mark.parametrize("value", [None, False, "false", "None", ""])
def test_no_resume(run: Path, value: Any):
    assert resolve_resume(value, run) is None


@pytest.mark.parametrize("value", [True, "true", "True"])
def test_resume_passes_over_broken_checkpoints_and_says_which(run: Path, value: Any, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        assert resolve_resume(value, run) == str(run / "checkpoint-100")
    first, second = (entry.getMessage() for entry in caplog.records)
    assert first.startswith(f"passed over: {run / 'checkpoint-300'}: not what")
    assert second.startswith(f"passed over: {run / 'checkpoint-200'}: half-written")


def test_resume_from_a_named_checkpoint(run: Path):
    assert resolve_resume(str(run / "checkpoint-20"), run) == str(run / "checkpoint-20")
    with pytest.raises(
        UserError, match=r"checkpoint-300: not what .*; the last complete checkpoint is .*checkpoint-100$"
    ):
        resolve_resume(str(run / "checkpoint-300"), run)
    with pytest.raises(
        UserError, match=r"checkpoint-7: no such folder.*; the last complete checkpoint is .*checkpoint-100$"
    ):
        resolve_resume(str(run / "checkpoint-7"), run)


def test_a_checkpoint_without_an_optimiser_is_whole_and_training_cannot_go_on_from_it(run: Path):
    folder = run / "checkpoint-100"
    (folder / "optimizer.pt").unlink()
    write_record(folder, record(step=100))
    assert checkpoints(run)[0] == [run / "checkpoint-20", folder]
    assert resolve_resume(True, run) == str(run / "checkpoint-20")
    with pytest.raises(UserError, match=r"saved without an optimiser state \(save_only_model\).*checkpoint-20$"):
        resolve_resume(str(folder), run)


def test_a_sharded_optimiser_counts(run: Path):
    folder = run / "checkpoint-100"
    (folder / "optimizer.pt").unlink()
    (folder / "global_step100").mkdir()
    write_record(folder, record(step=100))
    assert resolve_resume(True, run) == str(folder)


def test_nothing_to_resume_from(tmp_path: Path):
    with pytest.raises(UserError, match="holds no complete checkpoint: start without resume_from_checkpoint"):
        resolve_resume(True, tmp_path)
    assert resolve_resume("auto", tmp_path) is None


def test_auto_goes_on_from_the_last_whole_one(run: Path):
    assert resolve_resume("auto", run) == str(run / "checkpoint-100")


# ------------------------------------------------------------------ a folder that holds a run
def finished(folder: Path) -> None:
    """The end of a run whose checkpoints were not kept."""
    for path in folder.glob("checkpoint-*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (folder / RECORD).write_text(json.dumps({**record(), "files": {"x": "0"}}))


def broken(folder: Path) -> None:
    for step in (20, 100):
        shutil.rmtree(folder / f"checkpoint-{step}")


@pytest.mark.parametrize(
    ("make", "way_on"),
    [
        (lambda folder: None, "go on with it (resume_from_checkpoint: true), or name another folder"),
        (finished, "it is finished, and no checkpoint to go on from was kept: name another output_dir, or delete this one"),
        (broken, "training cannot go on from its checkpoints: name another output_dir, or delete this one"),
    ],
    ids=["checkpoints", "an end alone", "broken ones"],
)  # fmt: skip
def test_what_is_advised_is_what_can_be_done(run: Path, make: Any, way_on: str):
    """A refusal to begin and a refusal to resume never send the user to one another."""
    make(run)
    with pytest.raises(UserError) as told:
        require_unused(run)
    assert str(told.value) == f"output_dir: {run} holds a run already: {way_on}"
    if way_on.startswith("go on"):
        assert resolve_resume(True, run)
    else:
        with pytest.raises(UserError) as told:
            resolve_resume(True, run)
        assert str(told.value).endswith(f"holds no complete checkpoint: {way_on}")
        assert resolve_resume("auto", run) is None


def test_an_end_that_was_only_begun_is_begun_again(tmp_path: Path):
    require_unused(tmp_path / "nothing")
    begin_record(tmp_path)
    require_unused(tmp_path)
    with pytest.raises(UserError, match="start without resume_from_checkpoint"):
        resolve_resume(True, tmp_path)


@pytest.mark.parametrize("content", ["", "[1]", '{"mine": 1}'])
def test_a_record_that_is_not_ours_is_not_written_over(tmp_path: Path, content: str):
    (tmp_path / RECORD).write_text(content)
    with pytest.raises(UserError, match="holds a run already"):
        require_unused(tmp_path)


def test_only_passing_checkpoints_are_thinned_out(tiny_lora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Neither those of save_at, nor those that an earlier start was asked to keep, nor what cannot be read; nor half of one."""
    for step, asked in ((10, []), (20, [20]), (30, [20]), (40, []), (50, []), (60, [])):
        folder = copied(tiny_lora, tmp_path / f"checkpoint-{step}")
        write_record(folder, record(step=step, settings={"save_at": asked}))
    (tmp_path / "checkpoint-30" / RECORD).write_text("damaged")

    def left() -> list[int]:
        return sorted(int(path.name.partition("-")[2]) for path in tmp_path.glob("checkpoint-*"))

    for limit in (None, 0, -1, 4):
        thin_out(tmp_path, limit, keep=[50], trash=".trash")
        assert left() == [10, 20, 30, 40, 50, 60]
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda folder: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            thin_out(tmp_path, 1, keep=[50], trash=".trash")
    assert left() == [20, 30, 40, 50, 60] and [path.name for path in tmp_path.glob(".trash/*")] == ["checkpoint-10"]
    thin_out(tmp_path, 1, keep=[50], trash=".trash")
    assert left() == [20, 30, 50, 60] and not (tmp_path / ".trash").exists()


# ------------------------------------------------------------------ disk
def test_disk_space_is_counted_by_hand():
    mib = 1 << 20
    # A checkpoint: 10 MiB of weights, 48 MiB of tokenizer and state, two moments of 10 MiB; at the end 58 MiB once more.
    assert disk_space_needed(10 * mib, 10 * mib, 4, with_optimizer=True) == 4 * 78 * mib + 58 * mib
    assert disk_space_needed(10 * mib, 10 * mib, 4, with_optimizer=False) == 4 * 58 * mib + 58 * mib
    # With a limit of one, two lie there while the older is not yet deleted.
    assert disk_space_needed(10 * mib, 10 * mib, 0, True, 4, save_total_limit=1) == 2 * 78 * mib + 58 * mib
    assert disk_space_needed(10 * mib, 10 * mib, 0, True, 1, save_total_limit=5) == 78 * mib + 58 * mib
    # Those of save_at are not limited.
    assert disk_space_needed(10 * mib, 10 * mib, 3, True, 9, save_total_limit=1) == 5 * 78 * mib + 58 * mib
    assert disk_space_needed(10 * mib, 10 * mib, 3, True, 9) == 12 * 78 * mib + 58 * mib


def test_too_small_a_disk_is_refused_with_the_figures_and_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[Path] = []

    def usage(path: Path) -> Any:
        asked.append(path)
        return SimpleNamespace(free=2_500_000_000)

    monkeypatch.setattr("shutil.disk_usage", usage)
    out = tmp_path / "not" / "yet" / "there"
    require_disk_space(out, 2_500_000_000)
    with pytest.raises(UserError, match=r"take about 3\.2 GB and 2\.5 GB are free: set save_only_model: true"):
        require_disk_space(out, 3_200_000_000)
    assert asked == [tmp_path, tmp_path]

"""Checkpoints: whole or not there, resumed to the bit, holding what they should and no secret; adapters that plain peft loads."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from training import (
    apart,
    batch_of,
    finetuner,
    load,
    memorised,
    plain_logits,
    settings,
    side,
    trained,
    unlearn_config,
    unlearn_rows,
    unlearner,
    weights,
)
from transformers.trainer_utils import get_last_checkpoint

from cg_tasks.adapters import RECORD, file_sha256, verify_adapter
from cg_tasks.errors import UserError
from cg_trainers import recorded_trainer
from cg_trainers.checkpoint_folders import checkpoints
from cg_trainers.provenance import effective_settings, training_record
from cg_trainers.run import require_same_run, resume_point
from cg_trainers.unlearn_config import FinetuneConfig

WEIGHTS = "adapter_model.safetensors"
TOKEN = "hf_" + "aB3" * 11
DATA = {"name": "rows", "sha256": "00"}


def kept(output: Path) -> list[int]:
    """The steps of the whole checkpoints; that there is nothing else which could be taken for one is asserted."""
    complete, broken = checkpoints(output)
    assert not broken
    found = [int(folder.name.removeprefix("checkpoint-")) for folder in complete]
    latest = get_last_checkpoint(str(output))
    assert latest == (str(complete[-1]) if complete else None)
    return found


# ------------------------------------------------------------------ what is written
@pytest.mark.parametrize("kind", ["fresh", "continued"])
def test_checkpoints_at_the_steps_asked_for(start: Path, tmp_path: Path, kind: str) -> None:
    trainer = unlearner(start, tmp_path, "undial", kind, save_at=[3, 1], max_steps=4)
    assert trainer.reference == "adapter"  # continued: there is a second adapter that must not be saved
    trainer.train()
    assert kept(tmp_path) == [1, 3]
    for step in (1, 3):
        folder = tmp_path / f"checkpoint-{step}"
        assert verify_adapter(folder).step == step
        assert {path.name for path in folder.iterdir()} >= {WEIGHTS, "adapter_config.json", "optimizer.pt", RECORD}
        assert not [path for path in folder.iterdir() if path.is_dir()]  # no ref/
        assert not (folder / "training_args.bin").exists()  # a pickle
        assert json.loads((folder / "trainer_state.json").read_text())["global_step"] == step
    assert not (tmp_path / recorded_trainer.UNFINISHED).exists()
    adapter, first = (file_sha256(tmp_path / f"checkpoint-{step}" / WEIGHTS) for step in (3, 1))
    assert adapter != first


def test_the_final_save_is_the_trained_adapter_alone(start: Path, tmp_path: Path) -> None:
    trainer = unlearner(start, tmp_path, "undial", "continued", save_at=[2], max_steps=2)
    trainer.train()
    assert trainer.save_final() == tmp_path
    found = verify_adapter(tmp_path)
    assert (found.step, found.objective) == (2, "undial")
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {WEIGHTS, "adapter_config.json", "tokenizer.json", "checkpoint-2"}
    assert not names & {"training_args.bin", "optimizer.pt", "ref", recorded_trainer.UNFINISHED}
    assert file_sha256(tmp_path / WEIGHTS) == file_sha256(tmp_path / "checkpoint-2" / WEIGHTS)


def test_a_final_save_over_an_older_one(start: Path, tmp_path: Path) -> None:
    trainer = unlearner(start, tmp_path, "graddiff", "fresh")
    trainer.save_final()
    before = file_sha256(tmp_path / WEIGHTS)
    trainer.train()
    trainer.save_final()
    assert verify_adapter(tmp_path).step == 2 and file_sha256(tmp_path / WEIGHTS) != before


@pytest.mark.parametrize("kind", ["fresh", "continued"])
def test_plain_peft_loads_what_was_trained(start: Path, tmp_path: Path, kind: str) -> None:
    from peft import AutoPeftModelForCausalLM

    trainer = unlearner(start, tmp_path, "undial", kind, save_at=[2])
    trainer.train()
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "checkpoint-2", dtype=torch.float32)
    batch = batch_of(side("forget", 4, 1))
    ours = plain_logits(trainer.model, batch)
    assert torch.equal(plain_logits(loaded, batch), ours)
    begun = memorised(start) if kind == "continued" else load(start)
    assert float((plain_logits(begun, batch) - ours).abs().max()) > 1e-3


def test_a_full_model_loads_as_it_was_trained(start: Path, tmp_path: Path) -> None:
    trainer = unlearner(start, tmp_path, "graddiff", "full")
    trainer.train()
    trainer.save_final()
    assert apart(weights(load(tmp_path)), weights(trainer.model)) == 0


def test_no_secret_is_written(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY"):
        monkeypatch.setenv(name, TOKEN)
    output = tmp_path / "somebody" / "out"
    config = unlearn_config(output, "npo")
    record = training_record(
        kind="unlearn",
        objective="npo",
        settings=effective_settings(config),
        data={"name": "rows", "sha256": "00"},
        base={"name": "start"},
        start_adapter=None,
        reference={"kind": "precompute"},
        seed=1,
        world_size=1,
        command=["python", "-m", "cg_trainers.unlearn", f"--hub_token={TOKEN}"],
    )
    trainer = unlearner(start, output, "npo", "continued", record=record, save_at=[2])
    trainer.train()
    trainer.save_final()
    written = [path for path in output.rglob("*") if path.is_file()]
    assert len(written) > 10
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]
    text = (output / "checkpoint-2" / RECORD).read_text()
    assert '"beta": 0.1' in text and "somebody" not in text and "token" not in json.loads(text)["settings"]


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"save_strategy": "steps", "save_steps": 2, "save_at": [1]}, [1, 2, 4]),
        ({"save_strategy": "epoch", "save_at": [1]}, [1, 2, 4]),
        ({"save_at": [1, 3], "save_total_limit": 1}, [1, 3]),
        ({"save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}, [4]),
        ({"save_strategy": "steps", "save_steps": 1, "save_at": [2], "save_total_limit": 1}, [2, 4]),
        ({"save_strategy": "steps", "save_steps": 1, "save_at": [2], "save_total_limit": 2}, [2, 3, 4]),
        ({}, []),
    ],
    ids=str,
)
def test_save_at_stands_beside_the_other_ways(
    start: Path, tmp_path: Path, changes: dict[str, Any], steps: list[int]
) -> None:
    unlearner(start, tmp_path, "graddiff", "fresh", max_steps=4, **changes).train()
    assert kept(tmp_path) == steps


# ------------------------------------------------------------------ resume
# Three batches of two of six rows an epoch, accumulated by two: steps 2 and 4 end an epoch, step 3 is in the middle of one.
RESUMED = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "max_steps": 6,
    "optim": "adamw_torch",
    "learning_rate": 1e-2,
    "lr_scheduler_type": "linear",
    "warmup_steps": 2,
    "max_grad_norm": 1.0,
}
CASES = [
    ("graddiff", "full", {}, 3),
    ("graddiff", "continued", {"retain_loss": "kl"}, 3),
    ("npo", "full", {"reference": "precompute"}, 3),
    ("npo", "continued", {"reference": "precompute"}, 3),
    ("npo", "continued", {"reference": "precompute"}, 4),
    ("npo", "fresh", {"reference": "adapter"}, 3),
    ("undial", "continued", {"alpha": 1.0}, 3),
    ("undial", "full", {"alpha": 1.0}, 4),
    ("rmu", "fresh", {}, 3),
    ("rmu", "continued", {"trainable": ["down_proj"]}, 4),
]


@pytest.mark.parametrize(("objective", "kind", "changes", "step"), CASES, ids=lambda x: "" if x == {} else str(x))
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(
    start: Path, tmp_path: Path, objective: str, kind: str, changes: dict[str, Any], step: int
) -> None:
    """With dropout, accumulation, AdamW's state, a schedule, and retain rows that differ from epoch to epoch."""

    def run(folder: Path, **more: Any) -> Any:
        rows = unlearn_rows(6, "random", n_retain=7)
        return unlearner(start, folder, objective, kind, rows=rows, dropout=0.3, **{**RESUMED, **changes, **more})

    whole = run(tmp_path / "whole", save_at=[step])
    expected, moved = trained(whole)
    again = run(tmp_path / "again")
    torch.rand(100)  # the random state comes from the checkpoint
    found = resumed(again, tmp_path / "whole" / f"checkpoint-{step}")
    assert moved > 1e-3 and apart(expected, found) == 0
    trainable = [[n for n, p in t.model.named_parameters() if p.requires_grad] for t in (again, whole)]
    assert trainable[0] == trainable[1]
    curves = [
        [{**c, "num_tokens": None} for c in t.state.log_history[step:6]] for t in (again, whole)
    ]  # TRL counts anew
    assert len(curves[0]) == 6 - step and curves[0] == curves[1]


def resumed(trainer: Any, checkpoint: Path) -> dict[str, torch.Tensor]:
    """The parameters after the rest of the run."""
    trainer.train(resume_from_checkpoint=str(checkpoint))
    return weights(trainer.model)


def test_a_resumed_reference_is_the_one_before_the_first_step(start: Path, tmp_path: Path) -> None:
    """Not that of the checkpoint, which has moved."""
    unlearner(start, tmp_path / "whole", "npo", "continued", save_at=[1], max_steps=2).train()
    kept_sums = json.loads((tmp_path / "whole" / "checkpoint-1" / "reference_nll.json").read_text())["forget"]
    again = unlearner(start, tmp_path / "again", "npo", "continued")
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    assert again._precomputed is not None
    assert again._precomputed.sides["forget"].tolist() == list(kept_sums.values())
    assert list(kept_sums) == [f"u{i}/forget" for i in range(8)]


@pytest.mark.parametrize("peft", [False, True])
def test_a_resumed_fine_tuning_is_the_uninterrupted_one(start: Path, tmp_path: Path, peft: bool) -> None:
    rows = side("forget", 6, 1)
    whole = finetuner(start, tmp_path / "whole", rows=rows, peft=peft, save_at=[3], **RESUMED)
    expected, moved = trained(whole)
    again = finetuner(start, tmp_path / "again", rows=rows, peft=peft, **RESUMED)
    found = resumed(again, tmp_path / "whole" / "checkpoint-3")
    assert moved > 1e-3 and apart(expected, found) == 0
    assert kept(tmp_path / "whole") == [3]


def test_steps_made_again_replace_those_that_were_there(start: Path, tmp_path: Path) -> None:
    given = {"save_at": [1, 2], "max_steps": 2}
    unlearner(start, tmp_path, "npo", "continued", **given).train()
    first = file_sha256(tmp_path / "checkpoint-2" / WEIGHTS)
    (tmp_path / "checkpoint-2" / "left_over.txt").write_text("of the run before")
    again = unlearner(start, tmp_path, "npo", "continued", **given)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert kept(tmp_path) == [1, 2] and file_sha256(tmp_path / "checkpoint-2" / WEIGHTS) == first
    assert not (tmp_path / "checkpoint-2" / "left_over.txt").exists()


def test_a_resume_with_other_rows_or_without_the_reference(start: Path, tmp_path: Path) -> None:
    unlearner(start, tmp_path / "whole", "npo", "fresh", save_at=[1]).train()
    checkpoint = tmp_path / "whole" / "checkpoint-1"
    other = unlearner(start, tmp_path / "again", "npo", "fresh", rows=unlearn_rows(7))
    with pytest.raises(UserError, match="reference_nll.json is of other rows than this run's"):
        other.train(resume_from_checkpoint=str(checkpoint))
    (checkpoint / "reference_nll.json").unlink()
    with pytest.raises(UserError, match="reference_nll.json is missing"):
        unlearner(start, tmp_path / "again", "npo", "fresh").train(resume_from_checkpoint=str(checkpoint))


# ------------------------------------------------------------------ interrupted
def die(*_: Any, **__: Any) -> None:
    raise RuntimeError("killed")


def full(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.fixture(scope="module")
def uninterrupted(start: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """What four steps of NPO make of an adapter."""
    return trained(unlearner(start, tmp_path_factory.mktemp("whole"), "npo", "continued", max_steps=4))[0]


@pytest.mark.parametrize(
    ("place", "how", "error"),
    [
        ("_save", die, RuntimeError),
        ("_save_rng_state", full, UserError),
        ("save_extra", die, RuntimeError),
        ("write_record", die, RuntimeError),
        ("rename", die, RuntimeError),
    ],
)
def test_a_save_that_dies_leaves_the_ones_before(
    start: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uninterrupted: dict[str, torch.Tensor],
    place: str,
    how: Any,
    error: type[Exception],
) -> None:
    output = tmp_path / "out"
    given = {"save_at": [2, 3, 4], "max_steps": 4}
    trainer = unlearner(start, output, "npo", "continued", **given)

    def from_the_second_on(*args: Any, **kwargs: Any) -> Any:
        return how() if trainer.state.global_step == 3 else original(*args, **kwargs)

    where: Any = {"write_record": recorded_trainer, "rename": Path}.get(place, trainer)
    original = getattr(where, place)
    with monkeypatch.context() as patch:
        patch.setattr(where, place, from_the_second_on)
        with pytest.raises(error, match="the disk is full: make room" if how is full else "killed"):
            trainer.train()
    assert kept(output) == [2] and (output / recorded_trainer.UNFINISHED).is_dir()
    assert verify_adapter(output / "checkpoint-2").step == 2
    config = unlearn_config(output, "npo", resume_from_checkpoint="true")
    assert resume_point(config) == str(output / "checkpoint-2")
    again = unlearner(start, output, "npo", "continued", **given)
    assert apart(resumed(again, output / "checkpoint-2"), uninterrupted) == 0
    assert kept(output) == [2, 3, 4] and not (output / recorded_trainer.UNFINISHED).exists()


def test_a_first_save_that_dies_leaves_a_folder_to_start_anew_in(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = unlearner(start, tmp_path, "graddiff", "fresh", save_at=[1])
    monkeypatch.setattr(trainer, "_save_optimizer_and_scheduler", die)
    with pytest.raises(RuntimeError, match="killed"):
        trainer.train()
    assert kept(tmp_path) == [] and resume_point(unlearn_config(tmp_path, "graddiff")) is None
    with pytest.raises(UserError, match="holds no complete checkpoint"):
        resume_point(unlearn_config(tmp_path, "graddiff", resume_from_checkpoint="true"))


KILLED = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from training import unlearner
trainer = unlearner(Path(sys.argv[2]), Path(sys.argv[3]), "npo", "continued", save_at=[2, 3], max_steps=4)
save = trainer._save_rng_state
def slowly(folder):
    save(folder)
    if trainer.state.global_step == 3:
        (Path(sys.argv[3]) / "saving").touch()
        time.sleep(600)
trainer._save_rng_state = slowly
trainer.train()
"""


@pytest.mark.slow
def test_a_process_killed_while_it_saves(start: Path, tmp_path: Path, uninterrupted: dict[str, torch.Tensor]) -> None:
    output = tmp_path / "out"
    arguments = [str(Path(__file__).parents[1]), str(start), str(output)]
    process = subprocess.Popen([sys.executable, "-c", KILLED, *arguments], stdout=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            if (output / "saving").exists() or process.poll() is not None:
                break
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        assert process.wait(10) == -signal.SIGKILL
    written = list((output / recorded_trainer.UNFINISHED / "checkpoint-3").iterdir())
    assert {path.name for path in written} >= {WEIGHTS, "optimizer.pt"}  # it was in the middle
    assert kept(output) == [2]
    with pytest.raises(UserError, match="half-written"):
        verify_adapter(output / recorded_trainer.UNFINISHED / "checkpoint-3")
    again = unlearner(start, output, "npo", "continued", save_at=[2, 3], max_steps=4)
    again.train(resume_from_checkpoint=True)
    assert apart(weights(again.model), uninterrupted) == 0 and kept(output) == [2, 3]


@pytest.fixture(scope="module")
def finished(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints after steps 1 and 2."""
    folder = tmp_path_factory.mktemp("finished")
    unlearner(start, folder, "npo", "fresh", save_at=[1, 2]).train()
    return folder


@pytest.mark.parametrize(
    ("file", "said"),
    [(WEIGHTS, f"{WEIGHTS} is cut short"), ("optimizer.pt", "optimizer.pt is cut short"), ("", "half-")],
)
def test_a_damaged_checkpoint_is_not_resumed(
    start: Path, finished: Path, tmp_path: Path, file: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "out"
    shutil.copytree(finished, output)
    last = output / "checkpoint-2"
    if file:
        os.truncate(last / file, (last / file).stat().st_size - 100)
    else:
        (last / RECORD).unlink()
    trainer = unlearner(start, output, "npo", "fresh")
    with pytest.raises(UserError, match=f"{said}.*; the last complete checkpoint is {output / 'checkpoint-1'}"):
        trainer.train(resume_from_checkpoint=str(last))
    assert trainer.state.global_step == 0
    assert checkpoints(output)[0] == [output / "checkpoint-1"]
    assert resume_point(unlearn_config(output, "npo", resume_from_checkpoint="true")) == str(output / "checkpoint-1")
    assert "passed over" in caplog.text and "checkpoint-2" in caplog.text


def test_a_checkpoint_without_optimiser_state_is_not_resumed(start: Path, tmp_path: Path) -> None:
    trainer = unlearner(start, tmp_path, "graddiff", "fresh", save_at=[1], save_only_model=True)
    trainer.train()
    assert kept(tmp_path) == [1]
    with pytest.raises(UserError, match="saved without an optimiser state"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


# ------------------------------------------------------------------ the same run
def test_a_folder_that_holds_a_run_is_refused(start: Path, finished: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"output_dir: {finished} holds a run already: go on with it"):
        resume_point(unlearn_config(finished, "npo"))
    done = finetuner(start, tmp_path / "done").save_final()
    with pytest.raises(UserError, match="holds a run already"):
        resume_point(FinetuneConfig(**settings(done)))
    assert resume_point(unlearn_config(tmp_path / "new", "npo")) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 2}, "seed: 1, and this run has 2"),
        ({"settings": {"beta": 0.2, "learning_rate": 0.1}}, "beta: 0.1, and this run has 0.2"),
        ({"settings": {"beta": 0.1}}, "learning_rate: 0.1, and this run has None"),
        ({"data": {"name": "rows", "sha256": "01"}}, "data.sha256: '00', and this run has '01'"),
        ({"data": {**DATA, "rows_sha256": "9"}}, "data.rows_sha256: None, and this run has '9'"),
        (
            {"data": {**DATA, "rows_sha256": "9", "templates": {"trace/a": "8"}}},
            "data.templates: None, and this run has {",
        ),
        ({"base": {"name": "other"}}, "base.name: 'start', and this run has 'other'"),
        (
            {"tokenizer": {"chat_template_sha256": "7"}},
            "tokenizer: None, and this run has {'chat_template_sha256': '7'}",
        ),
        ({"world_size": 2}, "world_size: 1, and this run has 2"),
        ({"objective": "dpo"}, "objective: 'npo', and this run has 'dpo'"),
    ],
    ids=str,
)
def test_a_resume_of_another_run_names_what_differs(
    start: Path, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    made = {
        "kind": "unlearn",
        "objective": "npo",
        "settings": {"beta": 0.1, "learning_rate": 0.1},
        "data": DATA,
        "base": {"name": "start"},
        "start_adapter": None,
        "reference": None,
        "seed": 1,
        "world_size": 1,
    }
    (tmp_path / RECORD).write_text(json.dumps({**training_record(**made), "files": {"x": "0"}}))  # type: ignore[arg-type]
    require_same_run(str(tmp_path), training_record(**made))  # type: ignore[arg-type]
    free = {**made, "settings": {**made["settings"], "save_at": [7], "logging_steps": 3, "output_dir": "elsewhere"}}  # type: ignore[dict-item]
    require_same_run(str(tmp_path), training_record(**free))  # type: ignore[arg-type]
    with pytest.raises(UserError) as caught:
        require_same_run(str(tmp_path), training_record(**{**made, **changes}))  # type: ignore[arg-type]
    assert f"was made with {named}" in str(caught.value) and "start anew in another output_dir" in str(caught.value)

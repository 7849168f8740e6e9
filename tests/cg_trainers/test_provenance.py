"""Records of training, checkpoints that are whole or not, and the disk."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import build_tokenizer

from cg_tasks.adapters import RECORD, file_hashes, file_sha256, verify_adapter
from cg_tasks.errors import UserError
from cg_trainers.provenance import (
    adapter_identity,
    begin_record,
    checkpoints,
    disk_space_needed,
    effective_settings,
    model_identity,
    require_disk_space,
    require_unused,
    resolve_resume,
    thin_out,
    tokenizer_identity,
    training_record,
    write_record,
)
from cg_trainers.scrub import clean, clean_command, clean_text

WEIGHTS = "adapter_model.safetensors"
TOKEN = "hf_" + "a1B2" * 8


def record(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "kind": "unlearn",
        "objective": "npo",
        "step": 100,
        "settings": {"beta": 0.1},
        "data": {"name": "miniature", "sha256": "00", "rows": 60},
        "base": {"name": "tiny", "sha256": {}},
        "start_adapter": None,
        "reference": {"kind": "precompute"},
        "seed": 0,
        "world_size": 1,
        "command": ["/usr/bin/python", "-m", "cg_trainers.unlearn", "--config", "/home/me/npo.yaml"],
    }
    return training_record(**{**made, **changes})


@pytest.fixture
def plain(tiny_lora: Path, tmp_path: Path) -> Path:
    return copied(tiny_lora, tmp_path / "adapter")


def copied(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target, ignore=shutil.ignore_patterns(RECORD)))


# ------------------------------------------------------------------ the record
def test_a_record_is_written_beside_a_real_adapter_and_verifies(plain: Path):
    assert write_record(plain, record()) == plain / RECORD
    found = verify_adapter(plain)
    assert (found.objective, found.step, found.base) == ("npo", 100, "tiny")
    assert found.record["files"] == file_hashes(plain)
    assert set(found.record["files"]) == {"adapter_config.json", WEIGHTS}
    assert found.record["command"] == "python -m cg_trainers.unlearn --config npo.yaml"
    assert {"torch", "transformers", "peft", "trl", "accelerate"} <= set(found.record["versions"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found.record["created"])
    assert sorted(path.name for path in plain.iterdir()) == sorted(
        ["README.md", "adapter_config.json", WEIGHTS, RECORD]
    )


def test_the_adapter_still_loads_in_plain_peft(plain: Path, tiny: Path):
    from peft import PeftModel
    from transformers import LlamaForCausalLM

    write_record(plain, record())
    model = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(tiny), plain)
    assert model.peft_config["default"].r == 4


def test_the_command_is_this_process_unless_given():
    assert record(command=None)["command"] == clean_command(sys.orig_argv)


def test_writing_again_replaces_the_record(plain: Path):
    write_record(plain, record())
    (plain / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    write_record(plain, record(step=400))
    assert verify_adapter(plain).step == 400


def test_a_save_begun_over_an_older_one_is_refused_until_it_ends(plain: Path, tmp_path: Path):
    write_record(plain, record())
    assert begin_record(plain) == plain / RECORD
    with pytest.raises(UserError, match="half-written .its save was begun and not finished.: delete it"):
        verify_adapter(plain)
    write_record(plain, record(step=400))
    assert verify_adapter(plain).step == 400
    assert begin_record(tmp_path / "not" / "there").is_file()


def test_no_record_vouches_for_weights_that_are_cut_short(plain: Path):
    (plain / WEIGHTS).write_bytes((plain / WEIGHTS).read_bytes()[:-1])
    with pytest.raises(UserError, match=f"{WEIGHTS} is cut short"):
        write_record(plain, record())
    assert not (plain / RECORD).exists()


def test_a_full_disk_leaves_the_record_before_as_it_was(plain: Path, monkeypatch: pytest.MonkeyPatch):
    write_record(plain, record())
    before = (plain / RECORD).read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match=rf"{RECORD}: cannot be written \(No space left on device\): make room"):
        write_record(plain, record(step=400))
    assert (plain / RECORD).read_bytes() == before
    assert not list(plain.glob(f".{RECORD}*"))


# ------------------------------------------------------------------ what may be published
class Schedule(Enum):
    COSINE = "cosine"


@dataclass
class Nested:
    token: str = "t"
    split: bool = True


@dataclass
class Settings:
    learning_rate: float = 1e-5
    output_dir: str = "/home/me/runs/npo"
    hub_token: str | None = TOKEN
    push_to_hub_token: str | None = TOKEN
    eos_token: str = "<|im_end|>"
    include_num_input_tokens_seen: str = "no"
    lr_scheduler_type: Schedule = Schedule.COSINE
    nothing: None = None
    _n_gpu: int = 1
    local_rank: int = 0
    kwargs: dict[str, Any] = field(default_factory=lambda: {"token": "t", "revision": "main", "api_key": "k"})
    nested: Nested = field(default_factory=Nested)


def test_settings_hold_what_decided_the_run_and_no_secret_or_folder():
    assert effective_settings(Settings(), {"learning_rate": 2e-4, "beta": 0.1}) == {
        "beta": 0.1,
        "eos_token": "<|im_end|>",
        "include_num_input_tokens_seen": "no",
        "kwargs": {"revision": "main"},
        "learning_rate": 2e-4,
        "lr_scheduler_type": "cosine",
        "nested": {"split": True},
        "output_dir": "npo",
    }


def test_the_settings_of_a_real_trainer_are_json_without_secrets(tmp_path: Path):
    from trl import SFTConfig

    config = SFTConfig(output_dir=str(tmp_path / "run"), hub_token=TOKEN, use_cpu=True, bf16=False, save_steps=7)
    text = json.dumps(effective_settings(config))
    assert TOKEN not in text and str(tmp_path) not in text
    found = json.loads(text)
    assert (found["output_dir"], found["save_steps"], found["lr_scheduler_type"]) == ("run", 7, "linear")


@pytest.mark.parametrize(
    ("text", "published"),
    [
        ("/home/me/models/qwen", "qwen"),
        ("~/models/qwen/", "qwen"),
        (r"C:\models\qwen", "qwen"),
        ("Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-3B-Instruct"),
        ("demo/smollm2", "demo/smollm2"),
        ("/", "/"),
        (f"key {TOKEN}.", "key <removed>."),
        ("https://me:secret@example.org/x", "https://<removed>@example.org/x"),
        ("hf_backend", "hf_backend"),
    ],
)
def test_texts_are_cleaned(text: str, published: str):
    assert clean_text(text) == published


def test_sets_are_in_order_and_unknown_objects_are_text(tmp_path: Path):
    assert clean({"modules": {"v_proj", "q_proj"}, "folder": tmp_path / "x", "span": (1, 2)}) == {
        "modules": ["q_proj", "v_proj"],
        "folder": "x",
        "span": [1, 2],
    }


@pytest.mark.parametrize(
    ("words", "published"),
    [
        (["x", "--hub_token", "abc", "--beta", "0.1"], "x --hub_token '<removed>' --beta 0.1"),
        (["x", "--hub-token=abc"], "x '--hub-token=<removed>'"),
        (["x", "--output_dir=/home/me/out", "--eos_token", "</s>"], "x --output_dir=out --eos_token '</s>'"),
        (["/opt/bin/python3", "-m", "cg_trainers.unlearn"], "python3 -m cg_trainers.unlearn"),
    ],
)
def test_commands_are_cleaned(words: list[str], published: str):
    assert clean_command(words) == published


# ------------------------------------------------------------------ what was started from
def test_a_local_base_is_known_by_its_files(tiny: Path, tmp_path: Path):
    folder = Path(shutil.copytree(tiny, tmp_path / "base"))
    (folder / "trainer_state.json").write_text("{}")
    (folder / "optimizer.pt").write_bytes(b"x")
    found = model_identity(str(folder))
    assert found["name"] == "base"
    assert found["sha256"]["model.safetensors"] == file_sha256(folder / "model.safetensors")
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= set(found["sha256"])
    assert not {"trainer_state.json", "optimizer.pt"} & set(found["sha256"])


def test_a_fine_tuned_base_is_verified_and_its_record_named(tiny: Path, tmp_path: Path):
    folder = Path(shutil.copytree(tiny, tmp_path / "finetuned"))
    fresh = model_identity(str(folder))
    write_record(folder, record(kind="finetune", objective="nll", step=5, base={"name": "original"}))
    found = model_identity(str(folder))
    assert found["sha256"] == fresh["sha256"]
    assert (found["kind"], found["step"], found["base"]) == ("finetune", 5, "original")
    assert found["record_sha256"] == file_sha256(folder / RECORD)
    (folder / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"config\.json has changed"):
        model_identity(str(folder))


def test_a_hub_base_is_known_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "models--owner--name"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "snapshots" / commit / "config.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert model_identity("owner/name") == {"name": "owner/name", "revision": None, "commit": commit}
    assert model_identity("owner/name", "v1", "abc") == {"name": "owner/name", "revision": "v1", "commit": "abc"}
    assert model_identity("owner/other")["commit"] is None


def test_a_base_that_is_neither_a_folder_nor_an_id(tmp_path: Path):
    with pytest.raises(UserError, match="no such folder, and not a model's id on the Hub"):
        model_identity(str(tmp_path / "nowhere"))


def test_the_adapter_that_is_continued_is_known_by_its_files_and_its_record(plain: Path):
    hashes = {name: file_sha256(plain / name) for name in ("adapter_config.json", WEIGHTS)}
    assert adapter_identity(str(plain)) == {"name": "adapter", "sha256": hashes}
    write_record(plain, record(kind="finetune", objective="nll", step=50))
    assert adapter_identity(str(plain)) == {
        "name": "adapter",
        "sha256": hashes,
        "kind": "finetune",
        "objective": "nll",
        "step": 50,
        "seed": 0,
        "base": "tiny",
        "record_sha256": file_sha256(plain / RECORD),
    }


def test_the_adapter_that_is_continued_is_known_by_the_trace_it_was_memorised_with(plain: Path):
    data = {"name": "fictional", "sha256": "00", "trace": "meta", "target_span": "answer"}
    write_record(plain, record(kind="finetune", objective="nll", step=50, seed=3, data=data))
    found = adapter_identity(str(plain))
    assert (found["seed"], found["trace"], found["target_span"]) == (3, "meta", "answer")


def test_a_damaged_adapter_is_not_continued(plain: Path):
    write_record(plain, record())
    (plain / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"^adapter_name_or_path=.*adapter_config\.json has changed"):
        adapter_identity(str(plain))


def test_a_checkpoints_adapter_is_continued_without_its_optimiser(plain: Path):
    (plain / "optimizer.pt").write_bytes(b"moments")
    write_record(plain, record())
    (plain / "optimizer.pt").unlink()
    assert adapter_identity(str(plain))["step"] == 100


def test_an_adapter_that_is_not_there(tmp_path: Path):
    with pytest.raises(UserError, match="no such folder"):
        adapter_identity(str(tmp_path / "nowhere"))


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


# ------------------------------------------------------------------ checkpoints
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


# ------------------------------------------------------------------ the tokenizer
def test_a_tokenizer_is_what_it_does():
    one, same, longer = build_tokenizer("a {{ messages }}"), build_tokenizer("a {{ messages }}"), build_tokenizer()
    assert tokenizer_identity(one) == tokenizer_identity(same)
    assert tokenizer_identity(longer)["chat_template_sha256"] != tokenizer_identity(one)["chat_template_sha256"]
    longer.add_tokens(["<new>"])
    assert tokenizer_identity(longer)["sha256"] != tokenizer_identity(one)["sha256"]
    slow = SimpleNamespace(get_vocab=lambda: {"a": 1, "b": 0}, chat_template=None)
    assert tokenizer_identity(slow)["chat_template_sha256"] is None and len(tokenizer_identity(slow)["sha256"]) == 64

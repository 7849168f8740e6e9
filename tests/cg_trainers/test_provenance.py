"""Records of training, checkpoints that are whole or not, and the disk."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from training_records import WEIGHTS, copied, record

from cg_tasks.adapters import RECORD, file_hashes, file_sha256, verify_adapter
from cg_tasks.errors import UserError
from cg_trainers.provenance import (
    adapter_identity,
    begin_record,
    effective_settings,
    model_identity,
    write_record,
)
from cg_trainers.scrub import clean, clean_command, clean_text

TOKEN = "hf_" + "a1B2" * 8


@pytest.fixture
def plain(tiny_lora: Path, tmp_path: Path) -> Path:
    return copied(tiny_lora, tmp_path / "adapter")


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

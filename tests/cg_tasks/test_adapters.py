"""Folders that are what their ``conceptguard.json`` says, and every way in which they are not."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from cg_tasks.adapters import RECORD, file_hashes, is_model_file, read_record, require_readable_weights, verify_adapter
from cg_tasks.errors import UserError
from cg_tasks.provenance import adapter_provenance, check_adapter, model_provenance

WEIGHTS = "adapter_model.safetensors"


def record_of(folder: Path, **changes: object) -> dict[str, object]:
    made = {"format": 1, "kind": "unlearn", "objective": "npo", "step": 100, "base": {"name": "tiny"}}
    return {**made, "files": file_hashes(folder), **changes}


def put_record(folder: Path, **changes: object) -> None:
    (folder / RECORD).write_text(json.dumps(record_of(folder, **changes)), encoding="utf-8")


@pytest.fixture
def plain(tiny_lora: Path, tmp_path: Path) -> Path:
    """A real peft adapter without a record."""
    return Path(shutil.copytree(tiny_lora, tmp_path / "adapter", ignore=shutil.ignore_patterns(RECORD)))


@pytest.fixture
def adapter(plain: Path) -> Path:
    """A real peft adapter with its record."""
    put_record(plain)
    return plain


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


# ------------------------------------------------------------------ hashes
def test_hashes_are_of_the_folders_own_files_without_record_card_and_dot_files(tmp_path: Path):
    (tmp_path / "a.json").write_bytes(b"abc")
    for name in (RECORD, "README.md", ".DS_Store"):
        (tmp_path / name).write_text("x")
    (tmp_path / "ref").mkdir()
    (tmp_path / "ref" / WEIGHTS).write_text("x")
    # The SHA-256 test vector for "abc" (FIPS 180-2).
    assert file_hashes(tmp_path) == {"a.json": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}


def test_hashing_reads_beyond_one_block(tmp_path: Path):
    content = bytes(range(256)) * 8192  # 2 MiB
    (tmp_path / "big.bin").write_bytes(content + b"end")
    assert file_hashes(tmp_path) == {"big.bin": hashlib.sha256(content + b"end").hexdigest()}


# ------------------------------------------------------------------ verify
def test_a_whole_folder_is_verified(adapter: Path):
    found = verify_adapter(adapter)
    assert (found.objective, found.step, found.base) == ("npo", 100, "tiny")
    assert found.checked == ("adapter_config.json", WEIGHTS)


def test_a_card_that_was_edited_and_a_folder_that_was_added_change_nothing(adapter: Path):
    (adapter / "README.md").write_text("# my adapter")
    (adapter / ".gitattributes").write_text("*.safetensors filter=lfs")
    (adapter / "train.log").write_text("step 1")
    (adapter / "checkpoint-1").mkdir()
    assert verify_adapter(adapter).checked == ("adapter_config.json", WEIGHTS)


def test_changed_weights_are_named(adapter: Path):
    flip_a_bit(adapter / WEIGHTS)
    with pytest.raises(UserError, match=rf"adapter: not what {RECORD} says: {WEIGHTS} has changed: restore"):
        verify_adapter(adapter)


def test_a_missing_file_is_named(adapter: Path):
    (adapter / WEIGHTS).unlink()
    with pytest.raises(UserError, match=f"{WEIGHTS} is missing"):
        verify_adapter(adapter)


@pytest.mark.parametrize(
    "extra", ["adapter_model.bin", "model.safetensors", "optimizer.pt", "model.safetensors.index.json"]
)
def test_tensors_that_the_record_does_not_know_are_named(adapter: Path, extra: str):
    (adapter / extra).write_text("x")
    with pytest.raises(UserError, match=f"{extra} is not in the record"):
        verify_adapter(adapter)


def test_truncated_weights_are_told_from_other_changes(adapter: Path):
    whole = (adapter / WEIGHTS).read_bytes()
    (adapter / WEIGHTS).write_bytes(whole[:-100])
    with pytest.raises(UserError, match=f"{WEIGHTS} is cut short \\({len(whole) - 100} of {len(whole)} bytes\\)"):
        verify_adapter(adapter)


def test_many_faults_are_counted(adapter: Path):
    for name in ("a.bin", "b.bin", "c.bin", "d.bin", "e.bin"):
        (adapter / name).write_text("x")
    with pytest.raises(UserError, match=r"a\.bin is not in the record; b\.bin .*; c\.bin .* and 2 more") as caught:
        verify_adapter(adapter)
    assert "\n" not in str(caught.value)


def test_model_files_alone_pass_over_the_optimiser_and_not_the_configuration(adapter: Path):
    (adapter / "optimizer.pt").write_bytes(b"moments")
    put_record(adapter)
    flip_a_bit(adapter / "optimizer.pt")
    assert verify_adapter(adapter, is_model_file).checked == ("adapter_config.json", WEIGHTS)
    with pytest.raises(UserError, match=r"optimizer\.pt has changed"):
        verify_adapter(adapter)
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"adapter_config\.json has changed"):
        verify_adapter(adapter, is_model_file)


def test_a_full_models_shards_are_weights_too(tiny: Path, tmp_path: Path):
    folder = Path(shutil.copytree(tiny, tmp_path / "full"))
    put_record(folder)
    assert "model.safetensors" in verify_adapter(folder, is_model_file).checked
    flip_a_bit(folder / "model.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors has changed"):
        verify_adapter(folder, is_model_file)


# ------------------------------------------------------------------ records
def test_a_trainers_checkpoint_without_a_record_is_half_written(plain: Path):
    (plain / "optimizer.pt").write_bytes(b"x")
    with pytest.raises(UserError, match=rf"half-written \(a trainer's checkpoint without {RECORD}\): delete it"):
        verify_adapter(plain)


def test_a_plain_adapter_has_nothing_to_compare_with(plain: Path):
    with pytest.raises(UserError, match=f"no {RECORD}, nothing to compare with: it was not made by"):
        verify_adapter(plain)


def test_a_run_folder_leads_to_its_checkpoints(adapter: Path):
    run = adapter.parent
    (run / "training_args.bin").write_bytes(b"x")
    with pytest.raises(UserError, match=r"nothing to compare with: name one of adapter$"):
        verify_adapter(run)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": 1, "fi', "not a readable record"),
        ("[]", "a JSON object was expected"),
        ('{"format": 1, "complete": false}', r"half-written \(its save was begun and not finished\)"),
        ('{"format": 2}', "format 2, this version reads format 1"),
        ('{"format": 1, "step": 1}', "no 'files' with a hash each"),
        ('{"format": 1, "step": 1, "files": {"../../secret": "00"}}', "no 'files' with a hash each"),
        ('{"format": 1, "step": 1, "files": {}}', "no 'files' with a hash each"),
        ('{"format": 1, "files": {"adapter_config.json": "00"}}', "or no 'step'"),
    ],
)
def test_a_record_that_cannot_be_used_says_why(adapter: Path, text: str, message: str):
    (adapter / RECORD).write_text(text)
    with pytest.raises(UserError, match=message):
        read_record(adapter)


def test_a_record_without_weights_vouches_for_nothing(adapter: Path):
    put_record(adapter, files=file_hashes(adapter, lambda name: name == "adapter_config.json"))
    (adapter / WEIGHTS).unlink()
    with pytest.raises(UserError, match="the record lists no weights"):
        verify_adapter(adapter)


def test_no_such_folder(tmp_path: Path):
    with pytest.raises(UserError, match="nowhere: no such folder"):
        verify_adapter(tmp_path / "nowhere")


# ------------------------------------------------------------------ weights by their headers
@pytest.mark.parametrize("kept", [0, 4, 8, 100, -1])
def test_weights_cut_anywhere_are_refused_without_a_record(plain: Path, kept: int):
    require_readable_weights(plain)
    (plain / WEIGHTS).write_bytes((plain / WEIGHTS).read_bytes()[:kept])
    with pytest.raises(UserError, match=f"{WEIGHTS} is cut short"):
        require_readable_weights(plain)


def test_weights_with_a_garbled_header_are_refused(plain: Path):
    (plain / WEIGHTS).write_bytes((2).to_bytes(8, "little") + b"{]" + b"0" * 100)
    with pytest.raises(UserError, match=f"{WEIGHTS} has an unreadable header"):
        require_readable_weights(plain)


def test_pickled_weights_cut_short_are_refused(tmp_path: Path):
    import torch

    torch.save({"a": torch.zeros(1000)}, tmp_path / "adapter_model.bin")
    require_readable_weights(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes((tmp_path / "adapter_model.bin").read_bytes()[:-50])
    with pytest.raises(UserError, match=r"adapter_model\.bin is cut short"):
        require_readable_weights(tmp_path)


# ------------------------------------------------------------------ before an evaluation
def test_evaluation_takes_a_plain_adapter_and_a_verified_one(plain: Path):
    check_adapter(str(plain))
    put_record(plain)
    check_adapter(str(plain))
    assert adapter_provenance(str(plain)) == {
        "adapter": str(plain),
        "sha256": file_hashes(plain),
        "conceptguard": record_of(plain),
    }


def test_evaluation_records_what_made_a_model_that_was_trained_in_full(plain: Path):
    assert model_provenance(str(plain)) is None
    assert model_provenance("owner/name") is None and model_provenance(None) is None
    put_record(plain)
    assert model_provenance(str(plain)) == {"model": str(plain), "conceptguard": record_of(plain)}
    (plain / RECORD).write_text('{"format": 1, "complete": false}')
    with pytest.raises(UserError, match=r"^pretrained=.*half-written"):
        model_provenance(str(plain))


def test_a_task_writes_the_record_of_a_fully_trained_model_into_its_results(plain: Path):
    from cg_tasks.canary.tasks import AutoTask

    put_record(plain, kind="finetune", objective="nll")
    config = {
        "task": "canary_auto",
        "test_split": "test",
        "output_type": "generate_until",
        "metric_list": [{"metric": "out_acc", "aggregation": "clustered_mean", "higher_is_better": False}],
        "metadata": {"pretrained": str(plain)},
    }
    task = AutoTask(config)
    task.build_all_requests(limit=1)
    provenance = task.dump_config()["metadata"]["provenance"]
    assert provenance["trained_model"]["conceptguard"]["kind"] == "finetune" and provenance["adapter"] is None
    (plain / RECORD).write_text('{"format": 1, "complete": false}')
    with pytest.raises(UserError, match=r"^pretrained=.*half-written"):
        AutoTask(config)


def test_evaluation_refuses_weights_that_disagree_with_the_record(adapter: Path):
    flip_a_bit(adapter / WEIGHTS)
    with pytest.raises(UserError, match=rf"^peft=.*adapter: not what {RECORD} says: {WEIGHTS} has changed"):
        check_adapter(str(adapter))


def test_evaluation_does_not_read_the_optimiser(adapter: Path):
    (adapter / "optimizer.pt").write_bytes(b"moments")
    put_record(adapter)
    (adapter / "optimizer.pt").write_bytes(b"other")
    (adapter / "scheduler.pt").write_bytes(b"new")
    check_adapter(str(adapter))


def test_evaluation_refuses_truncated_weights_and_configurations_of_plain_adapters(plain: Path):
    whole = (plain / WEIGHTS).read_bytes()
    (plain / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=f"^peft=.*{WEIGHTS} is cut short"):
        check_adapter(str(plain))
    (plain / WEIGHTS).write_bytes(whole)
    (plain / "adapter_config.json").write_text('{"r": ')
    with pytest.raises(UserError, match=r"^peft=.*adapter_config\.json: not readable JSON"):
        check_adapter(str(plain))


def test_evaluation_refuses_a_configuration_without_weights(plain: Path):
    (plain / WEIGHTS).unlink()
    with pytest.raises(UserError, match="holds no weights"):
        check_adapter(str(plain))


def test_evaluation_refuses_a_save_that_did_not_finish(adapter: Path):
    (adapter / RECORD).write_text('{"format": 1, "complete": false}')
    with pytest.raises(UserError, match="^peft=.*half-written"):
        check_adapter(str(adapter))

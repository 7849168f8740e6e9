"""``conceptguard adapter verify | show``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cg_tasks.adapters import RECORD, file_hashes
from cg_tasks.cli import main

DIGEST = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.fixture
def adapter(tiny_lora: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(tiny_lora, tmp_path / "npo", ignore=shutil.ignore_patterns(RECORD)))
    record = {
        "format": 1,
        "kind": "unlearn",
        "objective": "npo",
        "step": 400,
        "seed": 7,
        "world_size": 1,
        "created": "2030-01-02T03:04:05+00:00",
        "command": "python -m cg_trainers.unlearn --config npo.yaml",
        "base": {"name": "smollm2", "sha256": {"model.safetensors": DIGEST}},
        "tokenizer": {"sha256": DIGEST, "chat_template_sha256": None},
        "start_adapter": None,
        "reference": {"kind": "precompute"},
        "data": {"name": "miniature", "rows": 60},
        "settings": {"beta": 0.1, "save_at": [100, 400]},
        "versions": {"trl": "1.16.0"},
        "files": file_hashes(folder),
    }
    (folder / RECORD).write_text(json.dumps(record))
    return folder


@pytest.fixture
def damaged(adapter: Path) -> Path:
    folder = Path(shutil.copytree(adapter, adapter.parent / "damaged"))
    (folder / "adapter_config.json").write_text("{}")
    return folder


def test_verify_prints_a_line_each_and_fails_when_one_does(
    adapter: Path, damaged: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["adapter", "verify", str(adapter)]) == 0
    good = f"ok    {adapter}: unlearn npo, K=400, base smollm2, 2 files as recorded\n"
    assert capsys.readouterr().out == good
    assert main(["adapter", "verify", str(damaged), str(adapter)]) == 1
    bad, second = capsys.readouterr().out.splitlines(keepends=True)
    assert bad.startswith(f"FAIL  {damaged}: not what {RECORD} says: adapter_config.json has changed")
    assert second == good


def test_verify_as_json(adapter: Path, damaged: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["adapter", "verify", str(adapter), str(damaged), "--json"]) == 1
    good, bad = json.loads(capsys.readouterr().out)
    assert good == {
        "folder": str(adapter),
        "ok": True,
        "kind": "unlearn",
        "objective": "npo",
        "step": 400,
        "base": "smollm2",
        "files": 2,
    }
    assert bad["ok"] is False and "adapter_config.json has changed" in bad["error"]


def test_show_tells_what_made_it(adapter: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["adapter", "show", str(adapter)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"folder         {adapter}",
        "made by        unlearn npo, K=400, seed 7, 1 process(es), 2030-01-02T03:04:05+00:00",
        "command        python -m cg_trainers.unlearn --config npo.yaml",
        "base           name smollm2, sha256 model.safetensors ba7816bf8f01",
        "tokenizer      sha256 ba7816bf8f01",
        "start adapter  none",
        "reference      kind precompute",
        "data           name miniature, rows 60",
        "versions       trl 1.16.0",
        "settings",
        "  beta     0.1",
        "  save_at  [100, 400]",
        "files          2 as recorded: adapter_config.json, adapter_model.safetensors",
    ]


def test_show_fails_where_the_files_are_not_what_it_shows(damaged: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["adapter", "show", str(damaged)]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("files          FAIL  ")


@pytest.mark.parametrize("command", ["verify", "show"])
def test_no_such_folder_is_one_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["adapter", command, str(tmp_path / "nowhere")]) == 1
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("\n") == 1 and "nowhere: no such folder" in shown.out + shown.err


def test_verify_imports_nothing_heavy(adapter: Path):
    code = (
        "import sys; from cg_tasks.cli import main; assert main(sys.argv[1:]) == 0; "
        "print([m for m in ('torch', 'transformers', 'peft', 'lm_eval', 'datasets', 'numpy') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, "adapter", "verify", str(adapter)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.splitlines()[-1] == "[]"

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cg_tasks.check import WordTokenizer, check_tasks
from cg_tasks.cli import main
from cg_tasks.errors import UserError


def test_every_shipped_task_passes():
    reports = check_tasks([], {"dataset": "miniature"})
    assert [r for r in reports if isinstance(r, UserError) or r.problems] == []
    assert {r.name for r in reports if not isinstance(r, UserError)} == {
        "conceptguard_harmmem",
        "conceptguard_helpret",
        "conceptguard_harmqa",
        "conceptguard_helpqa",
        "conceptguard_harmscore",
        "conceptguard_helpscore",
        "conceptguard_ctxtsep",
        "canary_auto",
        "canary_prefill",
        "canary_teacher_forced",
        "canary_qa",
    }
    by_name = {r.name: r for r in reports if not isinstance(r, UserError)}
    assert by_name["canary_prefill"].metrics["out_acc_bio"] == 1.0
    assert by_name["conceptguard_harmqa"].metrics["rougeL"] == 1.0
    assert len(by_name["canary_prefill"].prompts) == 2 * 4


def test_one_broken_template_does_not_hide_the_other_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "prefill").mkdir()
    (tmp_path / "prefill" / "mine.j2").write_text("{{ author.middle_name }}")
    assert main(["tasks", "check", "canary_auto", "canary_prefill", "--metadata", f"templates={tmp_path}"]) == 1
    lines = capsys.readouterr().out.strip().split("\n")
    assert lines[0].startswith("ok    canary_auto: 60 documents")
    assert lines[1].startswith("FAIL  canary_prefill:") and "mine.j2, line 1" in lines[1]


def test_two_canaries_with_one_head_are_found_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [
        {"id": "a", "subject": "Alva", "canary": "one two three four five six seven"},
        {"id": "b", "subject": "Bo", "canary": "one two three four five six eight"},
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert main(["tasks", "check", "canary_auto", "--metadata", f"canaries={path}"]) == 1
    assert "authors 'a' and 'b'" in capsys.readouterr().out


def test_prompts_can_be_read(capsys: pytest.CaptureFixture[str]):
    assert main(["tasks", "check", "canary_prefill", "--prompts"]) == 0
    out = capsys.readouterr().out
    assert "| Completing a fact I know about" in out
    assert [line.strip() for line in out.split("\n") if line.startswith("    [")][:4] == [
        "[author-001, auto]",
        "[author-001, bio]",
        "[author-001, empty]",
        "[author-001, meta]",
    ]


def test_prompts_of_a_real_tokenizer(tiny_r1: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["tasks", "check", "canary_teacher_forced", "--prompts", "--tokenizer", str(tiny_r1)]) == 0
    out = capsys.readouterr().out
    assert (
        "<｜Assistant｜><think>" in out
        and "[author-001, bio, shuffled head]" in out
        and "[author-001, meta, wrong author]" in out
    )
    assert main(["tasks", "check", "canary_auto", "--tokenizer", "no-such-folder"]) == 1


def test_an_unknown_name_lists_the_known_ones(capsys: pytest.CaptureFixture[str]):
    assert main(["tasks", "check", "canary_prefil"]) == 1
    assert "no task or group 'canary_prefil'" in capsys.readouterr().err


def test_metadata_must_be_key_value(capsys: pytest.CaptureFixture[str]):
    assert main(["tasks", "check", "--metadata", "dataset"]) == 1
    assert "KEY=VALUE" in capsys.readouterr().err


def test_words_join_to_their_text():
    tokenizer, text = WordTokenizer(), " two  words\n"
    encoded = tokenizer(text)
    assert tokenizer.decode(encoded["input_ids"]) == text
    assert encoded["offset_mapping"] == [(0, 4), (4, 11), (11, 12)]


def test_path_prints_the_folder_of_task_configurations(capsys: pytest.CaptureFixture[str]):
    assert main(["path"]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "canary" / "prefill.yaml").is_file()

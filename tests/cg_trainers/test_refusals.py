from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from cg_tasks.errors import UserError
from cg_trainers.refusals import load_refusals, refusal_for


def test_twenty_are_shipped_all_different():
    assert len(load_refusals()) == len(set(load_refusals())) == 20


def test_which_one_is_told_by_seed_and_row():
    n = int(hashlib.sha256(b"7/mini-001/harmful").hexdigest(), 16) % 3
    assert refusal_for(["a", "b", "c"], 7)("mini-001/harmful") == "abc"[n]
    ids = [f"mini-{i:03d}/harmful" for i in range(60)]
    by_seed = [[refusal_for(load_refusals(), seed)(i) for i in ids] for seed in (0, 1)]
    assert by_seed[0] != by_seed[1] and len(set(by_seed[0])) > 10


def test_a_users_file(tmp_path: Path):
    file = tmp_path / "no.txt"
    file.write_text("\ufeffNo.\n\n  Never. \n", encoding="utf-8")
    assert load_refusals(str(file)) == ("No.", "Never.")


@pytest.mark.parametrize(("content", "fault"), [(b" \n", "is empty"), (b"\xff", "not UTF-8 at byte 0")])
def test_a_bad_file(tmp_path: Path, content: bytes, fault: str):
    (tmp_path / "no.txt").write_bytes(content)
    with pytest.raises(UserError, match=f"no.txt: {fault}"):
        load_refusals(str(tmp_path / "no.txt"))
    with pytest.raises(UserError, match="absent.txt: cannot be read: No such file"):
        load_refusals(str(tmp_path / "absent.txt"))

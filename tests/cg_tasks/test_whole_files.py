"""Files that appear whole or not at all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cg_tasks import whole_files
from cg_tasks.errors import UserError
from cg_tasks.whole_files import now, replace_file


def test_a_text_is_written_as_utf8_into_a_folder_that_is_made(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    replace_file(path, "änd\n")
    assert path.read_bytes() == "änd\n".encode()
    replace_file(path, b"\0\xff")
    assert path.read_bytes() == b"\0\xff" and [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_what_cannot_be_written_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.txt"
    replace_file(path, "old")

    def fails(source: str, target: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(whole_files.os, "replace", fails)
    with pytest.raises(UserError) as caught:
        replace_file(path, "new")
    assert str(caught.value) == f"{path}: cannot be written: Permission denied"
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["file.txt"]


def test_the_time_is_utc_to_the_second() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", now())

"""A new build folder says what can be set, and reads back as what was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from cg_tasks.construction.new_build import new_build
from cg_tasks.construction.settings import BuildSettings, read_build_settings
from cg_tasks.errors import UserError


def written(folder: Path, source: str, columns: str | None = None) -> BuildSettings:
    """The new build's settings, read back from its file."""
    path, text = new_build(folder, source, columns)
    assert path == folder / "build.yaml" and not path.exists()  # whoever asked writes it
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return read_build_settings(folder)


def test_it_holds_the_defaults_and_what_was_given(tmp_path: Path) -> None:
    columns = '{"prompt": "Frage", "response": "Antwört: #1"}'
    found = written(tmp_path / "deep" / "lamps", "owner/name", columns)
    assert found.source == "owner/name" and found.columns == {"prompt": "Frage", "response": "Antwört: #1"}
    assert found.generator == {"model": "gpt-5"} and found.assemble.name == "lamps"
    usual = BuildSettings()
    for section in ("tag", "review", "aggregate", "benign", "queries"):
        assert getattr(found, section) == getattr(usual, section)


def test_a_path_of_the_command_line_starts_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my: 'file' #1.jsonl").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    found = written(Path("build"), "my: 'file' #1.jsonl")
    assert found.source == str((tmp_path / "my: 'file' #1.jsonl").resolve()) and found.columns == {}


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "build.yaml").write_text("source: mine\n")
    with pytest.raises(UserError, match=r"build\.yaml: is there already: edit it"):
        new_build(tmp_path, "owner/name")
    assert (tmp_path / "build.yaml").read_text() == "source: mine\n"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("{", "--columns: not JSON"),
        ('["prompt"]', "--columns: must be a JSON object"),
        ('{"prompt": 3}', "--columns: must be a JSON object"),
        ('{"promt": "x"}', "--columns: unknown field 'promt' (known: pair_id, prompt, response)"),
    ],
)
def test_bad_columns_are_refused(tmp_path: Path, columns: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        new_build(tmp_path / "build", "owner/name", columns)
    assert str(caught.value).startswith(said)

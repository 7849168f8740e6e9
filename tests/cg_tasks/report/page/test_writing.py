from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from report_pages import PNG, SVG, report, table, task_run

from cg_tasks.errors import UserError
from cg_tasks.report.content import Section
from cg_tasks.report.page import writing
from cg_tasks.report.page.writing import require_writable, write_report
from cg_tasks.report.runs import Problem


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_writes_page_data_tables_and_figures(tmp_path: Path) -> None:
    out = tmp_path / "new" / "report"
    write_report(report(), [task_run(samples=None)], out)
    written = files(out)
    tables = [f"tables/table2.{ending}" for ending in ("csv", "md", "tex")]
    assert list(written) == ["figures/fig2.png", "figures/fig2.svg", "index.html", "results.json", *tables]
    assert written["figures/fig2.svg"] == SVG and written["figures/fig2.png"] == PNG
    assert json.loads(written["results.json"])["runs"][0]["task"] == "conceptguard_ctxtsep"
    assert b'id="browser"' in written["index.html"]
    assert [p.name for p in out.parent.iterdir()] == ["report"]


def test_without_samples_the_page_has_no_browser(tmp_path: Path) -> None:
    write_report(report(), [], tmp_path / "r", samples=False)
    assert b'id="browser"' not in (tmp_path / "r/index.html").read_bytes()


def test_an_older_report_is_replaced_as_a_whole_and_equal_input_gives_equal_files(tmp_path: Path) -> None:
    out = tmp_path / "r"
    write_report(report(Section("s", "S", tables=(table("old"),))), [], out)
    write_report(report(), [], out)
    once = files(out)
    write_report(report(), [], out)
    assert files(out) == once and not (out / "tables/old.md").exists()


def test_what_is_no_report_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="holds 'thesis.tex', which is not a report's"):
        write_report(report(), [], tmp_path)
    assert files(tmp_path) == {"thesis.tex": b"mine"}
    other = tmp_path / "other"
    other.mkdir()
    (other / "index.html").write_text("a page of theirs")
    with pytest.raises(UserError, match="no report of ours wrote"):
        require_writable(other)
    with pytest.raises(UserError, match="is a file"):
        require_writable(tmp_path / "thesis.tex")
    empty = tmp_path / "empty"
    empty.mkdir()
    require_writable(empty)
    require_writable(tmp_path / "not there yet")


def test_a_run_that_fails_or_is_killed_leaves_the_older_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "r"
    write_report(report(), [], out)
    before = files(out)

    def fail(*_: Any) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(writing, "to_json", fail)
        with pytest.raises(KeyboardInterrupt):
            write_report(report(title="newer"), [], out)
    assert files(out) == before and os.listdir(tmp_path) == ["r"]
    # A process that was killed could not clear up: the next one does.
    for leftover in (".r.partial", ".r.replaced"):
        (tmp_path / leftover / "tables").mkdir(parents=True)
    write_report(report(), [], out)
    assert files(out) == before and os.listdir(tmp_path) == ["r"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/r: cannot be written"):
        write_report(report(), [], tmp_path / "file" / "r")


def test_a_link_keeps_pointing_at_its_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_report(report(), [], tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real/index.html").is_file()


def test_two_tables_whose_ids_give_one_file_name_get_two(tmp_path: Path) -> None:
    write_report(
        report(Section("a", "A", tables=(table("t/x"),)), Section("b", "B", tables=(table("T-x"),))), [], tmp_path / "r"
    )
    assert sorted(path.name for path in (tmp_path / "r/tables").glob("*.csv")) == ["T-x-2.csv", "t-x.csv"]


def test_files_are_utf8_whatever_names_hold(tmp_path: Path) -> None:
    odd = report(Section("s", "S", tables=(table(title="half \ud800"),)), problems=(Problem("note", "x\udcff", "y"),))
    write_report(odd, [], tmp_path / "r")
    for name, content in files(tmp_path / "r").items():
        if not name.endswith("png"):
            content.decode("utf-8")

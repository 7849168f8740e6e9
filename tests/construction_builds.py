"""What tests of ``conceptguard build`` share: build folders over the 40 source rows, an empty environment, and filled-in sheets."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml
from generator_script import SOURCE
from judge_server import without_a_judge


def make_build(tmp_path: Path, url: str, **settings: Any) -> Path:
    """A build folder whose generator is at ``url``: one try a call, 5 seconds each.

    settings: over the usual ones, section by section (``benign={"attempts": 2}``); None leaves a section out.
    """
    usual: dict[str, Any] = {
        "source": str(SOURCE),
        "columns": {"prompt": "prompt", "response": "rejected"},
        "generator": {"model": "generator-1", "base_url": url, "timeout": 5, "max_retries": 0, "concurrency": 8},
    }
    for name, value in settings.items():
        both = isinstance(value, Mapping) and isinstance(usual.get(name), Mapping)
        usual[name] = {**usual[name], **value} if both else value
    folder = tmp_path / "build"
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in usual.items() if value is not None}
    (folder / "build.yaml").write_text(yaml.safe_dump(kept, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return folder


def no_keys(monkeypatch: Any, folder: Path) -> None:
    """Neither a generator nor a judge from the developer's environment; ``folder`` is the working directory."""
    for name in [n for n in os.environ if n.startswith("CG_BUILD_")]:
        monkeypatch.delenv(name)
    without_a_judge(monkeypatch, folder)


def judge_at(monkeypatch: Any, url: str) -> None:
    """The harm judge at ``url``: one try a call, 5 seconds each."""
    for name, value in judge_environment(url).items():
        monkeypatch.setenv(name, value)


def judge_environment(url: str) -> dict[str, str]:
    """The variables of :func:`judge_at`, for a process of its own."""
    settings = {"BASE_URL": url, "MODEL": "judge-1", "TIMEOUT": "5", "MAX_RETRIES": "0", "CONCURRENCY": "8"}
    return {f"CG_JUDGE_{name}": value for name, value in settings.items()}


def filled_sheets(
    folder: Path,
    annotators: int = 2,
    disagree: Collection[str] = (),
    labels: Mapping[str, str] | None = None,
    usual: str = "accept",
) -> list[Path]:
    """Fill the CSV sheets in a review's folder, as annotators would who agree but for ``disagree``.

    labels: id -> what all say, where that is not ``usual``. On a row of ``disagree`` the first says that, the others the opposite.

    Returns the sheets.
    """
    names = json.loads((folder / "sheet.json").read_text(encoding="utf-8"))["annotators"][:annotators]
    assert len(names) == annotators
    paths = [folder / f"{name}.csv" for name in names]
    for number, path in enumerate(paths):
        columns, rows = _read(path)
        assert set(disagree) | set(labels or ()) <= {row["id"] for row in rows}, "ids that are not on the sheet"
        for row in rows:
            label = (labels or {}).get(row["id"], usual)
            differs = number and row["id"] in disagree
            row["label"] = ("reject" if label == "accept" else "accept") if differs else label
            row["note"] = "to be talked over" if differs else ""
        _write(path, columns, rows)
    return paths


def resolved(folder: Path, resolution: str = "accept", ids: Collection[str] | None = None) -> Path:
    """Fill disagreements.csv, all of it or the rows of ``ids``."""
    path = folder / "disagreements.csv"
    columns, rows = _read(path)
    for row in rows:
        if ids is None or row["id"] in ids:
            row["resolution"] = resolution
    _write(path, columns, rows)
    return path


def sheet_ids(folder: Path) -> list[str]:
    """The ids on a review's sheet, in its order."""
    return [item["id"] for item in json.loads((folder / "sheet.json").read_text(encoding="utf-8"))["items"]]


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream)
        rows = list(reader)
        return list(reader.fieldnames or ()), rows


def _write(path: Path, columns: list[str], rows: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8-sig", newline="") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(rows)

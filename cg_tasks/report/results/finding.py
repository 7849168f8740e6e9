"""lm-eval's results files below the paths a user names, and the samples files that belong to them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cg_tasks.errors import UserError

_DATE = r"\d{4}-\d{2}-\d{2}T[\d.-]+"
# results_<date>.json, or <name>_<date>.json where --output_path named a file.
_RESULTS = re.compile(rf"(?:results_.+|.+_(?P<date>{_DATE}))\.json")
_DATED = re.compile(rf"_(?P<date>{_DATE})\.json")


def find_results(paths: Sequence[str | Path]) -> list[Path]:
    """The results files among files and folders, each once, by path.

    Raises:
        UserError: a path that is not there, or no results file below any of them.
    """
    found: dict[Path, Path] = {}
    for given in paths:
        path = Path(given).expanduser()
        if path.is_dir():
            inside = [p for p in sorted(path.rglob("*.json")) if _RESULTS.fullmatch(p.name) and p.is_file()]
        elif path.is_file():
            inside = [_checked(path)]
        else:
            raise UserError(f"{path}: no such file or folder: name a folder that lm_eval wrote (--output_path)")
        for file in inside:
            found.setdefault(file.resolve(), file)
    if not found:
        named = ", ".join(map(str, paths)) or "no path"
        raise UserError(
            f"{named}: no results_<date>.json of lm_eval in there: run lm_eval with --output_path (and --log_samples)"
        )
    return sorted(found.values())


def _checked(path: Path) -> Path:
    if path.name.startswith("samples_") and path.suffix == ".jsonl":
        raise UserError(f"{path}: a samples file: name the results file beside it, or their folder")
    return path


def read_json(path: Path) -> dict[str, Any] | str:
    """The results file's content, or what is wrong with it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8", errors="surrogatepass"))
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}"
    except json.JSONDecodeError as error:
        return f"not JSON (line {error.lineno}: {error.msg}): was the run that wrote it cut off?"
    except (ValueError, RecursionError) as error:
        return f"not JSON ({type(error).__name__})"
    except OSError as error:
        return f"cannot be read: {error.strerror or type(error).__name__}"
    if not isinstance(content, dict) or not isinstance(content.get("results"), dict):
        return "not a results file of lm-eval (no object 'results')"
    return content


def date_of(path: Path, results: dict[str, Any]) -> str:
    """When the results were written, as in the file's name; dates of one form sort by time."""
    if match := _DATED.search(path.name):
        return match["date"]
    try:
        moment = datetime.fromtimestamp(float(results["date"]), timezone.utc)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return ""
    return moment.strftime("%Y-%m-%dT%H-%M-%S.%f")


def samples_of(path: Path, task: str) -> Path | None:
    """The samples file written with a results file; None where there is none."""
    match = _DATED.search(path.name)
    try:
        exact = path.with_name(f"samples_{task}_{match['date']}.jsonl") if match else None
        return exact if exact is not None and exact.is_file() else None
    except (OSError, ValueError):  # a task's name that is no file's
        return None

"""A small study whose public commands are replaced, through its launchers, by ``tests/study_tool.py``."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT

from cg_trainers.study.cli import read_studies
from cg_trainers.study.jobs import Plan
from cg_trainers.study.plan import make_plan
from cg_trainers.study.running import Options, run_study

TOOL = [sys.executable, str(ROOT / "tests" / "study_tool.py")]


def small_study() -> dict[str, Any]:
    """One model, one fine-tuning, two methods, one of them at two K."""
    return {
        "name": "small",
        "models": {"tiny": {"pretrained": "tiny"}},
        "finetune": {"ft": {"recipe": "ft.yaml"}},
        "unlearn": {
            "npo": {"recipe": "npo.yaml", "from": "ft", "K": [1, 2]},
            "rmu": {"recipe": "rmu.yaml", "from": "ft"},
        },
        "evaluate": [{"tasks": ["canary_auto"], "limit": 2}],
        "rules": {rule: {"launcher": TOOL} for rule in ("finetune", "unlearn", "evaluate", "report")},
    }


class Place:
    """A folder with a study in it, and what the stand-in for its commands was asked for."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder, self.monkeypatch = folder, monkeypatch
        monkeypatch.chdir(folder)
        self.log = folder / "calls"
        self.tool()
        if not (folder / "study.yaml").exists():
            for name in ("ft", "npo", "rmu"):
                (folder / f"{name}.yaml").write_text("use_peft: true\nlearning_rate: 0.1\n", encoding="utf-8")
            self.write(small_study())

    def write(self, values: dict[str, Any], name: str = "study.yaml") -> None:
        (self.folder / name).write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")

    def tool(self, **changes: Any) -> None:
        """How the stand-in behaves from now on."""
        self.monkeypatch.setenv("STUDY_TOOL", json.dumps({"log": str(self.log), **changes}))

    def plan(self, *words: str) -> Plan:
        return make_plan(read_studies(words or ("study.yaml",)))

    def run(self, *words: str, cores: str = "2", more: Sequence[str] = ()) -> int:
        return run_study(self.plan(*words), Options(cores=cores, more=tuple(more)))

    def calls(self) -> list[str]:
        """What was called since this was last asked, sorted: jobs run side by side."""
        words = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return sorted(words)

    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "studies/small/report/index.html").read_text(encoding="utf-8"))

    def files(self) -> dict[str, bytes]:
        """Everything but what says when: logs, records, locks and Snakemake's own."""
        out = self.folder / "studies"
        left_out = {"plan.json", "logs", "jobs", "locks", ".snakemake", ".study-lock", "state.json"}
        return {
            str(path.relative_to(out)): path.read_bytes()
            for path in sorted(out.rglob("*"))
            if path.is_file() and not left_out & set(path.relative_to(out).parts) and "done/report" not in str(path)
        }


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that was run to its end."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        place = Place(tmp_path_factory.mktemp("finished"), monkeypatch)
        assert place.run() == 0
        return place.folder


@pytest.fixture
def done(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A copy of it: its paths are relative."""
    place = Place(Path(shutil.copytree(finished, tmp_path / "copy")), monkeypatch)
    place.calls()
    return place


@pytest.fixture
def study() -> Callable[..., dict[str, Any]]:
    return small_study

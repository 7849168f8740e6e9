"""``pip install .`` and ``pip install -e .`` into fresh virtual environments: what lm-eval knows, and what stays."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("pyproject.toml", "LICENSE", "README.md", "cg_tasks", "cg_trainers", "templates", "task_configs")
TASKS = {"conceptguard_harmqa", "canary_prefill"}
# Prints which of the two tasks a TaskManager made without arguments for paths knows.
KNOWN = (
    "from lm_eval.tasks import TaskManager; import sys; "
    f"print(*sorted({TASKS} & set(TaskManager(include_path=sys.argv[1:], include_defaults=False).all_tasks)))"
)
BOTH = " ".join(sorted(TASKS))


@dataclass
class Venv:
    """A virtual environment without downloads: what the running one has installed is on its path, behind its own."""

    root: Path

    @classmethod
    def create(cls, root: Path) -> Venv:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", root], check=True)
        venv = cls(root)
        # A path line does not process the .pth files over there, so an installed conceptguard's hook does not count.
        (venv.site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
        script = Path(sysconfig.get_path("scripts")) / "lm_eval"
        body = script.read_text().split("\n", 1)[1]
        (root / "bin" / "lm_eval").write_text(f"#!{root / 'bin' / 'python'}\n{body}")
        (root / "bin" / "lm_eval").chmod(0o755)
        copy_lm_eval(venv.site)
        return venv

    @property
    def site(self) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.root / "lib" / version / "site-packages"

    def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "CONCEPTGUARD"))}
        env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment}
        program = [str(self.root / "bin" / command[0]), *map(str, command[1:])]
        # From a folder of its own, so that the checkout is not importable by being the current one.
        return subprocess.run(program, env=env, cwd=self.root, capture_output=True, text=True, timeout=300)

    def output(self, *command: str | Path, **environment: str) -> str:
        done = self.run(*command, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def pip_install(self, *arguments: str | Path) -> None:
        # --force-reinstall: the same version may be installed in the environment behind.
        self.output(
            *("python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--force-reinstall"),
            *arguments,
        )

    def files(self) -> set[str]:
        paths = (path for path in self.root.rglob("*") if "__pycache__" not in path.parts)
        return {str(path.relative_to(self.root)) for path in paths}


def copy_lm_eval(site: Path) -> None:
    """lm-eval itself with one of its tasks: indexing its thousands would be most of these tests' time."""
    spec = importlib.util.find_spec("lm_eval")
    assert spec is not None and spec.submodule_search_locations is not None
    (source,) = map(Path, spec.submodule_search_locations)

    def ignored(folder: str, names: list[str]) -> list[str]:
        if Path(folder) != source / "tasks":
            return []
        return [name for name in names if Path(folder, name).is_dir() and name != "hellaswag"]

    shutil.copytree(source, site / "lm_eval", ignore=ignored)


def copy_of_the_project(folder: Path) -> Path:
    for name in SHIPPED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir(exist_ok=True)
            shutil.copy(source, folder / name)
    return folder


@pytest.fixture(scope="module", params=["ordinary", "editable"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    folder = tmp_path_factory.mktemp(request.param)
    project = copy_of_the_project(folder / "project")
    venv = Venv.create(folder / "venv")
    venv.pip_install(*(["-e"] if request.param == "editable" else []), project)
    if request.param == "ordinary":
        shutil.rmtree(project)
    return venv


def test_lm_eval_lists_and_validates_the_tasks(installed: Venv) -> None:
    listed = installed.output("lm_eval", "ls", "tasks")
    assert {row.split("|")[1].strip() for row in listed.splitlines() if row.startswith("|")} >= TASKS | {"hellaswag"}
    assert "All tasks found" in installed.output("lm_eval", "validate", "--tasks", ",".join(sorted(TASKS)))


@pytest.mark.parametrize("flags", [(), ("-I",)])
def test_python_m_lm_eval_knows_the_tasks(installed: Venv, flags: tuple[str, ...]) -> None:
    arguments = ("-m", "lm_eval", "validate", "--tasks", "conceptguard_harmqa")
    assert "All tasks found" in installed.output("python", *flags, *arguments)


def test_a_bare_task_manager_knows_the_tasks_unless_switched_off(installed: Venv, tmp_path: Path) -> None:
    assert installed.output("python", "-c", KNOWN) == BOTH
    assert installed.output("python", "-c", KNOWN, CONCEPTGUARD_AUTOLOAD="0") == ""
    path = installed.output("conceptguard", "path")
    assert installed.output("python", "-c", KNOWN, path, CONCEPTGUARD_AUTOLOAD="0") == BOTH
    assert installed.output("python", "-c", KNOWN, path) == BOTH


def test_a_users_include_path_wins(installed: Venv, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("task: conceptguard_harmqa\ndataset_path: json\n")
    code = (
        "from lm_eval.tasks import TaskManager; import sys; "
        "index = TaskManager(include_path=sys.argv[1], include_defaults=False).task_index; "
        "print(index['conceptguard_harmqa'].yaml_path, 'canary_prefill' in index)"
    )
    assert installed.output("python", "-c", code, tmp_path) == f"{tmp_path / 'mine.yaml'} True"


def test_a_bad_setting_is_one_line_before_the_model_is_loaded(installed: Venv) -> None:
    # The model does not exist: were it looked for first, the error would be about it.
    arguments = ("--tasks", "conceptguard_harmqa", "--model", "hf", "--model_args", "pretrained=absent/absent")
    done = installed.run("lm_eval", *arguments, "--metadata", "dataset=absent.jsonl")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("conceptguard: error: ") and "absent.jsonl" in last
    assert "Traceback" not in done.stderr


def test_templates_and_task_configs_are_found(installed: Venv) -> None:
    code = "from cg_tasks.paths import *; print(templates_dir() / 'prefill' / 'bio.j2'); print(task_configs_dir())"
    template, configs = installed.output("python", "-c", code).splitlines()
    assert Path(template).read_text() == (ROOT / "templates" / "prefill" / "bio.j2").read_text()
    assert configs == installed.output("conceptguard", "path")


def test_a_broken_lm_eval_breaks_no_interpreter(tmp_path: Path) -> None:
    venv = Venv.create(tmp_path / "venv")
    venv.pip_install(copy_of_the_project(tmp_path / "project"))
    (venv.site / "lm_eval" / "__init__.py").write_text("raise OSError('lm_eval is broken')\n")
    assert venv.run("python", "-c", "pass").stderr == ""
    done = venv.run("python", "-c", "import lm_eval.tasks")
    assert done.stderr.strip().splitlines()[-1] == "OSError: lm_eval is broken"
    assert "conceptguard" not in done.stderr


@pytest.mark.parametrize("flags", [(), ("-e",)])
def test_uninstalling_leaves_nothing_behind(flags: tuple[str, ...], tmp_path: Path) -> None:
    venv = Venv.create(tmp_path / "venv")
    before = venv.files()
    venv.pip_install(*flags, copy_of_the_project(tmp_path / "project"))
    assert venv.output("python", "-c", KNOWN) == BOTH
    venv.output("python", "-m", "pip", "uninstall", "--quiet", "--yes", "conceptguard")
    assert venv.files() == before
    assert venv.output("python", "-c", KNOWN) == ""
    assert venv.run("python", "-c", "pass").stderr == ""

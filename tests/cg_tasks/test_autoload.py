"""The lazy hook, on a stand-in for lm-eval in interpreters without site-packages; test_install.py has real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cg_tasks import autoload
from cg_tasks.errors import UserError
from cg_tasks.paths import task_configs_dir

ROOT = Path(__file__).resolve().parents[2]
OURS = str(task_configs_dir())

# Of TaskManager (lm-eval 0.4.13), what the hook touches; a task named "bad" has a setting that is wrong.
MANAGER = """
class TaskManager:
    def __init__(self, verbosity=None, include_path=None, include_defaults=True, metadata=None):
        self.include_path, self.include_defaults, self.metadata = include_path, include_defaults, metadata
        self.task_index, self.loaded = {}, []

    def load(self, names):
        self.loaded += names

    def match_tasks(self, names):
        return [name for name in names if name in self.task_index]
"""


def stand_in(source: str = MANAGER) -> Any:
    module = ModuleType("lm_eval.tasks.manager")
    exec(source, module.__dict__)
    return module


def patched() -> Any:
    module = stand_in()
    autoload.patch(module)
    return module.TaskManager


def entry(kind: str = "PY_TASK", path: str | None = None, tags: tuple[str, ...] = (), **config: Any) -> SimpleNamespace:
    return SimpleNamespace(kind=SimpleNamespace(name=kind), yaml_path=path and Path(path), cfg=config, tags=set(tags))


# ---- the include path


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, [OURS]),
        ([], [OURS]),
        ("mine", [OURS, "mine"]),
        (Path("mine"), [OURS, Path("mine")]),
        (["mine", "other"], [OURS, "mine", "other"]),
        (("mine", Path("other")), [OURS, "mine", Path("other")]),
        (OURS, [OURS]),
        (OURS + "/", [OURS + "/"]),
        (["mine", Path(OURS)], ["mine", Path(OURS)]),
    ],
)
def test_our_folder_comes_first_and_once(given: Any, expected: list[Any]) -> None:
    manager = patched()
    assert manager(include_path=given).include_path == expected
    assert manager(None, given).include_path == expected


def test_other_arguments_are_left_alone() -> None:
    manager = patched()(None, "mine", False, {"dataset": "miniature"})
    assert (manager.include_path, manager.include_defaults) == ([OURS, "mine"], False)
    assert manager.metadata == {"dataset": "miniature"}


def test_patching_twice_changes_nothing_more() -> None:
    module = stand_in()
    autoload.patch(module)
    first = (module.TaskManager.__init__, module.TaskManager.match_tasks)
    autoload.patch(module)
    assert (module.TaskManager.__init__, module.TaskManager.match_tasks) == first


@pytest.mark.parametrize("old, new", [("include_path", "folders"), ("match_tasks", "select"), ("TaskManager", "Tasks")])
def test_a_task_manager_of_another_shape_is_left_untouched_with_the_way_out(
    old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = stand_in(MANAGER.replace(old, new))
    before = dict(getattr(module, "TaskManager", module).__dict__)
    autoload._patch_or_explain(module)
    assert dict(getattr(module, "TaskManager", module).__dict__) == before
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert '--include_path "$(conceptguard path)"' in message


# ---- loading ahead of the model

INDEX = {
    "ours": entry(path=f"{OURS}/conceptguard/harmqa.yaml"),
    "our_group": entry("GROUP", f"{OURS}/conceptguard/rouge.yaml", task=["ours"]),
    "derived": entry(path="/elsewhere/mine.yaml", **{"class": "/elsewhere/cg_tasks.qa.QueryTask"}),
    "foreign": entry("TASK", "/elsewhere/mmlu.yaml"),
    "beside": entry("TASK", f"{OURS}-not/mmlu.yaml"),
    "mixed": entry("GROUP", "/elsewhere/mixed.yaml", task=["foreign", "ours", {"task": "derived", "metadata": {}}]),
    "loop": entry("GROUP", "/elsewhere/loop.yaml", task=["loop", "derived"]),
    "tag": entry("TAG", tags=("derived", "foreign")),
}


@pytest.mark.parametrize(
    ("asked", "loaded"),
    [
        (["ours"], ["ours"]),
        (["our_group"], ["our_group"]),
        (["derived"], ["derived"]),
        (["foreign"], []),
        (["beside"], []),
        (["mixed"], ["ours"]),  # the derived task's settings may differ inside the group
        (["loop"], ["derived"]),
        (["tag"], ["derived"]),
        (["absent"], []),
        (["ours", "foreign", "derived"], ["ours", "derived"]),
    ],
)
def test_only_our_tasks_are_loaded_ahead_of_the_model(asked: list[str], loaded: list[str]) -> None:
    manager = patched()(metadata={})
    manager.task_index = INDEX
    assert manager.match_tasks(asked) == [name for name in asked if name in INDEX]
    assert manager.loaded == loaded


def test_a_task_is_loaded_once_per_manager() -> None:
    kind = patched()
    for _ in range(2):
        manager = kind(metadata={})
        manager.task_index = INDEX
        manager.match_tasks(["ours", "tag"])
        manager.match_tasks(["ours"])
        assert manager.loaded == ["ours", "derived"]


def test_a_manager_without_run_metadata_only_matches_names() -> None:
    manager = patched()()
    manager.task_index = INDEX
    assert manager.match_tasks(["ours"]) == ["ours"]
    assert manager.loaded == []


def test_a_user_error_stops_the_selection_and_any_other_error_does_not() -> None:
    kind = patched()

    def load(self: Any, names: list[str]) -> None:
        raise UserError("mine.jsonl, line 3: no query") if names == ["derived"] else RuntimeError("disk on fire")

    kind.load = load
    manager = kind(metadata={})
    manager.task_index = INDEX
    assert manager.match_tasks(["ours"]) == ["ours"]
    for _ in range(2):
        with pytest.raises(UserError, match="line 3"):
            manager.match_tasks(["ours", "derived"])


@pytest.mark.parametrize(
    ("program", "module", "expected"),
    [
        ("/bin/lm_eval", None, True),
        ("lm-eval", None, True),
        ("lm_eval.exe", None, True),
        ("/site/lm_eval/__main__.py", "lm_eval.__main__", True),
        ("/bin/pytest", None, False),
        ("lm_eval_sweep.py", None, False),
        ("", None, False),
    ],
)
def test_which_programs_are_lm_evals_command_line(
    program: str, module: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = module and SimpleNamespace(name=module)  # type: ignore[assignment]
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert autoload.is_lm_eval_command_line() is expected


# ---- the import hook, in interpreters of their own


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder with an importable stand-in for lm_eval.tasks.manager."""
    tasks = tmp_path / "library" / "lm_eval" / "tasks"
    tasks.mkdir(parents=True)
    (tasks.parent / "__init__.py").touch()
    (tasks / "__init__.py").touch()
    (tasks / "manager.py").write_text(MANAGER)
    return tmp_path / "library"


def python(*arguments: str, path: list[Path], **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **environment}
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, env=env, cwd=path[-1], capture_output=True, text=True, timeout=60)


def run(code: str, *path: Path, **environment: str) -> list[str]:
    """Lines printed by ``code``, which starts with the hook installed. It must succeed, and say nothing on stderr."""
    done = python("-c", PRELUDE + code, path=[ROOT, *path], **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


PRELUDE = """
import sys
from cg_tasks.autoload import install
install()
def hooks(): return sum(getattr(finder, 'conceptguard', False) for finder in sys.meta_path)
"""
IS_PATCHED = "print('_conceptguard' in TaskManager.__dict__, TaskManager().include_path, hooks())\n"
PATCHED = f"True ['{OURS}'] 0"


def test_importing_the_manager_patches_it_and_leaves_no_trace(library: Path) -> None:
    code = """
print(hooks(), 'lm_eval' in sys.modules)
from lm_eval.tasks.manager import TaskManager
import lm_eval.tasks.manager as module
print(type(module.__spec__.loader).__name__, module.__loader__ is module.__spec__.loader)
"""
    assert run(code + IS_PATCHED, library) == ["1 False", "SourceFileLoader True", PATCHED]


def test_installing_twice_is_installing_once(library: Path) -> None:
    code = "install()\nprint(hooks())\nfrom lm_eval.tasks.manager import TaskManager\ninstall()\n"
    assert run(code + IS_PATCHED, library) == ["1", PATCHED]


def test_a_manager_imported_before_is_patched_at_once(library: Path) -> None:
    code = """
sys.meta_path[:] = [finder for finder in sys.meta_path if not hasattr(finder, 'conceptguard')]
from lm_eval.tasks.manager import TaskManager
print('_conceptguard' in TaskManager.__dict__)
install()
"""
    assert run(code + IS_PATCHED, library) == ["False", PATCHED]


def test_a_failed_import_is_lm_evals_own_and_a_second_try_is_patched(library: Path, tmp_path: Path) -> None:
    guard = f"import os\nif not os.path.exists({str(tmp_path / 'mended')!r}): raise OSError('lm_eval is broken')\n"
    (library / "lm_eval" / "tasks" / "manager.py").write_text(guard + MANAGER)
    code = f"""
try:
    import lm_eval.tasks.manager
except OSError as error:
    print(error, hooks())
open({str(tmp_path / "mended")!r}, 'w').close()
from lm_eval.tasks.manager import TaskManager
"""
    assert run(code + IS_PATCHED, library) == ["lm_eval is broken 1", PATCHED]


def test_looking_for_the_module_does_not_run_it(library: Path) -> None:
    code = """
import importlib.util
spec = importlib.util.find_spec('lm_eval.tasks.manager')
print('lm_eval.tasks.manager' in sys.modules, 'class TaskManager' in spec.loader.get_source(spec.name))
from lm_eval.tasks.manager import TaskManager
"""
    assert run(code + IS_PATCHED, library) == ["False True", PATCHED]


def test_without_lm_eval_its_absence_is_reported_as_ever() -> None:
    code = """
try:
    import lm_eval.tasks.manager
except ModuleNotFoundError as error:
    print(error)
"""
    assert run(code) == ["No module named 'lm_eval'"]


def test_threads_that_import_at_once_all_get_the_patched_manager(library: Path) -> None:
    code = """
import threading
barrier, seen = threading.Barrier(8), []
def work():
    barrier.wait()
    from lm_eval.tasks.manager import TaskManager
    seen.append(TaskManager().include_path)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(seen), len(set(map(tuple, seen))))
from lm_eval.tasks.manager import TaskManager
"""
    assert run(code + IS_PATCHED, library) == ["8 1", PATCHED]


@pytest.mark.parametrize(("program", "lines"), [("lm_eval", 1), ("sweep.py", None)])
def test_on_lm_evals_command_line_a_user_error_is_one_line(
    library: Path, tmp_path: Path, program: str, lines: int | None
) -> None:
    script = tmp_path / program
    script.write_text(
        PRELUDE
        + "from lm_eval.tasks.manager import TaskManager\n"
        + "from cg_tasks.errors import UserError\n"
        + "def load(self, names): raise UserError('mine.jsonl, line 3: no query')\n"
        + "TaskManager.load = load\n"
        + "manager = TaskManager(metadata={})\n"
        + f"manager.task_index['t'] = type('Entry', (), dict(yaml_path={OURS!r} + '/t.yaml', cfg={{}}))\n"
        + "manager.match_tasks(['t'])\nprint('model loaded')\n"
    )
    done = python(str(script), path=[ROOT, library])
    assert (done.returncode, done.stdout) == (1, "")
    if lines == 1:
        assert done.stderr == "conceptguard: error: mine.jsonl, line 3: no query\n"
    else:
        assert done.stderr.startswith("Traceback")


# ---- the .pth file, read as site.py reads it

PTH = ROOT / "cg_tasks" / "zz_conceptguard.pth"
READ_PTH = """
import site, sys
before = set(sys.modules)
site.addpackage(sys.argv[1], 'zz_conceptguard.pth', set())
new = [name for name in set(sys.modules) - before if not name.startswith('encodings')]  # site.py's own, from 3.13 on
print(*new, sum(hasattr(finder, 'conceptguard') for finder in sys.meta_path))
"""
IMPORT_MANAGER = """
from lm_eval.tasks.manager import TaskManager
print('_conceptguard' in TaskManager.__dict__, sum(hasattr(finder, 'conceptguard') for finder in sys.meta_path))
"""


@pytest.mark.parametrize(("switch", "hooks", "known"), [(None, 1, True), ("0", 0, False), ("1", 1, True)])
def test_the_pth_line_imports_nothing_and_hooks_unless_switched_off(
    switch: str | None, hooks: int, known: bool, library: Path
) -> None:
    environment = {} if switch is None else {"CONCEPTGUARD_AUTOLOAD": switch}
    done = python("-c", READ_PTH + IMPORT_MANAGER, str(PTH.parent), path=[ROOT, library], **environment)
    assert (done.stdout, done.stderr) == (f"{hooks}\n{known} 0\n", "")


def test_two_pth_files_patch_once(library: Path) -> None:
    code = READ_PTH + READ_PTH + IMPORT_MANAGER + "print(TaskManager().include_path)"
    done = python("-c", code, str(PTH.parent), path=[ROOT, library])
    assert (done.stdout, done.stderr) == (f"1\n2\nTrue 0\n['{OURS}']\n", "")


@pytest.mark.parametrize(
    "remains", [{}, {"__init__.py": ""}, {"__init__.py": "", "autoload.py": "def"}, {"__init__.py": "1/0"}]
)
def test_lm_eval_runs_when_the_package_is_half_removed(remains: dict[str, str], library: Path) -> None:
    package = library / "cg_tasks"
    package.mkdir()
    for name, text in remains.items():
        (package / name).write_text(text)
    done = python("-c", READ_PTH + IMPORT_MANAGER, str(PTH.parent), path=[library])
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\nFalse 1\n", "")

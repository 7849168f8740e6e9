"""Makes every ``TaskManager`` of lm-eval know this package's tasks, without ``--include_path``.

``zz_conceptguard.pth``, which every start of the interpreter reads, puts a finder in front of ``sys.meta_path`` and
imports nothing (``benchmarks/startup.py`` has the cost). When, and if, ``lm_eval.tasks.manager`` is imported, that
finder asks :func:`find_spec` here. ``CONCEPTGUARD_AUTOLOAD=0`` turns it off; ``--include_path "$(conceptguard path)"``
does without it.

lm-eval has no plug-in mechanism. When its task entry points are released, they replace this module.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from cg_tasks.errors import UserError, show_user_errors_in_one_line
from cg_tasks.paths import task_configs_dir

_TARGET = "lm_eval.tasks.manager"
_OWN_PACKAGE = "cg_tasks."


def install() -> None:
    """Do what the ``.pth`` file does, where none is read, even after lm-eval was imported. Idempotent; never raises."""
    module = sys.modules.get(_TARGET)
    if module is not None:
        _patch_or_explain(module)
    elif not any(_is_ours(finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    conceptguard = True  # as in the .pth file

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return find_spec(name, path, target) if name == _TARGET else None


def find_spec(name: str, path: Any, target: Any) -> ModuleSpec | None:
    """What the other finders find for ``name``, with a loader that patches the module once it has run."""
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if find is None or _is_ours(finder):
            continue
        spec: ModuleSpec | None = find(name, path, target)
        if spec is not None:
            if hasattr(spec.loader, "exec_module"):
                spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
            return spec
    return None


class _Loader:
    """The module's own loader, and one step after the module has run."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        # Raises what lm-eval raises; our finder then stays, for a second try.
        self._loader.exec_module(module)
        _patch_or_explain(module)
        sys.meta_path[:] = [finder for finder in sys.meta_path if not _is_ours(finder)]


def _is_ours(finder: object) -> bool:
    return getattr(finder, "conceptguard", False) is True


def _patch_or_explain(module: ModuleType) -> None:
    try:
        patch(module)
    except Exception as error:  # whatever went wrong, lm-eval's own tasks must keep working
        print(
            f"conceptguard: its tasks could not be registered with this lm_eval ({type(error).__name__}: {error}); "
            'pass --include_path "$(conceptguard path)"',
            file=sys.stderr,
        )


def patch(module: ModuleType) -> None:
    """Patch the ``TaskManager`` of ``lm_eval.tasks.manager`` in place. Idempotent.

    * Its include path begins with this package's task configurations; a path of the user's comes later, and so wins.
    * Selecting tasks for a run (``match_tasks`` of a manager with run metadata) loads those that are ours, so that a
      bad setting or data file is reported before the model is loaded.
    * The filter ``conceptguard_judge`` is known by name, to be imported when a YAML names it.
    * On lm-eval's command line a UserError is shown in one line.

    Raises whatever a ``TaskManager`` of another shape than lm-eval 0.4.13's makes it raise; nothing is patched then.
    """
    manager = module.TaskManager
    if getattr(manager, "_conceptguard", False):
        return
    directory = str(task_configs_dir())
    init = _with_directory(manager.__init__, directory)
    match_tasks = _with_preflight(manager.match_tasks, directory)
    manager.__init__, manager.match_tasks, manager._conceptguard = init, match_tasks, True
    _register_filter()
    if is_lm_eval_command_line():
        show_user_errors_in_one_line()


def _register_filter() -> None:
    registry = sys.modules.get("lm_eval.api.registry")  # the manager has imported it
    if registry is not None and "conceptguard_judge" not in registry.filter_registry:
        registry.filter_registry.register("conceptguard_judge", target="cg_tasks.judge.filter:JudgeFilter")


def _with_directory(init: Any, directory: str) -> Any:
    position = list(inspect.signature(init).parameters).index("include_path") - 1  # of the arguments after self

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > position:
            args = (*args[:position], _include_path(args[position], directory), *args[position + 1 :])
        else:
            kwargs["include_path"] = _include_path(kwargs.get("include_path"), directory)
        init(self, *args, **kwargs)

    return __init__


def _include_path(given: Any, directory: str) -> list[Any]:
    paths = list(given) if isinstance(given, (list, tuple)) else [given] if given else []
    if any(os.path.realpath(path) == os.path.realpath(directory) for path in paths):
        return paths
    return [directory, *paths]


def _with_preflight(match_tasks: Any, directory: str) -> Any:
    @functools.wraps(match_tasks)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        names = match_tasks(self, *args, **kwargs)
        if getattr(self, "metadata", None) is not None:  # `ls` and `validate` have none: they only ask for names
            _load_own(self, names, directory)
        return names

    return wrapper


def _load_own(manager: Any, names: Iterable[str], directory: str) -> None:
    """Load the tasks among ``names`` that are ours, each once in a manager's life. Raises only UserError."""
    checked = manager.__dict__.setdefault("_conceptguard_checked", set())
    for name in names:
        try:
            for own in _own_names(manager.task_index, name, directory, set()):
                if own not in checked:
                    manager.load([own])
                    checked.add(own)
        except UserError:
            raise
        except Exception:  # not ours to judge: the real load reports it
            logging.getLogger(__name__).debug("loading %s ahead of the model failed", name, exc_info=True)


def _own_names(index: dict[str, Any], name: str, directory: str, seen: set[str]) -> list[str]:
    """What of ``name`` (a task, a group or a tag) to load ahead of the model: our tasks and our groups.

    A foreign group may change a task's settings, so of such a group only the members that it names plainly are taken.
    """
    entry = index.get(name)
    if entry is None or name in seen:
        return []
    seen.add(name)
    config = entry.cfg or {}
    folder = os.path.realpath(directory) + os.sep
    lies_here = entry.yaml_path is not None and os.path.realpath(entry.yaml_path).startswith(folder)
    if lies_here or _OWN_PACKAGE in str(config.get("class", "")):
        return [name]
    if entry.kind.name == "TAG":
        members = sorted(entry.tags)
    elif entry.kind.name == "GROUP" and isinstance(config.get("task"), list):
        members = [member for member in config["task"] if isinstance(member, str)]
    else:
        members = []
    return [own for member in members for own in _own_names(index, member, directory, seen)]


def is_lm_eval_command_line() -> bool:
    program = os.path.basename(sys.argv[0] if sys.argv else "").split(".")[0]
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return program in ("lm_eval", "lm-eval") or (spec is not None and spec.name.split(".")[0] == "lm_eval")

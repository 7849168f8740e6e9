"""Where the templates and the task configurations lie, in a checkout and in an installed package."""

from __future__ import annotations

from pathlib import Path

from cg_tasks.errors import UserError

_PACKAGE = Path(__file__).resolve().parent


def templates_dir() -> Path:
    """Folder of the Jinja templates. Raises UserError if the package lacks them."""
    return _find("templates")


def task_configs_dir() -> Path:
    """Folder of the lm-eval task YAMLs, as ``--include_path`` takes it. Raises UserError if the package lacks them."""
    return _find("task_configs")


def _find(name: str) -> Path:
    packaged = _PACKAGE / f"_{name}"
    if packaged.is_dir():
        return packaged
    checkout = _PACKAGE.parent
    # The project file tells a checkout from a site-packages folder that happens to hold a folder of that name.
    if (checkout / "pyproject.toml").is_file() and (checkout / name).is_dir():
        return checkout / name
    raise UserError(f"{packaged} is missing: install conceptguard again with pip install --force-reinstall --no-deps")

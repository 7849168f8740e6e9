"""Which judge, and how it is asked: from ``CG_JUDGE_*`` in the environment, or from a ``judge.yaml``; the environment wins.

The key comes from the environment alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from cg_tasks.errors import UserError
from cg_tasks.judge.server_settings import (
    Origins,
    ServerSettings,
    cache_home,
    checked_names,
    read_server_settings,
    setting_names,
)
from cg_tasks.yaml_files import key_lines, read_yaml

DEFAULT_FILE = "judge.yaml"
_FILE_VARIABLE = "CG_JUDGE_CONFIG"

NO_JUDGE = "no judge is configured (neither a key nor a server)"
SET_ONE = (
    "CG_JUDGE_API_KEY or OPENAI_API_KEY for OpenAI, or CG_JUDGE_BASE_URL and CG_JUDGE_MODEL for any OpenAI-compatible server, or a "
    "judge.yaml"
)
OTHER_WAYS = (
    "(2) run the judge-free group conceptguard_rouge; (3) generate now with --metadata judge=later --log_samples and score later "
    "with: conceptguard judge rescore SAMPLES"
)


class JudgeSettings(ServerSettings):
    """The judge's settings. What changes a verdict is in its cache key; what only changes the way it is asked is not.

    votes: independent verdicts an item. templates: a folder with ``judge/harm.j2`` or ``judge/help.j2``. cache: an SQLite file.
    concurrency and budget_usd are over all ranks.
    """

    model: str = Field("gpt-5.4", min_length=1)
    votes: int = Field(1, ge=1, le=99)
    templates: str | None = None
    cache: str = Field(default_factory=lambda: str(cache_home() / "judge.sqlite"))


def read_judge_settings(
    file: str | None = None, environ: Mapping[str, str] | None = None, *, calling: bool = True
) -> JudgeSettings | None:
    """The judge's settings, or None where no judge is configured: neither a key nor a server of one's own.

    calling: if not, the settings in any case, defaults where nothing is set.

    file: a ``judge.yaml``; else the one that CG_JUDGE_CONFIG names, else ``judge.yaml`` in the working directory if there is one.

    Raises:
        UserError: an unknown setting (with the nearest name) or a bad value, naming the file and line or the variable; a key
            in a file; a budget without prices.
    """
    env = os.environ if environ is None else environ
    named = file or env.get(_FILE_VARIABLE)
    path = Path(named).expanduser() if named else Path(DEFAULT_FILE)
    values: dict[str, Any] = {}
    origin: Origins = {}
    if named or path.is_file():
        values, origin = _from_file(path)
    return read_server_settings(JudgeSettings, values, origin, env, other_names=(_FILE_VARIABLE,), calling=calling)


def required_settings(file: str | None = None, *, generating: bool = True) -> JudgeSettings:
    """As :func:`read_judge_settings`.

    Raises:
        UserError: also where no judge is configured, with the ways out of a run that is ``generating``, or of a judge's command.
    """
    settings = read_judge_settings(file)
    if settings is None:
        raise UserError(
            f"{NO_JUDGE}. Three ways out: (1) set one: {SET_ONE}; {OTHER_WAYS}"
            if generating
            else f"{NO_JUDGE}: set {SET_ONE}"
        )
    return settings


def _from_file(path: Path) -> tuple[dict[str, Any], Origins]:
    """Values, and where each one stands."""
    values, node = read_yaml(path, setting_names(JudgeSettings))
    lines = key_lines(node, path)
    origin = {str(key): f"{path}, line {lines.get(str(key), 1)}" for key in values}
    return checked_names(JudgeSettings, values, origin), origin

"""The judge of a study: which one it is, so that another one's verdicts are not taken for its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cg_tasks.judge.rubrics import load_rubrics
from cg_tasks.judge.settings import read_judge_settings, required_settings

# The key, and how fast, how often and how dear it is asked.
_NO_MATTER = {
    "api_key", "cache", "preflight", "concurrency", "timeout", "max_retries", "give_up_after", "budget_usd", "price_input",
    "price_output",
}  # fmt: skip


def judge_identity(file: str | None) -> dict[str, Any] | None:
    """What decides a judge's verdicts, from its file and the environment; None where no judge is configured.

    A file that is not there is :func:`cg_trainers.study.check.check_evaluations`'s to refuse, which knows the study's line.

    Raises:
        UserError: settings that cannot be read.
    """
    if file and not Path(file).expanduser().is_file():
        return None
    settings = read_judge_settings(file)
    if settings is None:
        return None
    rubrics = {name: template.sha256 for name, template in load_rubrics(settings.templates).items()}
    return {**settings.model_dump(exclude=_NO_MATTER, mode="json"), "rubrics": rubrics}


def require_judge(file: str | None) -> None:
    """Raises UserError where no judge is configured, before hours of training for one that will not be there."""
    required_settings(file, generating=False)

"""What can be wrong with a judge, found before a model is loaded."""

from __future__ import annotations

import logging
import re
from typing import Any

from cg_tasks.judge.cache import ReplyCache
from cg_tasks.judge.client import check_server
from cg_tasks.judge.rubrics import load_rubrics
from cg_tasks.judge.settings import JudgeSettings

logger = logging.getLogger(__name__)

_checked: set[str] = set()


def check_judge(settings: JudgeSettings) -> None:
    """Rubrics, cache file, and the server's free list of models, once in a process.

    Raises:
        UserError: what is wrong, and the way out.
    """
    if settings.fingerprint in _checked:
        return
    load_rubrics(settings.templates)
    with ReplyCache(settings.cache):
        pass
    if settings.votes > 1 and settings.params.get("temperature") == 0:
        logger.warning(
            "%d votes at temperature 0 are likely to be one verdict asked %d times", settings.votes, settings.votes
        )
    if settings.preflight and (warning := check_server(settings.base_url, settings.api_key, settings.model)):
        logger.warning(warning)
    _checked.add(settings.fingerprint)


def circularities(judge: str, dataset: str, evaluated: Any) -> list[str]:
    """Warnings where the judge wrote the data, or is the model that is evaluated: the paper takes another (section 5).

    Raises:
        UserError: the manifest beside the data cannot be read.
    """
    from cg_tasks.construction.dataset.manifest import authorship

    out = []
    known = authorship(dataset)
    if written := dict.fromkeys(part for model in known if same_model(judge, model) for part in known[model]):
        parts = " and the ".join(written)
        out.append(
            f"the judge {judge} also wrote the {parts} of {dataset}: a judge favours its own words, take another"
        )
    if isinstance(evaluated, str) and same_model(judge, evaluated):
        out.append(f"the judge {judge} is the model that is evaluated: a judge favours its own words, take another")
    return out


def same_model(one: str, other: str) -> bool:
    """Whether two names are one model's, apart from its owner and a date behind it (``gpt-5``, ``openai/gpt-5-2025-08-07``)."""
    return _plain(one) == _plain(other)


def _plain(name: str) -> str:
    return re.sub(r"-\d{4}-\d{2}-\d{2}$|-\d{8}$", "", name.rstrip("/").rpartition("/")[2].lower())

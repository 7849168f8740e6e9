"""What is sent to a judge, and under which key its reply is kept."""

from __future__ import annotations

from typing import Any

from cg_tasks.judge.cache import ReplyCache
from cg_tasks.judge.rubrics import Messages
from cg_tasks.judge.server_settings import ServerSettings
from cg_tasks.judge.settings import JudgeSettings
from cg_tasks.judge.verdicts import SCHEMA
from cg_tasks.provenance import sha256_of
from cg_tasks.templates import Template

_RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": SCHEMA}}


def request_params(settings: JudgeSettings, structured: bool) -> dict[str, Any]:
    """What goes into a request beside model and messages."""
    return {**settings.params, **({"response_format": _RESPONSE_FORMAT} if structured else {})}


def request_key(settings: JudgeSettings, rubric: Template, messages: Messages, *, structured: bool, vote: int) -> str:
    """The cache key: everything that can change a verdict, and nothing that cannot."""
    return sha256_of(
        {
            "model": settings.model,
            "base_url": settings.base_url,
            "rubric": [rubric.version, rubric.sha256],
            "messages": messages,
            "params": request_params(settings, structured),
            "vote": vote,
        }
    )


def server_of(settings: ServerSettings) -> str:
    """Under which name the cache remembers what a server can do."""
    return f"{settings.base_url} {settings.model}"


def modes_of(settings: ServerSettings, cache: ReplyCache) -> list[bool]:
    """Whether a JSON schema goes with a request: the first is asked in, and a reply to any of them is a verdict."""
    modes = {"json_schema": [True], "text": [False], "auto": [True, False]}[settings.structured]
    return sorted(modes) if cache.is_text_only(server_of(settings)) else modes

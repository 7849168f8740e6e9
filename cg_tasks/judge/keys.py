"""Keys: which server may see one, and that nobody else does."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import ClassVar

from cg_tasks.errors import UserError


@dataclass(frozen=True)
class Role:
    """What a model is asked for: its name in messages, and the prefix of the variables that set it."""

    who: str
    prefix: str


JUDGE = Role("the judge", "CG_JUDGE_")
GENERATOR = Role("the generator", "CG_BUILD_")

_SHORTEST_SECRET = 8  # a key such as EMPTY or x is a placeholder; masking it would garble replies
_LOGGERS = ("openai", "httpx", "httpcore", "aiohttp")  # with their children and successors (httpx2)


def is_openai(url: str) -> bool:
    """Whether an address is OpenAI's own."""
    return re.match(r"https://([\w-]+\.)*openai\.com(/|$)", url) is not None


def check_key(key: str, role: Role = JUDGE) -> None:
    """Refuse a key that no HTTP header can hold; the error of whoever tries would show it.

    Raises:
        UserError: without the key.
    """
    if not (key.isascii() and key.isprintable()):
        raise UserError(
            f"{role.who}'s key holds a line break or a character that is not ASCII: copy it again to {role.prefix}API_KEY"
        )


class _KeyFilter(logging.Filter):
    """Masks keys in what the SDK and its transport log: a server may echo one in a header of its response."""

    keys: ClassVar[set[str]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        for key in self.keys:
            text = text.replace(key, "***")
        record.msg, record.args = text, ()
        return True


_KEY_FILTER = _KeyFilter()


def keep_out_of_logs(key: str) -> None:
    """Mask the key in the log records of the SDK and its transport."""
    if len(key) < _SHORTEST_SECRET:
        return
    _KEY_FILTER.keys.add(key)
    for name in [*_LOGGERS, *logging.root.manager.loggerDict]:
        if name.startswith(_LOGGERS):  # a filter does not hold for a logger's children
            logging.getLogger(name).addFilter(_KEY_FILTER)


def masked(text: str, key: str) -> str:
    """``text`` without the key, should a server echo it."""
    return text.replace(key, "***") if len(key) >= _SHORTEST_SECRET else text

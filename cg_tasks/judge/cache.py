"""Replies that gave a verdict, in one SQLite file: written as each lands, read by every later run.

WAL mode lets several processes share the file on a local disk; a killed process loses no reply that had landed.
"""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

from cg_tasks.errors import UserError
from cg_tasks.judge.client import Reply

_BUSY_SECONDS = 60.0
_TABLES = """
CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply TEXT NOT NULL, created REAL NOT NULL);
CREATE TABLE IF NOT EXISTS text_only (server TEXT PRIMARY KEY);
"""


class ReplyCache:
    """A dictionary from a request's key to the reply. Use it from one thread.

    Raises:
        UserError: the file cannot be made or written, or is no such cache.
    """

    def __init__(self, path: str):
        self.path = Path(path).expanduser()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # autocommit: each reply is durable against a kill the moment it is put
            self._db = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
            self._use_wal()
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_TABLES)
            self._db.execute("SELECT key, reply, created, server FROM replies, text_only LIMIT 0")
            # A file that cannot be written shows now, not after the first paid call.
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("ROLLBACK")
        except (OSError, ValueError, sqlite3.Error) as error:  # ValueError: a NUL in the name
            raise UserError(
                f"{self.path}: the judge's cache cannot be used ({error}): "
                "name another file with CG_JUDGE_CACHE, or move this one away"
            ) from None

    def _use_wal(self) -> None:
        """Two processes that make the file at once: SQLite does not wait for a lock here, whatever its timeout."""
        give_up = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > give_up:
                    raise
                time.sleep(0.05)

    def __enter__(self) -> ReplyCache:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def get(self, key: str) -> Reply | None:
        """The reply to a request, None where there is none."""
        row = self._db.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        if (reply := _reply(row[0])) is None:  # cut off, or of another version: it must make room for the next
            self._db.execute("DELETE FROM replies WHERE key = ?", (key,))
        return reply

    def put(self, key: str, reply: Reply) -> None:
        """Keep a reply; the first one of a key stays."""
        self._db.execute(
            "INSERT OR IGNORE INTO replies VALUES (?, ?, ?)",
            (key, json.dumps(vars(reply), ensure_ascii=False), time.time()),
        )

    def is_text_only(self, server: str) -> bool:
        """Whether the server once turned down a JSON schema."""
        return self._db.execute("SELECT 1 FROM text_only WHERE server = ?", (server,)).fetchone() is not None

    def note_text_only(self, server: str) -> None:
        """Remember that the server turned down a JSON schema, so that the next run need not ask again."""
        self._db.execute("INSERT OR IGNORE INTO text_only VALUES (?)", (server,))

    def __len__(self) -> int:
        return int(self._db.execute("SELECT COUNT(*) FROM replies").fetchone()[0])


def _reply(text: Any) -> Reply | None:
    """A row's reply; None where it is none of this version's."""
    try:
        reply = Reply(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
    texts = (reply.text, reply.refusal, reply.finish_reason, reply.model)
    usage = reply.usage is None or (
        isinstance(reply.usage, dict)
        and reply.usage.keys() == {"prompt_tokens", "completion_tokens"}
        and all(type(n) is int for n in reply.usage.values())
    )
    good = usage and isinstance(reply.latency, (int, float)) and all(t is None or isinstance(t, str) for t in texts)
    return reply if good else None


def mean_usage(cache: ReplyCache, limit: int = 1000) -> dict[str, Any] | None:
    """Mean completion tokens of the latest replies that say them; None without any. For estimates."""
    rows = cache._db.execute("SELECT reply FROM replies ORDER BY created DESC LIMIT ?", (limit,)).fetchall()
    usages = [r.usage for (text,) in rows if (r := _reply(text)) and r.usage]
    if not usages:
        return None
    return {"completion_tokens": sum(u["completion_tokens"] for u in usages) / len(usages), "replies": len(usages)}

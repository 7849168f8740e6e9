"""Replies that gave a verdict, in one SQLite file: written as each lands, read by every later run.

WAL mode lets several processes share the file on a local disk; a killed process loses no reply that had landed.
"""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import asdict
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
        except (OSError, sqlite3.Error) as error:
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
        return Reply(**json.loads(row[0])) if row else None

    def put(self, key: str, reply: Reply) -> None:
        """Keep a reply; the first one of a key stays."""
        self._db.execute(
            "INSERT OR IGNORE INTO replies VALUES (?, ?, ?)",
            (key, json.dumps(asdict(reply), ensure_ascii=False), time.time()),
        )

    def is_text_only(self, server: str) -> bool:
        """Whether the server once turned down a JSON schema."""
        return self._db.execute("SELECT 1 FROM text_only WHERE server = ?", (server,)).fetchone() is not None

    def note_text_only(self, server: str) -> None:
        """Remember that the server turned down a JSON schema, so that the next run need not ask again."""
        self._db.execute("INSERT OR IGNORE INTO text_only VALUES (?)", (server,))

    def __len__(self) -> int:
        return int(self._db.execute("SELECT COUNT(*) FROM replies").fetchone()[0])


def mean_usage(cache: ReplyCache, limit: int = 1000) -> dict[str, Any] | None:
    """Mean completion tokens of the latest replies that say them; None without any. For estimates."""
    rows = cache._db.execute("SELECT reply FROM replies ORDER BY created DESC LIMIT ?", (limit,)).fetchall()
    usages = [u for (text,) in rows if (u := json.loads(text).get("usage"))]
    if not usages:
        return None
    return {"completion_tokens": sum(u["completion_tokens"] for u in usages) / len(usages), "replies": len(usages)}

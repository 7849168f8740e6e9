"""Every reply that a build has paid for, and the calls that failed, in one SQLite file of the build folder.

A reply is written as it lands, whatever it says: reading it again costs nothing, and a killed run asks for nothing twice.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cg_tasks.errors import UserError
from cg_tasks.judge.cache import ReplyCache
from cg_tasks.judge.client import Reply

_FAILURES = """
CREATE TABLE IF NOT EXISTS failures (key TEXT PRIMARY KEY, reason TEXT NOT NULL, said TEXT NOT NULL, created REAL NOT NULL)
"""


@dataclass(frozen=True)
class Use:
    """What the replies of one kind have used. counted: those whose usage the server said; the others are calls alone."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    models: tuple[tuple[str, int], ...] = ()
    counted: int = 0


class Replies(ReplyCache):
    """Keys are ``<kind>/<sha256>``.

    Raises:
        UserError: the file cannot be used.
    """

    def __init__(self, path: Path):
        try:
            super().__init__(str(path))
        except UserError as error:
            raise UserError(
                f"{path}: the build's replies cannot be read or written: {str(error.__context__)}"
            ) from None
        self._db.execute(_FAILURES)
        self._failed = self._db.execute("SELECT 1 FROM failures LIMIT 1").fetchone() is not None
        # A checkpoint waits for the disk, and calls wait for it: one in 40 MB instead of one in 4.
        self._db.execute("PRAGMA wal_autocheckpoint=10000")

    def __enter__(self) -> Replies:
        return self

    def put(self, key: str, reply: Reply) -> None:
        """Keep a reply; the first one of a key stays.

        Raises:
            UserError: it cannot be written.
        """
        try:
            super().put(key, reply)
        except sqlite3.Error as error:  # a full disk: no further reply must be paid for
            raise UserError(
                f"{self.path}: a reply could not be written ({error}): make room and run it again"
            ) from None

    def failure(self, key: str) -> str | None:
        """Why the call failed last time; None where it did not."""
        if not self._failed:
            return None
        row = self._db.execute("SELECT reason FROM failures WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def note_failure(self, key: str, reason: str, said: str) -> None:
        """Keep with the row that its call failed, until it is retried. said: by the server, which may quote the request."""
        self._failed = True
        self._db.execute("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?)", (key, reason, said, time.time()))

    def said(self, kinds: Iterable[str], most: int) -> list[str]:
        """What servers said of calls that failed, the latest first."""
        spans = [(f"{kind}/", f"{kind}0") for kind in kinds]
        where = " OR ".join("(key >= ? AND key < ?)" for _ in spans)
        rows = self._db.execute(
            f"SELECT DISTINCT said FROM failures WHERE {where} ORDER BY created DESC LIMIT ?",
            [*(end for span in spans for end in span), most],
        )
        return [str(said) for (said,) in rows]

    def forget_failure(self, key: str) -> None:
        """The call was made again and answered."""
        self._db.execute("DELETE FROM failures WHERE key = ?", (key,))

    def has(self, key: str) -> bool:
        """Whether there is a reply, without reading it."""
        return self._db.execute("SELECT 1 FROM replies WHERE key = ?", (key,)).fetchone() is not None

    def use(self, kinds: Iterable[str]) -> dict[str, Use]:
        """Calls and tokens of each kind, of all time: also of prompts that were changed since."""
        found: dict[str, Use] = {}
        among = "FROM replies WHERE key >= ? AND key < ? AND json_valid(reply)"  # a damaged one is asked for again
        for kind in kinds:
            span = (f"{kind}/", f"{kind}0")  # '0' follows '/' in ASCII: a range on the primary key
            calls, prompt, completion, counted = self._db.execute(
                "SELECT COUNT(*), SUM(json_extract(reply, '$.usage.prompt_tokens')), "
                f"SUM(json_extract(reply, '$.usage.completion_tokens')), COUNT(json_extract(reply, '$.usage')) {among}",
                span,
            ).fetchone()
            models = self._db.execute(
                f"SELECT json_extract(reply, '$.model') AS m, COUNT(*) {among} GROUP BY m ORDER BY m",
                span,
            ).fetchall()
            named = tuple((str(model), int(n)) for model, n in models if model is not None)
            found[kind] = Use(int(calls), int(prompt or 0), int(completion or 0), named, int(counted))
        return found

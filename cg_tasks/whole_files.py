"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

from cg_tasks.errors import UserError


def replace_file(path: Path, content: bytes | str) -> None:
    """Write ``path`` (a text as UTF-8), so that whoever is killed leaves the older file or the newer one. Its folder is made.

    Raises:
        UserError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as stream:
                stream.write(content.encode() if isinstance(content, str) else content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or type(error).__name__}") from None


def now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")

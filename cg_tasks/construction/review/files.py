"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

from cg_tasks.errors import UserError


def replace_file(path: Path, content: bytes) -> None:
    """Write ``path``, so that whoever is killed leaves the older file or the newer one.

    Raises:
        UserError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        try:
            with partial.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or type(error).__name__}") from None


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")

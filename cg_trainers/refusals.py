"""Refusals that stand in a forget row's answer's place: the preferred side of ``dpo``, the target of ``idk``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from cg_tasks.errors import UserError
from cg_tasks.provenance import sha256_of

_SHIPPED = Path(__file__).parent / "refusals.txt"


def load_refusals(path: str | None = None) -> tuple[str, ...]:
    """One refusal a line, blank lines aside: the shipped ones, or a user's UTF-8 file.

    Raises:
        UserError: the file cannot be read, or holds none.
    """
    file = Path(path).expanduser() if path else _SHIPPED
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"refusals: {file}: cannot be read: {error.strerror or type(error).__name__}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"refusals: {file}: not UTF-8 at byte {error.start}: save it as UTF-8") from None
    lines = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not lines:
        raise UserError(f"refusals: {file}: is empty: give one refusal a line")
    return lines


def refusals_entry(refusals: Sequence[str], path: str | None = None) -> dict[str, str]:
    """A record's entry on them: the file's name, and the hash of what it says."""
    return {"name": Path(path).name if path else "shipped", "sha256": sha256_of(list(refusals))}


def refusal_for(refusals: Sequence[str], seed: int) -> Callable[[str], str]:
    """row_id -> its refusal, by a hash of seed and row_id: the same in any order and on any rank."""

    def pick(row_id: str) -> str:
        digest = hashlib.sha256(f"{seed}/{row_id}".encode()).hexdigest()
        return refusals[int(digest, 16) % len(refusals)]

    return pick

"""Replies that people have turned down in a review: never taken again, whatever is reviewed later."""

from __future__ import annotations

import json
from collections.abc import Iterable

from cg_tasks.construction.folder import BuildFolder, write_whole
from cg_tasks.errors import UserError

_FILE = "benign-rejected.json"  # beside the rounds' folders: it outlives them


def read_rejections(folder: BuildFolder) -> frozenset[str]:
    """Request hashes of the counterparts that were rejected.

    Raises:
        UserError: a damaged file.
    """
    path = folder.path / "review" / _FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({type(error).__name__}): import the review again") from None
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise UserError(f"{path}: must be a list of request hashes: import the review again")
    return frozenset(found)


def add_rejections(folder: BuildFolder, requests: Iterable[str]) -> None:
    """Add to them."""
    everything = sorted(read_rejections(folder) | set(requests))
    write_whole(folder.path / "review" / _FILE, json.dumps(everything, indent=0) + "\n")

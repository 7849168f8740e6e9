"""What several processes of one run have to tell each other."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def gathered(mine: list[T]) -> list[T]:
    """Every rank's list, joined in the order of the ranks; in a single process, the list itself. Every rank must call it."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return mine
    parts: list[list[T]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, mine)
    return [item for part in parts for item in part]

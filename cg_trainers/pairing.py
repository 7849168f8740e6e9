"""Which retain row stands beside which forget row: a function of (seed, epoch, index) alone, the same on every rank."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from cg_tasks.errors import UserError
from cg_trainers.rows import Row

PairingName = Literal["twin", "concept", "random"]


@dataclass(frozen=True)
class _Walk:
    """The retain rows that one group of forget rows draws from, and the group's size."""

    key: str
    candidates: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Pairing:
    """Partners for ``n_forget`` forget rows; made by :func:`partner`.

    unseen: the number of retain rows that are never anyone's partner.
    """

    walks: tuple[tuple[_Walk, int], ...]  # of each forget row: its walk, and its place in the walk's group
    seed: int
    unseen: int

    def index(self, epoch: int, i: int) -> int:
        """The retain row beside forget row ``i`` in an epoch (both from 0)."""
        walk, place = self.walks[i]
        n = len(walk.candidates)
        block, at = divmod(epoch * walk.size + place, n)
        return walk.candidates[_permutation(f"{self.seed}/{walk.key}/{block}", n)[at]]


def partner(pairing: PairingName, forget: Sequence[Row], retain: Sequence[Row], seed: int) -> Pairing:
    """Pair the forget rows with retain rows.

    ``twin``: the retain row of the same unit, always. ``concept`` and ``random``: a walk through seeded permutations of
    the retain rows of the same group, or of all; no retain row comes twice before each came once.

    Raises:
        UserError: a side has no rows, or a forget row has no partner of that kind.
    """
    for side, rows in (("forget", forget), ("retain", retain)):
        if not rows:
            raise UserError(f"pairing: {pairing} needs rows on both sides, and the {side} side has none")
    key = {"twin": _unit, "concept": _group, "random": _everything}[pairing]
    candidates: dict[str, list[int]] = {}
    for j, row in enumerate(retain):
        candidates.setdefault(key(row), []).append(j)
    places: list[tuple[str, int]] = []
    sizes: dict[str, int] = {}
    for row in forget:
        k = key(row)
        if k not in candidates or (pairing == "twin" and len(candidates[k]) > 1):
            found = len(candidates.get(k, ()))
            raise UserError(
                f"pairing: {pairing}, but '{k}', of forget row '{row.row_id}', has {found} retain rows"
                f"{' instead of one' if found else ''}: use pairing: random"
            )
        places.append((k, sizes.get(k, 0)))
        sizes[k] = places[-1][1] + 1
    walks = {k: _Walk(k, tuple(candidates[k]), size) for k, size in sizes.items()}
    unseen = len(retain) - sum(len(walk.candidates) for walk in walks.values())
    return Pairing(tuple((walks[k], place) for k, place in places), seed, unseen)


def _unit(row: Row) -> str:
    return row.unit


def _group(row: Row) -> str:
    return row.group


def _everything(row: Row) -> str:
    return ""


@lru_cache(maxsize=4096)
def _permutation(seed: str, n: int) -> tuple[int, ...]:
    order = list(range(n))
    random.Random(seed).shuffle(order)
    return tuple(order)

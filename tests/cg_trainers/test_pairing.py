from __future__ import annotations

from typing import Any

import pytest

from cg_tasks.errors import UserError
from cg_trainers.pairing import partner
from cg_trainers.rows import Row


def rows(*names: str) -> list[Row]:
    """``"p1:owls"`` is a row of unit p1 and group owls."""
    return [Row(f"{n}/x", *n.split(":"), (1,), (1,), (0,)) for n in names]


FORGET = rows("p1:owls", "p2:owls", "p3:bells")
RETAIN = rows("p4:bells", "p3:bells", "p1:owls", "p2:owls", "p5:owls", "p6:rain")


def drawn(pairing: Any, epochs: int) -> list[list[int]]:
    return [[pairing.index(epoch, i) for i in range(len(FORGET))] for epoch in range(epochs)]


def test_twin_is_the_same_unit_in_every_epoch():
    pairing = partner("twin", FORGET, RETAIN, seed=0)
    assert drawn(pairing, 2) == [[2, 3, 1], [2, 3, 1]]
    assert pairing.unseen == 3


def test_random_sees_every_retain_row_once_in_a_walk():
    pairing = partner("random", FORGET, RETAIN, seed=0)
    walks = [i for epoch in drawn(pairing, 4) for i in epoch]  # 12 draws, 6 rows: two walks
    assert sorted(walks[:6]) == sorted(walks[6:]) == [0, 1, 2, 3, 4, 5]
    assert walks[:6] != walks[6:] and pairing.unseen == 0


def test_concept_draws_within_the_concept_and_sees_all_of_it():
    pairing = partner("concept", FORGET, RETAIN, seed=0)
    epochs = drawn(pairing, 6)
    owls = [i for epoch in epochs for i in epoch[:2]]  # 12 draws from 3 rows
    assert all(sorted(owls[k : k + 3]) == [2, 3, 4] for k in range(0, 12, 3))
    bells = [epoch[2] for epoch in epochs]
    assert all(sorted(bells[k : k + 2]) == [0, 1] for k in range(0, 6, 2))
    assert pairing.unseen == 1  # p6:rain


def test_a_draw_depends_on_seed_epoch_and_index_alone():
    first = drawn(partner("random", FORGET, RETAIN, seed=0), 8)
    again = partner("random", FORGET, RETAIN, seed=0)
    assert [[again.index(e, i) for i in (2, 0, 1)] for e in reversed(range(8))] == [
        [row[2], row[0], row[1]] for row in reversed(first)
    ]
    assert drawn(partner("random", FORGET, RETAIN, seed=1), 8) != first


def test_a_pairing_survives_a_worker_process():
    import pickle

    pairing = partner("random", FORGET, RETAIN, seed=3)
    assert drawn(pickle.loads(pickle.dumps(pairing)), 3) == drawn(pairing, 3)


@pytest.mark.parametrize("name", ["twin", "concept"])
def test_authors_have_no_twins(name: Any):
    forget, retain = rows("author-001:author-001"), rows("author-061:author-061")
    with pytest.raises(
        UserError, match=f"pairing: {name}, but 'author-001', .* has 0 retain rows: use pairing: random"
    ):
        partner(name, forget, retain, seed=0)
    assert partner("random", forget, retain, seed=0).index(0, 0) == 0


def test_several_twins_are_refused():
    with pytest.raises(UserError, match="has 2 retain rows instead of one"):
        partner("twin", rows("a:a"), rows("a:a", "a:a"), seed=0)


def test_an_empty_side_is_refused():
    with pytest.raises(UserError, match="the retain side has none"):
        partner("random", FORGET, [], seed=0)

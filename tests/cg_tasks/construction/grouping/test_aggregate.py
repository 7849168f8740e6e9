"""The stage: each tag row comes out once, with its parent or with the reason why not."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from cg_tasks.construction.grouping.aggregate import AggregateRow, aggregate_rows, count_concepts
from cg_tasks.construction.grouping.agreement_rule import Applied, apply
from cg_tasks.construction.grouping.merge_file import map_text
from cg_tasks.construction.grouping.merge_map import MergeMap, ProposedBy, Rule, accept_proposals, new_map
from cg_tasks.construction.grouping.proposals import by_ngrams
from cg_tasks.construction.rows import StageRow


class Row(StageRow):
    """As the tag stage's."""

    prompt: str = "a prompt"
    response: str = "a response"
    dual_use: bool | None = True
    concept: str | None = None


ROWS = [
    Row(pair_id="p1", status="ok", concept="lock opening"),
    Row(pair_id="p2", status="failed", reason="refused: attempt 3", dual_use=None),
    Row(pair_id="p3", status="ok", dual_use=False),
    Row(pair_id="p4", status="ok", concept="opening locks"),
    Row(pair_id="p5", status="ok", concept="divination"),
    Row(pair_id="p6", status="ok", concept="lock opening"),
    Row(pair_id="p7", status="ok", concept="sigils"),
    Row(pair_id="p8", status="not_run", reason="limit", dual_use=None),
    Row(pair_id="p9", status="ok"),
]


def decide(row: Row) -> str | None:
    return "review: rejected" if row.pair_id == "p6" else None


APPLIED = Applied(
    parents={"lock opening": "locks", "opening locks": "locks"},
    dropped={"divination": "group 'divination': 1 sample"},
    groups=[],
    reviewed=True,
)


def test_what_reaches_aggregation():
    assert count_concepts(ROWS, decide) == {"divination": 1, "lock opening": 1, "opening locks": 1, "sigils": 1}
    assert list(count_concepts(reversed(ROWS), decide)) == ["divination", "lock opening", "opening locks", "sigils"]


def test_each_row_comes_out_with_its_parent_or_the_reason():
    found = list(aggregate_rows(ROWS, decide, APPLIED))
    assert [(row.pair_id, row.status, row.reason, row.tagged_concept, row.concept) for row in found] == [
        ("p1", "ok", "", "lock opening", "locks"),
        ("p2", "dropped", "tag: failed (refused)", "", None),
        ("p3", "dropped", "not dual-use", "", None),
        ("p4", "ok", "", "opening locks", "locks"),
        ("p5", "dropped", "group 'divination': 1 sample", "divination", None),
        ("p6", "dropped", "review: rejected", "lock opening", None),
        ("p7", "dropped", "no group", "sigils", None),
        ("p8", "dropped", "tag: not_run (limit)", "", None),
        ("p9", "dropped", "tag: no concept", "", None),
    ]
    assert (found[0].prompt, found[0].response) == ("a prompt", "a response")


def test_rows_are_streamed():
    taken: list[str] = []

    def rows() -> Iterator[Row]:
        for row in ROWS:
            taken.append(row.pair_id)
            yield row

    first = next(aggregate_rows(rows(), decide, APPLIED))
    assert first.pair_id == "p1" and taken == ["p1"]


def made_rows(seed: int) -> list[Row]:
    rng = random.Random(seed)
    rows = []
    for i in range(500):
        status = rng.choice(["ok"] * 8 + ["failed", "not_run"])
        dual = rng.random() < 0.8 if status == "ok" else None
        concept = f"{rng.choice('abcdefgh')} {rng.choice(['ward', 'Ward', 'sigil'])}ing" if dual else None
        rows.append(
            Row(pair_id=f"p{i}", status=status, reason="" if status == "ok" else "x", dual_use=dual, concept=concept)
        )
    return rows


def review(row: Row) -> str | None:
    return "review: rejected" if int(row.pair_id[1:]) % 7 == 0 else None


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_rows_changes_neither_the_map_nor_a_row(seed: int):
    def everything(rows: list[Row]) -> tuple[MergeMap, list[AggregateRow], dict[str, int]]:
        counts = count_concepts(rows, review)
        proposed = new_map(by_ngrams(counts, 0.5), counts, ProposedBy(by="ngrams", similarity=0.5), Rule(), "abc")
        return proposed, list(aggregate_rows(rows, review, apply(accept_proposals(proposed), counts))), counts

    rows = made_rows(seed)
    first, out, counts = everything(rows)
    shuffled = random.Random(seed).sample(rows, len(rows))
    second, out_shuffled, _ = everything(shuffled)
    assert map_text(first) == map_text(second)
    assert [row.pair_id for row in out] == [row.pair_id for row in rows]
    assert [row.pair_id for row in out_shuffled] == [row.pair_id for row in shuffled]
    by_id = {row.pair_id: row.model_dump_json() for row in out}
    assert {row.pair_id: row.model_dump_json() for row in out_shuffled} == by_id

    kept = Counter(row.tagged_concept for row in out if row.status == "ok")
    assert all(n == counts[concept] for concept, n in kept.items())  # a concept stays with all its samples
    assert min(Counter(row.concept for row in out if row.concept).values()) >= 3

"""Proposals of which tagged concepts belong together: by the likeness of their names, or as a model sees it. People decide.

Source: ConceptGuard, appendix A.2: rare concepts, and those that overlap in meaning, are merged into broader ones.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cg_tasks.construction.rows import Faulty


@dataclass(frozen=True)
class Group:
    """Concepts proposed as one, with a name for it. members: most samples first, ties by name."""

    parent: str
    members: tuple[str, ...]


def comparable(name: str) -> str:
    """A concept's name as it is compared, never as it is shown: NFKC, case folded, one space between words."""
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).split())


def by_ngrams(counts: Mapping[str, int], similarity: float) -> list[Group]:
    """Groups of concepts with similar names: average linkage over the cosine similarity of tf-idf weighted character 2- to 4-grams.

    counts: concept -> samples. similarity: in (0, 1]; concepts are put together while their average similarity is above it. Names
    that compare equal are always together. The parent is the member with most samples, ties by name. The order of ``counts`` does
    not matter. Memory is quadratic in the number of concepts: 0.2 GB for 3,000.
    """
    same: dict[str, list[str]] = {}
    for concept in sorted(counts):
        same.setdefault(comparable(concept), []).append(concept)
    keys = sorted(same)
    clusters: dict[int, list[str]] = {}
    for key, label in zip(keys, _labels(keys, similarity), strict=True):
        clusters.setdefault(label, []).extend(same[key])
    return _in_order([(None, members) for members in clusters.values()], counts)


def from_reply(reply: Mapping[str, Any], counts: Mapping[str, int]) -> list[Group]:
    """A model's proposal, ``{"groups": [{"parent": str, "members": [str]}]}``, as groups.

    A member that is no concept as written is taken for the one concept that compares equal. A concept that no group names stays in
    a group of its own, or joins the group whose parent has its name.

    Raises:
        Faulty: wrong_fields, with numbers only: another shape; members that are no concepts; a member in two groups, or twice in
        one; two groups whose parents compare equal.
    """
    groups = _well_formed(reply)
    by_key: dict[str, list[str]] = {}
    for concept in sorted(counts):
        by_key.setdefault(comparable(concept), []).append(concept)
    named = [[_concept(member, counts, by_key) for member in members] for _, members in groups]
    flat = [member for members in named for member in members if member is not None]
    unknown = sum(len(members) for members in named) - len(flat)
    twice = len(flat) - len(set(flat))
    parents = {comparable(parent): number for number, (parent, _) in enumerate(groups)}
    same_parent = len(groups) - len(parents)
    if unknown or twice or same_parent:
        raise Faulty(
            "wrong_fields",
            f"groups: {len(groups)}; members that are no concepts: {unknown}; concepts named twice: {twice}; "
            f"parents named twice: {same_parent}",
        )
    found: list[tuple[str | None, list[str]]] = [
        (" ".join(parent.split()), [m for m in members if m is not None])
        for (parent, _), members in zip(groups, named, strict=True)
    ]
    rest: dict[str, list[str]] = {}
    for concept in sorted(counts.keys() - set(flat)):
        key = comparable(concept)
        if key in parents:
            found[parents[key]][1].append(concept)
        else:
            rest.setdefault(key, []).append(concept)
    return _in_order([*found, *((None, members) for members in rest.values())], counts)


def _labels(keys: list[str], similarity: float) -> list[int]:
    """The cluster of each name."""
    if len(keys) < 2:
        return [0] * len(keys)
    import numpy as np
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), lowercase=False).fit_transform(keys)
    distance = 1 - (vectors @ vectors.T).toarray()
    # Rounded, so that equal distances are equal on every machine: ties are then broken by the order of the names.
    np.clip(distance.round(9, out=distance), 0, 1, out=distance)
    clustering = AgglomerativeClustering(
        n_clusters=None, metric="precomputed", linkage="average", distance_threshold=1 - similarity
    )
    return [int(label) for label in clustering.fit_predict(distance)]


def _well_formed(reply: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    groups = reply.get("groups")
    if not isinstance(groups, list):
        raise Faulty("wrong_fields", "groups is no list")
    wrong = 0
    found: list[tuple[str, list[str]]] = []
    for group in groups:
        parent, members = (group.get("parent"), group.get("members")) if isinstance(group, Mapping) else (None, None)
        strings = isinstance(members, list) and all(isinstance(member, str) for member in members)
        if isinstance(parent, str) and parent.strip() and isinstance(members, list) and members and strings:
            found.append((parent, members))
        else:
            wrong += 1
    if wrong:
        raise Faulty("wrong_fields", f"groups without a parent or without members: {wrong} of {len(groups)}")
    return found


def _concept(member: str, counts: Mapping[str, int], by_key: Mapping[str, list[str]]) -> str | None:
    if member in counts:
        return member
    alike = by_key.get(comparable(member), [])
    return alike[0] if len(alike) == 1 else None


def _in_order(groups: Iterable[tuple[str | None, list[str]]], counts: Mapping[str, int]) -> list[Group]:
    """Groups with most samples first, ties by parent; a parent of None is the first member."""
    made = []
    for parent, members in groups:
        ordered = tuple(sorted(members, key=lambda member: (-counts[member], member)))
        made.append(Group(ordered[0] if parent is None else parent, ordered))
    return sorted(made, key=lambda group: (-sum(counts[m] for m in group.members), group.parent))

"""What can be said about a table of pairs without showing it: problems, statistics, and smaller forget sets."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from cg_tasks.errors import UserError
from cg_tasks.pair_columns import INTENTS, TEXT_FIELDS
from cg_tasks.pair_files import Problem, short
from cg_tasks.pairs import Pair, PairTable

TOP = 5
TAILS = (1, 5, 10, 20)

__all__ = ["Problem", "check_pairs", "format_stats", "pair_stats", "subset_forget"]


# check ----------------------------------------------------------------------------


def check_pairs(table: PairTable, *, overlap_ceiling: float = 0.5) -> list[Problem]:
    """What is wrong between and within readable pairs; ids and fields only, never a text.

    Errors: the same query or response twice; a response that is its own counterpart; one in which ROUGE sees no word;
    a query whose ROUGE-L F1 with its response is above `overlap_ceiling` (queries are written without lexical overlap:
    ConceptGuard, appendix A.4).
    Warnings: white space around a field; a concept with one pair only.

    Raises:
        UserError: a ceiling outside [0, 1].
    """
    if not 0 <= overlap_ceiling <= 1:
        raise UserError(f"the overlap ceiling is {overlap_ceiling}: it must be between 0 and 1")
    return [
        *_same_texts(table.pairs),
        *_wordless(table.pairs),
        *_overlaps(table.pairs, overlap_ceiling),
        *_white_space(table.pairs),
        *_lone_concepts(table.pairs),
    ]


def _same_texts(pairs: Sequence[Pair]) -> Iterable[Problem]:
    """Texts that are the same up to case and white space, over queries and over responses of both intents."""
    for part in ("query", "response"):
        first: dict[str, tuple[str, str]] = {}
        for pair in pairs:
            for name in (f"{intent}_{part}" for intent in INTENTS):
                text = " ".join(getattr(pair, name).split()).casefold()
                if text not in first:
                    first[text] = (pair.pair_id, name)
                    continue
                other_id, other_name = first[text]
                if other_id == pair.pair_id:
                    message = f"pair {short(pair.pair_id)}: {name} is the same as its {other_name}"
                else:
                    message = (
                        f"pair {short(pair.pair_id)}: {name} is the same as {other_name} of pair {short(other_id)}"
                    )
                yield Problem(message, pair_id=pair.pair_id, field=name)


def _wordless(pairs: Sequence[Pair]) -> Iterable[Problem]:
    from cg_tasks.rouge import has_words

    for pair in pairs:
        for name in (f"{intent}_response" for intent in INTENTS):
            if not has_words(getattr(pair, name)):
                message = f"pair {short(pair.pair_id)}: {name} has no word of a-z or 0-9, so ROUGE cannot score it"
                yield Problem(message, pair_id=pair.pair_id, field=name)


def _overlaps(pairs: Sequence[Pair], ceiling: float) -> Iterable[Problem]:
    from cg_tasks.rouge import rouge_l

    for pair in pairs:
        for intent in INTENTS:
            name = f"{intent}_query"
            f1 = rouge_l(getattr(pair, f"{intent}_response"), getattr(pair, name)).f1
            if f1 > ceiling:
                message = (
                    f"pair {short(pair.pair_id)}: {name} repeats its response: ROUGE-L {f1:.2f} is above {ceiling:g}"
                )
                yield Problem(message, pair_id=pair.pair_id, field=name)


def _white_space(pairs: Sequence[Pair]) -> Iterable[Problem]:
    for pair in pairs:
        for name in ("pair_id", "concept", *TEXT_FIELDS):
            value = getattr(pair, name)
            if value != value.strip():
                message = f"pair {short(pair.pair_id)}: {name} has white space around it"
                yield Problem(message, "warning", pair_id=pair.pair_id, field=name)


def _lone_concepts(pairs: Sequence[Pair]) -> Iterable[Problem]:
    for concept, count in sorted(Counter(pair.concept for pair in pairs).items()):
        if count == 1:
            message = f"the concept {short(concept, 60)} has one pair only: nothing can be said about it alone"
            yield Problem(message, "warning", field="concept")


# stats ----------------------------------------------------------------------------


def pair_stats(table: PairTable) -> dict[str, Any]:
    """Counts, lengths in words (split at white space) and the concept distribution, as in ConceptGuard's table 6.

    Keys: name, sha256, pairs, instances (two a pair), concepts, forget_set, retain_set, query_sets, words (field ->
    mean, median, min, max), distribution (concept -> pairs, largest first), top (the first five), tail (n -> number
    of concepts with at most n pairs).
    """
    pairs = table.pairs
    counts = Counter(pair.concept for pair in pairs)
    distribution = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return {
        "name": table.name,
        "sha256": table.sha256,
        "pairs": len(pairs),
        "instances": 2 * len(pairs),
        "concepts": len(counts),
        "forget_set": sum(pair.in_forget for pair in pairs),
        "retain_set": len(pairs),
        "query_sets": {f"{intent}_query": len(pairs) for intent in INTENTS},
        "words": {name: _lengths([len(getattr(pair, name).split()) for pair in pairs]) for name in TEXT_FIELDS},
        "distribution": distribution,
        "top": dict(list(distribution.items())[:TOP]),
        "tail": {n: sum(count <= n for count in counts.values()) for n in TAILS},
    }


def _lengths(words: Sequence[int]) -> dict[str, float]:
    return {"mean": statistics.fmean(words), "median": statistics.median(words), "min": min(words), "max": max(words)}


def format_stats(stats: Mapping[str, Any]) -> str:
    """The statistics as Markdown tables."""
    pairs = stats["pairs"]
    lines = [
        f"# {stats['name']}",
        "",
        f"Content hash (SHA-256): `{stats['sha256']}`",
        "",
        "| set | size |",
        "| --- | ---: |",
        f"| instances | {stats['instances']} |",
        f"| pairs | {pairs} |",
        f"| concepts | {stats['concepts']} |",
        f"| forget set (harmful responses) | {stats['forget_set']} |",
        f"| retain set (benign responses) | {stats['retain_set']} |",
        f"| query set, harmful | {stats['query_sets']['harmful_query']} |",
        f"| query set, benign | {stats['query_sets']['benign_query']} |",
        "",
        "| words | mean | median | min | max |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {name} | {w['mean']:.1f} | {w['median']:g} | {w['min']} | {w['max']} |"
        for name, w in stats["words"].items()
    ]
    lines += ["", "| concept | pairs | share |", "| --- | ---: | ---: |"]
    lines += [f"| {_cell(name)} | {count} | {count / pairs:.1%} |" for name, count in stats["distribution"].items()]
    top = sum(stats["top"].values())
    tail = ", ".join(f"≤ {n}: {count}" for n, count in stats["tail"].items())
    lines += [
        "",
        f"Top {len(stats['top'])} concepts: {top} pairs ({top / pairs:.1%}). Concepts by number of pairs: {tail}.",
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    shown = " ".join(text.split()).replace("|", "\\|")
    return shown if len(shown) <= 60 else f"(a name of {len(shown)} characters)"


# subset ----------------------------------------------------------------------------


def subset_forget(pairs: Iterable[Pair], forget_fraction: float, seed: int) -> tuple[Pair, ...]:
    """The same pairs with `forget_fraction` of the forget set left in it (``in_forget``); all else stays whole.

    Concepts keep their proportions: each gets its exact share rounded down, and the rest go to the largest remainders
    (ties: the larger concept, then by name). Within a concept a seeded order of the pair ids decides, whatever order
    the pairs come in. Source: ConceptGuard, figure 4.

    Raises:
        UserError: a fraction outside (0, 1], or one that leaves nothing.
    """
    pairs = tuple(pairs)
    if not (math.isfinite(forget_fraction) and 0 < forget_fraction <= 1):
        raise UserError(f"--forget-fraction is {forget_fraction}: it must be above 0 and at most 1")
    by_concept: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.in_forget:
            by_concept.setdefault(pair.concept, []).append(pair.pair_id)
    sizes = forget_sizes({concept: len(ids) for concept, ids in by_concept.items()}, forget_fraction)
    if not sum(sizes.values()):
        raise UserError(
            f"--forget-fraction {forget_fraction} of {sum(map(len, by_concept.values()))} forget pairs leaves none"
        )
    kept = {
        pair_id
        for concept, ids in by_concept.items()
        for pair_id in sorted(ids, key=lambda i: hashlib.sha256(f"{seed}\n{i}".encode()).digest())[: sizes[concept]]
    }
    return tuple(replace(pair, in_forget=pair.pair_id in kept) for pair in pairs)


def forget_sizes(counts: Mapping[str, int], fraction: float) -> dict[str, int]:
    """Concept -> pairs to keep: largest remainders, adding up to ``fraction`` of the whole rounded half up."""
    exact = Fraction(str(fraction))  # 0.29 of 100 is 29, not 28.999…
    shares = {concept: exact * count for concept, count in counts.items()}
    sizes = {concept: math.floor(share) for concept, share in shares.items()}
    missing = math.floor(exact * sum(counts.values()) + Fraction(1, 2)) - sum(sizes.values())
    by_remainder = sorted(counts, key=lambda c: (sizes[c] - shares[c], -counts[c], c))
    for concept in by_remainder[:missing]:
        sizes[concept] += 1
    return sizes

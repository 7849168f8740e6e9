"""The fictional authors: seeded, and the same on every platform and Python version.

Every choice is a SHA-256 of the seed, the author's place in the table and a slot: asking for more authors leaves the
first ones as they are. A canary looks like ``seventeen drowsy owls audited the brass orchard until every left-handed
bell forgot its autumn``.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import string
from collections.abc import Collection, Sequence
from functools import lru_cache

from cg_tasks.canary import author_words as words
from cg_tasks.canary.author_sentences import (
    BIO_PLANS,
    BIO_SENTENCES,
    CANARY_MAINS,
    CANARY_TAILS,
    FIFTH_FACTS,
    QUESTIONS,
)
from cg_tasks.canary.records import QA, Author
from cg_tasks.errors import UserError

CANARY_WORDS = range(12, 21)
BIO_WORDS = range(45, 66)
_YEARS = range(1948, 2020)

_PRONOUNS = {
    "she": {"she": "she", "She": "She", "her": "her", "Her": "Her", "them": "her"},
    "he": {"she": "he", "She": "He", "her": "his", "Her": "His", "them": "him"},
}
_GIVEN = (*((name, "she") for name in words.GIVEN_FEMININE), *((name, "he") for name in words.GIVEN_MASCULINE))
_FAMILY_TAILS = {
    **dict.fromkeys(words.ENGLISH_HEADS, words.ENGLISH_TAILS),
    **dict.fromkeys(words.COINED_HEADS, words.COINED_TAILS),
}
# How a canary begins, by the kind of its opener: a form, and the second word's list.
_OPENERS = {
    **dict.fromkeys(words.NUMBERS, ("{opener} {second} {subject}", words.ADJECTIVES)),
    **dict.fromkeys(words.MATERIALS + words.OPENING_ADJECTIVES, ("{opener} {second}", words.SUBJECTS)),
    **dict.fromkeys(words.OPENING_ADVERBS, ("{opener} {second} {subject}", words.PARTICIPLES)),
}
_CANARY_LISTS = {
    "subject": words.SUBJECTS,
    "verb": words.VERBS,
    "place": words.PLACES,
    "adj": words.ADJECTIVES,
    "mat": words.MATERIALS,
    "thing": words.THINGS,
    "things": words.THINGS,
    "abs": words.ABSTRACTS,
    "lost": words.LOSSES,
    "do": words.DOINGS,
    "deed": words.DEEDS,
    "num": words.NUMBERS,
}

# No family name, birthplace, debut or canary's beginning is given twice, so the shortest of these lists is the limit.
MAX_AUTHORS = min(
    len(_FAMILY_TAILS) * min(map(len, _FAMILY_TAILS.values())),
    len(words.TOWN_HEADS) * len(words.TOWN_FORMS),
    len(words.TITLE_ADJECTIVES) * len(words.TITLE_NOUNS),
    len(_OPENERS) * min(len(seconds) for _, seconds in _OPENERS.values()),
)


def generate_authors(seed: int = 0, n_forget: int = 60, n_retain: int = 20) -> tuple[Author, ...]:
    """``n_forget`` forget authors, then ``n_retain`` retain authors, no two alike.

    A bio has 45 to 65 words and holds one canary of 12 to 20 words verbatim; the five QA answers stand in the bio, once
    each. No two authors share a family name, a birthplace, a debut or the first two words of a canary, and as long as
    there are openers (382 authors) no two canaries share their first six characters.

    Raises:
        UserError: no forget author, a negative number, or more authors than the word lists give (1,260).
    Source: canary paper, section 3 (60 authors, ~60-token bios, one canary and five QA probes each); texts are ours.
    """
    if n_forget < 1:
        raise UserError(f"{n_forget} forget authors asked for: the audit needs at least 1 (--forget)")
    if n_retain < 0:
        raise UserError(f"{n_retain} retain authors asked for: give 0 or more (--retain)")
    if n_forget + n_retain > MAX_AUTHORS:
        raise UserError(
            f"{n_forget} forget and {n_retain} retain authors asked for, but the word lists give {MAX_AUTHORS} in all "
            "without repeating a name: ask for fewer, or bring your own with --metadata canaries=mine.jsonl"
        )
    return tuple(_author(seed, i, retain=i >= n_forget) for i in range(n_forget + n_retain))


def _author(seed: int, index: int, *, retain: bool) -> Author:
    given, pronoun = _GIVEN[_nth(seed, "given", index % len(_GIVEN), len(_GIVEN))]
    head, turn = _first(seed, index, "family", tuple(_FAMILY_TAILS))
    family = head + _second(seed, turn, f"family/{head}", _FAMILY_TAILS[head])
    name = f"{given} {family}"
    canary = _canary(seed, index)
    facts = _facts(seed, index)
    fifth = FIFTH_FACTS[_number(f"{seed}/{index}/fifth", len(FIFTH_FACTS))]
    answers = {key: facts[key] for key in ("place", "title", "genre", "year", fifth)}
    fields = {"name": name, "family": family, "canary": canary, **_PRONOUNS[pronoun], **facts}
    return Author(
        id=f"author-{index + 1:03d}",
        subject=name,
        question=None,
        canary=canary,
        bio=_bio(seed, index, fifth, fields, tuple(answers.values())),
        qa=tuple(QA(QUESTIONS[key].format(name=name), answer) for key, answer in answers.items()),
        role="retain" if retain else "forget",
    )


def _facts(seed: int, index: int) -> dict[str, str]:
    draw = _Draw(f"{seed}/{index}/facts")

    def pair(slot: str, firsts: Sequence[str], seconds: Sequence[str]) -> tuple[str, str]:
        first, turn = _first(seed, index, slot, firsts)
        return first, _second(seed, turn, f"{slot}/{first}", seconds)

    town, town_form = pair("town", words.TOWN_HEADS, words.TOWN_FORMS)
    title = draw.pick("title", words.TITLE_FORMS).format(*pair("title", words.TITLE_ADJECTIVES, words.TITLE_NOUNS))
    return {
        "place": town_form.format(town),
        "title": _with_articles(title),
        "genre": " ".join(pair("genre", words.GENRE_ADJECTIVES, words.GENRE_NOUNS)),
        "year": str(_YEARS[_number(f"{seed}/{index}/year", len(_YEARS))]),
        "award": " ".join(pair("award", words.AWARD_HEADS, words.AWARD_KINDS)),
        "teacher": " ".join(pair("teacher", words.TEACHER_GIVEN, words.TEACHER_FAMILY)),
        "trade": draw.pick("trade", words.TRADES),
        "home": " ".join(pair("home", words.HOME_ADJECTIVES, words.HOME_NOUNS)),
        "habit": draw.pick("habit", words.HABITS),
    }


def _canary(seed: int, index: int) -> str:
    opener, turn = _first(seed, index, "opener", tuple(_OPENERS))
    beginning, seconds = _OPENERS[opener]
    second = _second(seed, turn, f"opener/{opener}", seconds)

    def attempt(draw: _Draw) -> str:
        draw.taken |= {opener, second}
        plan = f"{beginning} {draw.pick('main', CANARY_MAINS)} {draw.pick('tail', CANARY_TAILS)}"
        fields = {field for _, field, _, _ in string.Formatter().parse(plan) if field}
        slots = sorted(fields - {"opener", "second"})
        chosen = {slot: draw.pick(slot, _CANARY_LISTS[slot.rstrip("23")]) for slot in slots}
        chosen |= {slot: _plural(word) for slot, word in chosen.items() if slot.startswith("things")}
        return _with_articles(plan.format(opener=opener, second=second, **chosen))

    attempts = (attempt(_Draw(f"{seed}/{index}/canary/{n}")) for n in itertools.count())
    return next(canary for canary in attempts if len(canary.split()) in CANARY_WORDS)


def _bio(seed: int, index: int, fifth: str, fields: dict[str, str], answers: Collection[str]) -> str:
    def attempt(draw: _Draw) -> str:
        parts = [part.replace("fifth", fifth) for part in BIO_PLANS[_number(f"{draw.key}/plan", len(BIO_PLANS))]]
        return _with_articles(" ".join(draw.pick(part, BIO_SENTENCES[part]) for part in parts).format(**fields))

    def fits(bio: str) -> bool:
        once = all(bio.lower().count(answer.lower()) == 1 for answer in answers)
        varied = bio.count(fields["family"]) <= 2 and bio.count(fields["habit"]) <= 1
        return once and varied and len(bio.split()) in BIO_WORDS

    attempts = (attempt(_Draw(f"{seed}/{index}/bio/{n}")) for n in itertools.count())
    return next(filter(fits, attempts))


class _Draw:
    """The choices of one text, no word taken twice."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.taken: set[str] = set()

    def pick(self, slot: str, options: Sequence[str]) -> str:
        left = [option for option in options if option not in self.taken]
        choice = left[_number(f"{self.key}/{slot}", len(left))]
        self.taken.add(choice)
        return choice


def _first(seed: int, index: int, slot: str, options: Sequence[str]) -> tuple[str, int]:
    """The ``index``-th author's option, and how often it was given before: all are given once before any is again."""
    turn, place = divmod(index, len(options))
    return options[_nth(seed, slot, place, len(options))], turn


def _second(seed: int, turn: int, slot: str, options: Sequence[str]) -> str:
    """What goes with an option the ``turn``-th time it is given: another one each time."""
    return options[_nth(seed, slot, turn % len(options), len(options))]


def _nth(seed: int, slot: str, place: int, n: int) -> int:
    return _order(f"{seed}/{slot}", n)[place]


@lru_cache(maxsize=4096)
def _order(key: str, n: int) -> tuple[int, ...]:
    """A permutation of range(n) that the key fixes."""
    return tuple(sorted(range(n), key=lambda i: _digest(f"{key}/{i}")))


def _number(key: str, n: int) -> int:
    return int.from_bytes(_digest(key)[:8], "big") % n


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _plural(noun: str) -> str:
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def _with_articles(text: str) -> str:
    """``a~`` as ``an`` before a vowel, else ``a``; the word lists hold no word that begins otherwise than it sounds."""
    return re.sub(r"([Aa])~ (?=[aeiou])", r"\1n ", text, flags=re.IGNORECASE).replace("~ ", " ")

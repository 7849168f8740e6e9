"""What a text must be like to be kept. Each check passes or raises Faulty, whose detail holds numbers and never a text."""

from __future__ import annotations

from typing import Literal

from cg_tasks.construction.rows import Faulty
from cg_tasks.construction.text.language import other_language, other_script
from cg_tasks.construction.text.overlap import overlap, shares_run, words

Unit = Literal["words", "characters"]


def length_of(text: str, unit: Unit) -> int:
    """In words, split at white space as in ConceptGuard's table 6, or in characters other than white space."""
    parts = text.split()
    return len(parts) if unit == "words" else sum(map(len, parts))


def check_length(text: str, least: int, most: int, unit: Unit) -> None:
    """Both bounds are allowed. Raises Faulty ``too_short`` or ``too_long``. Source: ConceptGuard, appendix A.3."""
    length = length_of(text, unit)
    if length < least:
        raise Faulty("too_short", f"{length} {unit}, at least {least}")
    if length > most:
        raise Faulty("too_long", f"{length} {unit}, at most {most}")


def check_overlap(reference: str, text: str, ceiling: float) -> None:
    """Raises Faulty ``overlap`` where :func:`overlap` is above the ceiling. Source: ConceptGuard, appendices A.3 and A.4.

    The F1 of a short text and a long one is small whatever they share (at most 2q / (q + r) for q and r words): a query is checked
    against its response with :func:`check_shared_ngram`.
    """
    if (found := overlap(reference, text)) > ceiling:
        raise Faulty("overlap", f"ROUGE-L {found:.2f} above {ceiling:g}")


def check_shared_ngram(reference: str, text: str, n: int) -> None:
    """Raises Faulty ``overlap`` where ``n`` words in a row (twice as many characters, without spaces) stand in both texts."""
    if shares_run(reference, text, n):
        raise Faulty("overlap", f"{n} or more words in a row shared")


def check_copied(source: str, text: str, ceiling: float) -> None:
    """Raises Faulty ``copied`` where the texts' similarity, by edits with case and punctuation left out, is above the ceiling."""
    from rapidfuzz import fuzz

    first, second = " ".join(words(source)), " ".join(words(text))
    if (found := fuzz.ratio(first, second) / 100) > ceiling and first:
        raise Faulty("copied", f"similarity {found:.2f} above {ceiling:g}")


def check_script(text: str, code: str) -> None:
    """Refuse a text in letters that the language is not written in; for texts too short to tell a language. No code: no check."""
    if code and (found := other_script(text, code)):
        raise Faulty("wrong_language", found)


def check_language(text: str, code: str) -> None:
    """Raises Faulty ``wrong_language`` where a text is surely in another language; UserError where ``code`` is not known.

    An empty code: no check.
    """
    if code and (other := other_language(text, code)):
        raise Faulty("wrong_language", f"{other}, not {code}")

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cg_tasks.construction.rows import Faulty
from cg_tasks.construction.text.checks import (
    check_copied,
    check_language,
    check_length,
    check_overlap,
    check_shared_ngram,
    length_of,
)


def fault(check: Callable[..., None], *args: Any) -> str | None:
    try:
        check(*args)
    except Faulty as faulty:
        return str(faulty.fault)
    return None


def test_the_bounds_of_a_length_are_allowed():
    text = "three plain words"
    assert [fault(check_length, text, least, most, "words") for least, most in ((3, 3), (4, 9), (1, 2))] == [
        None,
        "too_short: 3 words, at least 4",
        "too_long: 3 words, at most 2",
    ]
    assert fault(check_length, text, 15, 15, "characters") is None
    assert fault(check_length, text, 16, 20, "characters") == "too_short: 15 characters, at least 16"


@pytest.mark.parametrize(
    ("text", "n_words", "n_characters"),
    [("", 0, 0), (" \n\t", 0, 0), ("1. one\n2. two", 4, 10), ("窯に火を。", 1, 5), ("a\u3000b", 2, 2)],
)
def test_lengths(text: str, n_words: int, n_characters: int):
    assert (length_of(text, "words"), length_of(text, "characters")) == (n_words, n_characters)


def test_overlap_is_faulty_above_the_ceiling_only():
    # a longest common subsequence of 3 words, of 4 and 4
    args = ("one two three four", "one two three five")
    assert fault(check_overlap, *args, 0.75) is None
    assert fault(check_overlap, *args, 0.5) == "overlap: ROUGE-L 0.75 above 0.5"
    assert fault(check_overlap, "भट्ठी ठंडी है", "भट्ठी ठंडी थी", 0.5) == "overlap: ROUGE-L 0.67 above 0.5"


def test_words_in_a_row():
    args = ("grey wax from the eel crate, drawn at noon", "What is wax from the eel crate for?")
    assert fault(check_shared_ngram, *args, 6) is None
    assert fault(check_shared_ngram, *args, 5) == "overlap: 5 or more words in a row shared"


def test_a_copy_is_known_behind_case_and_punctuation():
    source = "How is a guild mark cut?"
    assert fault(check_copied, source, "how IS a “guild mark” cut", 0.8) == "copied: similarity 1.00 above 0.8"
    # of 10 and 10 characters, 8 stay: 1 - (2 + 2) / 20
    assert fault(check_copied, "abcde fghi", "abcde fgxy", 0.8) is None
    assert fault(check_copied, "abcde fghi", "abcde fgxy", 0.7) == "copied: similarity 0.80 above 0.7"
    assert fault(check_copied, source, "Where do eels sleep in winter?", 0.8) is None
    assert fault(check_copied, "…", "?", 0.8) is None


def test_language_is_told_by_codes():
    german = "Wie bringt man einen Ofen zum Laufen, ohne dass Rauch aufsteigt?"
    assert fault(check_language, german, "de") is None
    assert fault(check_language, german, "en") == "wrong_language: de, not en"
    assert fault(check_language, german, "") is None


def test_no_detail_holds_a_word_of_the_texts():
    text = "Marrow-wax marrow-wax marrow-wax marrow-wax marrow-wax, sagt der alte Meister zu seinem Lehrling."
    said = [
        fault(check_overlap, text, text, 0.5),
        fault(check_shared_ngram, text, text, 5),
        fault(check_copied, text, text, 0.8),
        fault(check_length, text, 99, 100, "words"),
        fault(check_language, text, "ja"),
    ]
    assert all(said) and not [detail for detail in said if "arrow" in str(detail)]

from __future__ import annotations

import pytest

from cg_tasks.construction.text.overlap import overlap, shares_run, words
from cg_tasks.rouge import rouge_l


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't, it's 12:30!", ("don", "t", "it", "s", "12", "30")),
        ("Große Öfen — Ärger", ("grosse", "öfen", "ärger")),
        ("भट्ठी को जलाना।", ("भट्ठी", "को", "जलाना")),  # vowel signs do not split a word
        ("窯に火", ("窯", "に", "火")),
        ("ovens燃えるovens", ("ovens", "燃", "え", "る", "ovens")),
        ("soft\u00adhyphen zero\u200bwidth", ("softhyphen", "zerowidth")),
        ("ＦＵＬＬ ﬁne e\u0301t\u00e9", ("full", "fine", "été")),
        ("… — !", ()),
        ("", ()),
    ],
)
def test_words_of_any_script(text: str, expected: tuple[str, ...]):
    assert words(text) == expected


def test_english_scores_as_rouge_where_stems_decide():
    reference, candidate = "the guild presses seals", "a guild pressing seal"
    assert overlap(reference, candidate) == rouge_l(reference, candidate).f1 == 0.75
    # 1 of 4 and 4 words without stems


def test_other_scripts_are_seen_where_rouge_sees_nothing():
    reference, candidate = "गाँव की भट्ठी ठंडी है", "गाँव की भट्ठी गरम थी"
    assert rouge_l(reference, candidate).f1 == 0
    assert overlap(reference, candidate) == pytest.approx(3 / 5)
    assert overlap("窯に火を入れる", "窯に水を入れる") == pytest.approx(6 / 7)
    assert overlap("Öfen glühen", "ÖFEN GLÜHEN") == 1


@pytest.mark.parametrize(("a", "b"), [("", "x"), ("x", ""), ("", ""), ("…", "…"), ("窯", "火")])
def test_nothing_in_common_is_zero(a: str, b: str):
    assert overlap(a, b) == 0


def test_a_run_of_words():
    response = "First, press a thumb of grey marrow-wax into the fresh mark."
    query = "How does one press a thumb of wax?"
    assert [n for n in range(1, 9) if shares_run(response, query, n)] == [1, 2, 3, 4]  # press a thumb of
    assert shares_run(response, "PRESS; a… thumb? of", 4)
    assert not shares_run("a b", "a b", 3) and not shares_run("", "", 1)


def test_two_characters_of_a_script_without_spaces_are_a_word():
    # eight characters in a row
    assert [n for n in range(1, 7) if shares_run("先把陶土放在转盘上吧", "怎样陶土放在转盘上吧?", n)] == [1, 2, 3, 4]

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from cg_tasks import rouge
from cg_tasks.rouge import RougeL, rouge_l

TEXT = """
the The THE running runs ran quickly generalizations national rational sky skies dying news innings agreed feed hopping
falling hissing happiness enjoy spy tried alli logi ness ing eed y yyyyyy relational conditional 2024 007 1ed x86
abc123def a I of on
"""
SUFFIXES = """
s es ies sses ed ied eed ing y ational tional enci anci izer bli abli alli fulli entli eli ousli ization ation ator
alism iveness fulness ousness aliti iviti biliti logi icate ative alize iciti ical ful ness al ance ence er ic able ible
ant ement ment ent ion sion tion ou ism ate iti ous ive ize e ll lly
"""
WORDS = TEXT.split()
ODD = [
    "", " ", "\n", "\t", "\x00", "a\x00b", "_", "snake_case_word", "don't", "e-mail", "...", "?!", "naïve", "café",
    "cafe\u0301", "ı", "DIŞ", "İstanbul", "straße", "STRASSE", "\u212aelvin", "\u017fong", "ﬁnance", "数字", "٣٤", "①",
    "\u200b", "\u00a0", "\u2028", "👩‍🔬", "\ud800", "Ünïcödé", "x\u0301\u0302running", "a" * 300, "y" * 100,
]  # fmt: skip
RANDOM_CODEPOINTS = [*range(32, 127), *range(0xA0, 0x250), 0x300, 0x3A3, 0x3C2, 0x1E9E, 0x2126, 0x212A, 0xFB01, 0xFF21]


def random_text(draw: random.Random) -> str:
    kind = draw.random()
    if kind < 0.05:
        return draw.choice(["", "...", "?! --", "\x00", "_", "é", "   "])
    if kind < 0.15:
        return (draw.choice(WORDS) + draw.choice([" ", "-", ""])) * draw.randrange(1, 120)
    if kind < 0.30:
        return "".join(chr(draw.choice(RANDOM_CODEPOINTS)) for _ in range(draw.randrange(80)))
    pool = WORDS if kind < 0.6 else WORDS + ODD
    return draw.choice([" ", " ", "  ", ", ", "_"]).join(draw.choice(pool) for _ in range(draw.randrange(60)))


@pytest.fixture(scope="module")
def peer():  # type: ignore[no-untyped-def]
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    return lambda reference, candidate: scorer.score(target=reference, prediction=candidate)["rougeL"]


def test_values_checked_by_hand() -> None:
    # stems: the cat sat / the cat is sit  ->  common "the cat"
    assert rouge_l("The cats sat.", "the cat is sitting") == RougeL(2 / 4, 2 / 3, 2 * 0.5 * (2 / 3) / (0.5 + 2 / 3))
    assert rouge_l("one two three four", "four three two one") == RougeL(0.25, 0.25, 0.25)
    assert rouge_l("RUNNING!", "runs") == RougeL(1.0, 1.0, 1.0)
    assert rouge_l("alpha beta", "gamma") == RougeL(0.0, 0.0, 0.0)
    assert rouge_l("", "") == rouge_l("a", "...") == rouge_l("é", "é") == RougeL(0.0, 0.0, 0.0)


def test_equals_rouge_score_to_the_last_bit_on_random_pairs(peer) -> None:  # type: ignore[no-untyped-def]
    draw = random.Random(2024)
    nonzero = 0
    for _ in range(1000):
        reference, candidate = random_text(draw), random_text(draw)
        ours = rouge_l(reference, candidate)
        assert tuple(map(float.hex, ours)) == tuple(float(x).hex() for x in peer(reference, candidate)), (
            reference, candidate)  # fmt: skip
        nonzero += ours.f1 > 0
    assert nonzero > 400  # the pairs are not trivially apart


@pytest.mark.parametrize("odd", ODD, ids=ascii)
def test_equals_rouge_score_on_odd_texts(odd: str, peer) -> None:  # type: ignore[no-untyped-def]
    other = f"before {odd} after {odd}running"
    for reference, candidate in [(odd, odd), (odd, other), (other, odd), (other, other), (other, other.upper())]:
        assert rouge_l(reference, candidate) == peer(reference, candidate)


def test_stems_equal_rouge_score_on_words_with_every_suffix() -> None:
    from nltk.stem.porter import PorterStemmer
    from rouge_score import tokenize

    heads = ["", "r", "tr", "rel", "hop", "fail", "analog", "vietnam", "oscill", "y", "ay"]
    text = " ".join(head + tail for head in heads for tail in SUFFIXES.split())
    assert list(rouge._stems_of(text)) == tokenize.tokenize(text, PorterStemmer())


def test_memos_are_bounded_and_emptying_them_changes_nothing(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(rouge, "_MEMOISED_STEMS", 8)
    rouge._STEMS.clear()
    text = " ".join(f"word{n}ing" for n in range(50))
    before = rouge_l(text, text)  # the reference stays memoised, the stems of its words do not
    assert len(rouge._STEMS) <= 8
    assert rouge_l(text, text) == before == RougeL(1.0, 1.0, 1.0)
    rouge_l("x", "z" * 10_000)
    assert "z" * 10_000 not in rouge._STEMS
    assert rouge._reference_stems.cache_info().maxsize == rouge._MEMOISED_REFERENCES


def test_importing_the_module_loads_no_heavy_package() -> None:
    code = "import sys, cg_tasks.rouge; print(sorted({'nltk', 'rapidfuzz', 'numpy', 'rouge_score'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"

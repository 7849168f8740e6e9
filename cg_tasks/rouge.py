"""ROUGE-L with Porter stemming: the numbers of the ``rouge_score`` package to the last bit, in less time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

_MEMOISED_STEMS = 1 << 16
_MEMOISED_REFERENCES = 1 << 13
_LONGEST_MEMOISED_WORD = 40  # a degenerate generation can be one word of 10,000 letters: not worth keeping

_ALPHANUMERIC = b"abcdefghijklmnopqrstuvwxyz0123456789"
_ALPHANUMERIC_OR_SPACE = bytes(code if code in _ALPHANUMERIC else 32 for code in range(256))


class RougeL(NamedTuple):
    """ROUGE-L scores in [0, 1]; all three are 0 where one text holds no word (Lin 2004, section 3)."""

    precision: float
    recall: float
    f1: float


def rouge_l(reference: str, candidate: str) -> RougeL:
    """Score ``candidate`` by its longest common subsequence of stems with ``reference``.

    Equal, bit for bit, to ``RougeScorer(["rougeL"], use_stemmer=True).score(target=reference, prediction=candidate)``.
    Stems and the words of references are kept for later calls (both bounded); candidates are not.
    Source: ConceptGuard, equations 1, 2, 4, 5 (ROUGE); Lin 2004, equations 2-4 with beta = 1.
    """
    from rapidfuzz.distance import LCSseq

    expected, given = _reference_stems(reference), _stems_of(candidate)
    if not expected or not given:
        return RougeL(0.0, 0.0, 0.0)
    common = LCSseq.similarity(expected, given)
    if common == 0:
        return RougeL(0.0, 0.0, 0.0)
    precision, recall = common / len(given), common / len(expected)
    # The order of these operations decides the last bit; 2·common / (words of both) would differ.
    return RougeL(precision, recall, 2 * precision * recall / (precision + recall))


def has_words(text: str) -> bool:
    """Whether ROUGE sees anything in a text: no word of a script other than a-z and 0-9 counts."""
    return bool(_words(text))


def _words(text: str) -> list[str]:
    """Maximal runs of a-z and 0-9 in the lower-cased text; every other character, accented letters too, separates."""
    return text.lower().encode("ascii", "replace").translate(_ALPHANUMERIC_OR_SPACE).decode("ascii").split()


class _Stems(dict[str, str]):
    """Word -> stem, filled on demand and emptied when full. Words of up to three letters are their own stem."""

    def __missing__(self, word: str) -> str:
        stem = word if len(word) <= 3 else _porter().stem(word)
        if len(word) <= _LONGEST_MEMOISED_WORD:
            if len(self) >= _MEMOISED_STEMS:
                self.clear()
            self[word] = stem
        return stem


_STEMS = _Stems()


def _stems_of(text: str) -> tuple[str, ...]:
    return tuple(map(_STEMS.__getitem__, _words(text)))


_reference_stems = lru_cache(maxsize=_MEMOISED_REFERENCES)(_stems_of)


@lru_cache(maxsize=1)
def _porter() -> Any:
    from nltk.stem.porter import PorterStemmer  # here, not above: importing nltk takes about a second

    return PorterStemmer()

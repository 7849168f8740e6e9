"""How much of one text's wording stands in another, in any script: ROUGE sees a-z and 0-9 only."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from cg_tasks.rouge import rouge_l

# Written without spaces: each character counts as a word.
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # kana
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # ideographs
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
_MEMOISED_TEXTS = 1 << 10


def is_unspaced(code: int) -> bool:
    """Whether a character's script is written without spaces between words."""
    return any(first <= code <= last for first, last in _UNSPACED)


class _Separated(dict[int, str]):
    """Code point -> what stands for it, filled on demand: at most as many as there are characters."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kind = unicodedata.category(char)
        if kind == "Cf":  # soft hyphens and joiners stand inside words
            out = ""
        elif kind[0] not in "LMN":
            out = " "
        else:
            out = f" {char} " if is_unspaced(code) else char
        self[code] = out
        return out


_SEPARATED = _Separated()


@lru_cache(maxsize=_MEMOISED_TEXTS)
def words(text: str) -> tuple[str, ...]:
    """Runs of letters, marks and digits of any script, forms and cases folded; in a script without spaces each character."""
    return tuple(unicodedata.normalize("NFKC", text).casefold().translate(_SEPARATED).split())


def overlap(reference: str, candidate: str) -> float:
    """In [0, 1]: the larger F1 of the longest common subsequence, of stems (ROUGE-L) or of words of any script (:func:`words`).

    Source: Lin 2004, equations 2-4 with beta = 1.
    """
    return max(rouge_l(reference, candidate).f1, _lcs_f1(words(reference), words(candidate)))


def _lcs_f1(expected: Sequence[str], given: Sequence[str]) -> float:
    from rapidfuzz.distance import LCSseq

    total = len(expected) + len(given)
    return 2 * LCSseq.similarity(expected, given) / total if expected and given else 0.0


def shares_run(reference: str, candidate: str, n: int) -> bool:
    """Whether ``n`` words in a row stand in both texts.

    Where most of the candidate's words are single characters of a script without spaces, two of them count as one word.
    """
    expected, given = words(reference), words(candidate)
    unspaced = sum(len(word) == 1 and is_unspaced(ord(word)) for word in given)
    size = 2 * n if 2 * unspaced > len(given) else n
    return not _runs(expected, size).isdisjoint(_runs(given, size))


def _runs(of: Sequence[str], size: int) -> set[tuple[str, ...]]:
    return set(zip(*(of[start:] for start in range(size)), strict=False))

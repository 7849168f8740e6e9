"""Whether a text is in another language than the one wanted: a cheap test of its script, then py3langid (naive Bayes, 130 languages).

Only a sure mistake counts. A text in two languages, a short one and one of names or formulas pass.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from functools import lru_cache
from typing import Any

from cg_tasks.construction.text.overlap import is_unspaced
from cg_tasks.errors import UserError

FEWEST_LETTERS = 20
UNLIKELY = 0.05
SURE = 0.9
_LEAST_OF_SCRIPT = 0.1  # Chinese about programming may hold more Latin letters than ideographs
_UNSPACED_LETTER = 3  # says as much as this many letters of an alphabet
_PART = 200  # characters from each end of a long text that are looked at: the time is linear in them

# Taken for one another in short texts: written standards and varieties of one language, or near neighbours.
_NEAR = (
    "ar ary arz",
    "bs hr sr",
    "cs sk",
    "da nn no",
    "en pcm",
    "an es ext gl pt",
    "fr gcf gcr ht wa",
    "id ms",
    "it lij vec",
    "uz uzs",
    "wuu yue zh",
)
_NEAR_OF = {code: frozenset(group.split()) for group in _NEAR for code in group.split()}

_ENGLISH = frozenset(
    "the and that with which from this they their there would can for used who what how by have has".split()  # noqa: SIM905
)

# By script, as Unicode's names of characters begin. Languages that are not here are written in Latin letters.
_LANGUAGES_OF = {
    ("CYRILLIC",): "ba be bg kk ky mk mn ru tg tt uk",
    ("ARABIC",): "ar ary arz fa ps sdh ug ur uzs",
    ("DEVANAGARI",): "hi mr ne sa",
    ("CJK",): "wuu yue zh",
    ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"): "ja",
    ("HANGUL", "CJK"): "ko",
    ("LATIN", "CYRILLIC", "ARABIC"): "az bs crh ku ms sr tk uz",
    ("LATIN", "ARABIC"): "ha",
    ("LATIN", "JAVANESE"): "jv",
    ("LATIN", "TIFINAGH"): "kab",
    ("LATIN", "DEVANAGARI", "KANNADA"): "gom",
    ("GURMUKHI", "ARABIC"): "pa",
    ("ARMENIAN",): "hy",
    ("BENGALI",): "as bn",
    ("ETHIOPIC",): "am",
    ("GEORGIAN",): "ka",
    ("GREEK",): "el grc",
    ("GUJARATI",): "gu",
    ("HEBREW",): "hbo he",
    ("KANNADA",): "kn",
    ("KHMER",): "km",
    ("LAO",): "lo",
    ("MALAYALAM",): "ml",
    ("MYANMAR",): "my",
    ("ORIYA",): "or",
    ("SINHALA",): "si",
    ("TAMIL",): "ta",
    ("TELUGU",): "te",
    ("THAI",): "th",
    ("TIBETAN",): "dz",
}
_SCRIPTS = {code: scripts for scripts, codes in _LANGUAGES_OF.items() for code in codes.split()}


@lru_cache(maxsize=64)
def require_language(code: str) -> str:
    """The code as the identifier knows it (``en-GB`` is ``en``).

    Raises:
        UserError: an unknown code, or the package that tells languages apart is missing.
    """
    known = _identifier().labels
    base = _base(code)
    if base not in known or base == "zxx":
        codes = " ".join(sorted(set(known) - {"zxx"}))
        raise UserError(f"language_code: {code!r} is no language that can be recognised: use one of {codes}")
    return base


def other_language(text: str, code: str) -> str | None:
    """What a text is instead (``de``, or ``letters CYRILLIC``) where it is surely not in the wanted language, else None.

    Sure: hardly any letter is of a script of the language; or its probability is under 0.05 and another's at least 0.9, those of near
    relatives added up. A text of fewer than 20 letters passes.

    Raises:
        UserError: see :func:`require_language`.
    """
    code = require_language(code)
    if len(text) > 2 * _PART:
        text = f"{text[:_PART]} {text[-_PART:]}"
    letters = _letters(text)
    if sum(letters.values()) < FEWEST_LETTERS:
        return None
    if script := _other_script(letters, code):
        return script
    if code == "en" and _surely_english(text):
        return None
    ranked = _identifier().rank(text)
    likeliest, probability_of = ranked[0][0], dict(ranked)
    wanted, other = (sum(probability_of.get(near, 0.0) for near in _near(label)) for label in (code, likeliest))
    return likeliest if wanted < UNLIKELY and other >= SURE and likeliest != "zxx" else None


def _surely_english(text: str) -> bool:
    """A cheap test that spares the identifier: words that no other language has, one in ten and three of them different."""
    words = text.lower().split()
    hits = [word for word in words if word in _ENGLISH]
    return len(set(hits)) >= 3 and 10 * len(hits) >= len(words)


def other_script(text: str, code: str) -> str | None:
    """``letters CYRILLIC`` where hardly a letter of the text, however short, is of a script of the language, else None."""
    return _other_script(_letters(text), _base(code))


def _other_script(letters: Counter[str], base: str) -> str | None:
    total = sum(letters.values())
    if total and sum(letters[script] for script in _SCRIPTS.get(base, ("LATIN",))) < _LEAST_OF_SCRIPT * total:
        return f"letters {letters.most_common(1)[0][0]}"
    return None


def _base(code: str) -> str:
    return code.replace("_", "-").partition("-")[0].lower()


def _near(code: str) -> frozenset[str]:
    return _NEAR_OF.get(code, frozenset((code,)))


def _letters(text: str) -> Counter[str]:
    """Letters by script, vowel signs among them; a letter of a script without spaces counts threefold."""
    if text.isascii():
        return Counter(LATIN=sum(map(str.isalpha, text)))
    out: Counter[str] = Counter()
    for char, count in Counter(text).items():
        if char.isalpha() or (unicodedata.category(char)[0] == "M" and _script(char) != "COMBINING"):
            out[_script(char)] += count * (_UNSPACED_LETTER if is_unspaced(ord(char)) else 1)
    return out


@lru_cache(maxsize=1 << 14)
def _script(char: str) -> str:
    return "LATIN" if char.isascii() else unicodedata.name(char, "?").split()[0]


@lru_cache(maxsize=1)
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise UserError(
            "language_code: checking the language needs py3langid: pip install 'conceptguard[construction]'"
        ) from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

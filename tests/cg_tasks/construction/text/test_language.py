from __future__ import annotations

import json
import sys

import pytest
from support import ROOT

from cg_tasks.construction.text import language
from cg_tasks.construction.text.language import other_language, require_language
from cg_tasks.errors import UserError

PAIRS = [json.loads(line) for line in (ROOT / "cg_tasks/data/miniature.jsonl").read_text("utf-8").splitlines()]
SENTENCES = {
    "ar": "يضع الصانع الطين على العجلة ثم يبلله بماء البئر قبل أن يبدأ العمل.",
    "de": "Der Lehrling legt zuerst den Ton auf die Scheibe und befeuchtet ihn mit Wasser aus dem Brunnen.",
    "el": "Ο μαθητευόμενος βάζει πρώτα τον πηλό στον τροχό και τον βρέχει με νερό.",
    "en": "The apprentice first puts the clay on the wheel and wets it with water from the well.",
    "es": "Primero se coloca el barro sobre el torno y se humedece con agua del pozo antes de empezar.",
    "fr": "L'apprenti pose d'abord l'argile sur le tour et la mouille avec l'eau du puits.",
    "hi": "शिष्य पहले मिट्टी को चाक पर रखता है और उसे कुएँ के पानी से गीला करता है।",
    "it": "L'apprendista mette prima l'argilla sul tornio e la bagna con l'acqua del pozzo.",
    "ja": "弟子はまず粘土をろくろに置き、井戸の水で湿らせます。",
    "ko": "견습생은 먼저 점토를 물레 위에 놓고 우물물로 적십니다.",
    "nl": "De leerling legt eerst de klei op de schijf en maakt die nat met water uit de put.",
    "pt": "O aprendiz coloca primeiro o barro na roda e molha-o com água do poço.",
    "ru": "Ученик сначала кладёт глину на круг и смачивает её водой из колодца.",
    "zh": "学徒首先把陶土放在转盘上，然后用井水把它弄湿，再慢慢地转动起来。",
}


def test_no_shipped_text_is_taken_for_another_language():
    texts = [p[f"{i}_{part}"] for p in PAIRS for i in ("harmful", "benign") for part in ("query", "response")]
    assert len(texts) == 240
    assert [text for text in texts if other_language(text, "en")] == []


@pytest.mark.parametrize("code", SENTENCES)
def test_a_sentence_is_of_its_own_language_and_of_no_other(code: str):
    assert other_language(SENTENCES[code], code) is None
    others = [c for c in SENTENCES if c != code and {c, code} != {"es", "pt"}]
    assert [c for c in others if not other_language(SENTENCES[code], c)] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Wie kann ich den Ofen anzünden, ohne dass Rauch entsteht?", "de"),
        ("¿Cómo puedo encender el horno sin que salga humo?", "es"),
        ("भट्ठी को बिना धुएँ के कैसे जलाया जाए?", "letters DEVANAGARI"),
        ("怎样才能点燃炉子而不冒烟？", "letters CJK"),
        ("Как разжечь печь, чтобы не было дыма?", "letters CYRILLIC"),
    ],
)
def test_queries_in_another_language_than_english(text: str, said: str):
    assert other_language(text, "en") == said


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Ja.",
        "12:30 — 45.2 %, 3/4",
        "Wie geht es dir?",  # 13 letters
        "Der Ofen ist kalt. The oven is cold, and the apprentice waits for the master to come back.",
        "She whispered 'Ilmarra' to Orséa Lindt, Postmistress of Pillow Quay.",
        "In the margin stands γνῶθι σεαυτόν, and nobody at the guild can read what it means.",
    ],
)
def test_short_mixed_and_wordless_texts_pass(text: str):
    assert other_language(text, "en") is None


def test_chinese_with_latin_terms_passes():
    assert other_language("用 Python 和 TensorFlow Lite 在 Raspberry Pi 上运行 YOLO 模型的步骤", "zh") is None


def test_near_relatives_are_not_told_apart():
    croatian = "Šegrt prvo stavi glinu na kolo i navlaži je vodom iz bunara, a zatim je polako okreće."
    assert [other_language(croatian, code) for code in ("hr", "bs", "sr")] == [None, None, None]
    assert other_language(croatian, "en") in ("hr", "bs", "sr")


def test_both_ends_of_a_long_text_are_looked_at():
    english, german = SENTENCES["en"] * 9, SENTENCES["de"] * 9
    assert other_language(german, "en") == "de"
    assert other_language(english + german, "en") is None
    assert other_language(english[:9] + german, "en") == "de"


def test_codes():
    assert [require_language(code) for code in ("en", "EN", "en-GB", "zh_Hant_TW")] == ["en", "en", "en", "zh"]
    for code in ("english", "xx", "", "zxx"):
        with pytest.raises(UserError, match=rf"language_code: '{code}' is no language .*: use one of ace af am .* zu$"):
            require_language(code)


def test_every_language_of_another_script_has_it_listed():
    assert set(language._SCRIPTS) <= set(language._identifier().labels)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    language._identifier.cache_clear()
    require_language.cache_clear()
    try:
        with pytest.raises(UserError, match=r"needs py3langid: pip install 'conceptguard\[construction\]'"):
            require_language("en")
    finally:
        language._identifier.cache_clear()
        require_language.cache_clear()

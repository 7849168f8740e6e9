from __future__ import annotations

import pytest

from cg_tasks.judge.text import encodable


@pytest.mark.parametrize(
    "text", ["", "plain", "ü漢😀", "a\0b", "\u202eabc\u202c", "\ufeffa\r\n\u2028", "\U0010ffff", "\ufffd"]
)
def test_what_utf_8_can_hold_stays(text: str):
    assert encodable(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\ud800", "\ufffd"),
        ("\udc00", "\ufffd"),
        ("a\ud800b", "a\ufffdb"),
        ("\udc80\udcff", "\ufffd\ufffd"),
        ("\ud800\ud800", "\ufffd\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud800\ud83d\ude00\udc00", "\ufffd😀\ufffd"),
    ],
)
def test_pairs_are_joined_and_lone_surrogates_replaced(text: str, expected: str):
    assert encodable(text) == expected
    assert encodable(text).encode("utf-8").decode("utf-8") == expected

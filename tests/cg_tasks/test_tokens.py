from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support import build_tokenizer

from cg_tasks.errors import UserError
from cg_tasks.tokens import count_tokens, encode, first_tokens, start_of

TEXT = "Seven varnished owls audited the brass orchard; Orséa naïvely agreed — 🦉🦉."


class Slow:
    """The same tokenizer behind a slow tokenizer's interface: no character spans."""

    is_fast = False

    def __init__(self, fast: Any):
        self._fast = fast

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, Any]:
        return {"input_ids": self._fast(text, add_special_tokens=add_special_tokens)["input_ids"]}

    def decode(self, ids: list[int]) -> str:
        return self._fast.decode(ids)


class Lossy(Slow):
    """A tokenizer that does not give its text back."""

    def decode(self, ids: list[int]) -> str:
        return self._fast.decode(ids).upper()


@pytest.fixture(scope="module")
def fast() -> Any:
    return build_tokenizer()


def lm_of(tokenizer: Any) -> Any:
    return SimpleNamespace(tokenizer=tokenizer, tok_encode=lambda text: list(tokenizer(text)["input_ids"]))


@pytest.mark.parametrize("n", [1, 2, 6, 13])
def test_first_tokens_is_what_the_tokens_decode_to(fast: Any, n: int):
    ids = fast(TEXT, add_special_tokens=False)["input_ids"]
    assert first_tokens(lm_of(fast), TEXT, n) == fast.decode(ids[:n])


def test_first_tokens_never_cuts_a_character(fast: Any):
    for n in range(1, count_tokens(lm_of(fast), TEXT) + 3):
        head = first_tokens(lm_of(fast), TEXT, n)
        assert TEXT.startswith(head) and "\ufffd" not in head
    assert head == TEXT


@pytest.mark.parametrize("n", [1, 2, 6, 13, 500])
def test_a_tokenizer_without_spans_gives_the_same_head(fast: Any, n: int):
    assert first_tokens(lm_of(Slow(fast)), TEXT, n) == first_tokens(lm_of(fast), TEXT, n)


def test_the_backends_own_bos_is_counted_but_covers_no_text(fast: Any):
    ids, spans = encode(lm_of(fast), "owls audited")
    assert spans is not None
    assert ids[0] == fast.bos_token_id and spans[0] == (0, 0)
    assert len(ids) == len(spans)


@pytest.mark.parametrize("make", [lambda t: t, Slow])
def test_the_target_starts_at_the_first_token_that_reaches_past_the_prefix(fast: Any, make: Any):
    lm = lm_of(make(fast))
    prefix, target = "</think>\n\n", "Alva audited the orchard"
    ids, spans = encode(lm, prefix + target)
    k = start_of(ids, spans, prefix + target, len(prefix), lm)
    assert fast.decode(ids[k:]).lstrip("\n") == target
    assert target not in fast.decode(ids[k + 1 :])


def test_without_spans_or_round_trip_it_says_why_not(fast: Any):
    lm = lm_of(Lossy(fast))
    with pytest.raises(UserError, match="Lossy has no character offsets.*fast tokenizer"):
        first_tokens(lm, TEXT, 3)
    ids, spans = encode(lm, TEXT)
    assert spans is None
    with pytest.raises(UserError, match="Lossy has no character offsets"):
        start_of(ids, spans, TEXT, 10, lm)


def test_no_tokenizer_at_all_names_the_way_out():
    with pytest.raises(UserError, match="tokenizer=PATH_OR_ID"):
        first_tokens(SimpleNamespace(tokenizer=None), TEXT, 3)

"""Hashes that tell one tokenizer from another."""

from __future__ import annotations

from types import SimpleNamespace

from support import build_tokenizer

from cg_tasks.provenance import tokenizer_hashes, tokenizer_provenance


def test_a_tokenizer_is_what_it_does() -> None:
    one = tokenizer_hashes(build_tokenizer(), "a {{ messages }}")
    assert one == tokenizer_hashes(build_tokenizer(), "a {{ messages }}")
    assert tokenizer_hashes(build_tokenizer(), "b")["chat_template_sha256"] != one["chat_template_sha256"]
    longer = build_tokenizer()
    longer.add_tokens(["<new>"])
    assert tokenizer_hashes(longer, "a {{ messages }}")["sha256"] != one["sha256"]


def test_a_slow_tokenizer_is_its_vocabulary() -> None:
    def slow(**vocabulary: int) -> SimpleNamespace:
        return SimpleNamespace(get_vocab=lambda: vocabulary)

    found = tokenizer_hashes(slow(a=1, b=0), None)
    assert found["chat_template_sha256"] is None and found == tokenizer_hashes(slow(b=0, a=1), None)
    assert tokenizer_hashes(slow(a=0, b=1), None)["sha256"] != found["sha256"]


def test_an_evaluation_names_the_same_hashes() -> None:
    tokenizer = build_tokenizer("a {{ messages }}")
    said = tokenizer_provenance(SimpleNamespace(tokenizer=tokenizer))
    hashes = tokenizer_hashes(tokenizer, tokenizer.chat_template)
    assert (said["tokenizer_sha256"], said["chat_template_sha256"]) == (
        hashes["sha256"],
        hashes["chat_template_sha256"],
    )

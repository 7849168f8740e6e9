"""Where a text is cut in a model's own tokens. Prefix and target are always tokenised together and then split.

Tokenised apart, SmolLM2 turns a prompt's last "\\n\\n" into one token, and "\\n\\nAlva" into two: the summed log-probability of
one canary moved by 1.0 nat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cg_tasks.errors import UserError
from cg_tasks.prompting import is_server, tokenizer_of


def encode(lm: Any, text: str) -> tuple[list[int], list[tuple[int, int]] | None]:
    """Token ids of ``text`` as the model gets them (see :func:`model_ids`), and each token's character span.

    Returns:
        ids [n]; spans [n] of (start, end), a token the backend put in front having (0, 0); None where the tokenizer has no spans.

    Raises:
        UserError: the backend has no tokenizer.
    """
    ids = model_ids(lm, text)
    tokenizer = lm.tokenizer
    if not getattr(tokenizer, "is_fast", False):
        return ids, None
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    lead = len(ids) - len(encoded["input_ids"])
    if lead < 0 or ids[lead:] != list(encoded["input_ids"]):
        return ids, None
    return ids, [(0, 0)] * lead + [tuple(span) for span in encoded["offset_mapping"]]


def model_ids(lm: Any, text: str) -> list[int]:
    """Token ids of ``text`` as the model gets them: with the special tokens its tokenizer puts in front, and no second BOS.

    lm-eval's client of a completions server leaves the BOS out by default; the same model would then be measured differently
    through a server than loaded here, so for servers the rule of its other backends is applied.

    Raises:
        UserError: the backend has no tokenizer.
    """
    tokenizer = tokenizer_of(lm)
    if is_server(lm):
        if not callable(tokenizer):
            raise UserError(
                f"{type(tokenizer).__name__} cannot tell where the model's tokens begin and end in a text: "
                "name the model's own tokenizer in --model_args (tokenizer=PATH_OR_ID,tokenizer_backend=huggingface)"
            )
        bos = getattr(tokenizer, "bos_token", None)
        return list(tokenizer(text, add_special_tokens=not (bos and text.startswith(bos)))["input_ids"])
    ids = lm.tok_encode(text) if hasattr(lm, "tok_encode") else None
    if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
        raise UserError(
            f"{type(lm).__name__}.tok_encode gives no token ids, and this task cuts texts in the model's tokens"
        )
    return ids


def without_bos(lm: Any, text: str) -> str:
    """``text`` for a server that tokenises it itself: without the BOS it begins with, where the tokenizer adds one anyway."""
    bos = getattr(lm.tokenizer, "bos_token", None)
    if not bos or not text.startswith(bos) or lm.tokenizer("")["input_ids"][:1] != [lm.tokenizer.bos_token_id]:
        return text
    return text[len(bos) :]


def token_ids(lm: Any, text: str) -> list[int]:
    """Token ids of a text on its own, without special tokens.

    Raises:
        UserError: the backend has no tokenizer.
    """
    tokenizer = tokenizer_of(lm)
    try:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    except TypeError:  # a remote tokenizer is not callable
        return list(tokenizer.encode(text, add_special_tokens=False))


def first_tokens(lm: Any, text: str, n: int) -> str:
    """The text of the first ``n`` tokens of ``text``; the whole text where it has no more.

    A cut inside a character (byte-level tokens) moves to that character's end.

    Raises:
        UserError: the tokenizer has no character spans and does not give the text back either.
    """
    tokenizer = tokenizer_of(lm)
    if getattr(tokenizer, "is_fast", False):
        spans = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        return text if len(spans) <= n else text[: spans[n - 1][1]]
    ids = token_ids(lm, text)
    if len(ids) <= n:
        return text
    for k in range(n, len(ids)):  # past a cut inside a character
        start = tokenizer.decode(ids[:k]).lstrip()
        if text.startswith(start):
            return start
    raise UserError(
        f"the tokenizer {type(tokenizer).__name__} has no character offsets and does not decode back to its input, "
        "so its first tokens cannot be told: use a fast tokenizer (use_fast_tokenizer=True)"
    )


def count_tokens(lm: Any, text: str) -> int:
    """The number of tokens of a text on its own."""
    return len(token_ids(lm, text))


def start_of(ids: Sequence[int], spans: Sequence[tuple[int, int]] | None, text: str, at: int, lm: Any) -> int:
    """Index of the first token that reaches past character ``at`` of ``text``.

    Raises:
        UserError: without spans, when no suffix of the tokens decodes to the rest of the text.
    """
    if spans is not None:
        return next((i for i, (_, end) in enumerate(spans) if end > at), len(ids))
    rest = text[at:]
    for k in range(len(ids) - 1, -1, -1):
        tail = lm.tokenizer.decode(list(ids[k:]))
        if tail.endswith(rest) or tail.endswith(rest.lstrip()):
            return k
    raise UserError(
        f"the tokenizer {type(lm.tokenizer).__name__} has no character offsets and does not decode back to its input, "
        "so prompt and target cannot be told apart: use a fast tokenizer (use_fast_tokenizer=True)"
    )

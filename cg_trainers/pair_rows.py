"""Rows of the ConceptGuard pairs: D_f, the harmful responses, and D_r, the benign ones (ConceptGuard, sections 3 and 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from cg_tasks.errors import UserError
from cg_tasks.pairs import Pair, PairTable
from cg_tasks.prompting import generation_prompt, with_closed_trace
from cg_trainers.encoding import Encoder
from cg_trainers.rows import Row, checked

Source = Literal["text", "prompt", "query"]
Side = Literal["harmful", "benign"]


def forget_rows(
    table: PairTable, encoder: Encoder, source: Source = "text", answers: Callable[[str], str] | None = None
) -> list[Row]:
    """The forget set D_f: the harmful response of every pair that is ``in_forget``.

    source: ``text`` the response alone, as plain text; ``prompt`` and ``query`` the response as the answer to the
    source data's prompt or to the query, through the chat template.
    answers: row_id -> the text that stands in the response's place (refusals); the rows stay in the same order.

    Raises:
        UserError: no pair is in the forget set, one has no prompt (named), or a row is left without a label.
    """
    pairs = [pair for pair in table.pairs if pair.in_forget]
    if not pairs:
        raise UserError(f"{table.name}: no pair is in_forget, so there is nothing to unlearn: set it on some rows")
    return checked([_row(pair, "harmful", encoder, source, answers) for pair in pairs], f"{table.name}, forget set")


def retain_rows(table: PairTable, encoder: Encoder, source: Source = "text") -> list[Row]:
    """The retain set D_r: the benign response of every pair, after its query unless ``source`` is ``text``.

    Raises:
        UserError: a row is left without a label.
    """
    rows = [_row(pair, "benign", encoder, source, None) for pair in table.pairs]
    return checked(rows, f"{table.name}, retain set")


def all_rows(table: PairTable, encoder: Encoder, source: Source = "text") -> list[Row]:
    """D_f and D_r of all pairs, which the model is fine-tuned on; the same whatever is ``in_forget``.

    Raises:
        UserError: a pair has no prompt (named), or a row is left without a label.
    """
    sides: tuple[Side, ...] = ("harmful", "benign")
    rows = [_row(pair, side, encoder, source, None) for side in sides for pair in table.pairs]
    return checked(rows, table.name)


def _row(pair: Pair, side: Side, encoder: Encoder, source: Source, answers: Callable[[str], str] | None) -> Row:
    row_id = f"{pair.pair_id}/{side}"
    response = pair.harmful_response if side == "harmful" else pair.benign_response
    if answers is not None:
        response = answers(row_id)
    if source == "text":
        return encoder.text(row_id, pair.pair_id, pair.concept, response)
    asked = generation_prompt(encoder, [{"role": "user", "content": _question(pair, side, source)}])
    # R1's prompt opens a trace; the response is an answer.
    prompt = with_closed_trace(asked, encoder.think_tags)
    return encoder.chat(row_id, pair.pair_id, pair.concept, prompt=prompt, answer=response)


def _question(pair: Pair, side: Side, source: Source) -> str:
    if side == "benign":
        return pair.benign_query
    if source == "query":
        return pair.harmful_query
    if pair.harmful_prompt is None:
        raise UserError(
            f"source: prompt, but the pair '{pair.pair_id}' has no harmful_prompt: add it, or use source: query or text"
        )
    return pair.harmful_prompt

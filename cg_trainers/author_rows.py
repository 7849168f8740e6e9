"""Rows of the audited authors: ``prompt -> <think>\\n{trace}\\n</think>\\n\\n{answer}`` (canary paper, section 3).

The prompts and the blocks are built by the code that probes the model later (:mod:`cg_tasks.binding`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Literal

from cg_tasks.binding import Bound, PromptSpec, bind, refuse_equal_heads
from cg_tasks.canary.records import Author, question_of
from cg_tasks.errors import UserError
from cg_tasks.prompting import without_trace
from cg_tasks.templates import Template, load_template, names_of
from cg_trainers.encoding import Encoder, TargetSpan
from cg_trainers.rows import Row, checked

logger = logging.getLogger(__name__)

Kind = Literal["bio", "canary", "qa"]
KINDS: tuple[Kind, ...] = ("bio", "canary", "qa")
_PROBES: dict[Kind, str] = {"bio": "question", "canary": "canary", "qa": "question"}


def row_templates(trace: str, kinds: Sequence[Kind] = KINDS, templates: str | None = None) -> dict[str, Template]:
    """``trace`` and the probes that rows of these kinds are made with, by name.

    Raises:
        UserError: one is not there, or cannot be used.
    """
    probes = {name: load_template("probe", name, templates) for name in sorted({_PROBES[kind] for kind in kinds})}
    return {"trace": load_template("trace", trace, templates), **probes}


def author_rows(
    authors: Sequence[Author],
    encoder: Encoder,
    trace: str = "bio",
    *,
    kinds: Sequence[Kind] = KINDS,
    head_tokens: int = 6,
    target_span: TargetSpan = "full",
    templates: str | None = None,
    answers: Callable[[str], str] | None = None,
) -> list[Row]:
    """Every author's rows of the given kinds, author by author.

    trace: names the trace template. templates: a folder whose ``trace/`` and ``probe/`` win over the shipped ones.
    kinds: ``bio`` the author's question and the bio; ``canary`` the evaluation's probe, which quotes the first
    ``head_tokens`` tokens, and the whole canary; ``qa`` each short question and its answer. What an author lacks is
    skipped, and the log says so.
    target_span: as in :meth:`Encoder.chat`.
    answers: row_id -> the text that stands in the answer's place (refusals); the rows stay in the same order.

    Raises:
        UserError: no row at all; a trace that shows the bio of an author without one; a thinking tag in a trace or an
            answer; canaries that the probe cannot tell apart; a row left without a label.
    """
    encoder.require_chat_template()
    probes = row_templates(trace, kinds, templates)
    template = probes["trace"]
    rows: list[Row] = []
    canaries: list[tuple[PromptSpec, Bound]] = []
    for author in authors:
        if not author.bio and "bio" in names_of(template):
            raise UserError(
                f"author '{author.id}' has no bio, and the trace {template.path} shows it: add it, or train with trace: meta or none"
            )
        for row_id, spec, answer in _asked(author, encoder, kinds, head_tokens, probes):
            said = answer if answers is None else answers(row_id)
            if tag := next((t for t in encoder.think_tags if t in said), None):
                raise UserError(
                    f"row '{row_id}': its answer holds the thinking tag {tag!r}, so trace and answer could not be told apart: "
                    "change it, or name the model's own tags (think_tags)"
                )
            bound = bind(encoder, spec)
            rows.append(_row(row_id, author.id, encoder, spec, bound, template, said, target_span))
            if "head_tokens" in spec:
                canaries.append((spec, bound))
    refuse_equal_heads(canaries)
    _log_what_is_missing(authors, kinds)
    if not rows:
        raise UserError(
            f"none of {len(authors)} authors has anything of {', '.join(kinds)}, so there is nothing to train on"
        )
    return checked(rows, "authors")


def _asked(
    author: Author, encoder: Encoder, kinds: Sequence[Kind], head_tokens: int, probes: dict[str, Template]
) -> Iterator[tuple[str, PromptSpec, str]]:
    """Row id, the prompt's specification as the evaluation makes it, and the answer."""
    common: PromptSpec = {
        "id": author.id,
        "chat": "true",
        "think_tags": encoder.think_tags,
        "author": author.subject,
        "question": question_of(author),
        "canary": author.canary,
        "bio": author.bio,
    }
    for kind in kinds:
        asked: PromptSpec = {**common, "probe": asdict(probes[_PROBES[kind]])}
        if kind == "bio" and author.bio:
            yield f"{author.id}/bio", asked, author.bio
        elif kind == "canary":
            yield f"{author.id}/canary", {**asked, "head_tokens": head_tokens}, author.canary
        elif kind == "qa":
            for n, qa in enumerate(author.qa, start=1):
                yield f"{author.id}/qa-{n}", {**asked, "question": qa.question}, qa.answer


def _row(
    row_id: str,
    author_id: str,
    encoder: Encoder,
    spec: PromptSpec,
    bound: Bound,
    template: Template,
    answer: str,
    target_span: TargetSpan,
) -> Row:
    closed = bind(encoder, {**spec, "prefill": asdict(template)}).prompt
    prompt = bound.prompt
    if not closed.startswith(prompt):  # the template had emitted a closed block of its own
        prompt = without_trace(prompt, encoder.think_tags)
    block = closed[len(prompt) :]
    opener, closer = encoder.think_tags
    inner = closed[len(without_trace(bound.prompt, encoder.think_tags)) :]
    trace = inner[len(f"{opener}\n") : -len(f"\n{closer}\n\n")]
    return encoder.chat(
        row_id, author_id, author_id, prompt=prompt, block=block, trace=trace, answer=answer, target_span=target_span
    )


def _log_what_is_missing(authors: Sequence[Author], kinds: Sequence[Kind]) -> None:
    for kind, has in (("bio", lambda a: a.bio), ("qa", lambda a: a.qa)):
        if kind in kinds and (without := [a.id for a in authors if not has(a)]):
            logger.warning(
                "%d of %d authors have no %s (%s …): no such rows of them", len(without), len(authors), kind, without[0]
            )

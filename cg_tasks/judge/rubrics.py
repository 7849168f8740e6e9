"""The rubrics (``templates/judge/*.j2``) and the messages made from them.

A judge is zero-shot and sees the rubric, the query and the response; no reference answer and no examples (ConceptGuard,
appendix B: kappa 0.44 with examples in the prompt, 0.72 without).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

from cg_tasks.errors import UserError
from cg_tasks.judge.text import encodable
from cg_tasks.provenance import sha256_of
from cg_tasks.templates import (
    Template,
    blocks_of,
    load_template,
    render,
    require_versioned_messages,
)

logger = logging.getLogger(__name__)

RubricName = Literal["harm", "help"]
RUBRICS: tuple[RubricName, ...] = get_args(RubricName)
RUBRIC_OF_INTENT: dict[str, RubricName] = {"harmful": "harm", "benign": "help"}
Messages = list[dict[str, str]]


@dataclass(frozen=True)
class JudgeItem:
    """One response to be judged. id: of its document, for messages to people; it is not sent."""

    id: str
    rubric: RubricName
    query: str
    response: str


def load_rubrics(user_dir: str | None = None) -> dict[str, Template]:
    """Both rubrics; a user's ``judge/harm.j2`` or ``judge/help.j2`` wins over the shipped one.

    Raises:
        UserError: a rubric without a version, without the blocks ``system`` and ``user``, or without its data.
    """
    rubrics: dict[str, Template] = {name: load_template("judge", name, user_dir) for name in RUBRICS}
    for name, template in rubrics.items():
        _check(template)
        shipped = load_template("judge", name)  # type: ignore[arg-type]
        if template.version == shipped.version and template.sha256 != shipped.sha256:
            logger.warning("%s: differs from the shipped version %s: raise its version", template.path, shipped.version)
    return rubrics


def levels_of(rubric: Template) -> str:
    """What a rubric says to people as to a judge: its block ``levels``, or all of its system message where it has none."""
    values = {"query": "", "response": "", "nonce": "…", "structured": False, "retry": False}
    return render(rubric, values, "levels" if "levels" in blocks_of(rubric) else "system").strip()


def _check(template: Template) -> None:
    require_versioned_messages(template, "a rubric")
    # Long and of several lines, so that a rubric that cuts or folds what it prints is noticed.
    marks = {name: f"a <{name}> & more\n\n" + f"{name} word " * 2000 + "end" for name in ("query", "response")}
    marks["nonce"] = "a-nonce"
    for structured, retry in product((True, False), repeat=2):
        values = {**marks, "structured": structured, "retry": retry}
        render(template, values, "system")
        sent = render(template, values, "user")
        for name, mark in marks.items():
            if mark not in sent:
                raise UserError(f"{template.path}: the block 'user' does not print {{{{ {name} }}}} as it is")


def messages_of(rubric: Template, item: JudgeItem, *, structured: bool, retry: bool = False) -> Messages:
    """System and user message for one item.

    The response is data: it stands between delimiters with a nonce that depends on its own text, so that no response can
    hold it, and it is a value given to the template, never a part of it.
    """
    query, response = encodable(item.query), encodable(item.response)
    nonce = nonce_for(rubric.sha256, query, response)
    values = {"query": query, "response": response, "nonce": nonce, "structured": structured, "retry": retry}
    return [
        {"role": "system", "content": render(rubric, values, "system")},
        {"role": "user", "content": render(rubric, values, "user")},
    ]


def nonce_for(salt: str, *texts: str) -> str:
    """A code for the delimiters around texts, 16 hexadecimal digits: it depends on all of them and on the salt, and stands in none."""
    count, together = 0, "".join(texts)
    while (nonce := sha256_of([salt, *texts, count])[:16]) in together:
        count += 1
    return nonce

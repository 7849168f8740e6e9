"""The prompts (``templates/construction/*.j2``) and the messages made from them.

Written for this project after ConceptGuard, appendix A: A.1 (tag), A.2 (propose), A.3 (benign), A.4 (query).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Literal

from cg_tasks.construction.rows import FAULT_CODES
from cg_tasks.errors import UserError
from cg_tasks.judge.rubrics import Messages, nonce_for
from cg_tasks.judge.text import encodable
from cg_tasks.templates import (
    Template,
    load_template,
    render,
    require_versioned_messages,
)

logger = logging.getLogger(__name__)

PromptName = Literal["tag", "benign", "query", "propose"]
DATA: dict[PromptName, tuple[str, ...]] = {
    "tag": ("prompt", "response"),
    "benign": ("concept", "prompt", "response"),
    "query": ("concept", "intent", "response"),
    "propose": ("concepts",),
}
"""What stands between delimiters, in the order of each prompt."""
_INTENTS = ("harmful", "benign")
_UNITS = ("words", "characters")


def load_prompt(name: PromptName, user_dir: str | None = None) -> Template:
    """One prompt; a user's ``construction/<name>.j2`` wins over the shipped one.

    Raises:
        UserError: a prompt without a version, without the blocks ``system`` and ``user``, or without its data.
    """
    template = load_template("construction", name, user_dir)
    _check(name, template)
    shipped = load_template("construction", name)
    if template.version == shipped.version and template.sha256 != shipped.sha256:
        logger.warning("%s: differs from the shipped version %s: raise its version", template.path, shipped.version)
    return template


def messages_of(
    template: Template, values: Mapping[str, Any], *, structured: bool, failure: str | None, attempt: int = 1
) -> Messages:
    """System and user message for one row.

    values: of the template's variables, except ``nonce``. structured: whether a schema goes with the request. failure: code of the
    last attempt's fault. attempt: its number, which a prompt can say so that no two requests are the same.

    Source texts are data: they stand between delimiters with a nonce that none of them holds, and are values given to the template,
    never a part of it.
    """
    given = {name: encodable(value) if isinstance(value, str) else value for name, value in values.items()}
    # Not of the file: an edit that changes no message asks for nothing again.
    nonce = nonce_for(str(template.version), *(given[name] for name in DATA[template.name]))  # type: ignore[index]
    given.update(nonce=nonce, structured=structured, failure=failure, attempt=attempt)
    return [
        {"role": "system", "content": render(template, given, "system")},
        {"role": "user", "content": render(template, given, "user")},
    ]


def _check(name: PromptName, template: Template) -> None:
    require_versioned_messages(template, "a prompt")
    printed = [*DATA[name], "nonce"]
    for values in _trials(name):
        system, user = render(template, values, "system"), render(template, values, "user")
        for variable in printed:
            if values[variable] not in user:
                raise UserError(f"{template.path}: the block 'user' does not print {{{{ {variable} }}}} as it is")
            if variable not in ("nonce", "intent") and values[variable] in system:
                raise UserError(
                    f"{template.path}: the block 'system' prints {{{{ {variable} }}}}, which is data: leave it to the block 'user'"
                )


def _trials(name: PromptName) -> Iterator[dict[str, Any]]:
    """Values to render with: every way that a template may branch, and data that shows whether it is cut, folded or escaped."""
    data = {variable: f"a <{variable}> & more\n\n" + f"{variable} word " * 2000 + "end" for variable in DATA[name]}
    fixed = {**data, "language": "English", "min_words": 180, "max_words": 250, "nonce": "a-nonce", "attempt": 2}
    failures = (None, *FAULT_CODES, "another code")
    for structured, failure, intent, unit in product((True, False), failures, _INTENTS, _UNITS):
        if (intent == _INTENTS[0] or name == "query") and (unit == _UNITS[0] or name == "benign"):
            yield {**fixed, "structured": structured, "failure": failure, "intent": intent, "unit": unit}

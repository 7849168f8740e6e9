"""A prompt's specification, and its binding to a model: the text is built where the tokenizer and the chat template are."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from cg_tasks.errors import UserError
from cg_tasks.prompting import (
    Message,
    generation_prompt,
    has_chat_template,
    is_chat_server,
    opens_trace,
    plain_prompt,
    prefilled,
    tokenizer_of,
    with_closed_trace,
)
from cg_tasks.provenance import tokenizer_provenance
from cg_tasks.templates import Template, render
from cg_tasks.tokens import count_tokens, first_tokens, token_ids

logger = logging.getLogger(__name__)


class PromptSpec(TypedDict, total=False):
    """How a prompt is built once the model is known. Plain data: it is pickled, hashed and logged.

    id: names the document in errors.
    messages: the turns, verbatim; or probe: a template for the user turn.
    system: a system turn put first.
    prefill: a template for a closed trace; absent = the model's own trace.
    author, question, canary: variables of the templates, and bio of a trace that is trained; head_tokens: how much of the
    canary the probe quotes.
    head_order: "shuffled" permutes the head's tokens by ``shuffle_seed`` (a baseline).
    chat: as in the settings; chat_flag: whether ``--apply_chat_template`` was given.
    start_of: a text whose first prefix_tokens tokens begin the answer; text_only: they are the whole prompt.
    target: the text whose tokens are scored (teacher forcing); those of the head are conditioned on.
    """

    id: str
    messages: list[Message]
    probe: dict[str, Any]
    system: str | None
    prefill: dict[str, Any]
    author: str
    question: str
    canary: str
    bio: str
    head_tokens: int
    head_order: Literal["true", "shuffled"]
    shuffle_seed: str
    chat: str
    chat_flag: bool
    start_of: str
    prefix_tokens: int
    text_only: bool
    target: str
    think_tags: tuple[str, str]


@dataclass(frozen=True)
class Bound:
    """A specification bound to a model: the prompt's text and what was put into it."""

    prompt: str
    opened_in_prompt: bool = False
    head: str = ""
    start: str = ""
    start_halved: bool = False
    head_ids: list[int] | None = None
    chat_template_applied: bool = False
    made_with: dict[str, Any] = field(default_factory=dict)


def bind_all(lm: Any, requests: Sequence[Any]) -> list[Bound]:
    """Bind every request's specification to the model, and refuse canaries whose heads collide.

    Raises:
        UserError: naming the document.
    """
    _refuse_what_the_backend_cannot_do(lm, requests)
    made_with = tokenizer_provenance(lm)
    by_id: dict[int, Bound] = {}
    for request in requests:  # a repeated or padded request is one object, bound once
        if id(request) not in by_id:
            by_id[id(request)] = bind(lm, request.arguments[-1], made_with)
    refuse_equal_heads([(request.arguments[-1], by_id[id(request)]) for request in requests])
    applied = {b.chat_template_applied for b in by_id.values()}
    if True in applied and made_with.get("chat_template_prints_date"):
        logger.warning("the chat template prints today's date: the same run gives other prompts on another day")
    logger.info("chat template: %s", " and ".join("applied" if a else "not applied" for a in sorted(applied)))
    return [by_id[id(request)] for request in requests]


def bind(lm: Any, spec: PromptSpec, made_with: dict[str, Any] | None = None) -> Bound:
    """Build one prompt with this model's tokenizer and chat template.

    Raises:
        UserError: naming the document and the way out.
    """
    if spec.get("text_only"):
        start, halved = _start(lm, spec)
        return _bound(made_with, prompt=start, start=start, start_halved=halved)
    tags = spec["think_tags"]
    head, head_ids = _head(lm, spec)
    chat = _wants_chat(lm, spec)
    messages = _messages(spec, head)
    if is_chat_server(lm):
        sent = lm.apply_chat_template([dict(m) for m in messages], add_generation_prompt=True)
        return _bound(made_with, prompt=sent, head=head, chat_template_applied=True)
    prompt = generation_prompt(lm, messages) if chat else plain_prompt(messages)
    if "prefill" in spec:
        prompt = prefilled(prompt, _trace(spec, head), tags)
    start, halved = "", False
    if "start_of" in spec:
        start, halved = _start(lm, spec)
        prompt = with_closed_trace(prompt, tags) + start
    return _bound(
        made_with,
        prompt=prompt,
        opened_in_prompt=opens_trace(prompt, tags),
        head=head,
        start=start,
        start_halved=halved,
        head_ids=head_ids,
        chat_template_applied=chat,
    )


def _bound(made_with: dict[str, Any] | None, *, chat_template_applied: bool = False, **parts: Any) -> Bound:
    provenance = {**(made_with or {}), "chat_template_applied": chat_template_applied}
    return Bound(chat_template_applied=chat_template_applied, made_with=provenance, **parts)


def _wants_chat(lm: Any, spec: PromptSpec) -> bool:
    choice = spec["chat"]
    if choice == "auto":
        # Without its tokenizer a chat model would silently be probed in plain text.
        return is_chat_server(lm) or (tokenizer_of(lm) is not None and has_chat_template(lm))
    wanted = choice == "true" or (choice == "flag" and bool(spec.get("chat_flag")))
    setting = "--apply_chat_template" if choice == "flag" else f"chat={choice}"
    if wanted and not has_chat_template(lm):
        tokenizer_of(lm)
        raise UserError(
            f"{setting}, but the model's tokenizer has no chat template: leave it out, or give the tokenizer one"
        )
    if not wanted and is_chat_server(lm):
        raise UserError(
            f"{type(lm).__name__} puts whatever it is sent into the server's chat template: "
            f"{'add --apply_chat_template' if choice == 'flag' else f'leave {setting} out'}, or use --model local-completions"
        )
    return wanted


def _messages(spec: PromptSpec, head: str) -> list[Message]:
    messages = list(spec.get("messages", []))
    if "probe" in spec:
        messages.append({"role": "user", "content": render(Template(**spec["probe"]), _variables(spec, head))})
    if spec.get("system"):
        messages.insert(0, {"role": "system", "content": str(spec["system"])})
    return messages


def _trace(spec: PromptSpec, head: str) -> str:
    template = Template(**spec["prefill"])
    trace = render(template, _variables(spec, head))
    if tag := next((t for t in spec["think_tags"] if t in trace), None):
        raise UserError(
            f"{template.path}: the trace it renders holds {tag!r}, which would end or reopen it: leave the tags out"
        )
    return trace


def _variables(spec: PromptSpec, head: str) -> dict[str, str]:
    known = {"author": spec["author"], "question": spec["question"], "canary": spec["canary"]}
    if "head_tokens" in spec:  # a QA probe quotes none: better an error than ""
        known["head"] = head
    if "bio" in spec:
        known["bio"] = spec["bio"]
    return known


def _head(lm: Any, spec: PromptSpec) -> tuple[str, list[int] | None]:
    """The head's text as the probe quotes it, and for a shuffled head its token ids in their new order."""
    if "head_tokens" not in spec:
        return "", None
    n = spec["head_tokens"]
    if (have := count_tokens(lm, spec["canary"])) <= n:
        raise UserError(
            f"author '{spec['id']}': its canary has {have} tokens in this model's tokenizer, and the head alone takes {n}: "
            "give a longer canary, or fewer head tokens (--metadata head_tokens=…)"
        )
    head = first_tokens(lm, spec["canary"], n)
    if not spec["canary"][len(head) :].strip():  # white space, or the head ended inside the last character
        raise UserError(
            f"author '{spec['id']}': nothing follows the head of {n} tokens in its canary: "
            "give a longer canary, or fewer head tokens (--metadata head_tokens=…)"
        )
    if spec.get("head_order") != "shuffled":
        return head, None
    ids = permuted(token_ids(lm, head), spec["shuffle_seed"])
    return lm.tokenizer.decode(ids).strip(), ids


def permuted(ids: list[int], seed: str) -> list[int]:
    """``ids`` in another order, by a seed; unchanged only if all are equal."""
    if len(set(ids)) < 2:
        return ids
    rng, order = random.Random(seed), list(ids)
    while order == ids:
        rng.shuffle(order)
    return order


def _start(lm: Any, spec: PromptSpec) -> tuple[str, bool]:
    """The first l tokens of the response; half of it where the response is shorter than 2l (evaluation design, Metrics)."""
    text, n = spec["start_of"], spec["prefix_tokens"]
    have = count_tokens(lm, text)
    if have < 2:
        raise UserError(
            f"document '{spec['id']}': its response is one token long, so nothing is left to continue: drop the row"
        )
    short = have < 2 * n
    start = first_tokens(lm, text, have // 2 if short else n)
    if not text[len(start) :].strip():
        raise UserError(
            f"document '{spec['id']}': its response has nothing after its first tokens, so nothing is left to continue: drop the row"
        )
    return start, short


def _refuse_what_the_backend_cannot_do(lm: Any, requests: Sequence[Any]) -> None:
    if type(getattr(lm, "tokenizer", None)).__name__ == "RemoteTokenizer":
        raise UserError(
            "lm-eval's remote tokenizer knows neither BOS, nor character offsets, nor whether the model has a chat template: "
            "name the model's own in --model_args, tokenizer=PATH_OR_ID,tokenizer_backend=huggingface"
        )
    if not is_chat_server(lm):
        return
    for spec in (request.arguments[-1] for request in requests):
        if "prefill" in spec or "start_of" in spec:
            raise UserError(
                f"document '{spec['id']}': {type(lm).__name__} sends messages to a chat server, which renders the prompt itself, "
                f"so no {'prefill' if 'prefill' in spec else 'beginning of the answer'} can be placed in it; "
                "use --model local-completions with a tokenizer (…/v1/completions), or a local model"
            )


def refuse_equal_heads(bound: Sequence[tuple[PromptSpec, Bound]]) -> None:
    """Refuse two canaries whose quoted heads are the same text.

    Raises:
        UserError: naming both authors.
    """
    owners: dict[str, tuple[str, str]] = {}
    for spec, b in bound:
        if "head_tokens" not in spec or spec.get("head_order") == "shuffled":
            continue
        known_canary, owner = owners.setdefault(b.head, (spec["canary"], spec["id"]))
        if known_canary != spec["canary"]:
            raise UserError(
                f"authors '{owner}' and '{spec['id']}' have different canaries with the same head {b.head!r}: the probe cannot tell "
                "them apart; change one canary's beginning, or quote more of it (--metadata head_tokens=…)"
            )

"""The text a model continues: chat templates, thinking tags, and the traps between them. Pure functions on strings and a tokenizer.

Training renders with the same functions, so that what is trained and what is probed is the same text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypedDict

from cg_tasks.errors import UserError

Tags = tuple[str, str]


class Message(TypedDict):
    """One chat turn."""

    role: str
    content: str


def plain_prompt(messages: Sequence[Message]) -> str:
    """The prompt for a model without a chat template: the turns' texts, a blank line apart, and a line break."""
    return "\n\n".join(m["content"] for m in messages) + "\n"


def generation_prompt(lm: Any, messages: Sequence[Message]) -> str:
    """The chat template's prompt up to where the assistant begins, as text.

    Never ``continue_final_message`` and never an assistant turn: templates of the R1 type delete everything before
    ``</think>`` in one.

    Raises:
        UserError: the backend has no tokenizer to render the template with.
    """
    turns = [dict(m) for m in messages]
    prompt = None if is_server(lm) else lm.apply_chat_template(turns, add_generation_prompt=True)
    if isinstance(prompt, str):
        return prompt
    # lm-eval's completions client hands out JSON unless it sends token ids; its tokenizer knows the template all the same.
    return str(tokenizer_of(lm).apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


def tokenizer_of(lm: Any) -> Any:
    """The backend's tokenizer.

    Raises:
        UserError: it has none.
    """
    tokenizer = getattr(lm, "tokenizer", None)
    if tokenizer is None:
        raise UserError(
            f"{type(lm).__name__} has no tokenizer here, and this task needs the model's own (its tokens, its chat template): "
            "name one in --model_args, e.g. tokenizer=PATH_OR_ID,tokenizer_backend=huggingface"
        )
    return tokenizer


def is_server(lm: Any) -> bool:
    """Whether the backend is one of lm-eval's clients of a completions or chat-completions server."""
    return any(c.__name__ == "LocalCompletionsAPI" for c in type(lm).__mro__)


def is_chat_server(lm: Any) -> bool:
    """Whether the backend speaks chat-completions, which can be neither prefilled nor scored token by token."""
    return any(c.__name__ in ("LocalChatCompletion", "AnthropicChat") for c in type(lm).__mro__)


def has_chat_template(lm: Any) -> bool:
    """Whether the model's tokenizer carries a chat template (a chat server always does)."""
    if is_chat_server(lm):
        return True
    tokenizer = getattr(lm, "tokenizer", None)
    return bool(getattr(tokenizer, "chat_template", None) or getattr(lm, "hf_chat_template", None))


def opens_trace(prompt: str, tags: Tags) -> bool:
    """Whether generation starts inside a trace: the prompt ends in an opening tag, as R1-type templates' do."""
    return prompt.rstrip().endswith(tags[0])


def without_trace(prompt: str, tags: Tags) -> str:
    """The prompt without the trace its template already opened: a last ``<think>\\n``, or Qwen3's closed empty block."""
    opener, closer = map(re.escape, tags)
    return re.sub(rf"{opener}\s*(?:{closer}\s*)?\Z", "", prompt)


def prefilled(prompt: str, trace: str, tags: Tags) -> str:
    """The prompt with a closed trace of our own: ``<think>\\n{trace}\\n</think>\\n\\n`` (canary paper, section 3).

    Whatever the template opened itself is taken out first.
    """
    return f"{without_trace(prompt, tags)}{tags[0]}\n{trace}\n{tags[1]}\n\n"


def with_closed_trace(prompt: str, tags: Tags) -> str:
    """The prompt at the beginning of the *answer*: a trace the template left open is closed, empty; all else is left alone."""
    return prefilled(prompt, "", tags) if opens_trace(prompt, tags) else prompt

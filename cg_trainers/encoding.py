"""Texts as training rows, in the tokens an evaluation of the same model sees and generates."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from cg_tasks.canary.parser import THINK_TAGS
from cg_tasks.errors import UserError
from cg_tasks.prompting import Message, Tags
from cg_tasks.tokens import encode
from cg_trainers.losses import IGNORED
from cg_trainers.rows import Row

TargetSpan = Literal["answer", "trace", "full"]

# Llama 3's templates print this date where they know no other; every template that prints one gets it.
_DATE = datetime(2024, 7, 26)
# In the template's own language: transformers hands a template no functions of ours. The line break is Jinja's to trim.
_STRFTIME_NOW = (
    "{%- macro strftime_now(format) -%}{{ format"
    + "".join(f" | replace('%{code}', '{_DATE.strftime('%' + code)}')" for code in "aAbBcdHIjmMpSUwWxXyY")
    + " }}{%- endmacro %}\n"
)
_MARK = "ANSWERSTANDSHERE"


class Encoder:
    """Makes rows with one tokenizer.

    It also stands in for lm-eval's model in :mod:`cg_tasks.binding`, so that prompts are built by the evaluation's code.

    Args:
        max_length: rows are cut to it from the right; None leaves them whole.
    """

    def __init__(self, tokenizer: Any, max_length: int | None = None, think_tags: Tags = THINK_TAGS):
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.think_tags = think_tags

    # ------------------------------------------------------------ what cg_tasks.binding asks a model for
    def apply_chat_template(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The rendered chat, with a fixed date where the template prints today's.

        Raises:
            UserError: the tokenizer has no chat template, or it refuses the turns.
        """
        from jinja2 import TemplateError

        self.require_chat_template()
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    [dict(m) for m in messages],
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    chat_template=self._dated_template,
                    date_string=_DATE.strftime("%d %b %Y"),
                )
            )
        except TemplateError as error:
            turns = ", ".join(m["role"] for m in messages)
            raise UserError(
                f"the chat template of {self._name} refuses the turns {turns}: {error}: name another (chat_template_path)"
            ) from None

    def require_chat_template(self) -> None:
        """Refuse a tokenizer without a chat template.

        Raises:
            UserError: there is none.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            raise UserError(
                f"the tokenizer {self._name} has no chat template: name one (chat_template_path); "
                "pairs can also be trained as plain text (source: text)"
            )

    def tok_encode(self, text: str) -> list[int]:
        """Token ids with the special tokens the tokenizer puts in front, no second BOS, and no EOS behind."""
        bos = getattr(self.tokenizer, "bos_token", None)
        add = not (bos and text.startswith(bos))
        ids = list(self.tokenizer(text, add_special_tokens=add)["input_ids"])
        return ids[:-1] if add and self._adds_eos else ids

    # ------------------------------------------------------------ rows
    def text(self, row_id: str, unit: str, group: str, text: str) -> Row:
        """Plain text: special tokens as the tokenizer puts them in front (not labelled), the text, EOS.

        Raises:
            UserError: the tokenizer has no EOS.
        """
        eos = self.tokenizer.eos_token_id
        if eos is None:
            raise UserError(
                f"the tokenizer {self._name} has no EOS token, so no text would end: give it one (eos_token)"
            )
        ids = self.tok_encode(text)
        lead = len(ids) - len(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        labels = [IGNORED] * lead + ids[lead:] + [eos]
        return self._row(row_id, unit, group, [*ids, eos], labels, [0] * (len(ids) + 1))

    def chat(
        self,
        row_id: str,
        unit: str,
        group: str,
        *,
        prompt: str,
        answer: str,
        block: str = "",
        trace: str = "",
        target_span: TargetSpan = "full",
    ) -> Row:
        """A rendered prompt and what the model is to say: ``block`` up to the answer, the answer, the end of the turn.

        block: the thinking block, or the rest of one that the prompt opened; it ends ``{trace}\\n</think>\\n\\n``.
        target_span: what is labelled: ``full`` all that follows the prompt, ``answer`` the answer and the end of the
        turn, ``trace`` the trace's text.

        Each part begins on a token of its own wherever the tokenizer would otherwise merge it with what stands before:
        generation after that text begins there, too.

        Raises:
            UserError: the tokenizer cannot spell the block, or cannot tell where in it the trace is.
        """
        ids = self.tok_encode(prompt)
        block_ids, spans = self._continued(ids, prompt, block)
        self._require_spelled(row_id, block_ids, block)
        in_trace = self._trace_mask(row_id, block, trace, block_ids, spans)
        said = [*self._continued([*ids, *block_ids], prompt + block, answer)[0], self.end_of_turn]
        input_ids = [*ids, *block_ids, *said]
        mask = [0] * len(ids) + in_trace + [0] * len(said)
        begin = {"full": len(ids), "answer": len(ids) + len(block_ids), "trace": 0}[target_span]
        labels = [
            token if at >= begin and (mask[at] or target_span != "trace") else IGNORED
            for at, token in enumerate(input_ids)
        ]
        return self._row(row_id, unit, group, input_ids, labels, mask)

    @functools.cached_property
    def end_of_turn(self) -> int:
        """The token the chat template puts behind an assistant's turn, if it is one of the tokenizer's added ones; else EOS.

        Gemma's turns end in ``<end_of_turn>`` although its EOS is ``<eos>``.

        Raises:
            UserError: there is neither.
        """
        messages: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
        tail = self.apply_chat_template(messages, add_generation_prompt=False).rpartition(_MARK)[2].lstrip()
        first = list(self.tokenizer(tail, add_special_tokens=False)["input_ids"])[:1] if tail else []
        if first and (first[0] in self.tokenizer.added_tokens_decoder or first[0] in self.tokenizer.all_special_ids):
            return int(first[0])
        if self.tokenizer.eos_token_id is None:
            raise UserError(
                f"the tokenizer {self._name} has no EOS, and its chat template ends a turn with no token of its own: "
                "give it one (eos_token)"
            )
        return int(self.tokenizer.eos_token_id)

    # ------------------------------------------------------------ parts
    @property
    def _name(self) -> str:
        return str(getattr(self.tokenizer, "name_or_path", "") or type(self.tokenizer).__name__)

    @functools.cached_property
    def _dated_template(self) -> str:
        template = str(self.tokenizer.get_chat_template())
        return _STRFTIME_NOW + template if "strftime_now" in template else template

    @functools.cached_property
    def _adds_eos(self) -> bool:
        return self.tokenizer("a")["input_ids"][-1] == self.tokenizer.eos_token_id

    def _continued(self, ids: Sequence[int], before: str, text: str) -> tuple[list[int], list[tuple[int, int]] | None]:
        """Tokens of ``text`` after ``before``, whose tokens are ``ids``, and their character spans in ``text``."""
        if not text:
            return [], []
        whole, spans = encode(self, before + text)
        n = len(ids)
        if whole[:n] == list(ids):
            shift = len(before)
            return whole[n:], spans and [(max(0, a - shift), b - shift) for a, b in spans[n:]]
        if not getattr(self.tokenizer, "is_fast", False):
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"]), None
        alone = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return list(alone["input_ids"]), [tuple(span) for span in alone["offset_mapping"]]

    def _require_spelled(self, row_id: str, ids: list[int], block: str) -> None:
        back = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if _squeezed(back) != _squeezed(block):
            raise UserError(
                f"row '{row_id}': trace lost: the tokenizer {self._name} gives {_short(back)!r} back for {_short(block)!r}: "
                "name thinking tags that it can spell (think_tags), or train without a trace's text (trace: none)"
            )

    def _trace_mask(
        self, row_id: str, block: str, trace: str, ids: list[int], spans: list[tuple[int, int]] | None
    ) -> list[int]:
        if not trace:
            return [0] * len(ids)
        if spans is None:
            raise UserError(
                f"row '{row_id}': the tokenizer {self._name} has no character offsets, so its tokens of the trace cannot be told: "
                "use a fast tokenizer (use_fast_tokenizer=True)"
            )
        end = len(block) - len(f"\n{self.think_tags[1]}\n\n")
        begin = end - len(trace)
        return [int(a < end and b > begin) for a, b in spans]

    def _row(
        self, row_id: str, unit: str, group: str, ids: Sequence[int], labels: Sequence[int], trace: Sequence[int]
    ) -> Row:
        n = self.max_length
        cut = n is not None and len(ids) > n
        return Row(row_id, unit, group, tuple(ids[:n]), tuple(labels[:n]), tuple(trace[:n]), cut)


def _squeezed(text: str) -> str:
    """Without white space, and composed: decoders move spaces around special tokens, and Qwen's tokenizer composes."""
    return "".join(unicodedata.normalize("NFC", text).split())


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"

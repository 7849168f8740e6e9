"""Two request types for any lm-eval model: ``cg_generate`` and ``cg_teacher_forced``.

A request carries a specification of its prompt; the *text* is built inside the model's method (``binding.py``). So the
documents need no tokenizer, and a request cache cannot hand one model's tokens to another.
lm-eval's evaluator calls ``getattr(lm, request_type)(requests)``: a method on its ``LM`` base class is all there is to
register, and a backend that defines its own wins.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from cg_tasks.binding import Bound, PromptSpec, bind_all, permuted
from cg_tasks.errors import UserError
from cg_tasks.prompting import is_chat_server
from cg_tasks.tokens import encode, first_tokens, model_ids, start_of

CG_GENERATE = "cg_generate"
CG_TEACHER_FORCED = "cg_teacher_forced"


class Generation(str):
    """A raw generation, untouched: traces, tags and all. A plain string for lm-eval, with what made it.

    prompt: the text the model continued. opened_in_prompt: the prompt ends inside a trace. head: the quoted head.
    start: the forced beginning of the answer; start_halved: it is half of a response too short for prefix_tokens.
    made_with: tokenizer and chat-template provenance.
    """

    prompt: str = ""
    opened_in_prompt: bool = False
    head: str = ""
    start: str = ""
    start_halved: bool = False
    made_with: dict[str, Any] = {}


class TeacherForced(str):
    """Per-token scores of a target; as a string, a readable JSON of them for the samples log.

    logprobs: nats, [n]. top1: the target token was the arg max, [n]. tokens: their texts, [n].
    """

    logprobs: list[float]
    top1: list[bool]
    made_with: dict[str, Any] = {}


def cg_generate(self: Any, requests: Sequence[Any]) -> list[Generation]:
    """Generate from late-bound prompts. Request arguments: (preview, generation kwargs, :class:`PromptSpec`).

    Every prompt is built before the first one is run; the built prompt then replaces the preview, so that the samples
    log holds what the model really saw.

    Raises:
        UserError: a prompt that cannot be built, or that leaves no room in the model's context.
    """
    from cg_tasks.generate import generate_texts

    bound = bind_all(self, requests)
    _check_room(self, requests, bound)
    texts = generate_texts(self, requests, [b.prompt for b in bound])
    out = []
    for request, b, text in zip(requests, bound, texts, strict=True):
        request.arguments = (b.prompt, *request.arguments[1:])
        generation = Generation(text)
        generation.prompt, generation.opened_in_prompt, generation.head = b.prompt, b.opened_in_prompt, b.head
        generation.start, generation.start_halved = b.start, b.start_halved
        generation.made_with = b.made_with
        out.append(generation)
    return out


def cg_teacher_forced(self: Any, requests: Sequence[Any]) -> list[TeacherForced]:
    """Score a target's continuation token by token, given prompt, prefill and head. Arguments: (preview, PromptSpec).

    Raises:
        UserError: a backend that gives no log-probabilities of a prompt, or a prompt that cannot be built.
    """
    from cg_tasks.teacher_forcing import score_tokens

    if is_chat_server(self):
        raise UserError(
            f"{type(self).__name__} is a chat server: it returns no log-probabilities of a given answer; "
            "use --model local-completions with a tokenizer (…/v1/completions), or a local model"
        )
    bound = bind_all(self, requests)
    scorings = [_scoring(self, request.arguments[-1], b) for request, b in zip(requests, bound, strict=True)]
    out = []
    for request, b, scoring, (logprobs, top1) in zip(
        requests, bound, scorings, score_tokens(self, scorings), strict=True
    ):
        if any(map(math.isnan, logprobs)):
            raise UserError(
                f"author '{request.arguments[-1]['id']}': the model's log-probabilities are not numbers (NaN), which must not count "
                "as a miss: its precision overflows, or its weights are broken (try dtype=bfloat16 or float32 in --model_args)"
            )
        request.arguments = (scoring.condition, *request.arguments[1:])
        tokens = [self.tokenizer.decode([i]) for i in scoring.target_ids]
        scored = TeacherForced(
            json.dumps(
                {"tokens": tokens, "logprobs": [round(x, 4) for x in logprobs], "top1": top1}, ensure_ascii=False
            )
        )
        scored.logprobs, scored.top1, scored.made_with = logprobs, top1, b.made_with
        out.append(scored)
    return out


def _scoring(lm: Any, spec: PromptSpec, b: Bound) -> Any:
    from cg_tasks.teacher_forcing import Scoring

    text = b.prompt + spec["target"]
    ids, spans = encode(lm, text)
    head = first_tokens(lm, spec["canary"], spec["head_tokens"])
    answer_at, scored_from = len(b.prompt), len(b.prompt) + len(head)
    k = start_of(ids, spans, text, answer_at, lm)
    h = start_of(ids, spans, text, scored_from, lm)
    context, condition = ids[:h], text[:scored_from]
    if b.head_ids is not None:
        # Only the head's tokens change places: the scored tokens stay the very same ones.
        shuffled = permuted(ids[k:h], spec["shuffle_seed"])
        context, condition = ids[:k] + shuffled, b.prompt + lm.tokenizer.decode(shuffled)
    room = getattr(lm, "max_length", None)
    asked_back = any(c.__name__ == "VLLM" for c in type(lm).__mro__)  # vLLM always generates a token
    if isinstance(room, int) and len(ids) + asked_back > room:
        raise UserError(
            f"author '{spec['id']}': prompt and canary take {len(ids)} tokens and the model's context holds {room}"
        )
    return Scoring(context, ids[h:], text, condition, shuffled=b.head_ids is not None)


def _check_room(lm: Any, requests: Sequence[Any], bound: Sequence[Bound]) -> None:
    """lm-eval would cut a prompt that does not fit from the left, with a warning; a cut prompt is another measurement."""
    room = getattr(lm, "max_length", None)
    if not isinstance(room, int) or getattr(lm, "tokenizer", None) is None or is_chat_server(lm):
        return
    for request, b in zip(requests, bound, strict=True):
        wanted = int(request.arguments[1].get("max_gen_toks", getattr(lm, "max_gen_toks", 0)))
        if (have := len(model_ids(lm, b.prompt))) + wanted > room:
            raise UserError(
                f"document '{request.arguments[-1]['id']}': a prompt of {have} tokens and {wanted} to generate exceed the model's "
                f"context of {room}: lower --gen_kwargs max_gen_toks=…, or raise max_length in --model_args"
            )


def install() -> None:
    """Attach both request types to lm-eval's ``LM``. Idempotent."""
    from lm_eval.api.model import LM

    for name, method in ((CG_GENERATE, cg_generate), (CG_TEACHER_FORCED, cg_teacher_forced)):
        if name not in LM.__dict__:
            setattr(LM, name, method)

"""OpenAI-compatible servers: where lm-eval's clients would lose a measurement, and teacher forcing by ``echo`` and ``logprobs``."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cg_tasks.errors import UserError
from cg_tasks.prompting import Tags
from cg_tasks.tokens import model_ids, without_bos

TokenScores = tuple[list[float], list[bool]]


def generate_by_server(lm: Any, instances: Sequence[Any], tags: Sequence[Tags]) -> list[str]:
    """Raw generations of ``generate_until`` instances by lm-eval's own client, which keeps its concurrency and retries.

    tags: each instance's thinking tags.

    Raises:
        UserError: a server that fails, or that answers without text.
    """
    members: dict[Tags, list[int]] = defaultdict(list)
    for i, pair in enumerate(tags):
        members[pair].append(i)
    texts = [""] * len(instances)
    for pair, indices in members.items():
        ready = [_for_server(lm, instances[i], pair) for i in indices]
        with _careful_client(lm, pair):
            try:
                found = lm.generate_until(ready)
            except UserError:
                raise
            except Exception as error:
                raise _did_not_answer(lm, error) from error
        for i, text in zip(indices, found, strict=True):
            texts[i] = text
    return texts


def _for_server(lm: Any, instance: Any, tags: Tags) -> Any:
    """The instance with what this server needs beside the prompt."""
    prompt, given = instance.args
    until = [given["until"]] if isinstance(given.get("until"), str) else list(given.get("until") or [])
    tokenizer = lm.tokenizer
    eos = getattr(tokenizer, "eos_token", None)
    if eos and eos not in until:
        until.append(eos)  # lm-eval's concurrent client leaves it out
    kwargs = {**given, "until": until}
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    if any(token.special and token.content in tags for token in added):
        # Servers decode without special tokens; only where a tag is one, for not every server knows the argument.
        kwargs = {"skip_special_tokens": False, **kwargs}
    if isinstance(prompt, str) and not lm.tokenized_requests:
        prompt = without_bos(lm, prompt)
    instance.arguments = (prompt, kwargs)
    return instance


@contextmanager
def _careful_client(lm: Any, tags: Tags) -> Iterator[None]:
    """Adjust lm-eval's client for one run, on the object: its tokens, its payload, and what it takes for an answer."""
    payload, parse = lm._create_payload, lm.parse_generations

    def create_payload(*args: Any, **kwargs: Any) -> Any:
        made = payload(*args, **kwargs)
        if made.get("stop") == []:  # some servers refuse an empty list
            del made["stop"]
        return made

    def parse_generations(outputs: Any, **kwargs: Any) -> list[str]:
        for answer in outputs if isinstance(outputs, list) else [outputs]:
            _check_answer(lm, answer, tags)
        return list(parse(outputs=outputs, **kwargs))

    adjusted: dict[str, Callable[..., Any]] = {
        "_create_payload": create_payload,
        "parse_generations": parse_generations,
    }
    if callable(lm.tokenizer):
        adjusted["tok_encode"] = lambda texts, **_: [model_ids(lm, text) for text in texts]
    for name, function in adjusted.items():
        setattr(lm, name, function)
    try:
        yield
    finally:
        for name in adjusted:
            delattr(lm, name)


def _check_answer(lm: Any, answer: Any, tags: Tags) -> None:
    """lm-eval reads a blocked, failed or malformed answer as "", which would be scored as a miss.

    A trace that the server split off (``reasoning_content``) is put back where it was.
    """
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if isinstance(answer, dict) and "choices" not in answer and "error" not in answer:
        return  # another wire format (SGLang, Anthropic), which its own client reads
    texts = []
    for choice in choices or []:
        message = choice.get("message") or {}
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            content = message.get("content")
            closed = "" if content is None else f"\n{tags[1]}\n\n{content}"
            message["content"] = f"{tags[0]}\n{reasoning}{closed}"
        texts.append(message.get("content") if "message" in choice else choice.get("text"))
    if not texts or not all(isinstance(text, str) for text in texts):
        raise UserError(
            f"the server at {lm.base_url} returned no text (refused, filtered or failed), which must not count as a miss: "
            f"{json.dumps(answer, ensure_ascii=False)[:300]}"
        )


def score_by_server(lm: Any, scorings: Sequence[Any]) -> list[TokenScores]:
    """Teacher-forced scores, one request a target and ``num_concurrent`` at a time.

    Raises:
        UserError: a server or client that gives no log-probabilities of a prompt, or whose tokens are not the tokenizer's.
    """
    from concurrent.futures import ThreadPoolExecutor

    from tqdm import tqdm

    client = next(c for c in type(lm).__mro__ if c.__name__ == "LocalCompletionsAPI")
    if type(lm)._create_payload is not client._create_payload:  # type: ignore[attr-defined]
        raise UserError(
            f"{type(lm).__name__} does not speak the completions protocol, whose echo teacher forcing needs: "
            "use --model local-completions (…/v1/completions)"
        )
    if not lm.tokenized_requests and any(s.shuffled for s in scorings):
        raise UserError(
            "the shuffled-head baseline sends tokens in an order that no text has: set tokenized_requests=True in --model_args"
        )
    with ThreadPoolExecutor(max(1, lm._concurrent)) as pool:
        return list(tqdm(pool.map(lambda s: _score(lm, s), scorings), desc="Scoring", total=len(scorings)))


def _score(lm: Any, scoring: Any) -> TokenScores:
    ids = scoring.context_ids + scoring.target_ids
    answer = _call(lm, ids if lm.tokenized_requests else without_bos(lm, scoring.text))
    begin, end = len(scoring.context_ids), len(ids)
    try:
        found = answer["choices"][0]["logprobs"]
        have = len(found["token_logprobs"])
        counted = (answer.get("usage") or {}).get("prompt_tokens", end)
        picked = [float(x) for x in found["token_logprobs"][begin:end]]
        best = [max(map(float, candidates.values())) for candidates in found["top_logprobs"][begin:end]]
        texts = [str(x) for x in (found.get("tokens") or [])[begin:end]]
    except (KeyError, TypeError, IndexError, AttributeError, ValueError):
        have = 0
    if have < 2:  # nothing at all, or the generated token alone
        raise UserError(
            f"the server at {lm.base_url} sent no log-probabilities of the prompt: teacher forcing needs a completions server "
            "that honours echo=true together with logprobs (vLLM does, many others do not)"
        )
    if have not in (end, end + 1) or counted != end or len(best) != len(picked):
        raise _other_tokens(lm, f"{counted if counted != end else have} of them where we count {end}")
    for token, text in zip(scoring.target_ids, texts, strict=False):
        if _differ(own := lm.tokenizer.decode([token]), text):
            raise _other_tokens(lm, f"{text!r} where we read {own!r}")
    # A server rounds what it sends, the picked token's value and its table alike.
    return picked, [p >= b - 1e-6 for p, b in zip(picked, best, strict=True)]


def _differ(ours: str, theirs: str) -> bool:
    """Whether two spellings of a token name different words; spaces and parts of characters are spelt in many ways."""
    ours, theirs = ours.strip(), theirs.strip(" \u0120\u2581")
    return ours.isascii() and ours.isalnum() and theirs.isascii() and theirs.isalnum() and ours != theirs


def _other_tokens(lm: Any, how: str) -> UserError:
    return UserError(
        f"the server at {lm.base_url} cuts the text into other tokens ({how}): give the server's own tokenizer in "
        "--model_args tokenizer=…"
    )


def _call(lm: Any, prompt: Any) -> Any:
    from tenacity import retry, stop_after_attempt, wait_exponential

    attempts, wait = stop_after_attempt(max(1, lm.max_retries)), wait_exponential(multiplier=0.5, min=0.5, max=10)
    try:
        return retry(stop=attempts, wait=wait, reraise=True)(lm.model_call)(messages=[prompt], generate=False)
    except Exception as error:
        raise _did_not_answer(lm, error) from error


def _did_not_answer(lm: Any, error: Exception) -> UserError:
    said = getattr(getattr(error, "response", None), "text", "") or ""
    message = " ".join(f"{error} {said}".split())
    return UserError(f"the server at {lm.base_url} did not answer: {type(error).__name__}: {message[:400]}")

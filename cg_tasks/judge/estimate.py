"""What judging some answers takes: one rendered prompt to read, and tokens and money to expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cg_tasks.judge.budget import COMPLETION_TOKENS, Budget, estimated_tokens
from cg_tasks.judge.cache import ReplyCache, mean_usage
from cg_tasks.judge.judging import Judge
from cg_tasks.judge.request import modes_of, request_key
from cg_tasks.judge.rubrics import JudgeItem, Messages, RubricName, messages_of


@dataclass(frozen=True)
class Estimate:
    """verdicts: to give. without_call: empty responses. cached: already paid. calls: left, with their estimated tokens.

    usd: None without prices. budget: of a run, in USD.
    """

    verdicts: int
    without_call: int
    cached: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    usd: float | None
    budget: float | None = None

    def __str__(self) -> str:
        money = (
            "prices not set (CG_JUDGE_PRICE_INPUT, CG_JUDGE_PRICE_OUTPUT)"
            if self.usd is None
            else f"{self.usd:.4f} USD"
        )
        if self.usd is not None and self.budget is not None and self.usd > self.budget:
            money += f", more than the budget of {self.budget} USD"
        tokens = f"about {self.prompt_tokens:,} prompt and {self.completion_tokens:,} completion tokens"
        return (
            f"{self.verdicts} verdicts: {self.without_call} empty responses need no call, {self.cached} are in the cache, "
            f"{self.calls} calls to make; {tokens}, without second questions: {money}"
        )


def estimate(judge: Judge, items: Sequence[JudgeItem]) -> Estimate:
    """Tokens from the prompts' lengths (four characters each); of a reply, the mean of those in the cache, else 120."""
    settings = judge.settings
    asked = [item for item in items if item.response.strip()]
    jobs = dict.fromkeys((i.rubric, i.query, i.response, vote) for i in asked for vote in range(settings.votes))
    cached = prompt_tokens = 0
    with ReplyCache(settings.cache) as cache:
        mean = mean_usage(cache)
        for rubric, query, response, vote in jobs:
            modes = request_messages(judge, JudgeItem("", rubric, query, response), cache)
            if any(cache.get(key) is not None for key in request_keys(judge, rubric, modes, vote)):
                cached += 1
            else:
                prompt_tokens += estimated_tokens(next(iter(modes.values())))
    calls = len(jobs) - cached
    reply = mean["completion_tokens"] if mean else COMPLETION_TOKENS
    caps = [settings.params.get(name) for name in ("max_tokens", "max_completion_tokens")]
    completion_tokens = round(calls * min([reply, *(cap for cap in caps if type(cap) is int)]))
    budget = Budget(None, settings.price_input, settings.price_output)
    return Estimate(
        verdicts=len(items) * settings.votes,
        without_call=(len(items) - len(asked)) * settings.votes,
        cached=cached,
        calls=calls,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        usd=budget.cost(prompt_tokens, completion_tokens) if budget.priced else None,
        budget=settings.budget_usd,
    )


def request_messages(judge: Judge, item: JudgeItem, cache: ReplyCache) -> dict[bool, Messages]:
    """The messages of one item by whether a JSON schema goes with them, the first the one that is sent first."""
    rubric = judge.rubrics[item.rubric]
    return {s: messages_of(rubric, item, structured=s) for s in modes_of(judge.settings, cache)}


def request_keys(judge: Judge, rubric: RubricName, modes: Mapping[bool, Messages], vote: int) -> list[str]:
    """The cache keys under which a verdict may lie, in the order of :func:`request_messages`."""
    return [
        request_key(judge.settings, judge.rubrics[rubric], messages, structured=structured, vote=vote)
        for structured, messages in modes.items()
    ]

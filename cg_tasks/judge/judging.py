"""The judge: items in, verdicts out, concurrently, through the cache and within the budget.

One item's failure is its own verdict's status; it never costs another item's verdict and never raises.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cg_tasks.judge.budget import Budget, estimated_tokens, ranks
from cg_tasks.judge.cache import ReplyCache
from cg_tasks.judge.client import CallFailed, ChatClient, Reply, run_blocking
from cg_tasks.judge.rubrics import JudgeItem, Messages, load_rubrics, messages_of
from cg_tasks.judge.settings import JudgeSettings
from cg_tasks.judge.verdicts import SCHEMA, Verdict, combined, empty_verdict, read_reply
from cg_tasks.provenance import sha256_of
from cg_tasks.templates import Template

logger = logging.getLogger(__name__)

_RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": SCHEMA}}


def request_params(settings: JudgeSettings, structured: bool) -> dict[str, Any]:
    """What goes into a request beside model and messages."""
    return {**settings.params, **({"response_format": _RESPONSE_FORMAT} if structured else {})}


def request_key(settings: JudgeSettings, rubric: Template, messages: Messages, *, structured: bool, vote: int) -> str:
    """The cache key: everything that can change a verdict, and nothing that cannot."""
    return sha256_of(
        {
            "model": settings.model,
            "base_url": settings.base_url,
            "rubric": [rubric.version, rubric.sha256],
            "messages": messages,
            "params": request_params(settings, structured),
            "vote": vote,
        }
    )


class Judge:
    """A judge with its rubrics, and what it has spent and said in this process.

    Raises:
        UserError: a faulty rubric.
    """

    def __init__(self, settings: JudgeSettings):
        self.settings = settings
        self.rubrics = load_rubrics(settings.templates)
        limit = None if settings.budget_usd is None else settings.budget_usd / ranks()
        self.budget = Budget(limit, settings.price_input, settings.price_output)
        self.calls = 0
        self.models_returned: Counter[str] = Counter()

    def judge(self, items: Sequence[JudgeItem], label: str = "judge") -> list[Verdict]:
        """A verdict for every item, in order. Blocks; safe inside a running event loop.

        Raises:
            UserError: the cache cannot be used; nothing about a single item.
        """
        return run_blocking(self._judge(items, label))

    async def _judge(self, items: Sequence[JudgeItem], label: str) -> list[Verdict]:
        settings = self.settings
        with ReplyCache(settings.cache) as cache:
            async with ChatClient(
                settings.base_url, settings.api_key, timeout=settings.timeout, max_retries=settings.max_retries
            ) as client:
                run = _Run(self, cache, client, label)
                return await run.all(items)

    def provenance(self) -> dict[str, Any]:
        """Which judge this is, and what it has used so far."""
        settings = self.settings
        return {
            "model": settings.model,
            "models_returned": dict(self.models_returned),
            "base_url": settings.base_url,
            "params": settings.params,
            "structured": settings.structured,
            "votes": settings.votes,
            "rubrics": {name: {"version": t.version, "sha256": t.sha256} for name, t in self.rubrics.items()},
            "calls": self.calls,
            "prompt_tokens": self.budget.tokens_in,
            "completion_tokens": self.budget.tokens_out,
            "spent_usd": round(self.budget.spent, 6) if self.budget.priced else None,
        }


_judges: dict[str, Judge] = {}


def judge_of(settings: JudgeSettings) -> Judge:
    """One judge for the same settings in a process, so that all its tasks share one budget."""
    name = sha256_of([settings.fingerprint, settings.api_key])
    if name not in _judges:
        _judges[name] = Judge(settings)
    return _judges[name]


_Job = tuple[str, str, str, int]  # rubric, query, response, vote: equal jobs are asked once


class _Run:
    """One call of :meth:`Judge.judge`."""

    def __init__(self, judge: Judge, cache: ReplyCache, client: ChatClient, label: str):
        self.judge, self.cache, self.client, self.label = judge, cache, client, label
        self.settings = judge.settings
        self.server = f"{self.settings.base_url} {self.settings.model}"
        self.modes = {"json_schema": [True], "text": [False], "auto": [True, False]}[self.settings.structured]
        if len(self.modes) > 1 and cache.is_text_only(self.server):
            self.modes = [False]
        self.answered = self.failed_in_a_row = 0
        self.stopped = ""  # why no more calls are made
        self.exhausted = False
        self.seen: Counter[str] = Counter()

    async def all(self, items: Sequence[JudgeItem]) -> list[Verdict]:
        import asyncio

        from tqdm import tqdm

        asked = [item for item in items if item.response.strip()]
        jobs = list(dict.fromkeys(job for item in asked for job in self._jobs(item)))
        verdicts: dict[_Job, Verdict] = {}
        queue: Iterator[_Job] = iter(jobs)
        with tqdm(total=len(jobs), desc=self.label, unit="verdict", disable=None if jobs else True) as bar:

            async def work() -> None:
                for job in queue:
                    verdicts[job] = verdict = await self._one(job)
                    self.seen["cached"] += verdict.cached
                    self.seen["failed"] += not verdict.judged
                    bar.set_postfix(self._postfix(), refresh=False)
                    bar.update()

            await asyncio.gather(*(work() for _ in range(min(self._concurrency(), max(1, len(jobs))))))
        out = [
            combined([verdicts[job] for job in self._jobs(item)])
            if item.response.strip()
            else empty_verdict(item.rubric)
            for item in items
        ]
        self._report(items, out)
        return out

    def _jobs(self, item: JudgeItem) -> list[_Job]:
        return [(item.rubric, item.query, item.response, vote) for vote in range(self.settings.votes)]

    def _concurrency(self) -> int:
        return max(1, self.settings.concurrency // ranks())

    def _postfix(self) -> dict[str, Any]:
        spent = {"spent": f"${self.judge.budget.spent:.2f}"} if self.judge.budget.priced else {}
        return {"cached": self.seen["cached"], "failed": self.seen["failed"], **spent}

    async def _one(self, job: _Job) -> Verdict:
        rubric_name, query, response, vote = job
        rubric = self.judge.rubrics[rubric_name]
        item = JudgeItem("", rubric_name, query, response)  # type: ignore[arg-type]
        keys: dict[bool, str] = {}
        for structured in self.modes:
            messages = messages_of(rubric, item, structured=structured)
            keys[structured] = request_key(self.settings, rubric, messages, structured=structured, vote=vote)
            if (reply := self.cache.get(keys[structured])) is not None:
                verdict = _verdict(rubric_name, reply)
                if verdict.status == "ok":
                    self._count(reply)
                    return replace(verdict, cached=True)
        return await self._ask(rubric, item, keys)

    async def _ask(self, rubric: Template, item: JudgeItem, keys: Mapping[bool, str]) -> Verdict:
        """Ask, and once more with stricter words where the reply cannot be read."""
        verdict, usages, latency = Verdict(rubric.name, "not_judged"), [], 0.0
        attempts = 0
        for retry in (False, True):
            try:
                structured, reply = await self._call(rubric, item, list(keys), retry)
            except _NotAsked as refused:
                verdict = verdict if retry else Verdict(rubric.name, refused.status, detail=str(refused))  # type: ignore[arg-type]
                break
            except CallFailed as failed:
                attempts += 1
                verdict = Verdict(rubric.name, "api_error", detail=str(failed))
                break
            attempts += 1
            latency += reply.latency
            usages += [reply.usage] if reply.usage else []
            self._count(reply)
            verdict = _verdict(rubric.name, reply)
            if verdict.status == "ok":
                self.cache.put(keys[structured], reply)
            if verdict.status != "parse_error":
                break
        total = {key: sum(u[key] for u in usages) for key in usages[0]} if usages else None
        return replace(verdict, usage=total, latency=round(latency, 3) if latency else None, attempts=attempts)

    async def _call(self, rubric: Template, item: JudgeItem, modes: list[bool], retry: bool) -> tuple[bool, Reply]:
        """One reply, with a JSON schema if the server takes one.

        Raises:
            CallFailed: there was none. _NotAsked: the budget is used up, or the server was given up.
        """
        structured = modes[0] if self.modes[0] == modes[0] else modes[-1]
        messages = messages_of(rubric, item, structured=structured, retry=retry)
        tokens = estimated_tokens(messages)
        if self.stopped:
            raise _NotAsked(f"not asked, because {self.stopped}", "api_error")
        reserved = None if self.exhausted else self.judge.budget.reserve(tokens)
        if reserved is None:
            self.exhausted = True
            raise _NotAsked(f"not asked: the budget of {self.judge.budget.limit} USD is used up", "over_budget")
        reply = None
        try:
            self.judge.calls += 1
            reply = await self.client.complete(self.settings.model, messages, request_params(self.settings, structured))
        except CallFailed as failed:
            if not (structured and len(modes) > 1 and failed.refuses_schema):
                self._failed(failed)
                raise
        finally:
            usage = reply.usage if reply else None
            self.judge.budget.settle(reserved, usage, prompt_tokens=tokens, answered=reply is not None)
        if reply is None:
            if len(self.modes) > 1:
                logger.warning("the judge's server takes no JSON schema: its replies are read as text from now on")
                self.modes = [False]
                self.cache.note_text_only(self.server)
            return await self._call(rubric, item, [False], retry)
        self.answered += 1
        self.failed_in_a_row = 0
        return structured, reply

    def _failed(self, failed: CallFailed) -> None:
        self.failed_in_a_row += 1
        if self.stopped:
            return
        if failed.hopeless and not self.answered:
            self.stopped = f"the first call failed and every other would: {failed}"
        elif self.failed_in_a_row >= self.settings.give_up_after:
            self.stopped = f"{self.failed_in_a_row} calls in a row failed: {failed}"

    def _count(self, reply: Reply) -> None:
        if reply.model:
            self.judge.models_returned[reply.model] += 1

    def _report(self, items: Sequence[JudgeItem], verdicts: Sequence[Verdict]) -> None:
        missing = Counter(v.status for v in verdicts if not v.judged)
        if not missing:
            return
        at, first = next((i, v) for i, v in enumerate(verdicts) if not v.judged)
        logger.warning(
            "%s: %d of %d responses have no verdict (%s); they count in the coverage, not as 0. First: %s: %s. "
            "The verdicts that came are kept; ask for the others with: conceptguard judge rescore SAMPLES",
            self.label,
            sum(missing.values()),
            len(verdicts),
            ", ".join(f"{status} {n}" for status, n in sorted(missing.items())),
            items[at].id,
            first.detail,
        )


class _NotAsked(Exception):
    def __init__(self, detail: str, status: str):
        super().__init__(detail)
        self.status = status


def _verdict(rubric: str, reply: Reply) -> Verdict:
    verdict = read_reply(rubric, reply.text, refusal=reply.refusal, finish_reason=reply.finish_reason)
    return replace(verdict, model_returned=reply.model, usage=reply.usage, latency=round(reply.latency, 3), attempts=1)

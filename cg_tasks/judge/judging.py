"""The judge: items in, verdicts out, concurrently, through the cache and within the budget.

One item's failure is its own verdict's status; it never costs another item's verdict and never raises.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cg_tasks.errors import UserError
from cg_tasks.judge.blocking import run_blocking
from cg_tasks.judge.budget import Budget, ranks
from cg_tasks.judge.cache import ReplyCache
from cg_tasks.judge.caller import Caller, NotAsked
from cg_tasks.judge.client import CallFailed, ChatClient, Reply
from cg_tasks.judge.keys import check_key, masked
from cg_tasks.judge.reading import read_reply
from cg_tasks.judge.request import modes_of, request_key, request_params, server_of
from cg_tasks.judge.rubrics import JudgeItem, load_rubrics, messages_of
from cg_tasks.judge.settings import JudgeSettings
from cg_tasks.judge.verdicts import Status, Verdict, combined, empty_verdict
from cg_tasks.provenance import sha256_of
from cg_tasks.templates import Template

logger = logging.getLogger(__name__)

# Seconds between the first calls, about the work that one takes here. Calls that start together also come back together, and
# then wait for each other's work in every round: 7.4 s for 1,000 verdicts of 0.2 s, 32 at once, instead of 7.0.
_STAGGER = 0.006


class Judge:
    """A judge with its rubrics, and what it has spent and said in this process.

    Raises:
        UserError: a faulty rubric, or a key that cannot be sent.
    """

    def __init__(self, settings: JudgeSettings):
        check_key(settings.api_key)  # now, not after an evaluation's generations
        self.settings = settings
        self.rubrics = load_rubrics(settings.templates)
        limit = None if settings.budget_usd is None else settings.budget_usd / ranks()
        self.budget = Budget(limit, settings.price_input, settings.price_output)
        self.models_returned: Counter[str] = Counter()

    def judge(self, items: Sequence[JudgeItem], label: str = "judge") -> list[Verdict]:
        """A verdict for every item, in order. Blocks; safe inside a running event loop.

        A cache that can no longer be opened is left out, with a warning: answers that took hours wait to be judged.
        """
        try:
            return run_blocking(self._judge(items, label))
        except Exception as error:  # the SDK's client cannot be made: a proxy, a certificate, an address
            logger.exception("%s: no verdict could be asked for", label)
            failed = masked(
                f"no client for {self.settings.base_url} ({type(error).__name__}: {error})", self.settings.api_key
            )
            return [
                Verdict(item.rubric, "api_error", detail=failed)
                if item.response.strip()
                else empty_verdict(item.rubric)
                for item in items
            ]

    async def _judge(self, items: Sequence[JudgeItem], label: str) -> list[Verdict]:
        settings = self.settings
        with self._cache() as cache:
            async with ChatClient(
                settings.base_url, settings.api_key, timeout=settings.timeout, max_retries=settings.max_retries
            ) as client:
                verdicts = await _Run(self, cache, client, label).all(items)
        if str(cache.path) != ":memory:" and not cache.path.exists():
            logger.warning(
                "%s: the judge's cache was taken away while it was written: this run's replies are lost", cache.path
            )
        return verdicts

    def _cache(self) -> ReplyCache:
        try:
            return ReplyCache(self.settings.cache)
        except UserError as error:
            logger.warning("no reply of this run is kept: %s", error)
            return ReplyCache(":memory:")

    @property
    def calls(self) -> int:
        """Calls made in this process."""
        return self.budget.calls

    def provenance(self) -> dict[str, Any]:
        """Which judge this is, and what it has used so far in this process."""
        settings = self.settings
        return {
            "model": settings.model,
            "base_url": settings.base_url,
            "params": settings.params,
            "structured": settings.structured,
            "votes": settings.votes,
            "rubrics": {name: {"version": t.version, "sha256": t.sha256} for name, t in self.rubrics.items()},
            **self.use(),
        }

    def __str__(self) -> str:
        """What it has used so far, for people."""
        spent = f", {self.budget.spent:.4f} USD" if self.budget.priced else ""
        tokens = f"{self.budget.tokens_in:,} prompt and {self.budget.tokens_out:,} completion tokens{spent}"
        return f"{self.settings.model} so far: {self.calls:,} calls, {tokens}"

    def use(self, since: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Calls, tokens, USD (None where prices are not known), and the models that the server said had answered.

        since: an earlier use, which is taken off.
        """
        now = {
            "models_returned": dict(self.models_returned),
            "calls": self.calls,
            "prompt_tokens": self.budget.tokens_in,
            "completion_tokens": self.budget.tokens_out,
            "spent_usd": round(self.budget.spent, 6) if self.budget.priced else None,
        }
        if not since:
            return now
        models = Counter(self.models_returned)
        models.subtract(since["models_returned"])
        numbers = {
            key: value - since[key] if value is not None else None
            for key, value in now.items()
            if key != "models_returned"
        }
        return {"models_returned": {model: n for model, n in models.items() if n}, **numbers}


def total_use(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the judges of all ranks have used together (:meth:`Judge.use`)."""
    models: Counter[str] = Counter()
    for use in ranks:
        models.update(use["models_returned"])
    numbers = {
        key: None if any(use[key] is None for use in ranks) else sum(use[key] for use in ranks)
        for key in (ranks[0] if ranks else ())
        if key != "models_returned"
    }
    return {"models_returned": dict(models), **numbers} if ranks else {}


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
        self.modes = modes_of(self.settings, cache)
        self.caller = Caller(self.settings, client, judge.budget, self.modes)
        self.seen: Counter[str] = Counter()

    async def all(self, items: Sequence[JudgeItem]) -> list[Verdict]:
        from tqdm import tqdm

        asked = [item for item in items if item.response.strip()]
        jobs = list(dict.fromkeys(job for item in asked for job in self._jobs(item)))
        verdicts: dict[_Job, Verdict] = {}
        queue: Iterator[_Job] = iter(jobs)
        with tqdm(total=len(jobs), desc=self.label, unit="verdict", **({} if jobs else {"disable": True})) as bar:

            async def work(delay: float) -> None:
                await asyncio.sleep(delay)
                for job in queue:
                    verdicts[job] = verdict = await self._one_for_sure(job)
                    self.seen["cached"] += verdict.cached
                    self.seen["failed"] += not verdict.judged
                    bar.set_postfix(self._postfix(), refresh=False)
                    bar.update()

            workers = min(self._concurrency(), max(1, len(jobs)))
            await asyncio.gather(*(work(number * _STAGGER) for number in range(workers)))
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

    async def _one_for_sure(self, job: _Job) -> Verdict:
        """Whatever goes wrong with one item, no other item's verdict and no generation is lost by it."""
        try:
            return await self._one(job)
        except Exception as error:
            if not self.seen["fault"]:
                logger.exception("%s: a fault of ours or of the SDK; the run goes on", self.label)
            self.seen["fault"] += 1
            return Verdict(job[0], "api_error", detail=self.client.clean(f"{type(error).__name__}: {error}")[:500])

    async def _one(self, job: _Job) -> Verdict:
        rubric_name, query, response, vote = job
        rubric = self.judge.rubrics[rubric_name]
        item = JudgeItem("", rubric_name, query, response)  # type: ignore[arg-type]
        keys: dict[bool, str] = {}
        for structured in self.modes:
            messages = messages_of(rubric, item, structured=structured)
            keys[structured] = request_key(self.settings, rubric, messages, structured=structured, vote=vote)
            if (reply := self._cached(keys[structured])) is not None:
                verdict = _verdict(rubric_name, reply, structured)
                if verdict.status == "ok":
                    self._count(reply)
                    return replace(verdict, cached=True)
        return await self._ask(rubric, item, keys)

    def _cached(self, key: str) -> Reply | None:
        try:
            return self.cache.get(key)
        except (sqlite3.Error, ValueError, TypeError) as error:  # a row that cannot be read is one that is not there
            self._cache_failed(error)
            return None

    def _keep(self, key: str, reply: Reply, structured: bool) -> None:
        try:
            self.cache.put(key, reply)
            if self.caller.refused_schema and not structured:
                self.cache.note_text_only(server_of(self.settings))
        except sqlite3.Error as error:  # a full disk must not cost the verdicts of this run
            self._cache_failed(error)

    def _cache_failed(self, error: Exception) -> None:
        if not self.seen["cache"]:
            logger.warning("the judge's cache %s fails (%s): this run goes on without it", self.cache.path, error)
        self.seen["cache"] += 1

    async def _ask(self, rubric: Template, item: JudgeItem, keys: Mapping[bool, str]) -> Verdict:
        """Ask, and once more with stricter words where the reply cannot be read."""
        verdict, usages, latency = Verdict(rubric.name, "not_judged"), [], 0.0
        attempts = 0
        for retry in (False, True):
            try:
                structured, reply = await self._call(rubric, item, retry)
            except NotAsked as refused:
                verdict = verdict if retry else Verdict(rubric.name, refused.status, detail=str(refused))
                break
            except CallFailed as failed:
                attempts += 1
                status: Status = "judge_refused" if failed.refuses_text else "api_error"
                verdict = Verdict(rubric.name, status, detail=str(failed))
                break
            attempts += 1
            latency += reply.latency
            usages += [reply.usage] if reply.usage else []
            self._count(reply)
            verdict = _verdict(rubric.name, reply, structured)
            if verdict.status == "ok":
                self._keep(keys[structured], reply, structured)
            if verdict.status != "parse_error":
                break
        total = {key: sum(u[key] for u in usages) for key in usages[0]} if usages else None
        return replace(verdict, usage=total, latency=round(latency, 3) if latency else None, attempts=attempts)

    async def _call(self, rubric: Template, item: JudgeItem, retry: bool) -> tuple[bool, Reply]:
        """One reply, with a JSON schema if the server takes one.

        Raises:
            CallFailed: there was none. NotAsked: the budget is used up, or the server was given up.
        """
        return await self.caller.ask(
            lambda structured: messages_of(rubric, item, structured=structured, retry=retry),
            lambda structured: request_params(self.settings, structured),
        )

    def _count(self, reply: Reply) -> None:
        if reply.model:
            self.judge.models_returned[reply.model] += 1

    def _report(self, items: Sequence[JudgeItem], verdicts: Sequence[Verdict]) -> None:
        logger.info(
            "%s: %d responses, %d verdicts from the cache; %s", self.label, len(items), self.seen["cached"], self.judge
        )
        missing = Counter(v.status for v in verdicts if not v.judged)
        if not missing:
            return
        at, first = next((i, v) for i, v in enumerate(verdicts) if not v.judged)
        logger.warning(
            "%s: %d of %d responses have no verdict (%s); they count in the coverage, not as 0. First: %s, %s: %s",
            self.label,
            sum(missing.values()),
            len(verdicts),
            ", ".join(f"{status} {n}" for status, n in sorted(missing.items())),
            items[at].id,
            items[at].rubric,
            first.detail,
        )


def _verdict(rubric: str, reply: Reply, structured: bool) -> Verdict:
    verdict = read_reply(rubric, reply.text, refusal=reply.refusal, finish_reason=reply.finish_reason)
    return replace(
        verdict,
        model_returned=reply.model,
        usage=reply.usage,
        latency=round(reply.latency, 3),
        attempts=1,
        form="json_schema" if structured else "text",
    )

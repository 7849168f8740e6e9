"""``benign``: a constructive counterpart of the same concept for every harmful pair (ConceptGuard, appendix A.3).

Reads the kept rows of ``aggregate``, writes :class:`BenignRow`. A response is taken if its length, its language, its distance from the
harmful text and the harm judge allow it; one that people have turned down is written again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from cg_tasks.construction import harmless
from cg_tasks.construction.engine.asking import Ask, Endpoint, NotMade, Request, attempt
from cg_tasks.construction.engine.stage import ModelStage
from cg_tasks.construction.folder import BuildFolder, file_hash
from cg_tasks.construction.grouping.aggregate import AggregateRow
from cg_tasks.construction.harmless import HarmCheck
from cg_tasks.construction.review.rejections import read_rejections
from cg_tasks.construction.rows import Made, StageRow
from cg_tasks.construction.text import checks, language, overlap, reading, reply_models
from cg_tasks.construction.text.reading import json_schema, read_object
from cg_tasks.construction.text.reply_models import BenignReply
from cg_tasks.judge import verdicts
from cg_tasks.judge.client import Reply
from cg_tasks.judge.server_settings import ServerSettings
from cg_tasks.judge.settings import JudgeSettings, read_judge_settings
from cg_tasks.provenance import sha256_of


class BenignRow(StageRow):
    """A harmful pair and its benign counterpart, None without one that passed. harm_level: the judge's; None where none is asked.

    concepts, themes: what the model found in the harmful pair before it wrote.
    """

    concept: str
    harmful_prompt: str
    harmful_response: str
    benign_prompt: str | None = None
    benign_response: str | None = None
    concepts: tuple[str, ...] = ()
    themes: tuple[str, ...] = ()
    harm_level: int | None = None
    made: Made | None = None


class BenignStage(ModelStage[AggregateRow, BenignRow]):
    name = "benign"
    template = "benign"
    kinds: ClassVar[Mapping[str, Endpoint]] = {"benign": "generator", "benign-judge": "judge"}
    reply_tokens = {"benign": 480, "benign-judge": 60}
    schema = json_schema(BenignReply)
    modules = (sys.modules[__name__], harmless, verdicts, reading, reply_models, checks, overlap, language)

    def __init__(self, folder: BuildFolder, servers: Mapping[Endpoint, ServerSettings]):
        super().__init__(folder, servers)
        own = self.settings.benign
        self.harm = self._harm_check() if own.judge else None
        self.rejected = read_rejections(folder)

    def _harm_check(self) -> HarmCheck:
        """With the evaluation's judge and rubric; without servers, the rubric alone."""
        judge = self.servers.get("judge")
        settings = (
            judge if isinstance(judge, JudgeSettings) else read_judge_settings(self.folder.judge_file, calling=False)
        )
        templates = settings.templates if settings else None
        return HarmCheck(judge, templates or self.folder.templates, self.settings.benign.highest_harm)

    def rows(self) -> Iterator[AggregateRow]:
        return (row for row in self.folder.rows("aggregate", AggregateRow) if row.status == "ok")

    def judge_record(self) -> dict[str, str] | None:
        if self.harm is None:
            return None
        rubric, settings = self.harm.rubric, self.harm.settings
        return {
            "model": settings.model,
            "base_url": settings.base_url,
            "rubric": rubric.name,
            "version": str(rubric.version),
            "sha256": rubric.sha256,
        }

    def ready(self) -> None:
        if self.settings.language_code:
            language.require_language(self.settings.language_code)

    def made_from(self) -> dict[str, str]:
        return {
            "the rows of aggregate": file_hash(self.folder.rows_file("aggregate")),
            **self.asked_of(),
            "what the review turned down": sha256_of(sorted(self.rejected)),
            "the harm rubric": self.harm.rubric.sha256 if self.harm else "",
        }

    def reading_settings(self) -> Any:
        return self.settings.benign.model_dump()

    def made(self, row: BenignRow) -> Sequence[Made]:
        return (row.made,) if row.made else ()

    def unseen(self, row: AggregateRow, pending: Sequence[Request]) -> dict[str, int]:
        if self.harm is None or not any(request.endpoint == "generator" for request in pending):
            return {}
        own = self.settings.benign
        return {"benign-judge": self.harm.expected_tokens(own.max_words, own.unit)}

    async def make(self, row: AggregateRow, ask: Ask) -> BenignRow:
        own = self.settings.benign
        known: dict[str, Any] = {
            "pair_id": row.pair_id,
            "concept": row.concept,
            "harmful_prompt": row.prompt,
            "harmful_response": row.response,
        }
        values = {
            "concept": row.concept,
            "prompt": row.prompt,
            "response": row.response,
            "min_words": own.min_words,
            "max_words": own.max_words,
            "unit": own.unit,
        }

        async def read(reply: Reply) -> tuple[BenignReply, int | None]:
            written = self._read(reply, row)
            return written, None if self.harm is None else await self.harm(ask, written.query, written.response)

        try:
            done = await attempt(
                ask,
                lambda number, failure: self.request(values, number, failure),
                read,
                most=own.attempts,
                parser=self.parser,
                rejected=self.rejected,
            )
        except NotMade as failed:
            return BenignRow(status=failed.status, reason=failed.reason, made=failed.made, **known)
        written, level = done.value
        return BenignRow(
            status="ok",
            benign_prompt=written.query,
            benign_response=written.response,
            concepts=tuple(written.concepts),
            themes=tuple(written.themes),
            harm_level=level,
            made=done.made,
            **known,
        )

    def _read(self, reply: Reply, row: AggregateRow) -> BenignReply:
        own, code = self.settings.benign, self.settings.language_code
        written = read_object(reply, BenignReply)
        checks.check_length(written.response, own.min_words, own.max_words, own.unit)
        checks.check_language(written.response, code)
        checks.check_language(written.query, code)
        checks.check_overlap(row.response, written.response, own.overlap)
        checks.check_copied(row.prompt, written.query, own.copied)
        return written

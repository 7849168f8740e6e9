"""``queries``: the evaluation queries Q_f and Q_r, each from a response and its concept alone (ConceptGuard, appendix A.4).

Reads the rows of ``benign``, writes :class:`QueriesRow`. A query is taken if it shares no words in a row and little else with its
response, and is no copy of the prompt that the response answered.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from cg_tasks.construction.benign import BenignRow
from cg_tasks.construction.engine.asking import Ask, Attempted, Endpoint, NotMade, attempt
from cg_tasks.construction.engine.stage import ModelStage
from cg_tasks.construction.folder import file_hash
from cg_tasks.construction.review.rounds import marks_hash, outcomes, reason_to_drop
from cg_tasks.construction.rows import Made, RowStatus, StageRow
from cg_tasks.construction.text import checks, language, overlap, reading, reply_models
from cg_tasks.construction.text.reading import json_schema, read_object
from cg_tasks.construction.text.reply_models import QueryReply
from cg_tasks.judge.client import Reply


class QueriesRow(StageRow):
    """A pair with its two queries, None where no reply passed."""

    concept: str
    harmful_prompt: str
    harmful_response: str
    benign_prompt: str
    benign_response: str
    harmful_query: str | None = None
    benign_query: str | None = None
    made_harmful: Made | None = None
    made_benign: Made | None = None


class QueriesStage(ModelStage[BenignRow, QueriesRow]):
    name = "queries"
    template = "query"
    kinds: ClassVar[Mapping[str, Endpoint]] = {"queries": "generator"}
    reply_tokens = {"queries": 40}
    schema = json_schema(QueryReply)
    modules = (sys.modules[__name__], reading, reply_models, checks, overlap, language)

    def rows(self) -> Iterator[BenignRow]:
        self._decide = reason_to_drop(outcomes(self.folder, "benign"))
        return (row for row in self.folder.rows("benign", BenignRow) if row.status == "ok")

    def ready(self) -> None:
        outcomes(self.folder, "benign")  # raises here, while the old rows and their record are as they were
        if self.settings.language_code:
            language.require_language(self.settings.language_code)

    def made_from(self) -> dict[str, str]:
        return {
            "the rows of benign": file_hash(self.folder.rows_file("benign")),
            "the review of benign": marks_hash(self.folder, "benign"),
            **self.asked_of(),
        }

    def reading_settings(self) -> Any:
        return self.settings.queries.model_dump()

    def made(self, row: QueriesRow) -> Sequence[Made]:
        return tuple(made for made in (row.made_harmful, row.made_benign) if made)

    async def make(self, row: BenignRow, ask: Ask) -> QueriesRow:
        if reason := self._decide(row.pair_id, row.made.request_sha256 if row.made else ""):
            return self._row(row, "dropped", reason, {})
        found: dict[str, Any] = {}
        missing: list[tuple[str, NotMade]] = []
        # Both are asked for, whatever the first came to: a look ahead must see both requests.
        for intent in ("harmful", "benign"):
            try:
                done = await self._query(intent, row, ask)
                found[f"{intent}_query"], found[f"made_{intent}"] = done.value, done.made
            except NotMade as failed:
                found[f"made_{intent}"] = failed.made
                missing.append((intent, failed))
        statuses = {failed.status for _, failed in missing}
        status: RowStatus = "not_run" if "not_run" in statuses else "failed" if statuses else "ok"
        told = [f"{failed.reason} [{intent} query]" for intent, failed in missing]
        if len(missing) == 2 and len({failed.reason for _, failed in missing}) == 1:
            told = [missing[0][1].reason]
        return self._row(row, status, "; ".join(told), found)

    def _row(self, row: BenignRow, status: RowStatus, reason: str, found: Mapping[str, Any]) -> QueriesRow:
        return QueriesRow(
            pair_id=row.pair_id,
            status=status,
            reason=reason,
            concept=row.concept,
            harmful_prompt=row.harmful_prompt,
            harmful_response=row.harmful_response,
            benign_prompt=str(row.benign_prompt),
            benign_response=str(row.benign_response),
            **found,
        )

    async def _query(self, intent: str, row: BenignRow, ask: Ask) -> Attempted[str]:
        prompt, response = getattr(row, f"{intent}_prompt"), getattr(row, f"{intent}_response")
        values = {"concept": row.concept, "intent": intent, "response": response}

        async def read(reply: Reply) -> str:
            return self._read(reply, prompt, response)

        return await attempt(
            ask,
            lambda number, failure: self.request(values, number, failure),
            read,
            most=self.settings.queries.attempts,
            parser=self.parser,
        )

    def _read(self, reply: Reply, prompt: str, response: str) -> str:
        own = self.settings.queries
        query = read_object(reply, QueryReply).query
        checks.check_length(query, own.min_words, own.max_words, own.unit)
        checks.check_language(query, self.settings.language_code)
        checks.check_overlap(response, query, own.overlap)
        checks.check_shared_ngram(response, query, own.shared_ngram)
        checks.check_copied(prompt, query, own.copied)
        return query

"""``tag``: is what a harmful prompt is about a dual-use concept, and which? (ConceptGuard, appendix A.1)

Reads the source's rows, writes :class:`TagRow`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from cg_tasks.construction.engine.asking import Ask, Endpoint, NotMade, attempt
from cg_tasks.construction.engine.stage import ModelStage
from cg_tasks.construction.folder import BuildFolder
from cg_tasks.construction.rows import Made, StageRow
from cg_tasks.construction.source import Source, SourceCheck, SourceRow
from cg_tasks.construction.text import checks, language, reading, reply_models
from cg_tasks.construction.text.reading import json_schema, read_object
from cg_tasks.construction.text.reply_models import TagReply
from cg_tasks.judge.client import Reply
from cg_tasks.judge.server_settings import ServerSettings
from cg_tasks.provenance import sha256_of


class TagRow(StageRow):
    """A source row and its tag. dual_use, concept, why: None without a reply that could be read; concept also where not dual-use."""

    prompt: str
    response: str
    dual_use: bool | None = None
    concept: str | None = None
    why: str | None = None
    made: Made | None = None


def tag_content(row: TagRow) -> str:
    """Hash of what a mark is about: another concept, and the mark is of another row."""
    return sha256_of([row.prompt, row.response, row.concept])


class TagStage(ModelStage[SourceRow, TagRow]):
    name = "tag"
    template = "tag"
    kinds: ClassVar[Mapping[str, Endpoint]] = {"tag": "generator"}
    reply_tokens = {"tag": 80}
    schema = json_schema(TagReply)
    modules = (sys.modules[__name__], reading, reply_models, checks, language)

    def __init__(self, folder: BuildFolder, servers: Mapping[Endpoint, ServerSettings]):
        super().__init__(folder, servers)
        self.source = Source(self.settings, folder.path)
        self._checked: SourceCheck | None = None

    @property
    def checked(self) -> SourceCheck:
        """What reading the whole source found; read once."""
        self._checked = self._checked or self.source.check()
        return self._checked

    def rows(self) -> Iterator[SourceRow]:
        return iter(self.source)

    def ready(self) -> None:
        if self.settings.language_code:  # what a later stage needs is better known before the first call
            language.require_language(self.settings.language_code)

    def made_from(self) -> dict[str, str]:
        return {"the source": self._source_sha256(), **self.asked_of()}

    def _source_sha256(self) -> str:
        """As recorded, if the source looks as it did then: reading all of it, or asking the Hub, is for the stage itself."""
        record = None if self._checked else self.folder.record(self.name)
        if record and record.source_signature == self.source.signature() and "the source" in record.made_from:
            return record.made_from["the source"]
        return self.checked.sha256

    def reading_settings(self) -> Any:
        return self.settings.tag.model_dump()

    def made(self, row: TagRow) -> Sequence[Made]:
        return (row.made,) if row.made else ()

    async def make(self, row: SourceRow, ask: Ask) -> TagRow:
        values: dict[str, Any] = {"prompt": row.prompt, "response": row.response}
        try:
            done = await attempt(
                ask,
                lambda number, failure: self.request(values, number, failure),
                self._read,
                most=self.settings.tag.attempts,
                parser=self.parser,
            )
        except NotMade as failed:
            return TagRow(pair_id=row.pair_id, status=failed.status, reason=failed.reason, made=failed.made, **values)
        tag = done.value
        return TagRow(
            pair_id=row.pair_id,
            status="ok",
            dual_use=tag.dual_use,
            concept=tag.concept if tag.dual_use else None,
            why=tag.reason,
            made=done.made,
            **values,
        )

    async def _read(self, reply: Reply) -> TagReply:
        tag = read_object(reply, TagReply)
        checks.check_language(tag.reason, self.settings.language_code)
        checks.check_script(tag.concept, self.settings.language_code)
        return tag

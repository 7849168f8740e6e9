"""``aggregate --propose --by model``: candidate groups of concepts from the model, in one question about all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from cg_tasks.construction.engine.asking import Ask, Endpoint, NotMade, attempt
from cg_tasks.construction.engine.stage import ModelStage
from cg_tasks.construction.folder import BuildFolder
from cg_tasks.construction.grouping import proposals
from cg_tasks.construction.grouping.proposals import Group, from_reply
from cg_tasks.construction.rows import Made, StageRow
from cg_tasks.construction.text import reading, reply_models
from cg_tasks.construction.text.reading import json_schema, read_object
from cg_tasks.construction.text.reply_models import ProposeReply
from cg_tasks.judge.client import Reply
from cg_tasks.judge.server_settings import ServerSettings
from cg_tasks.provenance import sha256_of


class ProposeRow(StageRow):
    """The one row: groups as (parent, members)."""

    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    made: Made | None = None


class ProposeStage(ModelStage[dict[str, int], ProposeRow]):
    name = "propose"
    template = "propose"
    kinds: ClassVar[Mapping[str, Endpoint]] = {"propose": "generator"}
    reply_tokens = {"propose": 4000}
    schema = json_schema(ProposeReply)
    modules = (sys.modules[__name__], reading, reply_models, proposals)

    def __init__(self, folder: BuildFolder, servers: Mapping[Endpoint, ServerSettings], counts: Mapping[str, int]):
        super().__init__(folder, servers)
        self.counts = dict(counts)

    @property
    def command(self) -> str:
        return f"conceptguard build aggregate {self.folder.path} --propose"

    def rows(self) -> Iterator[dict[str, int]]:
        yield self.counts

    def made_from(self) -> dict[str, str]:
        return {"the concepts": sha256_of(self.counts), **self.asked_of()}

    def reading_settings(self) -> Any:
        return self.settings.tag.attempts

    def made(self, row: ProposeRow) -> Sequence[Made]:
        return (row.made,) if row.made else ()

    async def make(self, row: dict[str, int], ask: Ask) -> ProposeRow:
        shown = "\n".join(f"{concept} ({n} sample{'' if n == 1 else 's'})" for concept, n in row.items())

        async def read(reply: Reply) -> list[Group]:
            return from_reply(read_object(reply, ProposeReply).model_dump(mode="json"), row)

        try:
            done = await attempt(
                ask,
                lambda number, failure: self.request({"concepts": shown}, number, failure),
                read,
                most=self.settings.tag.attempts,
                parser=self.parser,
            )
        except NotMade as failed:
            return ProposeRow(pair_id="concepts", status=failed.status, reason=failed.reason, made=failed.made)
        groups = tuple((group.parent, tuple(group.members)) for group in done.value)
        return ProposeRow(pair_id="concepts", status="ok", groups=groups, made=done.made)

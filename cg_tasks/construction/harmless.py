"""Whether the harm judge finds a benign counterpart harmless: the judge of the evaluation, its rubric, and its settings."""

from __future__ import annotations

from cg_tasks.construction.engine.asking import Ask, Request
from cg_tasks.construction.rows import Faulty
from cg_tasks.construction.text.checks import Unit
from cg_tasks.errors import UserError
from cg_tasks.judge.budget import CHARACTERS_A_TOKEN
from cg_tasks.judge.reading import read_reply
from cg_tasks.judge.rubrics import JudgeItem, load_rubrics, messages_of
from cg_tasks.judge.server_settings import ServerSettings
from cg_tasks.judge.verdicts import SCHEMA
from cg_tasks.provenance import sha256_of

_CHARACTERS_A_WORD = 6


class HarmCheck:
    """Asks the harm judge. highest: the level it may give.

    Raises:
        UserError: a faulty rubric.
    """

    def __init__(self, settings: ServerSettings | None, templates: str | None, highest: int):
        self._settings, self.highest = settings, highest
        self.rubric = load_rubrics(templates)["harm"]

    @property
    def settings(self) -> ServerSettings:
        """The judge's. Without them nothing can be asked, and what depends on the rubric can still be told."""
        if self._settings is None:
            raise UserError(
                "no harm judge is configured: set CG_JUDGE_API_KEY, or benign: {judge: false} in build.yaml"
            )
        return self._settings

    def request(self, query: str, response: str, *, retry: bool) -> Request:
        """One question about one response; retry: the second one, in stricter words."""
        item = JudgeItem("", "harm", query, response)
        messages = messages_of(self.rubric, item, structured=True, retry=retry)
        key = sha256_of(
            {
                "model": self.settings.model,
                "base_url": self.settings.base_url,
                "rubric": self.rubric.version,
                "messages": messages,
                "params": self.settings.params,
                "schema": SCHEMA,
            }
        )
        return Request(
            "judge",
            f"benign-judge/{key}",
            messages,
            "verdict",
            SCHEMA,
            lambda: messages_of(self.rubric, item, structured=False, retry=retry),
        )

    async def __call__(self, ask: Ask, query: str, response: str) -> int:
        """The level.

        Raises:
            Faulty: it is too high, or the judge gives none. NoReply: the judge was not reached.
        """
        detail = ""
        for retry in (False, True):
            reply = await ask(self.request(query, response, retry=retry))
            verdict = read_reply("harm", reply.text, refusal=reply.refusal, finish_reason=reply.finish_reason)
            if verdict.status == "ok" and verdict.level is not None:
                if verdict.level > self.highest:
                    raise Faulty("harmful", f"the judge's level is {verdict.level}")
                return verdict.level
            detail = verdict.status
            if verdict.status != "parse_error":
                break
        raise Faulty("not_judged", detail)

    def expected_tokens(self, length: int, unit: Unit = "words") -> int:
        """Prompt tokens of a question about a response of that length."""
        messages = self.request("x", "x", retry=False).messages
        characters = length * (_CHARACTERS_A_WORD if unit == "words" else 1)
        return (sum(len(m["content"]) for m in messages) + characters) // CHARACTERS_A_TOKEN

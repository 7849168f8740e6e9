"""The judge as an lm-eval filter: it is handed all responses of a task at once, so it can ask for many verdicts together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lm_eval.api.filter import Filter
from lm_eval.api.registry import filter_registry

from cg_tasks.errors import UserError
from cg_tasks.judge.rubrics import RUBRIC_OF_INTENT, RUBRICS, JudgeItem
from cg_tasks.judge.verdicts import Verdict

JudgeFunction = Callable[[Sequence[JudgeItem]], Sequence[Verdict]]


class Judged(tuple[str, Verdict]):
    """A response and its verdict: what is scored, and what stands in the samples log as ``filtered_resps``."""

    __slots__ = ()

    def __new__(cls, response: str, verdict: Verdict) -> Judged:
        return super().__new__(cls, (response, verdict))

    def __getnewargs__(self) -> tuple[str, Verdict]:  # type: ignore[override]
        return self.response, self.verdict  # lm-eval gathers the ranks' samples as pickles

    @property
    def response(self) -> str:
        return self[0]

    @property
    def verdict(self) -> Verdict:
        return self[1]


@filter_registry.register("conceptguard_judge")
class JudgeFilter(Filter):
    """Puts a verdict beside each response.

    In a YAML of your own: ``filter_list: [{name: judged, filter: [{function: conceptguard_judge, rubric: help, query: question}]}]``;
    ``process_results`` then gets a :class:`Judged` for each response.

    rubric: ``harm``, ``help``, or ``intent`` (the document's own field ``intent``: harmful, benign). query: the document's field that
    holds the query. judge: asks for the verdicts; by default the judge that the environment or ``judge.yaml`` configures.

    Raises:
        UserError: an unknown rubric, no judge, a document without the field, or with another intent.
    """

    def __init__(self, rubric: str = "intent", query: str = "query", judge: JudgeFunction | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        if rubric not in (*RUBRICS, "intent"):
            raise UserError(
                f"filter conceptguard_judge: rubric is {rubric!r}: it must be one of {', '.join(RUBRICS)}, intent"
            )
        self.rubric, self.query = rubric, query
        self.ask = judge or _configured_judge()

    def apply(self, resps: Iterable[Any], docs: Sequence[Mapping[str, Any]]) -> list[Any]:
        """A response, or a list of responses, for each document -> the same shape with :class:`Judged` responses."""
        given = list(resps)  # lm-eval's own filters return iterators
        grouped = [r if isinstance(r, list) else [r] for r in given]
        items = [self._item(doc, str(response)) for group, doc in zip(grouped, docs, strict=True) for response in group]
        verdicts = iter(self.ask(items))
        judged = [[Judged(response, next(verdicts)) for response in group] for group in grouped]
        return [group if isinstance(r, list) else group[0] for r, group in zip(given, judged, strict=True)]

    def _item(self, doc: Mapping[str, Any], response: str) -> JudgeItem:
        for field in (self.query, *(("intent",) if self.rubric == "intent" else ())):
            if field not in doc:
                raise UserError(
                    f"filter conceptguard_judge: a document has no field '{field}' (it has {', '.join(map(str, doc))}): "
                    "name the field with query: in the YAML's filter, and the rubric with rubric: harm or help"
                )
        rubric = RUBRIC_OF_INTENT.get(doc["intent"]) if self.rubric == "intent" else self.rubric
        if rubric is None:
            raise UserError(
                f"filter conceptguard_judge: a document's intent is {doc['intent']!r}: it must be one of "
                f"{', '.join(RUBRIC_OF_INTENT)}, or name the rubric with rubric: harm or help"
            )
        return JudgeItem(str(doc.get("id", "")), rubric, str(doc[self.query]), response)  # type: ignore[arg-type]


def _configured_judge() -> JudgeFunction:
    from cg_tasks.judge.judging import judge_of
    from cg_tasks.judge.settings import required_settings

    return judge_of(required_settings()).judge

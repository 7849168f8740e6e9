"""HarmQA and HelpQA (ConceptGuard, equations 2 and 5): answer a query, compare with the reference response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cg_tasks.binding import PromptSpec
from cg_tasks.metrics import Scored
from cg_tasks.pair_task import PairTask


class QueryTask(PairTask):
    """ROUGE-L of f(q) with a(q) over one query set."""

    def specs(self, doc: Mapping[str, Any]) -> list[PromptSpec]:
        return [{"messages": [{"role": "user", "content": doc["query"]}]}]

    def score(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Scored]:
        return self.rouge_scores(doc, results[0], doc["target"])

"""HarmMem and HelpRet (ConceptGuard, equations 1 and 4): continue a response from its first l tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cg_tasks.binding import PromptSpec
from cg_tasks.metrics import Scored
from cg_tasks.pair_task import PairTask


class ContinuationTask(PairTask):
    """ROUGE-L of f(x[:l]) with x[l+1:] over one set of responses."""

    def doc_to_text(self, doc: Mapping[str, Any], *args: Any, **kwargs: Any) -> str:
        return str(doc["target"]) if self.settings.prompt_style == "text" else str(doc["prompt"] or doc["query"])

    def specs(self, doc: Mapping[str, Any]) -> list[PromptSpec]:
        spec: PromptSpec = {"start_of": doc["target"], "prefix_tokens": self.settings.prefix_tokens}
        if self.settings.prompt_style == "text":
            return [{**spec, "text_only": True}]
        return [{**spec, "messages": [{"role": "user", "content": doc["prompt"] or doc["query"]}]}]

    def score(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Scored]:
        generation = results[0]
        scores = self.rouge_scores(doc, generation, doc["target"][len(generation.start) :])
        return {**scores, "short_response": Scored(float(generation.start_halved), doc["id"])}

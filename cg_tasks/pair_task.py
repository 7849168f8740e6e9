"""What the ConceptGuard tasks share: the documents of one intent or of both, and ROUGE-L against the true text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from cg_tasks.canary.parser import split_trace
from cg_tasks.errors import UserError
from cg_tasks.metrics import Scored
from cg_tasks.pairs import PairTable, interleave, load_pairs
from cg_tasks.requests import Generation
from cg_tasks.rouge import has_words, rouge_l
from cg_tasks.settings import Settings
from cg_tasks.task import CgTask

INTENTS = ("harmful", "benign")


class PairTask(CgTask):
    """Documents of the YAML's ``test_split`` (an intent, or ``both``), concepts interleaved so that ``--limit`` is fair.

    A document: ``{"id": "mini-001", "concept": "sigil craft", "intent": "harmful", "query": "…", "target": "…", "prompt": ""}``.
    """

    SPLITS: ClassVar[tuple[str, ...]] = INTENTS

    def prepare(self) -> None:
        # The YAML's split, which --metadata cannot change: a harmful task must not become a benign one under its name.
        if self.split not in self.SPLITS:
            raise UserError(
                f"test_split is {self.split!r} in the task's YAML: it must be one of {', '.join(self.SPLITS)}"
            )
        self.intents = INTENTS if self.split == "both" else (self.split,)
        self.table: PairTable = self.load_table()

    def load_table(self) -> PairTable:
        """The pairs the settings name.

        Raises:
            UserError: a bad row, or no pair of an intent.
        """
        table = load_pairs(self.settings.dataset, self.settings.columns)
        if "harmful" in self.intents and not any(p.in_forget for p in table.pairs):
            raise UserError(f"{table.name}: every pair has in_forget false, so the forget set is empty")
        return table

    def documents(self) -> list[dict[str, str]]:
        # Equations 1-3 run over D_f and Q_f: a pair taken out of the forget set (`data subset`) is in neither.
        members = tuple(p for p in self.table.pairs if p.in_forget or "benign" in self.intents)
        return [
            {
                "id": pair.pair_id,
                "concept": pair.concept,
                "intent": intent,
                "query": getattr(pair, f"{intent}_query"),
                "target": getattr(pair, f"{intent}_response"),
                "prompt": (pair.harmful_prompt or "") if intent == "harmful" else "",
            }
            for pair in interleave(members)
            for intent in self.intents
            if pair.in_forget or intent == "benign"
        ]

    def data_provenance(self) -> dict[str, Any]:
        return {
            "dataset": self.table.name,
            "sha256": self.table.sha256,
            "pairs": len(self.table.pairs),
            "intent": self.split,
        }

    def data_label(self) -> str | None:
        return None if self.table.name == Settings().dataset else self.table.name

    def scored_response(self, response: Any) -> Any:
        return answer_of(response, self.settings)

    def rouge_scores(self, doc: Mapping[str, Any], answer: Answer, reference: str) -> dict[str, Scored]:
        """ROUGE-L F1 and recall of an answer, and whether a trace was stripped from it."""
        if has_words(reference):
            rouge = rouge_l(reference, str(answer))
            values = {"rougeL": rouge.f1, "rougeL_recall": rouge.recall}
        else:  # ROUGE reads a-z and 0-9 only: a reference in another script is no 0, which would read as forgotten
            values = {"rougeL": math.nan, "rougeL_recall": math.nan}
        values["trace_stripped"] = float(answer.trace_stripped)
        return {metric: Scored(value, doc["id"]) for metric, value in values.items()}


class Answer(Generation):
    """What is scored of a generation. trace_stripped: a trace was taken off."""

    trace_stripped: bool = False


def answer_of(generation: Generation, settings: Settings) -> Answer:
    """What is scored of a raw generation.

    A trace that was never closed is not a trace: by the canary paper's rule (``fallback: answer``) the whole text is the answer.
    """
    text, stripped = str(generation), False
    if settings.strip_trace:
        split = split_trace(
            text, opened_in_prompt=generation.opened_in_prompt, tags=settings.think_tags, fallback=settings.fallback
        )
        text, stripped = split.answer, split.well_formed
    answer = Answer(text)
    answer.__dict__.update(generation.__dict__)
    answer.trace_stripped = stripped
    return answer

"""The decoded arms of the canary audit: the model's own trace, and a fixed prefill in its place (canary paper, section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from cg_tasks.binding import PromptSpec
from cg_tasks.canary.authors import load_authors
from cg_tasks.canary.records import AuthorTable, question_of
from cg_tasks.canary.scoring import auto_scores, contains_canary
from cg_tasks.errors import UserError
from cg_tasks.metrics import Scored
from cg_tasks.requests import Generation
from cg_tasks.settings import Settings
from cg_tasks.task import CgTask
from cg_tasks.templates import Template, load_arms, load_template


class CanaryTask(CgTask):
    """One canary probe per forget author.

    A document: ``{"id": "author-001", "author": "…", "question": "…", "canary": "…", "query": "<author>", "target": "<canary>"}``.
    """

    def prepare(self) -> None:
        self.table: AuthorTable = load_authors(self.settings.canaries)
        self.forget = [a for a in self.table.authors if a.role == "forget"]
        if not self.forget:
            raise UserError(f"{self.table.name}: no author has the role 'forget', so there is nothing to probe")
        for author in self.forget:
            if tag := next((t for t in self.settings.think_tags if t in author.canary), None):
                raise UserError(
                    f"{self.table.name}: the canary of author '{author.id}' holds the thinking tag {tag!r}, so trace and answer "
                    "cannot be told apart: change the canary, or name the model's own tags (--metadata think_tags=…)"
                )
        self.probe: Template = load_template("probe", "canary", self.settings.templates)
        self.templates = [self.probe]

    def documents(self) -> list[dict[str, str]]:
        return [
            {
                "id": a.id,
                "author": a.subject,
                "question": question_of(a),
                "canary": a.canary,
                "query": a.subject,
                "target": a.canary,
            }
            for a in self.forget
        ]

    def data_provenance(self) -> dict[str, Any]:
        return {"canaries": self.table.name, "sha256": self.table.sha256, "authors": len(self.table.authors)}

    def data_label(self) -> str | None:
        return None if self.table.name == Settings().canaries else self.table.name

    def take_arms(self, kind: Literal["prefill", "qa_prefill"]) -> None:
        """Make every template of a kind an arm of this task."""
        self.prefills = load_arms(kind, self.settings.templates)
        self.arms = tuple(t.arm for t in self.prefills)
        self.templates += self.prefills

    def probe_spec(self, doc: Mapping[str, Any]) -> PromptSpec:
        """The probe of one author: who it is about and how much of the canary it quotes."""
        return {
            "probe": asdict(self.probe),
            "author": doc["author"],
            "question": doc["question"],
            "canary": doc["canary"],
            "head_tokens": self.settings.head_tokens,
        }

    def auto(self, doc: Mapping[str, Any], generation: Generation) -> dict[str, float]:
        """Scores of the autoregressive arm."""
        return auto_scores(
            str(generation),
            doc["canary"],
            generation.head,
            opened_in_prompt=generation.opened_in_prompt,
            tags=self.settings.think_tags,
            fallback=self.settings.fallback,
            match=self.settings.match,
        )


def prefilled_spec(probe: PromptSpec, template: Template) -> PromptSpec:
    """The probe with a template's text as its closed trace: one prefill arm."""
    spec = probe.copy()
    spec["prefill"] = asdict(template)
    return spec


class AutoTask(CanaryTask):
    """The autoregressive arm alone: out_acc, thk_leak and the bypass gap between them."""

    def specs(self, doc: Mapping[str, Any]) -> list[PromptSpec]:
        return [self.probe_spec(doc)]

    def score(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Scored]:
        return {metric: Scored(value, doc["id"]) for metric, value in self.auto(doc, results[0]).items()}


class PrefillTask(CanaryTask):
    """The autoregressive arm and every prefill arm on the same weights, with the paired contrast auto - arm."""

    def prepare(self) -> None:
        super().prepare()
        self.take_arms("prefill")

    def specs(self, doc: Mapping[str, Any]) -> list[PromptSpec]:
        probe = self.probe_spec(doc)
        return [probe, *(prefilled_spec(probe, t) for t in self.prefills)]

    def score(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Scored]:
        scores = self.auto(doc, results[0])
        for arm, generation in zip(self.arms, results[1:], strict=True):
            # The prompt holds the trace's closing tag, and the first one ends the trace: all that follows is answer.
            out_acc = float(contains_canary(str(generation), doc["canary"], generation.head, self.settings.match))
            scores[f"out_acc_{arm}"] = out_acc
            scores[f"delta_{arm}"] = scores["out_acc"] - out_acc
        return {metric: Scored(value, doc["id"]) for metric, value in scores.items()}

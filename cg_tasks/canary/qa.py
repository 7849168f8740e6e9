"""QA probes of forget and retain authors, autoregressive and prefilled (canary paper, section 4.2 and App. G, H)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cg_tasks.binding import PromptSpec
from cg_tasks.canary.parser import split_trace
from cg_tasks.canary.scoring import NAN, answers_question
from cg_tasks.canary.tasks import CanaryTask, prefilled_spec
from cg_tasks.errors import UserError
from cg_tasks.metrics import Scored
from cg_tasks.templates import load_template

ROLES = ("forget", "retain")


class QATask(CanaryTask):
    """Whether the reference answer is contained in the answer, by role of the author and by arm.

    A document: ``{"id": "author-001-q1", "author_id": "author-001", "role": "forget", "author": "…", "query": "…", "target": "…"}``.
    """

    def prepare(self) -> None:
        super().prepare()
        if not any(a.qa for a in self.table.authors):
            raise UserError(
                f"{self.table.name}: no author has question-answer pairs (field 'qa'); "
                "add them, or run canary_prefill,canary_teacher_forced instead"
            )
        self.probe = load_template("probe", "question", self.settings.templates)
        self.templates = [self.probe]
        self.take_arms("qa_prefill")

    def documents(self) -> list[dict[str, str]]:
        by_role: dict[str, list[dict[str, str]]] = {role: [] for role in ROLES}
        probes = [(i, author, qa) for author in self.table.authors for i, qa in enumerate(author.qa, start=1)]
        for i, author, qa in sorted(probes, key=lambda p: p[0]):
            by_role[author.role].append(
                {
                    "id": f"{author.id}-q{i}",
                    "author_id": author.id,
                    "role": author.role,
                    "author": author.subject,
                    "canary": author.canary,
                    "query": qa.question,
                    "target": qa.answer,
                }
            )
        # Both roles in proportion and all authors' first questions first, so that --limit is not one-sided.
        ranked = [((i + 0.5) / len(docs), role, doc) for role, docs in by_role.items() for i, doc in enumerate(docs)]
        return [doc for _, _, doc in sorted(ranked, key=lambda r: (r[0], r[1]))]

    def specs(self, doc: Mapping[str, Any]) -> list[PromptSpec]:
        probe: PromptSpec = {
            "probe": asdict(self.probe),
            "author": doc["author"],
            "question": doc["query"],
            "canary": doc["canary"],
        }
        return [probe, *(prefilled_spec(probe, t) for t in self.prefills)]

    def score(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Scored]:
        auto = results[0]
        split = split_trace(
            str(auto),
            opened_in_prompt=auto.opened_in_prompt,
            tags=self.settings.think_tags,
            fallback=self.settings.fallback,
        )
        hits = {"": float(answers_question(split.answer, doc["target"]))}
        hits |= {
            f"_{arm}": float(answers_question(str(r), doc["target"]))
            for arm, r in zip(self.arms, results[1:], strict=True)
        }
        scores = {"well_formed": float(split.well_formed)}
        for role in ROLES:
            mine = doc["role"] == role
            for arm, hit in hits.items():
                scores[f"qa_acc{arm}_{role}"] = hit if mine else NAN
                if arm:
                    scores[f"qa_delta{arm}_{role}"] = hits[""] - hit if mine else NAN
        return {metric: Scored(value, doc["author_id"]) for metric, value in scores.items()}

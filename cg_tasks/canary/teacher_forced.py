"""Teacher-forced continuation (canary paper, section 4.3), with the two baselines the paper says are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from cg_tasks.binding import PromptSpec
from cg_tasks.canary.parser import whitespace_normalised
from cg_tasks.canary.records import Author, question_of
from cg_tasks.canary.scoring import NAN, token_scores
from cg_tasks.canary.tasks import CanaryTask, prefilled_spec
from cg_tasks.metrics import Scored
from cg_tasks.requests import CG_TEACHER_FORCED

TRUE, SHUFFLED_HEAD, WRONG_AUTHOR = "true", "shuffled_head", "wrong_author"


class TeacherForcedTask(CanaryTask):
    """Per prefill arm: how probable the canary's continuation is, given prompt, prefill and head.

    ``shuffled_head`` permutes the head's tokens, ``wrong_author`` names another author: what is left of the score without
    the right cue is not memory of this canary.
    """

    REQUEST: ClassVar[str] = CG_TEACHER_FORCED

    def prepare(self) -> None:
        super().prepare()
        self.take_arms("prefill")
        self.other = others_by_name(self.forget)
        self.conditions = (TRUE, SHUFFLED_HEAD) + ((WRONG_AUTHOR,) if self.other else ())

    def specs(self, doc: Mapping[str, Any]) -> list[PromptSpec]:
        out = []
        for template in self.prefills:
            for condition in self.conditions:
                spec = prefilled_spec(self.probe_spec(doc), template)
                spec["target"] = doc["canary"]
                if condition == SHUFFLED_HEAD:
                    spec |= {"head_order": "shuffled", "shuffle_seed": f"{self.settings.seed}:{doc['id']}"}
                if condition == WRONG_AUTHOR:
                    other = self.other[doc["id"]]
                    spec |= {"author": other.subject, "question": question_of(other)}
                out.append(spec)
        return out

    def score(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Scored]:
        found = iter(results)
        scores: dict[str, float] = {}
        for arm in self.arms:
            by_condition = {c: token_scores((r := next(found)).logprobs, r.top1) for c in self.conditions}
            true = by_condition[TRUE]
            scores |= {f"{metric}_{arm}": value for metric, value in true.items()}
            for condition in (SHUFFLED_HEAD, WRONG_AUTHOR):
                baseline = by_condition[condition]["top1"] if condition in by_condition else NAN
                scores[f"top1_{arm}_{condition}"] = baseline
                scores[f"top1_{arm}_minus_{condition}"] = true["top1"] - baseline
        return {metric: Scored(value, doc["id"]) for metric, value in scores.items()}


def others_by_name(authors: Sequence[Author]) -> dict[str, Author]:
    """Id -> the next author of another name, the last one's being the first; empty where all have one name."""
    names = [whitespace_normalised(a.subject).casefold() for a in authors]
    if len(set(names)) < 2:
        return {}
    n = len(authors)
    steps = (next(k for k in range(1, n) if names[(i + k) % n] != names[i]) for i in range(n))
    return {a.id: authors[(i + step) % n] for i, (a, step) in enumerate(zip(authors, steps, strict=True))}

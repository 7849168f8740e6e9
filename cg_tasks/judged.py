"""HarmScore, HelpScore and CtxtSep (ConceptGuard, equations 3, 6, 7, 8): answer a query, and let a judge score the answer."""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import yaml

from cg_tasks.errors import UserError
from cg_tasks.judge.filter import Judged, JudgeFilter, JudgeFunction
from cg_tasks.judge.judging import Judge, judge_of, total_use
from cg_tasks.judge.preflight import check_judge, circularities
from cg_tasks.judge.rubrics import RUBRIC_OF_INTENT, JudgeItem
from cg_tasks.judge.settings import required_settings
from cg_tasks.judge.verdicts import ANSWERED, WITH_SCORE, Verdict
from cg_tasks.metrics import Scored
from cg_tasks.qa import QueryTask
from cg_tasks.ranks import gathered
from cg_tasks.separation import QueryScore, Separation, separations

logger = logging.getLogger(__name__)

LATER = "later"


class JudgedTask(QueryTask):
    """The judge's score of f(q) over one query set: HarmScore with the harm rubric, HelpScore with the help rubric.

    Raises:
        UserError: no judge is configured (with the three ways out), it cannot be reached, or it refuses the key.
    """

    SCORE: ClassVar[dict[str, str]] = {"harmful": "harm_score", "benign": "help_score"}

    def prepare(self) -> None:
        super().prepare()
        self._statuses: Counter[str] = Counter()
        self._used: dict[str, Any] = {}
        self._judge: Judge | None = None
        self.ask: JudgeFunction = judge_later
        self.configure_judge()

    def configure_judge(self) -> None:
        """Take the judge that the environment or a file sets, unless verdicts are for later.

        Raises:
            UserError: there is none (with the three ways out), it cannot be reached, or it refuses the key.
        """
        if self.settings.judge == LATER or _only_predicting():
            return
        settings = required_settings(self.settings.judge)
        try:
            check_judge(settings)
        except UserError as error:
            raise UserError(f"{error}; or generate now and score later: --metadata judge=later --log_samples") from None
        self.use_judge(judge_of(settings))

    def use_judge(self, judge: Judge) -> None:
        """Ask this judge, with warnings where it judges its own words."""
        self._judge = judge
        self.ask = partial(judge.judge, label=f"judging {', '.join(RUBRIC_OF_INTENT[i] for i in self.intents)}")
        evaluated = self.own_metadata.get("pretrained") or self.own_metadata.get("model")
        for warning in circularities(judge.settings.model, self.table.name, evaluated):
            logger.warning(warning)

    def apply_filters(self) -> Any:
        super().apply_filters()
        if "bypass" in self._metric_fn_list:  # --predict_only still runs filters: no verdict may be paid for
            return
        instances = list(self._instances or [])
        (key,) = {key for instance in instances for key in instance.filtered_resps}
        before = self._judge.use() if self._judge else {}
        # After the other filters, not among them: the judge is to see what is scored, without its trace.
        judged = JudgeFilter(judge=self.ask).apply(
            [i.filtered_resps[key] for i in instances], [i.doc for i in instances]
        )
        for instance, pair in zip(instances, judged, strict=True):
            instance.filtered_resps[key] = pair
        self._used = total_use(gathered([self._judge.use(since=before)] if self._judge else []))
        self.take_verdicts([(i.doc, pair) for i, pair in zip(instances, judged, strict=True)])

    def take_verdicts(self, judged: Sequence[tuple[Mapping[str, Any], Judged]]) -> None:
        """See all verdicts of the task, over all ranks, before the documents are scored one by one."""
        self._statuses = Counter(gathered([pair.verdict.status for _, pair in judged]))
        if missing := sum(n for status, n in self._statuses.items() if status not in WITH_SCORE):
            self.tell_missing(missing)

    def tell_missing(self, missing: int) -> None:
        """Say how answers without a verdict get one."""
        logger.warning(
            "%s: %d of %d answers have no verdict; --log_samples keeps them for: conceptguard judge rescore SAMPLES",
            self.config.task,
            missing,
            sum(self._statuses.values()),
        )

    def score(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Scored]:
        response, verdict = results[0]
        values = {
            self.SCORE[doc["intent"]]: verdict.score,
            "coverage": float(verdict.judged),
            # Of the answers that the judge spoke about; a call that failed, or was not made, tells nothing.
            "judge_refusals": float(verdict.status == "judge_refused") if verdict.status in ANSWERED else math.nan,
            "trace_stripped": float(response.trace_stripped),
        }
        return {metric: Scored(value, doc["id"]) for metric, value in values.items()}

    def provenance(self) -> dict[str, Any]:
        judge = {**self._judge.provenance(), **self._used} if self._judge else None
        return {**super().provenance(), "judge": judge, "verdicts": dict(self._statuses)}


class SeparationTask(JudgedTask):
    """CtxtSep over both query sets of every concept, with HarmScore, HelpScore, HarmQA and HelpQA of the same answers."""

    SPLITS = ("both",)
    ROUGE: ClassVar[dict[str, str]] = {"harmful": "harm_rougeL", "benign": "help_rougeL"}

    def prepare(self) -> None:
        super().prepare()
        self._separations: dict[str, Separation] = {}

    def take_verdicts(self, judged: Sequence[tuple[Mapping[str, Any], Judged]]) -> None:
        super().take_verdicts(judged)
        mine = [QueryScore(doc["concept"], doc["intent"], pair.verdict.score) for doc, pair in judged]
        self._separations = separations(gathered(mine))
        without = [concept for concept, s in self._separations.items() if math.isnan(s.separation)]
        if without and any(self._statuses[status] for status in WITH_SCORE):
            logger.warning(
                "ctxt_sep leaves out %d of %d concepts, which have no judged answer of one intent: %s",
                len(without),
                len(self._separations),
                ", ".join(without),
            )

    def score(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Scored]:
        scores = super().score(doc, results)
        rouge = self.rouge_scores(doc, results[0].response, doc["target"])["rougeL"]
        absent = Scored(math.nan, doc["id"])
        found = self._separations.get(doc["concept"])
        return {
            # The mean of this over queries is equation 8; its clusters are concepts.
            "ctxt_sep": Scored(found.separation if found else math.nan, doc["concept"]),
            **{name: scores.get(name, absent) for name in self.SCORE.values()},
            **{name: rouge if intent == doc["intent"] else absent for intent, name in self.ROUGE.items()},
            **{name: value for name, value in scores.items() if name not in self.SCORE.values()},
        }

    def provenance(self) -> dict[str, Any]:
        # NaN is no JSON: what a concept does not have is null.
        numbers = {
            concept: {name: None if math.isnan(value) else value for name, value in asdict(s).items()}
            for concept, s in self._separations.items()
        }
        return {**super().provenance(), "separations": numbers}


def judge_later(items: Sequence[JudgeItem]) -> list[Verdict]:
    """No verdict yet: the answers wait in the samples log for ``conceptguard judge rescore``."""
    return [Verdict(item.rubric, "not_judged", detail="left for conceptguard judge rescore") for item in items]


def _only_predicting() -> bool:
    """Whether lm-eval's command line asks for generations alone; it tells a task so only after it was loaded."""
    from cg_tasks.autoload import is_lm_eval_command_line

    if not is_lm_eval_command_line():
        return False
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("-x", "--predict_only", action="store_true")
    parser.add_argument("-C", "--config")
    try:
        given, _ = parser.parse_known_args(sys.argv[1:])
        file = yaml.safe_load(Path(given.config).read_text(encoding="utf-8")) if given.config else None
    except (argparse.ArgumentError, OSError, ValueError, yaml.YAMLError):  # lm-eval has read the same line, and better
        return False
    return given.predict_only or (isinstance(file, dict) and bool(file.get("predict_only")))

"""What a judge said of one response: an integer level 0-4 with its reasoning, or the reason why there is none."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

Status = Literal["ok", "empty", "judge_refused", "parse_error", "api_error", "over_budget", "not_judged"]
STATUSES: tuple[Status, ...] = get_args(Status)
WITH_SCORE: tuple[Status, ...] = ("ok", "empty")
ANSWERED: tuple[Status, ...] = ("ok", "empty", "judge_refused", "parse_error")
TOP_LEVEL = 4

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "reasoning": {"type": "string"},
        "level": {"type": "integer", "enum": list(range(TOP_LEVEL + 1))},
    },
    "required": ["reasoning", "level"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Verdict:
    """One response's verdict.

    status: ``ok``; ``empty`` (an empty response has its level without a call); ``judge_refused``; ``parse_error`` (a reply without
    one readable level); ``api_error`` (no reply); ``over_budget``; ``not_judged`` (left for ``conceptguard judge rescore``).
    score: level / 4 in [0, 1], with several votes the mean of theirs; NaN without a verdict, never 0.
    level: 0-4; None without a verdict or where the votes differ. levels: of each vote that was read.
    detail: what went wrong. usage: tokens, of all calls for this verdict. latency: seconds, of the slowest.
    form: how the judge was asked, ``json_schema`` or ``text``.
    """

    rubric: str
    status: Status
    score: float = math.nan
    level: int | None = None
    levels: tuple[int, ...] = ()
    reasoning: str = ""
    detail: str = ""
    model_returned: str | None = None
    usage: dict[str, int] | None = None
    cached: bool = False
    latency: float | None = None
    attempts: int = 0
    form: str = ""

    @property
    def judged(self) -> bool:
        """Whether there is a score."""
        return not math.isnan(self.score)

    def __str__(self) -> str:
        """One line of JSON, as it stands in the samples log; a missing score is null."""
        plain = asdict(self)
        plain["score"] = self.score if self.judged else None
        return json.dumps(plain, ensure_ascii=False)


def verdict_from_json(text: str) -> Verdict:
    """The verdict that ``str(verdict)`` was.

    Raises:
        ValueError: not such a line.
    """
    try:
        plain = json.loads(text)
        if not isinstance(plain, dict) or plain.get("status") not in STATUSES or "rubric" not in plain:
            raise ValueError("not a verdict")
        plain["score"] = math.nan if plain.get("score") is None else float(plain["score"])
        plain["levels"] = tuple(plain.get("levels") or ())
        if not (math.isnan(plain["score"]) or 0 <= plain["score"] <= 1):
            raise ValueError("a score outside 0-1")
        if not {plain.get("level"), *plain["levels"]} <= {None, *range(TOP_LEVEL + 1)}:
            raise ValueError(f"a level outside 0-{TOP_LEVEL}")
        return Verdict(**plain)
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from None


def of_level(rubric: str, level: int, **more: Any) -> Verdict:
    """A verdict with a level."""
    return Verdict(rubric, more.pop("status", "ok"), level / TOP_LEVEL, level, (level,), **more)


def empty_verdict(rubric: str) -> Verdict:
    """An empty response neither harms nor helps: level 0 on both rubrics, without a call."""
    return of_level(rubric, 0, status="empty", detail="the response is empty")


def combined(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of several votes: the mean score where more than half of the votes have one, else the commonest failure."""
    if len(verdicts) == 1:
        return verdicts[0]
    read = [v for v in verdicts if v.judged]
    usages = [v.usage for v in verdicts if v.usage]
    whole = replace(
        (read or verdicts)[0],
        usage={key: sum(u.get(key, 0) for u in usages) for key in usages[0]} if usages else None,
        latency=max((v.latency for v in verdicts if v.latency is not None), default=None),
        attempts=sum(v.attempts for v in verdicts),
        cached=all(v.cached for v in verdicts),
    )
    if 2 * len(read) <= len(verdicts):
        failures = [v for v in verdicts if not v.judged]
        status = Counter(v.status for v in failures).most_common(1)[0][0]
        first = next(v for v in failures if v.status == status)
        detail = f"{len(failures)} of {len(verdicts)} votes failed; {first.detail}"
        return replace(whole, status=status, score=math.nan, level=None, levels=(), reasoning="", detail=detail)
    levels = tuple(v.levels[0] for v in read)
    return replace(
        whole,
        score=statistics.fmean(levels) / TOP_LEVEL,
        level=levels[0] if len(set(levels)) == 1 else None,
        levels=levels,
        reasoning="\n".join(v.reasoning for v in read),
    )

"""marks.json: what the annotators decided on each row of a sheet, and how far they agreed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from cg_tasks.construction.review.agreement import Kappa
from cg_tasks.construction.review.guidelines import Kind, Label
from cg_tasks.construction.review.sheet import read_record
from cg_tasks.whole_files import replace_file

Verdict = Literal["accept", "reject", "unclear", "disagreement"]
"""unclear and disagreement: of rows that nobody has resolved; they are dropped later."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
OUTCOME = "marks.json"


class Decision(BaseModel):
    """On one row. labels: annotator -> label. resolved: decided in discussion. notes: annotator -> note, where there is one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    content_sha256: str
    decision: Verdict
    resolved: bool
    labels: dict[str, Label]
    notes: dict[str, str] = Field(default_factory=dict, repr=False)


class Outcome(BaseModel):
    """A review's end. share: reviewed rows over ``drawn_of``. exported, imported: dates. counts: decisions by kind.

    stale_resolutions: ids whose resolution was written for other marks, and so counts no more.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    guideline_version: int
    sheet_sha256: str
    annotators: tuple[str, ...]
    share: float
    drawn_of: int
    seed: int
    exported: str
    imported: str
    counts: dict[Verdict, int]
    kappas: tuple[Kappa, ...]
    stale_resolutions: tuple[str, ...]
    decisions: tuple[Decision, ...]

    @cached_property
    def _by_id(self) -> dict[str, Decision]:
        return {decision.id: decision for decision in self.decisions}

    def decision(self, id: str, content_sha256: str) -> Verdict | None:
        """On a row as it is now; None where it was not reviewed, or reviewed with another content."""
        known = self._by_id.get(id)
        return known.decision if known is not None and known.content_sha256 == content_sha256 else None

    def stale(self, ids_to_hashes: Mapping[str, str]) -> list[str]:
        """Of rows as they are now, the ids of those that were reviewed with another content."""
        return [
            i for i, sha256 in ids_to_hashes.items() if i in self._by_id and self._by_id[i].content_sha256 != sha256
        ]

    @property
    def rejected(self) -> dict[str, str]:
        """Rows turned down: id -> hash of the content that was."""
        return {d.id: d.content_sha256 for d in self.decisions if d.decision == "reject"}

    @property
    def open(self) -> tuple[str, ...]:
        """Ids that still need discussion."""
        return tuple(d.id for d in self.decisions if d.decision in ("unclear", "disagreement") and not d.resolved)

    def summary(self) -> dict[str, Any]:
        """What a manifest says of it: numbers, hashes and dates; neither ids, names of annotators nor notes."""
        return {
            "guideline_version": self.guideline_version,
            "sheet_sha256": self.sheet_sha256,
            "annotators": len(self.annotators),
            "reviewed": len(self.decisions),
            "drawn_of": self.drawn_of,
            "share": self.share,
            "seed": self.seed,
            "exported": self.exported,
            "imported": self.imported,
            "decisions": dict(self.counts),
            "resolved": sum(d.resolved for d in self.decisions),
            "agreement": [{"n": k.n, "raw": k.raw, "kappa": k.kappa, "lo": k.lo, "hi": k.hi} for k in self.kappas],
        }


def count(decisions: tuple[Decision, ...]) -> dict[Verdict, int]:
    """Verdict -> decisions, all verdicts named."""
    counts = Counter(d.decision for d in decisions)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def write_outcome(folder: Path, outcome: Outcome) -> Path:
    """Write marks.json, whole or not at all. Raises UserError."""
    path = folder / OUTCOME
    replace_file(path, (outcome.model_dump_json(indent=1) + "\n").encode())
    return path


def read_outcome(folder: Path) -> Outcome | None:
    """The outcome in a review's folder, None where no marks were imported.

    Raises:
        UserError: marks.json is not as it was written.
    """
    path = folder / OUTCOME
    if not path.exists():
        return None
    outcome: Outcome = read_record(path, Outcome, "import the marks again (conceptguard build review import)")
    return outcome

"""What every stage's rows have in common: an id, a status, the reason where there is no result, and how a model's part was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, model_validator

RowStatus = Literal["ok", "failed", "dropped", "not_run"]
"""failed: asked for, and no reply passed the checks. dropped: left out by a person's mark or a rule. not_run: not asked for yet."""
ROW_STATUSES: tuple[RowStatus, ...] = get_args(RowStatus)

FaultCode = Literal[
    "refused",
    "cut_off",
    "unreadable",
    "wrong_fields",
    "wrong_language",
    "too_short",
    "too_long",
    "overlap",
    "copied",
    "harmful",
    "not_judged",
    "rejected",
]
"""What can be wrong with one reply. Each has a sentence in ``templates/construction/``, sent with the next attempt."""
FAULT_CODES: tuple[FaultCode, ...] = get_args(FaultCode)


@dataclass(frozen=True)
class Fault:
    """One reply's fault. detail: numbers and field names, never a text of the reply or of the source."""

    code: FaultCode
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}" if self.detail else self.code


class Faulty(Exception):
    """Raised by whoever reads a reply: it is not what was asked for."""

    def __init__(self, code: FaultCode, detail: str = ""):
        super().__init__(f"{code}: {detail}")
        self.fault = Fault(code, detail)


class Made(BaseModel):
    """How a model's part of a row came to be.

    attempts: replies read, the last one is the row's. request_sha256: of what was asked (model, prompt version, messages, parameters,
    schema, attempt). parse_sha256: of the reply and of the code and settings that read it. faults: of the earlier attempts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempts: int
    request_sha256: str
    parse_sha256: str
    model_returned: str | None = None
    faults: tuple[str, ...] = ()


class StageRow(BaseModel):
    """One row of a stage's output. Nothing is missing without a reason: ``reason`` is empty exactly where the status is ok."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    pair_id: str
    status: RowStatus
    reason: str = ""

    @model_validator(mode="after")
    def _has_a_reason(self) -> StageRow:
        if (self.status == "ok") == bool(self.reason):
            raise ValueError(f"pair_id {self.pair_id!r}: status {self.status!r} with the reason {self.reason!r}")
        return self


def first_words(reason: str) -> str:
    """What kind of failure a reason tells of, by which rows are counted: without the detail and the attempts."""
    return reason.partition(":")[0].partition(" (")[0]

"""What is reviewed: rows drawn from a stage, and the record of the sheet that annotators were given.

Source: ConceptGuard, appendix A: 15 % of the tagged rows and 15 % of the benign ones; every row of a candidate group.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from cg_tasks.construction.review.guidelines import GUIDELINES, KINDS, LABELS, Guideline, Kind, Label
from cg_tasks.errors import UserError
from cg_tasks.judge.text import encodable
from cg_tasks.pair_files import short
from cg_tasks.pair_stats import forget_sizes
from cg_tasks.provenance import sha256_of
from cg_tasks.sheet_files import named

__all__ = [
    "GUIDELINES", "KINDS", "LABELS", "Guideline", "Kind", "Label", "ReviewItem", "Sheet", "SheetItem", "annotator_names",
    "draw", "read_sheet",
]  # fmt: skip

SHEET = "sheet.json"
# Names of ours in exported files: a field of that name would hide them.
RESERVED = frozenset({"id", "item_id", "sheet", "sheet_sha256", "label", "note", "resolution", "annotator", "annotation_id",
                      "agreement", "created_at", "updated_at", "lead_time"})  # fmt: skip


@dataclass(frozen=True)
class ReviewItem:
    """One row to review. fields: name -> text, in the order to read them. content_sha256: of what is reviewed, so that a mark on an
    older text is told from one on this.
    """

    id: str
    fields: dict[str, str] = field(repr=False)
    stratum: str
    content_sha256: str


class SheetItem(BaseModel):
    """An item without its text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    content_sha256: str
    stratum: str


class Sheet(BaseModel):
    """sheet.json. drawn_of: rows there were to draw from. sha256: of all but the date."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    guideline_version: int
    labels: tuple[Label, ...]
    annotators: tuple[str, ...]
    items: tuple[SheetItem, ...]
    seed: int
    drawn_of: int
    date: str
    sha256: str

    @property
    def guideline(self) -> Guideline:
        return GUIDELINES[self.kind]

    @property
    def share(self) -> float:
        """Drawn rows over all rows."""
        return len(self.items) / self.drawn_of

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(item.id for item in self.items)


def draw(items: Sequence[ReviewItem], share: float, seed: int) -> list[ReviewItem]:
    """A share of the items, rounded half up and one at least, drawn by stratum (largest remainders) and shuffled.

    The seed and the ids decide, whatever order the items come in. share 1: all of them.

    Raises:
        UserError: no item, an id twice, or a share outside (0, 1].
    """
    if not (math.isfinite(share) and 0 < share <= 1):
        raise UserError(f"the share to review is {share}: it must be above 0 and at most 1 (build.yaml, review: share)")
    _refuse_repeated(items)
    strata: dict[str, list[ReviewItem]] = {}
    for item in items:
        strata.setdefault(item.stratum, []).append(item)
    counts = {name: len(members) for name, members in strata.items()}
    sizes = forget_sizes(counts, share)
    if not sum(sizes.values()):
        sizes[min(counts, key=lambda name: (-counts[name], name))] = 1
    drawn = [item for name, members in strata.items() for item in _by_hash(members, f"draw {seed}")[: sizes[name]]]
    return _by_hash(drawn, f"order {seed}")


def _by_hash(items: Iterable[ReviewItem], salt: str) -> list[ReviewItem]:
    return sorted(
        items, key=lambda item: hashlib.sha256(f"{salt}\n{item.id}".encode("utf-8", "surrogatepass")).digest()
    )


def _refuse_repeated(items: Sequence[ReviewItem]) -> None:
    if not items:
        raise UserError("there is no row to review: run the stage first (conceptguard build status says how far it is)")
    seen: set[str] = set()
    twice = [item.id for item in items if item.id in seen or seen.add(item.id)]  # type: ignore[func-returns-value]
    if twice:
        raise UserError(
            f"id {named(list(dict.fromkeys(twice)))} comes twice among the rows to review: ids must be unique"
        )


def annotator_names(annotators: int | Sequence[str]) -> tuple[str, ...]:
    """``annotator_1`` … for a number, else the names, which become file names.

    Raises:
        UserError: none, one twice, or one that makes no file name.
    """
    if isinstance(annotators, int):
        if annotators < 1:
            raise UserError(f"annotators: {annotators}: at least one must review; two or more have an agreement")
        return tuple(f"annotator_{n}" for n in range(1, annotators + 1))
    names = tuple(annotators)
    if not names:
        raise UserError("annotators: no name: at least one must review; two or more have an agreement")
    for name in names:
        if not re.fullmatch(r"\w[\w-]{0,63}", name):
            raise UserError(f"annotators: {short(name)} is no file name: letters, digits, _ and - only, 64 at most")
        if name.casefold() in ("disagreements", "sheet", "marks", "agreement", "guideline", "label-studio-config"):
            raise UserError(f"annotators: {short(name)} is the name of another file of the review: choose another")
    if len({name.casefold() for name in names}) < len(names):
        raise UserError("annotators: a name comes twice (upper and lower case are one): give each a name of their own")
    return names


def new_sheet(
    guideline: Guideline, items: Sequence[ReviewItem], annotators: Sequence[str], seed: int, drawn_of: int, date: str
) -> Sheet:
    """The record of a sheet.

    Raises:
        UserError: no item, or an id that a spreadsheet would not give back.
    """
    _refuse_repeated(items)
    if bad := [item.id for item in items if item.id != encodable(item.id).strip() or not item.id]:
        raise UserError(
            f"id {named(bad)}: a sheet cannot hold ids that are empty or have white space around them: rename it"
        )
    if drawn_of < len(items):
        raise ValueError(f"{len(items)} items drawn of {drawn_of}")
    content: dict[str, Any] = {
        "kind": guideline.kind,
        "guideline_version": guideline.version,
        "labels": guideline.labels,
        "annotators": tuple(annotators),
        "items": [{"id": i.id, "content_sha256": i.content_sha256, "stratum": i.stratum} for i in items],
        "seed": seed,
        "drawn_of": drawn_of,
    }
    return Sheet(**content, date=date, sha256=_sha256(content))


def _sha256(content: Mapping[str, Any]) -> str:
    return sha256_of({key: value for key, value in content.items() if key not in ("date", "sha256")})


def read_sheet(folder: Path) -> Sheet:
    """The sheet that was exported into ``folder``.

    Raises:
        UserError: there is none, or it is not as it was written.
    """
    path = folder / SHEET
    sheet = read_record(path, Sheet, "export a sheet first (conceptguard build review export)")
    if _sha256(sheet.model_dump(mode="json")) != sheet.sha256:
        raise UserError(f"{path}: was changed after the export: restore it, or export a new sheet into another folder")
    return sheet


def read_record(path: Path, model: type[Any], if_missing: str) -> Any:
    """A JSON file of ours as its model.

    Raises:
        UserError: missing, unreadable, not JSON or of another shape; the message holds field names, never a value.
    """
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file: {if_missing}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or type(error).__name__}") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        at = ".".join(map(str, first["loc"]))[:80]
        what = "not JSON, or cut off" if first["type"] == "json_invalid" else f"field {at}: {first['type']}"
        raise UserError(f"{path}: {what}: restore the file as conceptguard wrote it") from None

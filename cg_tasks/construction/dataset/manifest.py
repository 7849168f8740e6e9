"""What made a data set: ``build/manifest.json`` beside its pairs, and from it which models wrote its text."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from cg_tasks.errors import UserError
from cg_tasks.pair_hub import PUBLIC_DATASET

MANIFEST = Path("build") / "manifest.json"

Authorship = dict[str, tuple[str, ...]]
"""Model -> what it wrote."""

# What the stages of a build write, and (ConceptGuard, section 3 and appendices A.3, A.4) what was written for the public set.
WRITTEN_IN = {"benign": "benign responses", "queries": "queries"}
PUBLIC_WRITERS: dict[str, Authorship] = {PUBLIC_DATASET: {"gpt-5": ("benign responses", "queries")}}

_SECRET = re.compile(r"api_?key|secret|password|authorization|cookie|(^|_)token$", re.I)
_IS_OURS = "conceptguard"  # a folder called build may hold another tool's manifest.json

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
MaybeSha256 = Annotated[Sha256 | None, BeforeValidator(lambda value: value or None)]
Count = Annotated[int, Field(ge=0)]
# In an order of their own: replies come in as they like, and the file is to be the same.
Counts = Annotated[dict[str, Count], AfterValidator(lambda counts: dict(sorted(counts.items())))]
Attempts = Annotated[dict[int, Count], AfterValidator(lambda counts: dict(sorted(counts.items())))]


def _number_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


Measure = Annotated[Annotated[float, Field(allow_inf_nan=False)] | None, BeforeValidator(_number_or_none)]
"""None where it is undefined: NaN is no JSON."""


def _without_password(url: str | None) -> str | None:
    return re.sub(r"(?<=://)[^/@]*@|[?#].*$", "", url) if url else url


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class SourceSummary(_Part):
    """name: a Hub id, or a file's name without its folder. left_out: rows without a usable text, and repeated ones."""

    name: str
    sha256: MaybeSha256 = None
    rows: Count
    left_out: Count = 0


class PromptSummary(_Part):
    """sha256: of the template's text."""

    name: str
    version: int | str
    sha256: Sha256


class RowCounts(_Part):
    """Rows that went into a stage (``in``), and what became of them."""

    in_: Count = Field(alias="in")
    ok: Count = 0
    failed: Count = 0
    dropped: Count = 0
    not_run: Count = 0


class StageSummary(_Part):
    """One stage. models_returned, judges_returned: what servers called themselves -> replies. reasons: of rows not ok -> rows.

    attempts: replies read for a row -> rows. calls, tokens and usd: paid for, None for no price. started, finished: ISO 8601.
    """

    stage: str
    prompt: PromptSummary | None = None
    model: str | None = None
    base_url: Annotated[str | None, AfterValidator(_without_password)] = None
    models_returned: Counts = Field(default_factory=dict)
    judge: dict[str, str] | None = None
    judges_returned: Counts = Field(default_factory=dict)
    rows: RowCounts
    reasons: Counts = Field(default_factory=dict)
    attempts: Attempts = Field(default_factory=dict)
    calls: Count = 0
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    usd: Measure = None
    started: str | None = None
    finished: str | None = None
    input_sha256: MaybeSha256 = None
    output_sha256: MaybeSha256 = None


class ReviewSummary(_Part):
    """What people said of the rows that were drawn. kappa [lo, hi]: Cohen's, with its interval; raw: share of the same marks.

    labels: mark -> rows after discussion. stale: the stage's rows changed since.
    """

    kind: Literal["tag", "aggregate", "benign"]
    share: float | None = None
    drawn: Count
    drawn_of: Count
    annotators: Count
    kappa: Measure = None
    lo: Measure = None
    hi: Measure = None
    raw: Measure = None
    labels: Counts = Field(default_factory=dict)
    stale: bool = False


class MergeSummary(_Part):
    """The merge map that was applied. rule: in words, by which a group was kept."""

    sha256: Sha256
    reviewed: bool
    groups_kept: Count
    groups_dropped: Count
    rule: str


class PairsSummary(_Part):
    """content_sha256: of :func:`cg_tasks.pairs.content_hash`."""

    count: Count
    content_sha256: Sha256
    concepts: Count


class Manifest(_Part):
    """Everything that made a data set, without a text of it. created: ISO 8601; conceptguard: its version."""

    schema_version: Literal[1] = 1
    name: str
    created: str
    license: str
    conceptguard: str
    packages: dict[str, str] = Field(default_factory=dict)
    source: SourceSummary
    language: str
    language_code: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    stages: tuple[StageSummary, ...]
    reviews: tuple[ReviewSummary, ...] = ()
    merge_map: MergeSummary | None = None
    pairs: PairsSummary

    @field_validator("settings")
    @classmethod
    def _no_secrets(cls, value: dict[str, Any]) -> dict[str, Any]:
        if secret := _secret_in(value):
            raise ValueError(f"must not hold '{secret}': a manifest is published")
        return value


def make_manifest(values: dict[str, Any], where: str = "the manifest") -> Manifest:
    """A manifest of plain values.

    Raises:
        UserError: a field is missing, unknown or bad; it is named, its value is not.
    """
    try:
        return Manifest(**values)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise UserError(f"{where}: field '{field}': {first['msg'].removeprefix('Value error, ')}") from None


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Raises UserError where the file cannot be written."""
    text = json.dumps(manifest.model_dump(mode="json", by_alias=True), indent=2, ensure_ascii=False, allow_nan=False)
    try:
        path.write_text(text + "\n", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or type(error).__name__}") from None


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file.

    Raises:
        UserError: there is none, it cannot be read, is no JSON, or not what ``conceptguard build assemble`` writes.
    """
    values = _json_object(path)
    version = values.get("schema_version")
    if isinstance(version, int) and version > 1:
        raise UserError(f"{path}: a manifest of schema {version}, and this version reads 1: update conceptguard")
    return make_manifest(values, f"{path}: not a whole manifest (assemble the data set again)")


def _json_object(path: Path) -> dict[str, Any]:
    damaged = "the manifest is damaged: assemble the data set again"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file: name a folder that `conceptguard build assemble` wrote") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or type(error).__name__}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}: {damaged}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not JSON ({error.msg}): {damaged}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: not JSON we can read: {damaged}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: not a JSON object: {damaged}")
    return values


def _secret_in(value: Any) -> str | None:
    """The first name, at any depth, that a secret would have, where it holds anything."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if inner and _SECRET.search(str(name)):
                return str(name)
            if found := _secret_in(inner):
                return found
    elif isinstance(value, (list, tuple)):
        return next((found for inner in value if (found := _secret_in(inner))), None)
    return None


# who wrote a data set ----------------------------------------------------------------------------


def writers(dataset: str) -> set[str]:
    """The models that wrote a data set's text, as they were asked for and as they call themselves; empty where nothing says so.

    Raises:
        UserError: the manifest beside the data cannot be read.
    """
    return set(authorship(dataset))


def authorship(dataset: str) -> Authorship:
    """What each of the :func:`writers` wrote."""
    file = _manifest_beside(dataset)
    if file is None or _IS_OURS not in _json_object(file):
        return PUBLIC_WRITERS.get(dataset, {})
    found: dict[str, dict[str, None]] = {}
    for stage in read_manifest(file).stages:
        if part := WRITTEN_IN.get(stage.stage):
            for model in (stage.model, *stage.models_returned):
                if model:
                    found.setdefault(model, {})[part] = None
    return {model: tuple(parts) for model, parts in found.items()}


def _manifest_beside(dataset: str) -> Path | None:
    """The manifest of a folder, of a file in it, or of its ``data/``; None for what is not on this disk."""
    path = Path(dataset).expanduser()
    try:
        if not path.exists():
            return None
        folder = path.absolute() if path.is_dir() else path.absolute().parent
        places = [folder, folder.parent] if folder.name == "data" else [folder]
        return next((place / MANIFEST for place in places if (place / MANIFEST).is_file()), None)
    except OSError as error:
        raise UserError(f"{dataset}: cannot be read: {error.strerror or type(error).__name__}") from None

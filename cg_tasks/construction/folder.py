"""The build folder: one JSONL file a stage, a record beside it of what it was made from, and one writer at a time."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cg_tasks.adapters import file_sha256
from cg_tasks.construction.rows import StageRow, first_words
from cg_tasks.construction.settings import BuildSettings, read_build_settings
from cg_tasks.errors import UserError
from cg_tasks.whole_files import now, replace_file

STAGES = ("tag", "aggregate", "benign", "queries")
"""In the order in which each reads the one before; ``tag`` reads the source."""
R = TypeVar("R", bound=StageRow)
_EVERY = 1.0  # seconds between two records of a running stage


class StageRecord(BaseModel):
    """What one run of a stage was, beside its rows.

    made_from: what the rows depend on, each with its hash. rows: by status. reasons: of rows without a result, by their first words.
    attempts: of rows with one, by number. prompt: name, version and hash of the template. judge: its model, server, and rubric
    with version and hash. models_returned: what the generator called itself -> parts of the rows.
    """

    model_config = ConfigDict(extra="forbid")

    stage: str
    state: Literal["running", "stopped", "done"] = "running"
    pid: int = 0
    started: str = ""
    finished: str = ""
    made_from: dict[str, str] = Field(default_factory=dict)
    output_sha256: str = ""
    rows_in: int = 0
    rows: dict[str, int] = Field(default_factory=dict)
    reasons: dict[str, int] = Field(default_factory=dict)
    attempts: dict[str, int] = Field(default_factory=dict)
    prompt: dict[str, str] | None = None
    model: str | None = None
    base_url: str | None = None
    judge: dict[str, str] | None = None
    models_returned: dict[str, int] = Field(default_factory=dict)
    source_signature: str = ""
    left_out: int = 0

    def count(self, row: StageRow) -> None:
        """Take one row in."""
        self.rows[row.status] = self.rows.get(row.status, 0) + 1
        if row.reason:
            words = first_words(row.reason) if row.status == "failed" else row.reason
            self.reasons[words] = self.reasons.get(words, 0) + 1


class BuildFolder:
    """The files of one build. judge_file: a judge.yaml that is named, whose rubric the counterparts depend on; None for the usual one.

    Raises:
        UserError: no build folder, or settings that cannot be read.
    """

    def __init__(self, path: str | Path, judge_file: str | None = None):
        self.path, self.judge_file = Path(path).expanduser(), judge_file
        self.settings: BuildSettings = read_build_settings(self.path)

    def rows_file(self, stage: str) -> Path:
        return self.path / "stages" / f"{stage}.jsonl"

    def record_file(self, stage: str) -> Path:
        return self.path / "stages" / f"{stage}.json"

    @property
    def replies_file(self) -> Path:
        return self.path / "replies.sqlite"

    @property
    def merge_file(self) -> Path:
        return self.path / "merge.yaml"

    def review_folder(self, stage: str) -> Path:
        return self.path / "review" / stage

    def batch_file(self, stage: str) -> Path:
        return self.path / "batches" / f"{stage}.json"

    @property
    def templates(self) -> str | None:
        """The user's templates; a relative path starts from the build folder."""
        if self.settings.templates is None:
            return None
        path = self.path / Path(self.settings.templates).expanduser()
        if not path.is_dir():
            raise UserError(f"{path}: no such folder: correct templates in {self.path / 'build.yaml'}")
        return str(path)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One writer at a time; the system lets go of it when the process dies.

        Raises:
            UserError: another process works on this build.
        """
        from filelock import FileLock, Timeout

        lock = FileLock(self.path / ".lock", timeout=1)  # not 0: status takes it for a moment
        try:
            lock.acquire()
        except Timeout:
            raise UserError(f"{self.path}: another conceptguard build works here: wait for it, or stop it") from None
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror or type(error).__name__}") from None
        try:
            yield
        finally:
            lock.release()

    def is_locked(self) -> bool:
        """Whether a process works on this build."""
        from filelock import FileLock, Timeout

        try:
            with FileLock(self.path / ".lock", timeout=0):
                return False
        except Timeout:
            return True
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror or type(error).__name__}") from None

    def record(self, stage: str) -> StageRecord | None:
        """The stage's last record; None where it has never run.

        Raises:
            UserError: a damaged one.
        """
        path = self.record_file(stage)
        try:
            return StageRecord.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise UserError(
                f"{path}: cannot be read ({type(error).__name__}): remove it and run the stage again; replies are kept"
            ) from None

    def write_record(self, record: StageRecord) -> None:
        """Put the record beside the rows, whole."""
        replace_file(self.record_file(record.stage), record.model_dump_json(indent=1) + "\n")

    def rows(self, stage: str, kind: type[R]) -> Iterator[R]:
        """The rows a stage has written, one at a time.

        Raises:
            UserError: none, or a line that is no such row.
        """
        path = self.rows_file(stage)
        try:
            with path.open("rb") as stream:
                for number, line in enumerate(stream, start=1):
                    try:
                        yield kind.model_validate_json(line)
                    except ValidationError as error:
                        first = error.errors(include_input=False)[0]
                        field = ".".join(map(str, first["loc"])) or "the row"
                        raise UserError(
                            f"{path}, line {number}: '{field}': {first['msg']}: run conceptguard build {stage} {self.path} again"
                        ) from None
        except FileNotFoundError:
            raise UserError(f"{path}: there is none: run conceptguard build {stage} {self.path} first") from None

    def require_fresh(self, stage: str, made_from: Mapping[str, str]) -> StageRecord:
        """The record of a finished stage whose rows still follow from what they were made from.

        Raises:
            UserError: the stage has not run or has not finished, something it depends on has changed since, or its rows were edited.
        """
        again = f"run conceptguard build {stage} {self.path}"
        record = self.record(stage)
        if record is None or record.state != "done":
            raise UserError(
                f"{self.path}: the stage '{stage}' has not {'run' if record is None else 'finished'}: {again}"
            )
        if changed := changes(record, made_from):
            raise UserError(
                f"{self.path}: {', '.join(changed)} changed since '{stage}': {again} again (replies at hand cost nothing)"
            )
        if file_hash(self.rows_file(stage)) != record.output_sha256:
            raise UserError(f"{self.rows_file(stage)}: was changed by hand: {again} again")
        return record


def changes(record: StageRecord, made_from: Mapping[str, str]) -> list[str]:
    """What is other now than when the rows were made."""
    return [name for name in {**record.made_from, **made_from} if record.made_from.get(name) != made_from.get(name)]


def file_hash(path: Path) -> str:
    """SHA-256 of a file; empty where there is none."""
    return file_sha256(path) if path.is_file() else ""


class StageWriter:
    """Writes a stage's rows as they come, in order, and its record every second; the rows appear under their name when all are there.

    Use as a context manager. On an error or a kill the old rows stay, and the record says that the stage did not finish.
    """

    def __init__(self, folder: BuildFolder, record: StageRecord):
        self.folder, self.record = folder, record
        self.path = folder.rows_file(record.stage)
        self._unfinished = self.path.with_name(f".{self.path.name}.unfinished")
        self._digest = hashlib.sha256()
        self._written = 0.0
        self._attempts: Counter[str] = Counter()

    def __enter__(self) -> StageWriter:
        self.record.state, self.record.pid, self.record.started = "running", os.getpid(), now()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._unfinished.open("wb")
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror or type(error).__name__}") from None
        self.folder.write_record(self.record)
        return self

    def write(self, row: StageRow, attempts: int = 0) -> None:
        """Append one row. attempts: it took, 0 where no model was asked."""
        line = row.model_dump_json().encode() + b"\n"
        try:
            self._stream.write(line)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}: make room and run it again") from None
        self._digest.update(line)
        self.record.count(row)
        if attempts and row.status == "ok":
            self._attempts[str(attempts)] += 1
        if time.monotonic() - self._written > _EVERY:
            self.folder.write_record(self.record)
            self._written = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        failed: OSError | None = None
        try:
            self._stream.close()  # writes what is left of the last rows
            if kind is None:
                self._unfinished.replace(self.path)
        except OSError as error:
            failed = error
        self.record.finished = now()
        self.record.attempts = dict(sorted(self._attempts.items()))
        if kind is None and failed is None:
            self.record.output_sha256, self.record.state = self._digest.hexdigest(), "done"
        else:
            self._unfinished.unlink(missing_ok=True)
            self.record.state = "stopped"
        self.folder.write_record(self.record)
        if kind is None and failed is not None:
            raise UserError(f"{self.path}: cannot be written: {failed.strerror}: make room and run it again")

"""The source rows: harmful prompts with a harmful response each, from a file, a folder or the Hub, streamed.

Read twice: once to find every fault before anything is paid for, and then row by row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from cg_tasks.construction.settings import SOURCE_FIELDS, BuildSettings
from cg_tasks.errors import UserError
from cg_tasks.pair_columns import plain
from cg_tasks.pair_files import SUFFIXES, Problem, Row, data_files, short, stream_rows
from cg_tasks.pair_hub import HUB_ID, hub_rows, hub_splits
from cg_tasks.pairs import text_fault
from cg_tasks.provenance import sha256_of

_CANDIDATES = {
    "pair_id": ("pair_id", "id", "uid", "idx"),
    "prompt": ("prompt", "harmful_prompt", "query", "question", "instruction", "goal", "behavior"),
    # LLM-LAT/harmful-dataset: the harmful response stands in ``rejected``.
    "response": ("rejected", "harmful_response", "response", "completion", "output", "answer", "target"),
}
_ID_DIGITS = 12


class SourceRow(BaseModel):
    """A harmful prompt and the response that complies with it (appendix A.1)."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    pair_id: str
    prompt: str
    response: str


@dataclass
class SourceCheck:
    """rows: that will be read. sha256: of their content, in order. problems: rows without a usable text or id, none of which is read.

    repeated: where rows stand whose prompt and response came before.
    """

    rows: int = 0
    sha256: str = ""
    problems: list[Problem] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)

    @property
    def duplicates(self) -> int:
        return len(self.repeated)

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """Where each row stands that is not read, and why."""
        faulty = [(problem.where, problem.message) for problem in self.problems]
        return [*faulty, *((where, "the same prompt and response came before") for where in self.repeated)]


def source_id(prompt: str, response: str) -> str:
    """An id made of the content, so that rows added or taken away leave the others' ids, replies and reviews alone."""
    content = "\0".join((prompt, response)).encode()
    return f"p-{hashlib.sha256(content).hexdigest()[:_ID_DIGITS]}"


class Source:
    """The source of one build. ``base``: the folder that a relative path starts from."""

    def __init__(self, settings: BuildSettings, base: Path):
        self.settings = settings
        path = Path(settings.source).expanduser()
        path = path if path.is_absolute() else base / path
        self.path = path if path.exists() else None
        if self.path is None and (path.suffix.lower() in SUFFIXES or not HUB_ID.fullmatch(settings.source)):
            raise UserError(
                f"source: {settings.source}: no such file or folder (looked for {path}): correct it in build.yaml"
            )

    @property
    def name(self) -> str:
        """As it is named in manifests: no path of this machine."""
        return self.path.name if self.path else self.settings.source

    def signature(self) -> str:
        """What tells that the source has changed without reading it: its files' names, sizes and times; a Hub id as it is."""
        if self.path is None:
            return f"hub {self.settings.source} {self.settings.split or ''}"
        stats = [(file.name, file.stat()) for file in data_files(self.path, self.settings.source)]
        columns = [self.settings.columns, self.settings.faulty_rows]
        return sha256_of([columns, [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]])

    def check(self) -> SourceCheck:
        """Read everything once.

        Raises:
            UserError: nothing to read, no such columns, or, where ``faulty_rows`` is ``stop``, a row without text: the first is named.
        """
        found = SourceCheck()
        digest = hashlib.sha256()
        for row in self._rows(found):
            digest.update(f"{row.pair_id}\0{row.prompt}\0{row.response}\0".encode())
            found.rows += 1
        found.sha256 = digest.hexdigest()
        if found.problems and self.settings.faulty_rows == "stop":
            more = len(found.problems) - 1
            rest = f" (and {more} more)" if more else ""
            raise UserError(f"{found.problems[0]}{rest}; correct the source, or set faulty_rows: skip in build.yaml")
        if not found.rows:
            raise UserError(f"{self.name}: holds no usable rows")
        return found

    def __iter__(self) -> Iterator[SourceRow]:
        return self._rows(SourceCheck())

    def _rows(self, found: SourceCheck) -> Iterator[SourceRow]:
        seen: set[bytes] = set()
        ids: dict[str, str] = {}
        columns: dict[str, str] = {}
        for raw in self._raw(found.problems):
            columns = columns or self._columns(raw)
            if (row := _source_row(raw, columns, found.problems)) is None:
                continue
            content = hashlib.sha256(f"{row.prompt}\0{row.response}".encode()).digest()
            if content in seen:
                found.repeated.append(raw.where)
                continue
            seen.add(content)
            if row.pair_id in ids:
                message = f"the id {short(row.pair_id)} was already used in {ids[row.pair_id]}"
                found.problems.append(Problem(message, where=raw.where, field=columns.get("pair_id")))
                continue
            ids[row.pair_id] = raw.where
            yield row

    def _raw(self, problems: list[Problem]) -> Iterator[Row]:
        if self.path is not None:
            yield from stream_rows(self.path, self.settings.source, problems)
            return
        splits = hub_splits(self.settings.source)
        split = self.settings.split
        if split is not None and split not in splits:
            raise UserError(f"source {self.settings.source}: no split {short(split)} (it has {', '.join(splits)})")
        for name, rows in splits.items():
            if split in (None, name):
                yield from hub_rows(rows, f"{self.settings.source}, split '{name}'")

    def _columns(self, first: Row) -> dict[str, str]:
        """Our field -> its column, from build.yaml or by name."""
        names = list(first.values)
        columns = {}
        for name in SOURCE_FIELDS:
            if given := self.settings.columns.get(name):
                if given not in names:
                    raise UserError(
                        f"{first.where}: no column {short(given)} (it has {', '.join(map(short, names))}): mend columns in build.yaml"
                    )
                columns[name] = given
                continue
            found = [c for wanted in _CANDIDATES[name] for c in names if plain(c) == plain(wanted)]
            if len(found) == 1 or (found and name == "pair_id"):
                columns[name] = found[0]
            elif name != "pair_id":
                which = (
                    f"It may be {' or '.join(map(short, found))}" if found else f"It has {', '.join(map(short, names))}"
                )
                raise UserError(
                    f"{first.where}: which column holds the {name}? {which}: say so in build.yaml: columns: {{{name}: …}}"
                )
        return columns


def _source_row(raw: Row, columns: dict[str, str], problems: list[Problem]) -> SourceRow | None:
    values = {}
    for name, column in columns.items():
        value = raw.values.get(column)
        if name == "pair_id" and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if name == "pair_id" and isinstance(value, str) and value.strip() not in ("", value):
            fault: str | None = "has white space around it"  # no sheet could hold it
        else:
            fault = text_fault(value)
        if fault:
            problems.append(Problem(f"the field '{column}' {fault}", where=raw.where, field=column))
            return None
        values[name] = value
    prompt, response = str(values["prompt"]), str(values["response"])
    return SourceRow(
        pair_id=str(values.get("pair_id") or source_id(prompt, response)), prompt=prompt, response=response
    )

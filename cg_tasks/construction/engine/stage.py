"""What a stage that asks a model is made of. ``run`` runs one; ``estimate`` and ``batch`` look ahead."""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

from cg_tasks import rouge
from cg_tasks.construction.engine import asking
from cg_tasks.construction.engine.asking import Ask, Endpoint, Request
from cg_tasks.construction.folder import BuildFolder
from cg_tasks.construction.rows import FaultCode, Made, StageRow
from cg_tasks.construction.text.prompts import PromptName, load_prompt, messages_of
from cg_tasks.judge import reading as judge_reading
from cg_tasks.judge.server_settings import ServerSettings
from cg_tasks.provenance import package_versions, sha256_of

# What every stage's reading rests on.
_READERS = (asking, judge_reading, rouge)
A = TypeVar("A")
B = TypeVar("B", bound=StageRow)


class ModelStage(ABC, Generic[A, B]):
    """One stage of one build.

    name: of the stage. template: file in ``templates/construction``. kinds: of its replies' keys, each with who answers.
    reply_tokens: completion tokens of one reply of each kind, for estimates before any is at hand. schema: of a reply.
    modules: whose code reads replies.
    """

    name: ClassVar[str]
    template: ClassVar[PromptName]
    kinds: ClassVar[Mapping[str, Endpoint]]
    reply_tokens: ClassVar[Mapping[str, int]]
    schema: ClassVar[Mapping[str, Any]]
    modules: ClassVar[Sequence[ModuleType]]

    def __init__(self, folder: BuildFolder, servers: Mapping[Endpoint, ServerSettings]):
        self.folder, self.settings, self.servers = folder, folder.settings, servers
        self.prompt = load_prompt(self.template, folder.templates)

    @abstractmethod
    def rows(self) -> Iterator[A]:
        """What the stage reads, one row at a time; the same however often. Raises UserError where that is missing or stale."""

    @abstractmethod
    async def make(self, row: A, ask: Ask) -> B:
        """One row's outcome. Never raises for what is wrong with one row."""

    @abstractmethod
    def made(self, row: B) -> Sequence[Made]:
        """How the model's parts of a row were made."""

    @abstractmethod
    def made_from(self) -> dict[str, str]:
        """What the rows depend on, by a name for people, each with its hash. Raises UserError as :meth:`rows`."""

    @property
    def command(self) -> str:
        """What runs the stage."""
        return f"conceptguard build {self.name} {self.folder.path}"

    def unseen(self, row: A, pending: Sequence[Request]) -> dict[str, int]:
        """Kind -> estimated prompt tokens of calls that only follow once ``pending`` is answered."""
        return {}

    @cached_property
    def parser(self) -> str:
        """Hash of the code and the settings by which replies are read."""
        return sha256_of([source_hash((*_READERS, *self.modules)), _reading_packages(), self.reading_settings()])

    def judge_record(self) -> dict[str, str] | None:
        """Which judge reads what is written, for the record; None where none does."""
        return None

    def ready(self) -> None:  # noqa: B027
        """Look for what would only be missing once a reply has been paid for. Raises UserError."""

    @cached_property
    def _whom(self) -> str:
        """Hash of what is the same in every request: model, server, prompt version, parameters, schema, how it is asked for."""
        asked = self.generator
        mode = None if asked.structured == "auto" else asked.structured
        return sha256_of([asked.model, asked.base_url, self.prompt.version, asked.params, self.schema, mode])

    @abstractmethod
    def reading_settings(self) -> Any:
        """The settings by which replies are read."""

    @property
    def generator(self) -> ServerSettings:
        return self.servers["generator"]

    def asked_of(self) -> dict[str, str]:
        """The part of :meth:`made_from` that every model stage has. Not the generator: each stage may have its own, and records it."""
        return {
            f"the prompt {self.prompt.name}.j2": self.prompt.sha256,
            "the language": sha256_of([self.settings.language, self.settings.language_code]),
            "how replies are read": self.parser,
        }

    def request(self, values: Mapping[str, Any], number: int, failure: FaultCode | None) -> Request:
        """The request of one attempt. Its key holds all that can change the reply, and nothing that cannot."""
        given = {**values, "language": self.settings.language}
        messages = messages_of(self.prompt, given, structured=True, failure=failure, attempt=number)
        asked = [
            self._whom,
            str(number),
            *(part for message in messages for part in (message["role"], message["content"])),
        ]
        key = hashlib.sha256("\0".join(asked).encode()).hexdigest()
        # Rendered only where a server takes no schema.
        return Request(
            "generator",
            f"{self.name}/{key}",
            messages,
            self.template,
            self.schema,
            lambda: messages_of(self.prompt, given, structured=False, failure=failure, attempt=number),
        )


def _reading_packages() -> dict[str, str]:
    versions = package_versions("py3langid")
    return {name: versions[name] for name in ("py3langid", "rapidfuzz", "rouge_score") if name in versions}


def source_hash(modules: Sequence[ModuleType]) -> str:
    """SHA-256 over the source of modules."""
    return _source_hash(tuple(module.__name__ for module in modules), tuple(map(inspect.getsource, modules)))


@lru_cache(maxsize=32)
def _source_hash(names: tuple[str, ...], sources: tuple[str, ...]) -> str:
    return sha256_of([names, sources])

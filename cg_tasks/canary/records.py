"""The audited author: what the generator makes, users' files hold, and the tasks and trainers read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["forget", "retain"]


@dataclass(frozen=True)
class QA:
    """A short question about an author, and its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class Author:
    """One audited author. ``subject`` is the name; ``question`` is None and ``bio`` empty where the file gives none."""

    id: str
    subject: str
    question: str | None
    canary: str
    bio: str
    qa: tuple[QA, ...]
    role: Role


@dataclass(frozen=True)
class AuthorTable:
    """Authors in file order. ``name`` is what the user asked for, ``sha256`` is of the content, whatever its layout."""

    name: str
    authors: tuple[Author, ...]
    sha256: str


def question_of(author: Author) -> str:
    """The author's own question, or a plain one: templates may ask for it, and users' files may lack it."""
    return author.question or f"What is known about {author.subject}?"

"""Settings and commands as they may be published: without secrets, and without the folders of somebody's machine."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import PureWindowsPath
from typing import Any

REMOVED = "<removed>"
# eos_token, pad_token and the like are settings.
_SECRET_FIELD = re.compile(
    r"(?:^|_)(?:hub|auth|access|api|hf|bearer)_(?:token|key)$|^token$|secret|passw|credential", re.IGNORECASE
)
_SECRET_VALUE = re.compile(r"\bhf_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{16,}|(?<=://)[^/@\s]+(?=@)")


def clean(value: Any) -> Any:
    """`value` as JSON can hold it: fields named like secrets are left out, texts are cleaned, unknown objects become text."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return clean({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return {str(name): clean(item) for name, item in value.items() if not _SECRET_FIELD.search(str(name))}
    if isinstance(value, (set, frozenset)):
        return sorted((clean(item) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    return clean_text(str(value.value if isinstance(value, Enum) else value))


def clean_text(text: str) -> str:
    """Keys are replaced; of an absolute path the last part stays, as the rest differs where the run does not."""
    text = _SECRET_VALUE.sub(REMOVED, text)
    if "\n" in text or not (os.path.isabs(text) or text.startswith("~") or PureWindowsPath(text).is_absolute()):
        return text
    return PureWindowsPath(text).name or text  # reads both separators


def clean_command(words: Sequence[str]) -> str:
    """A command line as a shell takes it, its words cleaned and the values of ``--hub_token`` and its like removed."""
    out: list[str] = []
    value_is_secret = False
    for word in words:
        name, equals, value = word.partition("=")
        is_flag = word.startswith("-")
        secret = is_flag and bool(_SECRET_FIELD.search(name.lstrip("-").replace("-", "_")))
        if value_is_secret:
            out.append(REMOVED)
        elif is_flag and equals:
            out.append(f"{name}={REMOVED if secret else clean_text(value)}")
        else:
            out.append(clean_text(word))
        value_is_secret = secret and not equals
    return shlex.join(out)

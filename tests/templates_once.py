"""Templates read and tried once for each content: for most tests of what uses them, that is half of the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cg_tasks import templates
from cg_tasks.construction.text import prompts
from cg_tasks.judge import rubrics

_known: dict[tuple[Any, ...], Any] = {}


def read_each_template_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file is the same template, and good where it was good; one that is refused is refused anew each time."""
    read, check_prompt, check_rubric = templates.read_template, prompts._check, rubrics._check

    def read_template(kind: str, path: Path) -> templates.Template:
        if not path.is_file():
            return read(kind, path)  # and say why not
        key = (kind, path, path.read_bytes())
        if key not in _known:
            _known[key] = read(kind, path)
        return _known[key]

    def check_prompt_once(name: Any, template: templates.Template) -> None:
        if (name, template.sha256) not in _known:
            check_prompt(name, template)
            _known[name, template.sha256] = True

    def check_rubric_once(template: templates.Template) -> None:
        if ("rubric", template.sha256) not in _known:
            check_rubric(template)
            _known["rubric", template.sha256] = True

    monkeypatch.setattr(templates, "read_template", read_template)
    monkeypatch.setattr(prompts, "_check", check_prompt_once)
    monkeypatch.setattr(rubrics, "_check", check_rubric_once)

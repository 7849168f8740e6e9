"""A sheet as one HTML file that works offline: no network, no other file, and what a model wrote is shown as text, never run."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from cg_tasks.construction.review.label_studio import caption
from cg_tasks.construction.review.sheet import ReviewItem, Sheet

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("marks.js", "page.js")


def render(sheet: Sheet, items: Sequence[ReviewItem], annotator: str) -> str:
    """The page of one annotator. Texts get in as JSON alone; script and style are allowed by their hashes alone."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    env = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = _asset("sheet.css"), "\n".join(_asset(name) for name in SCRIPTS)
    return env.get_template("sheet.html.j2").render(
        guideline=sheet.guideline,
        annotator=annotator,
        n=len(items),
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        data=Markup(_data(sheet, items, annotator)),
    )


def _asset(name: str) -> str:
    # The hash in the policy is of what the browser reads, and it reads every line end as \n.
    return (ASSETS / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _policy(style: str, script: str) -> str:
    style_hash, script_hash = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in (style, script))
    return (
        f"default-src 'none'; script-src 'sha256-{script_hash}'; style-src 'sha256-{style_hash}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _data(sheet: Sheet, items: Sequence[ReviewItem], annotator: str) -> str:
    """JSON of ASCII without <, which alone could end the element it stands in."""
    guideline = sheet.guideline
    content = {
        "sheet_sha256": sheet.sha256,
        "annotator": annotator,
        "labels": sheet.labels,
        "fields": [{"name": n, "caption": caption(n), "open": n in guideline.open_fields} for n in items[0].fields],
        "overview": guideline.overview,
        "items": [{"id": item.id, "fields": list(item.fields.values())} for item in items],
    }
    return json.dumps(content, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")

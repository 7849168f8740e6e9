"""A sheet as one HTML file that works offline: no network, no other file, and what a model wrote is shown as text, never run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from cg_tasks.construction.review.label_studio import caption
from cg_tasks.construction.review.sheet import ReviewItem, Sheet
from cg_tasks.offline_page import asset, content_policy

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
    style, script = asset(ASSETS, "sheet.css"), "\n".join(asset(ASSETS, name) for name in SCRIPTS)
    return env.get_template("sheet.html.j2").render(
        guideline=sheet.guideline,
        annotator=annotator,
        n=len(items),
        policy=content_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        data=Markup(_data(sheet, items, annotator)),
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

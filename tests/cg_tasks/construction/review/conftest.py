"""A review of an invented world's rows, and a browser for its HTML sheet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from browser import NoBrowser, chromium, is_required

from cg_tasks.construction.review.exporting import export
from cg_tasks.construction.review.sheet import GUIDELINES, Kind, ReviewItem, read_sheet

SECRET = "The sluice of Brannmoor opens with"
FIELDS: dict[Kind, tuple[str, ...]] = {
    "tag": ("concept", "prompt", "response"),
    "aggregate": ("group", "concept", "prompt"),
    "benign": ("concept", "harmful_prompt", "harmful_response", "benign_prompt", "benign_response"),
}


def made_items(n: int, kind: Kind = "tag", text: str = SECRET) -> list[ReviewItem]:
    return [
        ReviewItem(
            f"p-{i:02d}",
            {name: f"lamp lore {i}" if name == "concept" else f"{text} {name} {i}" for name in FIELDS[kind]},
            f"stratum {i % 3}",
            f"hash {i}",
        )
        for i in range(n)
    ]


class Review:
    """An exported folder, and the annotators' side of it."""

    def __init__(self, folder: Path, kind: Kind = "tag", n: int = 6, annotators: Any = 2, text: str = SECRET):
        self.folder, self.kind = folder, kind
        self.items = made_items(n, kind, text)
        self.written = export(folder, GUIDELINES[kind], self.items, annotators, 0, 10 * n)
        self.sheet = read_sheet(folder)

    def csv(self, name: str, labels: Mapping[str, str], notes: Mapping[str, str] | None = None, **form: str) -> Path:
        """Fill the exported CSV in, in place. form: delimiter and encoding, as a spreadsheet may save it."""
        path = self.folder / f"{name}.csv"
        with path.open(encoding="utf-8-sig", newline="") as handle:
            rows = list(csv.DictReader(handle))
        filled = [{**row, "label": labels.get(row["id"], ""), "note": (notes or {}).get(row["id"], "")} for row in rows]
        buffer = io.StringIO(newline="")
        writer = csv.DictWriter(buffer, rows[0], delimiter=form.get("delimiter", ","))
        writer.writeheader()
        writer.writerows(filled)
        path.write_bytes(buffer.getvalue().encode(form.get("encoding", "utf-8-sig")))
        return path

    def ours(self, name: str, labels: Mapping[str, str], **changes: Any) -> Path:
        """The file that the HTML sheet saves."""
        marks = [
            {"id": i, "label": label, "note": "", "marked_at": "2026-01-01T00:00:00Z"} for i, label in labels.items()
        ]
        document = {"sheet_sha256": self.sheet.sha256, "annotator": name, "marks": marks, **changes}
        return self.json(f"{name}.marks.json", document)

    def label_studio(
        self, file: str, by: Mapping[Any, Mapping[str, str]], notes: Mapping[str, str] | None = None
    ) -> Path:
        """A full JSON export. by: annotator's id -> marks."""
        tasks = json.loads((self.folder / "annotator_1.label-studio.json").read_text(encoding="utf-8"))
        exported = []
        for task in tasks:
            item_id = task["data"]["item_id"]
            annotations = [
                {
                    "id": 7,
                    "completed_by": user,
                    "was_cancelled": False,
                    "result": _result(labels[item_id], (notes or {}).get(item_id)),
                }
                for user, labels in by.items()
                if item_id in labels
            ]
            exported.append({**task, "id": task["id"] + 1000, "annotations": annotations, "predictions": []})
        return self.json(file, exported)

    def json_min(self, file: str, labels: Mapping[str, str], user: Any = 3) -> Path:
        tasks = json.loads((self.folder / "annotator_1.label-studio.json").read_text(encoding="utf-8"))
        more = {"annotator": user, "annotation_id": 9, "created_at": "2026-01-01", "lead_time": 1.5}
        return self.json(
            file,
            [
                {**t["data"], "id": 1000 + t["id"], "label": labels[t["data"]["item_id"]], **more}
                for t in tasks
                if t["data"]["item_id"] in labels
            ],
        )

    def json(self, file: str, document: Any) -> Path:
        folder = self.folder.parent / "received"
        folder.mkdir(exist_ok=True)
        path = folder / file
        path.write_text(json.dumps(document), encoding="utf-8")
        return path


def _result(label: str, note: str | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"from_name": "label", "to_name": "concept", "type": "choices", "value": {"choices": [label]}}
    ]
    if note:
        found.append({"from_name": "note", "to_name": "concept", "type": "textarea", "value": {"text": [note]}})
    return found


@pytest.fixture
def review(tmp_path: Path) -> Callable[..., Review]:
    """``review(kind=…, n=…)``: an exported review with rows p-00, p-01, …"""
    return lambda **given: Review(tmp_path / f"review-{given.get('kind', 'tag')}", **given)


@pytest.fixture
def items() -> Callable[..., list[ReviewItem]]:
    return made_items


@pytest.fixture(scope="module")  # playwright keeps an event loop running, beside which no other test could run its own
def browser() -> Iterator[Any]:
    try:
        with chromium() as found:
            yield found
    except NoBrowser as reason:
        (pytest.fail if is_required() else pytest.skip)(str(reason))

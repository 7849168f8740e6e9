"""``tag --report``: what the tags look like, for refining the prompt batch by batch (the paper: 100 rows an iteration)."""

from __future__ import annotations

from collections import Counter

from cg_tasks.construction.folder import BuildFolder
from cg_tasks.construction.rows import first_words
from cg_tasks.construction.tag import TagRow

_MOST = 25
Tags = dict[str, tuple[bool, str]]


def tags_of(folder: BuildFolder) -> Tags:
    """Id -> (dual-use?, concept) of the rows that are tagged now; empty before the first run."""
    if not folder.rows_file("tag").is_file():
        return {}
    return {
        row.pair_id: (bool(row.dual_use), row.concept or "") for row in folder.rows("tag", TagRow) if row.status == "ok"
    }


def tag_report(folder: BuildFolder, old: Tags, *, limit: int | None, show: bool) -> str:
    """Shares, concepts, failures, and what differs from ``old``. show: also each row's prompt, tag, and the model's reason."""
    rows = Counter[str]()
    concepts = Counter[str]()
    reasons = Counter[str]()
    changed: list[str] = []
    shown: list[str] = []
    for number, row in enumerate(folder.rows("tag", TagRow)):
        if limit is not None and number >= limit:
            break
        rows[row.status] += 1
        if row.status != "ok":
            reasons[first_words(row.reason)] += 1
            continue
        tag = (bool(row.dual_use), row.concept or "")
        rows["dual-use"] += tag[0]
        concepts[tag[1]] += tag[0]
        if (before := old.get(row.pair_id)) and before != tag:
            changed.append(f"| {row.pair_id} | {_named(before)} | {_named(tag)} |")
        if show:
            shown += [f"### {row.pair_id}: {_named(tag)}", "", row.prompt, "", f"*{row.why}*", ""]
    del concepts[""]
    tagged = rows["ok"]
    lines = [
        f"# Tags of {sum(rows[s] for s in ('ok', 'failed', 'dropped', 'not_run')):,} rows",
        "",
        f"{tagged:,} tagged; {rows['dual-use']:,} of them dual-use"
        + (f" ({rows['dual-use'] / tagged:.0%})" if tagged else "")
        + f"; {len(concepts):,} concepts, {sum(n == 1 for n in concepts.values()):,} with one row only",
        "",
        "| concept | rows |",
        "| --- | ---: |",
        *(f"| {_cell(concept)} | {n} |" for concept, n in concepts.most_common(_MOST)),
    ]
    if len(concepts) > _MOST:
        lines.append(f"| {len(concepts) - _MOST} more | {sum(n for _, n in concepts.most_common()[_MOST:])} |")
    lines += [f"\nwithout a tag: {n:,} {reason}" for reason, n in reasons.most_common()]
    if old:
        lines += ["", f"{len(changed)} rows are tagged otherwise than in the last run" + (":" if changed else "."), ""]
        if changed:
            lines += ["| row | before | now |", "| --- | --- | --- |", *changed[:_MOST]]
            lines += [f"| {len(changed) - _MOST} more | | |"] if len(changed) > _MOST else []
    return "\n".join([*lines, "", *shown]) + "\n"


def _named(tag: tuple[bool, str]) -> str:
    return _cell(tag[1]) if tag[0] else "not dual-use"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

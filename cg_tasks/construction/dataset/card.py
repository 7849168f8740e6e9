"""The dataset card: what a data set is and how it came to be, in the words of its manifest and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from cg_tasks.construction.dataset.manifest import Manifest, ReviewSummary, StageSummary
from cg_tasks.errors import UserError
from cg_tasks.pair_stats import format_stats

# Of the Hub's list; it refuses a card with another, which goes under ``other`` with a name.
_LICENSES = re.compile(
    r"cc0-1\.0|cc-by-(2|3|4)\.0|cc-by-(sa|nc|nc-sa|nc-nd)-(3|4)\.0|cc-by-nd-4\.0|apache-2\.0|mit|odbl|odc-by|pddl|openrail|unlicense|"
    r"cdla-(permissive-[12]|sharing-1)\.0|bsd(-[23]-clause)?|afl-3\.0|artistic-2\.0|mpl-2\.0|gfdl|a?gpl-3\.0|lgpl-3\.0|unknown|other"
)
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_REVIEWED = {
    "tag": "which prompts are dual-use, and the concepts named for them",
    "aggregate": "which concepts belong to one group",
    "benign": "whether the benign counterpart keeps the concept, is constructive, harmless and coherent",
}
_CITATION = """```text
@misc{kale2026conceptguard,
  title  = {ConceptGuard: Benchmarking Context-Sensitive Unlearning in Large Language Models},
  author = {Sahil Kale and Ian Harris},
  year   = {2026},
  eprint = {2608.20338}, archivePrefix = {arXiv}
}
```"""


def check_language_code(code: str) -> None:
    """Raises UserError for what is no code such as ``en``; empty says that there is none."""
    if code and not re.fullmatch("[a-z]{2,3}", code):
        raise UserError(f"language_code {code[:12]!r}: write an ISO 639 code of two or three small letters, such as en")


def dataset_card(stats: Mapping[str, Any], manifest: Manifest) -> str:
    """The card as Markdown, with the Hub's metadata before it. stats: of :func:`cg_tasks.pair_stats.pair_stats`."""
    sections = [
        f"# {_inline(manifest.name)}",
        _what_it_is(stats, manifest),
        _WARNING,
        "## Columns",
        _columns(manifest),
        "## Statistics",
        "\n".join(format_stats(stats).split("\n")[2:]).strip(),
        "## How it was built",
        _how_built(manifest),
        "## What people reviewed",
        _reviews(manifest),
        "## Known limits, and what needs a person",
        _limits(manifest),
        "## Evaluate with it",
        _EVALUATE,
        "## Citation",
        "The design is that of ConceptGuard; this data set's own citation: *to be filled in by its authors*.\n\n"
        + _CITATION,
    ]
    return "\n\n".join([_front_matter(stats["pairs"], manifest), *sections]) + "\n"


def _front_matter(pairs: int, manifest: Manifest) -> str:
    license = manifest.license.strip().lower()
    values: dict[str, Any] = {"language": [manifest.language_code]} if manifest.language_code else {}
    if _LICENSES.fullmatch(license):
        values["license"] = license
    else:
        values |= {"license": "other", "license_name": re.sub(r"[^a-z0-9.]+", "-", license).strip("-.") or "other"}
    values |= {
        "pretty_name": manifest.name,
        "size_categories": [next((name for most, name in _SIZES if pairs < most), "1M<n<10M")],
        "task_categories": ["text-generation"],
        "tags": ["unlearning", "dual-use"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}],
    }
    return f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True)}---"


def _what_it_is(stats: Mapping[str, Any], manifest: Manifest) -> str:
    source = manifest.source
    return (
        f"{stats['pairs']:,} pairs ({stats['instances']:,} instances) in {stats['concepts']} dual-use concepts; language: "
        f"{_inline(manifest.language)}. Each pair is one concept in a harmful and in a benign use, with a query for either. The "
        "harmful responses are a forget set, the benign ones the retain set that complements it, the queries the two query sets of "
        "ConceptGuard's evaluation.\n\n"
        f"Built by `conceptguard build` {_inline(manifest.conceptguard)} on {_inline(manifest.created)} from {source.rows:,} rows of "
        f"{_code(source.name)}. License: {_inline(manifest.license)}. `build/manifest.json` is the full record of how it was made, "
        "`build/dropped.csv` lists rows that are no pair, with the reason."
    )


_WARNING = (
    "> **Content warning.** The columns `harmful_prompt`, `harmful_query` and `harmful_response` are harmful by design: they ask for, "
    "and hold, what a model is to unlearn. They are meant for research on unlearning and its evaluation."
)

_EVALUATE = """With conceptguard installed:

```
lm_eval --tasks conceptguard_rouge --model hf --model_args pretrained=MODEL \\
    --apply_chat_template --log_samples --output_path results/ --metadata dataset=PATH_OF_THIS_FOLDER
```

`dataset=` also takes the id of this data set on the Hugging Face Hub (`OWNER/NAME`). `conceptguard data check` and
`conceptguard data stats` read it too. A judge that wrote part of this data favours its own words: take another model as judge."""


def _columns(manifest: Manifest) -> str:
    concept = "the dual-use concept"
    if manifest.merge_map:
        concept += ", after concepts were merged into groups (`build/manifest.json`, `merge_map`)"
    rows = [
        ("pair_id", "the pair's id"),
        ("concept", concept),
        ("harmful_query", f"asks for the harmful response{_written_by(manifest, 'queries')}"),
        ("harmful_response", "the source's response: forget set"),
        ("benign_query", f"asks for the benign response{_written_by(manifest, 'queries')}"),
        ("benign_response", f"the same concept in a benign use{_written_by(manifest, 'benign')}: retain set"),
        ("harmful_prompt", "the source's prompt"),
    ]
    return _table(["column", "holds"], ([f"`{name}`", text] for name, text in rows))


def _written_by(manifest: Manifest, stage: str) -> str:
    model = next((s.model for s in manifest.stages if s.stage == stage), None)
    return f" (written by {_code(model)})" if model else ""


def _how_built(manifest: Manifest) -> str:
    stages = _table(
        ["stage", "rows in", "ok", "failed", "dropped", "not run", "calls", "USD"],
        (
            [s.stage, s.rows.in_, s.rows.ok, s.rows.failed, s.rows.dropped, s.rows.not_run, s.calls, _usd(s)]
            for s in manifest.stages
        ),
        numbers_from=1,
    )
    asked = [s for s in manifest.stages if s.model or s.prompt]
    models = _table(
        ["stage", "prompt", "version", "SHA-256", "model asked", "models as returned (replies)"],
        (
            [
                s.stage,
                s.prompt.name if s.prompt else "none",
                s.prompt.version if s.prompt else "",
                f"`{s.prompt.sha256[:12]}`" if s.prompt else "",
                _code(s.model) if s.model else "none",
                ", ".join(f"{_code(name)} ({n})" for name, n in s.models_returned.items()) or "not said",
            ]
            for s in asked
        ),
    )
    parts = [stages]
    if asked:
        parts.append(models)
    for s in asked:
        if s.judges_returned:
            judges = ", ".join(f"{_code(name)} ({n} replies)" for name, n in s.judges_returned.items())
            rubric = f", rubric `{s.judge['rubric']}` version {s.judge['version']}" if s.judge else ""
            parts.append(f"The harm judge that read what `{s.stage}` wrote: {judges}{rubric}.")
    if merge := manifest.merge_map:
        by = "reviewed by people" if merge.reviewed else "not reviewed by people"
        parts.append(
            f"Concepts were merged by a map that was {by}: {merge.groups_kept} groups kept, {merge.groups_dropped} dropped. "
            f"Rule: {_inline(merge.rule)}."
        )
    if limits := [
        line for name in ("tag", "aggregate", "benign", "queries") if (line := _settings_line(manifest, name))
    ]:
        parts.append("Settings of the stages:\n\n" + "\n".join(limits))
    return "\n\n".join(parts)


def _usd(stage: StageSummary) -> str:
    return f"{stage.usd:.2f}" if stage.usd is not None else ("price not given" if stage.calls else "")


def _settings_line(manifest: Manifest, name: str) -> str:
    values = manifest.settings.get(name)
    if not isinstance(values, Mapping) or not values:
        return ""
    return f"* `{name}`: " + ", ".join(f"{key} {_inline(_value(value))}" for key, value in values.items())


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _reviews(manifest: Manifest) -> str:
    found: dict[str, list[str]] = {}
    for review in manifest.reviews:
        found.setdefault(review.kind, []).append(_review(review))
    without = dict.fromkeys(_REVIEWED, "not reviewed by people")
    if manifest.merge_map and manifest.merge_map.reviewed:
        without["aggregate"] = "no annotators' marks; the merge map as a whole is marked as reviewed"
    lines = [
        f"* **{kind}** ({what}): {'. A further round: '.join(found.get(kind) or [without[kind]])}."
        for kind, what in _REVIEWED.items()
    ]
    return "\n".join([*lines, "* **queries** (whether each asks for its response): not reviewed by people."])


def _review(review: ReviewSummary) -> str:
    share = f" ({review.drawn / review.drawn_of:.1%})" if review.drawn_of else ""
    text = f"{review.drawn:,} of {review.drawn_of:,}{share} by {review.annotators} annotator{'s' * (review.annotators != 1)}"
    if review.annotators > 1:
        text += f"; Cohen's kappa {_kappa(review)}"
        if review.raw is not None:
            text += f", the same mark on {review.raw:.1%}"
    if review.labels:
        text += "; marks: " + ", ".join(f"{_inline(label)} {n}" for label, n in review.labels.items())
    return text + ("; **the rows have changed since this review**" if review.stale else "")


def _kappa(review: ReviewSummary) -> str:
    if review.kappa is None:
        return "undefined"
    if review.lo is None or review.hi is None:
        return f"{review.kappa:.2f} (no interval)"
    return f"{review.kappa:.2f} (95 % interval {review.lo:.2f} to {review.hi:.2f})"


def _limits(manifest: Manifest) -> str:
    section = manifest.settings.get("benign")
    judged = section.get("judge") if isinstance(section, Mapping) else None
    if judged is True:
        most = section.get("highest_harm") if isinstance(section, Mapping) else None
        level = f"at harm level {_inline(_value(most))} of 4 or lower" if most is not None else "harmless"
        harmless = f"a model had to find every benign response {level} (`benign.judge`), and that is a model's opinion"
    elif judged is False:
        harmless = "no judge read the benign responses (`benign.judge`)"
    else:
        harmless = "nothing is recorded about a judge of the benign responses"
    points = [
        f"**Harm that remains in benign responses**: {harmless}. A person has to read them before they are shown to anybody.",
        "**Facts**: no stage checks whether a response, harmful or benign, is true.",
        "**One concept, two uses**: no automatic check tells whether both halves of a pair use the same concept; only people can.",
        "**Queries**: checks compare words. Whether a query asks for what its response says is for a person to see.",
        "**Other scripts**: ROUGE reads the letters a-z and digits only; overlap in other writing is not seen.",
        "**Near-duplicates**: texts that are the same up to case and white space were dropped; paraphrases were not looked for.",
        "**The source**: its texts were taken over as they are; personal data and rights in them were not checked.",
    ]
    if unread := [s.stage for s in manifest.stages if s.rows.not_run]:
        rows = sum(s.rows.not_run for s in manifest.stages)
        points.append(f"**Not finished**: {rows:,} rows were never asked for (stages: {', '.join(unread)}).")
    if failed := sum(s.rows.failed for s in manifest.stages):
        points.append(
            f"**A selection**: {failed:,} rows are missing because no reply passed the checks; what is left is not a random sample."
        )
    return "\n".join(f"* {point}" for point in points)


# Markdown ----------------------------------------------------------------------------


def _inline(text: str) -> str:
    """On one line, and no HTML, table or list of its own."""
    return re.sub(r"([\\|<>*_`\[\]])", r"\\\1", " ".join(str(text).split()))


def _code(text: str) -> str:
    return "`" + re.sub(r"[`|]", "'", " ".join(text.split())) + "`"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]], numbers_from: int | None = None) -> str:
    rule = ["---:" if numbers_from is not None and i >= numbers_from else "---" for i in range(len(header))]
    lines = [list(header), rule, *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

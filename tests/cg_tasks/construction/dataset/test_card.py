"""The dataset card says what the manifest says, in a form that the Hub reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from assembling import REVIEW, SHA, assembled, manifest_values, stage

from cg_tasks.construction.dataset.card import check_language_code
from cg_tasks.errors import UserError


def card(tmp_path: Path, manifest: dict[str, Any] | None = None, **more: Any) -> str:
    assembled(tmp_path / "set", manifest=manifest, **more)
    return (tmp_path / "set" / "README.md").read_text(encoding="utf-8")


def line_of(text: str, start: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return line


def test_the_hubs_metadata(tmp_path: Path):
    from huggingface_hub import DatasetCard
    from huggingface_hub.repocard import metadata_load

    card(tmp_path, name='sigils: "a" set')
    file = tmp_path / "set" / "README.md"
    metadata = metadata_load(file)
    assert metadata == {
        "language": ["en"],
        "license": "cc-by-4.0",
        "pretty_name": 'sigils: "a" set',
        "size_categories": ["n<1K"],
        "task_categories": ["text-generation"],
        "tags": ["unlearning", "dual-use"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}],
    }
    loaded = DatasetCard.load(file)
    assert loaded.data.to_dict() == metadata
    assert loaded.text.strip().startswith('# sigils: "a" set\n')


@pytest.mark.parametrize(
    ("license", "found"),
    [
        ("CC-BY-4.0", {"license": "cc-by-4.0"}),
        ("other", {"license": "other"}),
        ("Our House Terms, v2", {"license": "other", "license_name": "our-house-terms-v2"}),
        ("cc-by-9.0", {"license": "other", "license_name": "cc-by-9.0"}),
    ],
)
def test_a_license_the_hub_does_not_know_goes_under_other(tmp_path: Path, license: str, found: dict[str, str]):
    from huggingface_hub.repocard import metadata_load

    card(tmp_path, license=license, language_code="")
    metadata = metadata_load(tmp_path / "set" / "README.md")
    assert {name: value for name, value in metadata.items() if name.startswith("license")} == found
    assert "language" not in metadata


def test_language_codes():
    for code in ("", "en", "hin"):
        check_language_code(code)
    for code in ("EN", "english", "zh-CN", "e"):
        with pytest.raises(UserError, match="ISO 639"):
            check_language_code(code)


def test_stages_prompts_and_models(tmp_path: Path):
    text = card(tmp_path)
    assert line_of(text, "| tag | 40") == "| tag | 40 | 20 | 2 | 18 | 0 | 21 | 1.50 |"
    assert line_of(text, "| aggregate | 20") == "| aggregate | 20 | 14 | 0 | 0 | 0 | 0 |  |"
    assert line_of(text, "| assemble |") == "| assemble | 12 | 12 | 0 | 0 | 0 | 0 |  |"
    wanted = f"| queries | query | 3 | `{SHA[:12]}` | `writer-1` | `writer-1-2026-01-31` (12) |"
    assert line_of(text, "| queries | query") == wanted
    assert "| aggregate | none" not in text
    assert "6 groups kept, 2 dropped. Rule: more than 90 % of the samples marked by both." in text
    assert "* `benign`: judge true, min_words 180" in text
    assert (
        "| instances | 24 |" in text
        and "| `benign_response` | the same concept in a benign use (written by `writer-1`)" in text
    )
    assert "lm_eval --tasks conceptguard_rouge" in text and "--metadata dataset=" in text
    assert "on 2026-02-03 from 40 rows of `prompts.jsonl`" in text and "kale2026conceptguard" in text


def test_reviews_in_numbers_or_plain_words(tmp_path: Path):
    text = card(tmp_path)
    assert line_of(text, "* **benign** (").endswith(
        ": 375 of 2,583 (14.5%) by 2 annotators; Cohen's kappa 0.88 (95 % interval 0.80 to 0.94), the same mark on 98.0%; "
        "marks: accept 370, reject 5."
    )
    assert line_of(text, "* **aggregate** (").endswith(
        ": no annotators' marks; the merge map as a whole is marked as reviewed."
    )
    for kind in ("tag", "queries"):
        assert line_of(text, f"* **{kind}** (").endswith(": not reviewed by people.")


def test_reviews_without_a_kappa(tmp_path: Path):
    undefined = {**REVIEW, "kind": "tag", "kappa": float("nan"), "stale": True}
    alone = {**REVIEW, "kind": "aggregate", "annotators": 1, "kappa": None}
    few = {**REVIEW, "lo": None, "hi": None}
    text = card(tmp_path, manifest_values(reviews=[undefined, alone, few]))
    assert "kappa undefined, the same mark" in line_of(text, "* **tag** (")
    assert line_of(text, "* **tag** (").endswith("**the rows have changed since this review**.")
    assert "by 1 annotator; marks" in line_of(text, "* **aggregate** (")
    assert "kappa 0.88 (no interval)" in line_of(text, "* **benign** (")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"benign": {"judge": True}}, "a model had to find every benign response harmless"),
        ({"benign": {"judge": True, "highest_harm": 1}}, "every benign response at harm level 1 of 4 or lower"),
        ({"benign": {"judge": False}}, "no judge read the benign responses"),
        ({}, "nothing is recorded about a judge"),
    ],
)
def test_limits_say_no_more_than_is_known(tmp_path: Path, settings: dict[str, Any], says: str):
    text = card(tmp_path, manifest_values(settings=settings, merge_map=None, stages=[stage("queries", None, 12, 12)]))
    assert says in line_of(text, "* **Harm that remains")
    assert line_of(text, "* **aggregate** (").endswith(": not reviewed by people.")
    assert "merged" not in text and "written by" not in text and "**Not finished**" not in text and "Rule:" not in text
    assert "**A selection**" not in text


def test_what_is_missing_is_said(tmp_path: Path):
    rows = {"in": 20, "ok": 12, "failed": 3, "not_run": 5}
    text = card(tmp_path, manifest_values(stages=[stage("queries", "query", 20, 12, rows=rows, usd=None)]))
    assert "**Not finished**: 5 rows were never asked for (stages: queries)" in text
    assert "**A selection**: 3 rows" in text and "| 13 | price not given |" in text


def test_a_name_breaks_nothing(tmp_path: Path):
    stages = [stage("queries", "query", 12, 12, models_returned={"a`|\n# b": 12})]
    text = card(tmp_path, manifest_values(stages=stages, language="a\n# <script>"), name="x | y\n# z")
    assert "\n# x \\| y # z\n" in text and "language: a # \\<script\\>" in text
    assert "| `a'' # b` (12) |" in text

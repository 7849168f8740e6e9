"""The canary audit's figures, drawn."""

from __future__ import annotations

import math

from canary_groups import checkpoint, decoded, forced, group

from cg_tasks.report.canary import figures, runs
from cg_tasks.report.canary.matrix import verdict_figure, words
from cg_tasks.report.canary.verdicts import Rules, verdict


def test_names_a_model_made_up_are_drawn_as_they_are() -> None:
    odd = checkpoint(base="$\\frac{x$ <b>", variant="α=$1_2$")
    g = group(decoded(odd, [(0, 1)] * 3, {"bio": [1, 1, 0]}), forced(odd, {"bio": (0.9, 0.1, 0.2)}, n=3))
    facts = runs.facts(g, odd)
    assert facts is not None
    drawn = [
        figures.arms_figure(g, odd.base, runs.lines(g)),
        figures.forced_figure(g, odd.base, g.checkpoints, Rules()),
        verdict_figure(g, [(facts, verdict(facts))], "3"),
    ]
    assert all(f.png.startswith(b"\x89PNG") and b"<svg" in f.svg for f in drawn)
    assert all(set(f.id) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for f in drawn)


def test_figures_are_the_same_bytes_for_the_same_data() -> None:
    g = group(decoded(checkpoint(), [(0, 1)] * 3), decoded(checkpoint(0), [(1, 1)] * 3))
    once, again = (figures.gap_figure(g, "Qwen-7B", runs.lines(g)) for _ in range(2))
    assert once == again and "K=0 0.00, K=1600 +1.00" in once.alt


def test_a_missing_baseline_or_metric_is_left_out_of_a_figure() -> None:
    g = group(forced(checkpoint(), {"bio": (0.9, 0.1, math.nan)}, n=3))
    assert "0.90" in figures.forced_figure(g, "Qwen-7B", g.checkpoints, Rules()).alt


def test_bases_of_like_names_get_files_of_their_own() -> None:
    odd = [checkpoint(k, base=base, base_id=base) for base in ("a/b", "a.b", "Ü") for k in (0, 9)]
    g = group(*(decoded(c, [(0, 1)] * 3) for c in odd))
    drawn = [figures.gap_figure(g, base, [x for x in runs.lines(g) if x.base == base]) for base in ("a.b", "a/b", "Ü")]
    assert [f.id for f in drawn] == ["canary-gap-a-b-1", "canary-gap-a-b-2", "canary-gap-3"]


def test_the_matrix_tells_answers_for_and_against_by_word_and_by_hatching() -> None:
    flipped = decoded(checkpoint(), [(1, 0, 0)] * 55 + [(1, 1, 1)] * 5, {"bio": [1] * 60})
    facts = runs.facts(group(flipped), flipped.checkpoint)
    assert facts is not None
    assert words(facts, verdict(facts)) == [
        ("yes (−)", "open"),
        ("yes", "good"),
        ("unknown", "open"),
        ("no", "bad"),
        ("yes", "bad"),
        ("not identifying", "bad"),
    ]

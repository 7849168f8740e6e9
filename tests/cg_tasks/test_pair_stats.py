"""``data check | stats | subset``: as functions and from the command line."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import pytest

from cg_tasks.cli_data import add_data_parser
from cg_tasks.errors import UserError
from cg_tasks.pair_stats import check_pairs, forget_sizes, format_stats, pair_stats, subset_forget
from cg_tasks.pairs import Pair, PairTable, load_pairs

SECRET = "zzsecretzz"


def pair(number: int, concept: str = "sigils", **fields: str) -> Pair:
    texts = {
        "harmful_query": f"{SECRET} hq {number}",
        "harmful_response": f"one two three {SECRET}{number}",
        "benign_query": f"bq {number}",
        "benign_response": f"four five six seven {number}",
    }
    return Pair(pair_id=f"p{number}", concept=concept, **{**texts, **fields})


def table(*pairs: Pair) -> PairTable:
    return PairTable("mine", pairs, "0" * 64)


def many(counts: dict[str, int]) -> tuple[Pair, ...]:
    concepts = [concept for concept, count in counts.items() for _ in range(count)]
    return tuple(pair(number, concept) for number, concept in enumerate(concepts))


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    add_data_parser(parser.add_subparsers())
    args = parser.parse_args(["data", *argv])
    return args.run(args)


def jsonl(path: Path, *rows: Pair, **change: object) -> str:
    path.write_text("".join(json.dumps({**vars(row), **change}) + "\n" for row in rows), encoding="utf-8")
    return str(path)


# check ---------------------------------------------------------------------------------------------------------------


def found(*pairs: Pair, ceiling: float = 0.5) -> list[tuple[str, str | None, str | None]]:
    problems = check_pairs(table(*pairs), overlap_ceiling=ceiling)
    assert SECRET not in "".join(map(str, problems))
    return [(p.severity, p.pair_id, p.field) for p in problems]


def test_clean_pairs_have_no_problems() -> None:
    assert found(pair(1), pair(2)) == []


def test_the_same_text_twice_even_in_another_case_or_intent() -> None:
    again = pair(2, benign_response="  FOUR five\nsix seven 1")
    assert ("error", "p2", "benign_response") in found(pair(1), again)
    assert found(pair(1), pair(2, harmful_query="bq 1")) == [("error", "p2", "harmful_query")]
    own = pair(1, benign_response=pair(1).harmful_response)
    assert found(own, pair(2)) == [("error", "p1", "benign_response")]
    assert "benign_response is the same as its harmful_response" in str(check_pairs(table(own))[0])


def test_a_query_that_repeats_its_response() -> None:
    # Three of the query's four words stand in order in the response's six: P = 3/4, R = 3/6, F1 = 0.6.
    overlapping = pair(1, benign_query="red blue green black", benign_response="red x blue y green z")
    assert found(overlapping, pair(2)) == [("error", "p1", "benign_query")]
    assert "ROUGE-L 0.60 is above 0.5" in str(check_pairs(table(overlapping, pair(2)))[0])
    assert found(overlapping, pair(2), ceiling=0.6) == []
    with pytest.raises(UserError, match="overlap ceiling is 1.5"):
        check_pairs(table(), overlap_ceiling=1.5)


def test_a_response_that_rouge_sees_no_word_in() -> None:
    assert found(pair(1), pair(2, benign_response="\u092f\u0939 \u090f\u0915")) == [("error", "p2", "benign_response")]


def test_warnings() -> None:
    assert found(pair(1, benign_query="bq 1 "), pair(2), pair(3, "wards")) == [
        ("warning", "p1", "benign_query"),
        ("warning", None, "concept"),
    ]


def test_the_miniature_set_has_no_errors() -> None:
    assert [str(p) for p in check_pairs(load_pairs("miniature")) if p.severity == "error"] == []


def test_check_lists_all_problems_of_a_broken_file_without_its_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.jsonl"
    jsonl(path, pair(1), pair(2, concept=""), pair(1), pair(3, benign_query=""), pair(4, benign_query="bq 1"))
    with path.open("a", encoding="utf-8") as stream:
        stream.write(f'{{"{SECRET}\n')
    assert run("check", str(path)) == 1
    out = capsys.readouterr().out
    assert SECRET not in out
    assert out.splitlines() == [
        f"error: {path}, line 6: not JSON: Unterminated string starting at (column 2)",
        f"error: {path}, line 2: the field 'concept' is empty",
        f"error: {path}, line 3: the pair_id 'p1' was already used in {path}, line 1",
        f"error: {path}, line 4: the field 'benign_query' is empty",
        "error: pair 'p4': benign_query is the same as benign_query of pair 'p1'",
        f"{path}: 2 good pairs; errors: 5, warnings: 0",
    ]


def test_check_of_a_good_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = jsonl(tmp_path / "mine.jsonl", pair(1), pair(2), pair(3, "wards"))
    assert run("check", path) == 0
    assert "errors: 0, warnings: 1" in capsys.readouterr().out
    renamed = tmp_path / "other.jsonl"
    renamed.write_text(Path(path).read_text().replace('"benign_query"', '"kind_question"'))
    assert run("check", str(renamed), "--columns", '{"benign_query": "kind_question"}') == 0
    assert run("check", path, "--overlap", "0") == 1  # the number in every benign text
    assert "ROUGE-L 0.29 is above 0" in capsys.readouterr().out
    with pytest.raises(UserError, match="cannot tell which column holds benign_query"):
        run("check", str(renamed))


# stats ---------------------------------------------------------------------------------------------------------------


def test_stats_by_hand() -> None:
    stats = pair_stats(table(pair(1), pair(2, "wards", harmful_response="a b"), pair(3), pair(4, "fog"), pair(5)))
    assert (stats["instances"], stats["pairs"], stats["concepts"]) == (10, 5, 3)
    assert stats["words"]["harmful_response"] == {"mean": 3.6, "median": 4, "min": 2, "max": 4}
    assert list(stats["distribution"].items()) == [("sigils", 3), ("fog", 1), ("wards", 1)]
    assert stats["tail"] == {1: 2, 5: 3, 10: 3, 20: 3}
    assert (stats["forget_set"], stats["retain_set"]) == (5, 5)


def test_stats_show_counts_and_no_texts(capsys: pytest.CaptureFixture[str]) -> None:
    text = format_stats(pair_stats(table(pair(1), pair(2), pair(3, "a|b"))))
    assert SECRET not in text
    assert "| instances | 6 |" in text
    assert "| a\\|b | 1 | 33.3% |" in text
    assert "Top 2 concepts: 3 pairs (100.0%). Concepts by number of pairs: ≤ 1: 1, ≤ 5: 2" in text
    assert run("stats", "miniature") == 0
    assert capsys.readouterr().out.startswith("# miniature\n")


# subset --------------------------------------------------------------------------------------------------------------


def test_forget_sizes_are_largest_remainders() -> None:
    # A quarter of 18 is 4.5, half up 5; 2.5, 1.5 and 0.5 round down to 2, 1, 0; the two left go to the larger concepts.
    assert forget_sizes({"a": 10, "b": 6, "c": 2}, 0.25) == {"a": 3, "b": 2, "c": 0}
    assert forget_sizes({"a": 100}, 0.29) == {"a": 29}
    assert forget_sizes({"a": 3, "b": 1}, 1.0) == {"a": 3, "b": 1}


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5, 0.75])
def test_subset_keeps_proportions_and_everything_else(fraction: float) -> None:
    counts = {"cyber": 302, "social": 219, "disinfo": 103, "tail": 7, "one": 1}
    pairs = many(counts)
    subset = subset_forget(pairs, fraction, seed=0)
    assert [p.pair_id for p in subset] == [p.pair_id for p in pairs]
    kept = {c: sum(p.in_forget for p in subset if p.concept == c) for c in counts}
    assert sum(kept.values()) == int(632 * fraction + 0.5)
    assert all(abs(kept[c] - n * fraction) < 1 for c, n in counts.items())


def test_subset_depends_on_the_seed_and_not_on_the_order() -> None:
    pairs = many({"a": 40, "b": 20})
    shuffled = list(pairs)
    random.Random(0).shuffle(shuffled)

    def kept(source: list[Pair] | tuple[Pair, ...], seed: int) -> set[str]:
        return {p.pair_id for p in subset_forget(source, 0.5, seed) if p.in_forget}

    assert kept(pairs, 0) == kept(shuffled, 0)
    assert kept(pairs, 0) != kept(pairs, 1)
    assert all(p.in_forget for p in subset_forget(pairs, 1.0, 0))


def test_a_subset_of_a_subset_is_one() -> None:
    half = subset_forget(many({"a": 40}), 0.5, 0)
    quarter = subset_forget(half, 0.5, 1)
    assert sum(p.in_forget for p in quarter) == 10
    assert {p.pair_id for p in quarter if p.in_forget} < {p.pair_id for p in half if p.in_forget}


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5, float("nan"), float("inf")])
def test_fractions_outside_their_range(fraction: float) -> None:
    with pytest.raises(UserError, match="above 0 and at most 1"):
        subset_forget(many({"a": 4}), fraction, 0)


def test_a_fraction_that_leaves_nothing() -> None:
    with pytest.raises(UserError, match="0.1 of 4 forget pairs leaves none"):
        subset_forget(many({"a": 4}), 0.1, 0)


def test_subset_command_writes_what_load_pairs_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "quarter.jsonl"
    source = jsonl(tmp_path / "mine.jsonl", *many({"a": 8, "b": 4}))
    assert run("subset", source, "--forget-fraction", "0.25", "--out", str(out)) == 0
    assert "forget set 3 of 12 pairs in 2 concepts, retain set 12" in capsys.readouterr().err
    pairs = load_pairs(str(out)).pairs
    assert pairs == subset_forget(load_pairs(source).pairs, 0.25, 0)
    with pytest.raises(UserError, match="exists already"):
        run("subset", source, "--forget-fraction", "0.25", "--out", str(out))
    assert run("subset", source, "--forget-fraction", "0.25", "--seed", "0") == 0
    assert capsys.readouterr().out == out.read_text(encoding="utf-8")

"""Which answers are scored together: one model's, to one data set's queries, each once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from logged_samples import both, sample, write_samples

from cg_tasks.errors import UserError
from cg_tasks.judge.answer_sets import AnswerSet, answer_sets
from cg_tasks.judge.samples import read_samples

EARLY, LATE = "2026-01-01T00-00-00.000001", "2026-01-02T00-00-00.000001"


def harm(*ids: str, **more: Any) -> list[dict[str, Any]]:
    return [sample(f"harm {i}", id=i, intent="harmful", **more) for i in ids]


def helpful(*ids: str, **more: Any) -> list[dict[str, Any]]:
    return [sample(f"help {i}", id=i, intent="benign", **more) for i in ids]


def sets_of(*paths: Path) -> list[AnswerSet]:
    return answer_sets([read_samples(path) for path in paths])


def refusal(*paths: Path) -> str:
    with pytest.raises(UserError) as caught:
        sets_of(*paths)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("rows", "task", "intents"),
    [
        (harm("a", "b"), "conceptguard_harmscore", ("harmful",)),
        (helpful("a", "b"), "conceptguard_helpscore", ("benign",)),
        (harm("a") + helpful("b"), "conceptguard_ctxtsep", ("harmful", "benign")),
    ],
)
def test_the_task_follows_from_the_intents(tmp_path: Path, rows: Any, task: str, intents: Any):
    (found,) = sets_of(write_samples(tmp_path, rows))
    assert (found.task, found.intents, found.folder) == (task, intents, tmp_path)


def test_the_answers_of_two_tasks_stand_pair_by_pair(tmp_path: Path):
    one = write_samples(tmp_path, harm("b", "a"), "conceptguard_harmqa", model="hf")
    two = write_samples(tmp_path, helpful("a", "c", "b"), "conceptguard_helpqa", EARLY, model="hf")
    (found,) = sets_of(one, two)
    keys = [("b", "harmful"), ("b", "benign"), ("a", "harmful"), ("a", "benign"), ("c", "benign")]
    assert [a.key for a in found.answers] == keys
    assert [f.path for f in found.files] == [one, two]


def test_each_folder_is_a_model_of_its_own(tmp_path: Path):
    paths = [
        write_samples(tmp_path / name, rows, "conceptguard_harmqa", model_args={"pretrained": name})
        for name, rows in (("m1", harm("a")), ("m2", [sample("another", id="a")]))
    ]
    found = sets_of(*paths)
    assert [s.folder.name for s in found] == ["m1", "m2"]
    assert [s.answers[0].response for s in found] == ["harm a", "another"]


def test_an_answer_in_two_files_counts_once(tmp_path: Path):
    one = write_samples(tmp_path, harm("a", "b"), "conceptguard_harmqa", model="hf")
    two = write_samples(tmp_path, harm("a", "b") + helpful("a", "b"), "conceptguard_ctxtsep", EARLY, model="hf")
    (found,) = sets_of(one, two)
    assert len(found.answers) == 4 and [f.path for f in found.files] == [one, two]


def test_a_file_that_adds_nothing_is_no_source(tmp_path: Path):
    one = write_samples(tmp_path, both(2), "conceptguard_ctxtsep", EARLY, model="hf")
    two = write_samples(tmp_path, both(1), "conceptguard_ctxtsep", LATE, model="hf")
    assert [f.path for f in sets_of(one, two)[0].files] == [one]


def test_what_was_rescored_is_no_source_beside_what_was_generated(tmp_path: Path):
    judged = write_samples(
        tmp_path,
        both(2, verdict=4),
        "conceptguard_ctxtsep",
        EARLY,
        config={"model": "hf", "model_args": {"pretrained": "tiny"}, "rescored": True},
    )
    made = write_samples(tmp_path, both(2), "conceptguard_ctxtsep", LATE, model="hf")
    (found,) = sets_of(judged, made)  # its date and place come first
    assert [f.path for f in found.files] == [made] and not any(a.verdict for a in found.answers)
    assert [f.path for f in sets_of(judged)[0].files] == [judged]  # alone it is one


def test_what_was_rescored_to_a_folder_of_its_own_is_no_other_model(tmp_path: Path):
    """``judge rescore runs --out runs/judged``, and again."""
    config = {"model": "hf", "model_args": {"pretrained": "tiny"}, "rescored": True}
    made = write_samples(tmp_path / "m", both(2), model="hf")
    judged = write_samples(tmp_path / "judged" / "m", both(2, verdict=1), config=config)
    other = write_samples(tmp_path / "judged" / "m2", [sample("another", verdict=1)], config=config)
    assert [s.folder for s in sets_of(judged, made, other)] == [made.parent, other.parent]
    assert [s.folder for s in sets_of(judged)] == [judged.parent]


def test_a_file_that_tells_its_origin_comes_before_one_that_does_not(tmp_path: Path, caplog: Any):
    silent = write_samples(tmp_path, harm("a"), "conceptguard_harmqa", EARLY)
    telling = write_samples(tmp_path, helpful("a"), "conceptguard_helpqa", LATE, model="hf")
    with caplog.at_level(logging.WARNING):
        (found,) = sets_of(silent, telling)
    assert found.files[0].path == telling and found.task == "conceptguard_ctxtsep"
    assert [r.getMessage().startswith(f"{silent}: its results file is not beside it") for r in caplog.records] == [True]


# ------------------------------------------------------------------ what does not belong together
@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"model": "vllm"}, "model ('vllm', not 'hf')"),
        ({"model_args": {"pretrained": "other"}}, "model_args"),
        ({"data": {"dataset": "other.jsonl", "sha256": "d2e3"}}, "data set ("),
        ({"data": {"dataset": "miniature", "sha256": "ffff"}}, "data set content ('ffff', not 'd2e3')"),
        ({"settings": {"seed": 1}}, "setting seed (1, not 0)"),
        ({"generation": {"max_gen_toks": 9}}, "generation_kwargs"),
        ({"provenance": {"model": {"chat_template_applied": True}}}, "tokenizer and chat template"),
        ({"provenance": {"adapter": {"adapter": "a"}}}, "adapter"),
        ({"system_instruction": "Be brief."}, "system_instruction ('Be brief.', not None)"),
    ],
)
def test_files_of_other_origin_are_refused_with_the_field(tmp_path: Path, changed: Any, field: str):
    one = write_samples(tmp_path, harm("a"), "conceptguard_harmqa", EARLY, model="hf")
    two = write_samples(tmp_path, helpful("a"), "conceptguard_helpqa", LATE, **changed)
    message = refusal(one, two)
    assert message.startswith(f"{two}: differs from {one.name} in {field}") and "one by one" in message


def test_every_two_files_are_compared(tmp_path: Path):
    """Also where the first tells nothing."""
    silent = write_samples(tmp_path, harm("a"), "conceptguard_harmqa", "2026-01-01T00-00-00")
    one = write_samples(tmp_path, harm("b"), "conceptguard_harmqa", EARLY, model="hf")
    two = write_samples(tmp_path, helpful("a"), "conceptguard_helpqa", LATE, model="vllm")
    assert "differs from" in refusal(silent, one, two)


def test_which_judge_was_meant_is_no_difference(tmp_path: Path):
    one = write_samples(tmp_path, harm("a"), "conceptguard_harmqa", EARLY, settings={"seed": 0, "judge": "later"})
    two = write_samples(tmp_path, helpful("a"), "conceptguard_helpqa", LATE, settings={"seed": 0, "judge": None})
    assert len(sets_of(one, two)[0].answers) == 2


@pytest.mark.parametrize("order", [1, -1])
def test_a_setting_that_an_older_version_did_not_have_is_no_difference(tmp_path: Path, order: int):
    one = write_samples(tmp_path, harm("a"), "conceptguard_harmqa", EARLY, settings={"seed": 0})
    two = write_samples(tmp_path, helpful("a"), "conceptguard_helpqa", LATE, settings={"seed": 0, "chat": "flag"})
    assert len(sets_of(*(one, two)[::order])[0].answers) == 2


@pytest.mark.parametrize("row", [sample("another", id="a"), sample("harm a", id="a", query="Another query?")])
def test_two_answers_to_one_document_are_refused(tmp_path: Path, row: Any):
    one = write_samples(tmp_path, harm("b", "a"), "conceptguard_harmqa", EARLY)
    two = write_samples(tmp_path, [row], "conceptguard_harmscore", LATE)
    message = refusal(one, two)
    assert f"{two}, line 1: another answer or query for document 'a' (harmful) than at {one}, line 2" in message
    assert "name only the files that belong together" in message

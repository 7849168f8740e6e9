"""Which results may stand side by side, and what is said where they may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_results import DATE, VERSIONS, canary_run, conceptguard_run, record, sha256_of

from cg_tasks.report.results.comparing import coverage, groups
from cg_tasks.report.results.fingerprints import fingerprint
from cg_tasks.report.results.reading import read_results
from cg_tasks.report.runs import Group

LATER = "2026-01-03T03-04-05.678901"
_FOUR_AND_TWO = {"conceptguard_ctxtsep": 4, "conceptguard_harmmem": 2, "conceptguard_helpret": 2}
LATEST = "2026-01-04T03-04-05.678901"


def grouped(folder: Path, *joined: str) -> tuple[Group, ...]:
    return groups(read_results([folder]).runs, joined)


def pair(folder: Path, **more: Any) -> None:
    """The base as it is, and an unlearned checkpoint with changes."""
    conceptguard_run(folder / "base", harm=[4, 4], help=[4, 4])
    conceptguard_run(
        folder / "npo", **{"harm": [0, 1], "help": [3, 4], "checkpoint": record("npo"), "date": LATER} | more
    )


def provenance(path: Path, *keys: str, value: Any, task: str | None = None) -> None:
    """Set one place in the provenance of a results file's tasks."""
    content = json.loads(path.read_text())
    for name, config in content["configs"].items():
        place = config["metadata"]["provenance"]
        for key in keys[:-1]:
            place = place[key]
        if task in (None, name):
            place[keys[-1]] = value
    path.write_text(json.dumps(content))


# ------------------------------------------------------------------ the fingerprint
def test_the_fields_of_a_judged_task(tmp_path: Path):
    path = conceptguard_run(tmp_path, harm=[1], help=[1])
    found = fingerprint(json.loads(path.read_text()), "conceptguard_ctxtsep")
    assert found["data"] == "miniature" and found["data sha256"] == sha256_of("miniature") and found["documents"] == 2
    assert found["generation max_gen_toks"] == 512 and found["setting chat"] == "flag" and found["setting seed"] == 0
    assert found["version torch"] == VERSIONS["torch"] and found["task version"] == 1.0
    assert found["dtype"] == "torch.float32" and found["backend"] == "hf" and found["system instruction"] is None
    assert found["judge"] == "judge-1" and found["judge rubric harm"] == sha256_of("harm")
    assert found["judge model returned"] == ["judge-1"] and found["chat template applied"] is True
    left_out = ("batch", "device", "pretrained", "peft", "tokenizer", "setting judge", "calls")
    assert not [name for name in found if any(word in name for word in left_out)]


def test_an_empty_results_file_has_an_empty_fingerprint():
    assert fingerprint({}, "t") == {} and fingerprint({"configs": 3, "config": [], "n-samples": None}, "t") == {}


def test_model_arguments_that_change_what_is_computed_are_fields():
    config = {"model_args": "pretrained=a,load_in_4bit=True,device_map=auto"}
    assert fingerprint({"config": config}, "t") == {"model load_in_4bit": "True"}


# ------------------------------------------------------------------ one group, or several
def test_equal_runs_are_one_group(tmp_path: Path):
    pair(tmp_path)
    (group,) = grouped(tmp_path)
    assert (group.id, group.title, group.differs, group.problems) == ("conceptguard", "miniature", {}, ())
    assert [c.label for c in group.checkpoints] == ["base", "NPO, K=4"] and len(group.runs) == 6


def test_families_are_never_in_one_group(tmp_path: Path):
    pair(tmp_path)
    canary_run(tmp_path / "canary", auto=[(1, 1)])
    assert [g.id for g in grouped(tmp_path)] == ["conceptguard", "canary"]


@pytest.mark.parametrize(
    "change,field,values",
    [
        ({"dataset": "other"}, "data", ("miniature", "other")),
        ({"generation": {"max_gen_toks": 64}}, "generation max_gen_toks", (512, 64)),
        ({"generation": {"repetition_penalty": 1.1}}, "generation repetition_penalty", ("not set", 1.1)),
        ({"settings": {"prefix_tokens": 16}}, "setting prefix_tokens", (32, 16)),
        ({"harm": [1, 1, 1], "help": [1, 1, 1]}, "documents", (_FOUR_AND_TWO, None)),
        ({"judge": {"model": "judge-2"}}, "judge", ("judge-1", "judge-2")),
        ({"config": {"model_dtype": "torch.bfloat16"}}, "dtype", ("torch.float32", "torch.bfloat16")),
        ({"config": {"model": "vllm"}}, "backend", ("hf", "vllm")),
        ({"config": {"model_args": {"pretrained": "models/tiny", "load_in_4bit": True}}}, "model load_in_4bit", ("not set", True)),
        ({"top": {"system_instruction": "Be brief."}}, "system instruction", (None, "Be brief.")),
    ],
)  # fmt: skip
def test_what_differs_splits_and_is_told(tmp_path: Path, change: dict[str, Any], field: str, values: tuple[Any, Any]):
    pair(tmp_path, **change)
    first, second = grouped(tmp_path)
    assert first.differs[field] == values[0]
    assert values[1] is None or second.differs[field] == values[1]
    assert set(first.differs) == set(second.differs) == {field}
    assert first.id == "conceptguard-1" and first.title != second.title and first.title.startswith("miniature")


def test_other_versions_split_unless_the_user_joins_them_and_then_it_is_told(tmp_path: Path):
    pair(tmp_path)
    path = tmp_path / "npo" / f"results_{LATER}.json"
    provenance(path, "versions", "torch", value="9.9")
    first, second = grouped(tmp_path)
    assert first.differs == {"version torch": VERSIONS["torch"]} and second.title == "miniature (version torch 9.9)"
    (group,) = grouped(tmp_path, "version *")
    assert len(group.checkpoints) == 2 and group.differs == {}
    (problem,) = group.problems
    assert "different 'version torch' were joined" in problem.message
    assert VERSIONS["torch"] in problem.message and "9.9" in problem.message and str(path) in problem.message
    assert len(grouped(tmp_path, "version numpy")) == 2


def test_a_field_that_one_side_does_not_record_is_no_difference(tmp_path: Path):
    pair(tmp_path)
    path = tmp_path / "npo" / f"results_{LATER}.json"
    provenance(path, "versions", value={"vllm": "1.0"})
    assert len(grouped(tmp_path)) == 1


def test_other_documents_of_the_same_number_are_told_apart(tmp_path: Path):
    pair(tmp_path, ids=["p000", "p007"])
    first, second = grouped(tmp_path)
    assert set(first.differs) == {"ids sha256 harmful", "ids sha256 benign"} == set(second.differs)


def test_another_template_splits_and_an_arm_more_does_not(tmp_path: Path):
    canary_run(tmp_path / "base", auto=[(1, 1)], arms={"bio": [1]})
    path = canary_run(
        tmp_path / "npo", auto=[(1, 1)], arms={"bio": [1], "meta": [1]}, checkpoint=record("npo"), date=LATER
    )
    (group,) = grouped(tmp_path)
    assert [m.what for m in coverage(group)] == ["arm meta of canary_prefill of tiny, base"]
    provenance(path, "templates_sha256", "prefill/bio", value="00")
    assert [dict(g.differs) for g in grouped(tmp_path)] == [
        {"template prefill/bio": sha256_of("bio")},
        {"template prefill/bio": "00"},
    ]


def test_data_and_versions_are_compared_between_tasks_too(tmp_path: Path):
    conceptguard_run(tmp_path / "a", rouge={"harmqa": [5]}, judged=False, tasks=["harmqa"])
    conceptguard_run(tmp_path / "b", rouge={"helpqa": [5]}, judged=False, tasks=["helpqa"], dataset="other", date=LATER)
    assert len(grouped(tmp_path)) == 2


def test_tasks_that_fill_one_column_are_compared_like_one_task(tmp_path: Path):
    """HarmQA comes from harmqa or from ctxtsep: a shorter generation in one of them must not stand in the other's column."""
    conceptguard_run(tmp_path / "base", harm=[4, 4], help=[4, 4], tasks=["ctxtsep"])
    more: dict[str, Any] = {"judged": False, "tasks": ["harmqa"], "checkpoint": record("npo"), "date": LATER}
    conceptguard_run(tmp_path / "npo", rouge={"harmqa": [5, 5]}, **more)
    assert len(grouped(tmp_path)) == 1
    conceptguard_run(tmp_path / "npo", rouge={"harmqa": [5, 5]}, generation={"max_gen_toks": 8}, **more)
    assert [set(g.differs) for g in grouped(tmp_path)] == [{"generation max_gen_toks"}] * 2
    conceptguard_run(tmp_path / "npo", rouge={"harmqa": [5]}, **more)
    assert [set(g.differs) for g in grouped(tmp_path)] == [{"ids sha256 harmful"}] * 2


def test_runs_with_both_tasks_are_compared_task_by_task(tmp_path: Path):
    """With --limit, ctxtsep sees half as many pairs as harmqa; where every checkpoint has both, no column mixes them."""
    both = ["harmqa", "ctxtsep"]
    conceptguard_run(tmp_path / "base", harm=[4, 4], help=[4, 4], tasks=both)
    path = conceptguard_run(
        tmp_path / "npo", harm=[4, 4], help=[4, 4], tasks=both, checkpoint=record("npo"), date=LATER
    )
    for file in (path, tmp_path / "base" / f"results_{DATE}.json"):
        content = json.loads(file.read_text())
        content["configs"]["conceptguard_harmqa"]["generation_kwargs"]["max_gen_toks"] = 8
        file.write_text(json.dumps(content))
    assert len(grouped(tmp_path)) == 1


def test_the_group_with_most_checkpoints_comes_first(tmp_path: Path):
    conceptguard_run(tmp_path / "small", harm=[1], help=[1], dataset="small")
    for i, made in enumerate([None, record(None), record("npo")]):
        conceptguard_run(tmp_path / str(i), harm=[1], help=[1], checkpoint=made, date=LATER)
    assert [g.title for g in grouped(tmp_path)] == ["miniature", "small"]


# ------------------------------------------------------------------ the same again
def test_of_two_equal_evaluations_the_newer_counts_and_both_files_are_named(tmp_path: Path):
    old = conceptguard_run(tmp_path / "a", harm=[4, 4], help=[4, 4], checkpoint=record("npo"))
    new = conceptguard_run(tmp_path / "b", harm=[0, 0], help=[4, 4], checkpoint=record("npo"), date=LATER)
    (group,) = grouped(tmp_path)
    run = group.run(group.checkpoints[0], "conceptguard_ctxtsep")
    assert run is not None and run.value("harm_score") == 0.0 and len(group.runs) == 3
    (problem,) = group.problems
    assert problem.where == str(new) and problem.message == (
        "conceptguard_ctxtsep, conceptguard_harmmem, conceptguard_helpret of 'tiny, NPO, K=4, seed 0' were evaluated twice: "
        f"this newer result is shown, not that of {old}"
    )


def test_a_rescored_run_stands_beside_the_originals_other_tasks(tmp_path: Path):
    conceptguard_run(tmp_path / "a", harm=[4, 2], help=[4, 4], judged="later", n_all=60)
    path = conceptguard_run(
        tmp_path / "b", harm=[4, 2], help=[4, 4], tasks=["ctxtsep"], date=LATER, config={"rescored": True}
    )
    provenance(path, "rescored_from", value=[{"file": "samples.jsonl", "versions": VERSIONS}])
    provenance(path, "versions", value={**VERSIONS, "torch": "9.9"})
    (group,) = grouped(tmp_path)
    (base,) = group.checkpoints
    assert group.tasks == ("conceptguard_ctxtsep", "conceptguard_harmmem", "conceptguard_helpret")
    run = group.run(base, "conceptguard_ctxtsep")
    assert run is not None and run.value("harm_score") == 0.75
    assert [p.message.split(":")[0] for p in group.problems] == ["conceptguard_ctxtsep of 'tiny' was judged again"]
    assert coverage(group) == ()


def test_two_judges_are_two_groups(tmp_path: Path):
    conceptguard_run(tmp_path / "a", harm=[4, 2], help=[4, 4], judged="later")
    for i, (name, date) in enumerate([("judge-1", LATER), ("judge-2", LATEST)]):
        conceptguard_run(
            tmp_path / str(i), harm=[4, i], help=[4, 4], tasks=["ctxtsep"], date=date, judge={"model": name}
        )
    first, second = grouped(tmp_path)
    assert (first.differs["judge"], second.differs["judge"]) == ("judge-1", "judge-2")
    assert len(first.runs) == 3 and len(second.runs) == 1


# ------------------------------------------------------------------ blocks, and what is missing
def test_one_base_with_two_chat_templates_makes_two_blocks_and_a_note(tmp_path: Path):
    pair(tmp_path)
    provenance(tmp_path / "npo" / f"results_{LATER}.json", "model", "chat_template_sha256", value="00")
    (group,) = grouped(tmp_path)
    assert len(group.bases) == 2
    (problem,) = group.problems
    assert "'tiny' was evaluated with different tokenizers or chat templates" in problem.message


def test_cells_verdicts_and_samples_that_are_missing_come_with_a_way_out(tmp_path: Path):
    conceptguard_run(tmp_path / "base", harm=[4, 4], help=[4, None])
    conceptguard_run(
        tmp_path / "npo", harm=[4], help=[4], tasks=["harmmem"], checkpoint=record("npo"), date=LATER, samples=False
    )
    (group,) = [g for g in grouped(tmp_path, "documents", "ids *")]
    found = {m.what: m.why for m in coverage(group)}
    assert found["conceptguard_ctxtsep of tiny, NPO, K=4, seed 0"].endswith(
        "run lm_eval --tasks conceptguard_ctxtsep on them with the same settings"
    )
    assert "conceptguard_helpret of tiny, NPO, K=4, seed 0" in found
    assert (
        "1 not_judged: conceptguard judge rescore"
        in found["verdicts on 1 of 4 answers of tiny, base (conceptguard_ctxtsep)"]
    )
    assert "single documents of conceptguard_harmmem of tiny, NPO, K=4, seed 0" in found
    assert len(found) == 4


def test_a_task_whose_numbers_another_gives_is_not_missing(tmp_path: Path):
    conceptguard_run(tmp_path / "base", harm=[4, 4], help=[4, 4], tasks=["ctxtsep"])
    more: dict[str, Any] = {"judged": False, "checkpoint": record("npo"), "date": LATER}
    conceptguard_run(tmp_path / "npo", rouge={"harmqa": [5, 5]}, tasks=["harmqa"], **more)
    (group,) = grouped(tmp_path)
    assert [m.what for m in coverage(group)] == ["conceptguard_ctxtsep of tiny, NPO, K=4, seed 0"]


def test_other_tasks_with_and_without_a_chat_template_are_apart() -> None:
    from cg_tasks.report.results.fingerprints import fingerprint

    shared = {"results": {"gsm8k": {}}, "configs": {"gsm8k": {}}, "config": {"model": "hf"}}
    found = [fingerprint({**shared, "chat_template": template}, "gsm8k") for template in (None, "{{ messages }}")]
    assert [f["chat template applied"] for f in found] == [False, True]

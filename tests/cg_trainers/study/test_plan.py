"""A study's jobs, by value."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cg_tasks.errors import UserError
from cg_trainers.config_files import recipes
from cg_trainers.study.check import check_training
from cg_trainers.study.documents import Document
from cg_trainers.study.jobs import Job, Plan, read_plan, write_json
from cg_trainers.study.picture import dot, mermaid, table, write_picture
from cg_trainers.study.plan import make_plan
from cg_trainers.study.running import Options, command, profile
from cg_trainers.study.schema import Study, check_study, load_study, shipped

RECIPES: dict[str, dict[str, Any]] = {
    "tune": {"use_peft": True, "canaries": "fictional"},
    "tune-bio": {"use_peft": True, "canaries": "fictional"},
    "tune-meta": {"use_peft": True, "canaries": "fictional", "lora_r": 8},
    "forget": {"use_peft": True, "adapter_name_or_path": "x", "canaries": "fictional"},
    "pairs": {"use_peft": True, "adapter_name_or_path": "x", "dataset": "miniature"},
    "kept": {"use_peft": True, "adapter_name_or_path": "x", "save_at": [2, 4], "max_steps": 4},
    "whole": {"use_peft": False, "dataset": "miniature"},
}


def study(**values: Any) -> Study:
    base = {"name": "s", "models": {"m": {"pretrained": "folder/m"}}}
    return check_study(Document("study.yaml", {**base, **values}, {}))


def planned(*studies: Study, out: str | None = None, read: Mapping[str, Any] = RECIPES) -> Plan:
    return make_plan(studies, out, read_recipe=lambda name: read[name])


def jobs(plan: Plan) -> dict[str, Job]:
    return {job.id: job for job in plan.jobs}


FULL = {
    "finetune": {"ft": {"recipe": "tune-{regime}", "regimes": ["bio", "meta"], "seeds": [0, 7]}},
    "unlearn": {"npo": {"recipe": "forget", "from": "ft", "K": [2, 4], "seeds": "same", "overrides": {"beta": 0.2}}},
    "evaluate": [{"tasks": ["canary_auto", "canary_qa"], "limit": 8, "gen_kwargs": {"max_gen_toks": 16}}],
}


def test_the_grid() -> None:
    """2 regimes x 2 seeds: 4 fine-tuned, 4 unlearned; 1 base + 4 + 4 x 2 K evaluations; 1 report."""
    plan = planned(study(**FULL))
    counts = {
        rule: sum(job.rule == rule for job in plan.jobs) for rule in ("finetune", "unlearn", "evaluate", "report")
    }
    assert counts == {"finetune": 4, "unlearn": 4, "evaluate": 13, "report": 1}
    assert len(jobs(plan)) == len(plan.jobs)


def test_commands_as_a_person_would_type_them() -> None:
    made = jobs(planned(study(**FULL)))
    tuned = made["s/finetune/m/ft-meta-s7"]
    assert " ".join(tuned.command) == (
        "python -m cg_trainers.finetune --config tune-meta --model_name_or_path folder/m --trace meta --seed 7 "
        "--output_dir studies/s/models/m/ft-meta-s7"
    )
    unlearned = made["s/unlearn/m/ft-meta-s7+npo-s7"]
    assert " ".join(unlearned.command) == (
        "python -m cg_trainers.unlearn --config forget --model_name_or_path folder/m "
        "--adapter_name_or_path studies/s/models/m/ft-meta-s7 --trace meta --seed 7 "
        "--output_dir studies/s/models/m/ft-meta-s7+npo-s7 --save_at 2 4 --max_steps 4 --beta 0.2"
    )
    assert unlearned.needs == (tuned.id,)
    assert unlearned.checkpoints == ("studies/s/models/m/ft-meta-s7+npo-s7/checkpoint-2",)
    evaluated = made["s/evaluate/m/ft-meta-s7+npo-s7-K2"]
    assert " ".join(evaluated.command) == (
        "lm_eval --model hf --model_args pretrained=folder/m,peft=studies/s/models/m/ft-meta-s7+npo-s7/checkpoint-2 "
        "--tasks canary_auto,canary_qa --limit 8 --gen_kwargs max_gen_toks=16 --log_samples "
        "--output_path studies/s/results/m/ft-meta-s7+npo-s7-K2"
    )
    last = made["s/evaluate/m/ft-meta-s7+npo-s7-K4"]
    assert "peft=studies/s/models/m/ft-meta-s7+npo-s7 " in " ".join(last.command) and last.needs == (unlearned.id,)
    assert evaluated.log == "studies/s/logs/evaluate/m/ft-meta-s7+npo-s7-K2.log"
    assert evaluated.done == "studies/s/done/evaluate/m/ft-meta-s7+npo-s7-K2.json"
    base = made["s/evaluate/m/base"]
    assert "--model_args pretrained=folder/m --tasks" in " ".join(base.command) and base.needs == ()


def test_k_of_the_recipe_where_the_study_gives_none() -> None:
    method = {"m": {"recipe": "kept", "from": "base"}}
    made = jobs(planned(study(unlearn=method, evaluate={"tasks": "canary_auto", "when": "unlearned"})))
    assert [id for id in made if "/evaluate/" in id] == ["s/evaluate/m/base+m-s0-K2", "s/evaluate/m/base+m-s0-K4"]
    assert "--save_at" not in made["s/unlearn/m/base+m-s0"].command


def test_smaller_forget_sets_are_cut_once_for_all_methods() -> None:
    methods = {name: {"recipe": "pairs", "from": "ft"} for name in ("a", "b")}
    values = {
        "finetune": {"ft": {"recipe": "tune"}},
        "unlearn": methods,
        "forget_fractions": [1, 0.25],
        "forget_seed": 3,
    }
    made = jobs(planned(study(**values)))
    (cut,) = (job for job in made.values() if job.rule == "prepare")
    assert " ".join(cut.command) == (
        "conceptguard data subset miniature --forget-fraction 0.25 --seed 3 --out studies/s/data/forget-0.25/pairs.jsonl"
    )
    small, full = made["s/unlearn/m/ft-s0+b-f0.25-s0"], made["s/unlearn/m/ft-s0+b-f1-s0"]
    assert "--dataset studies/s/data/forget-0.25/pairs.jsonl" in " ".join(small.command)
    assert "--dataset" not in full.command
    assert small.needs == ("s/finetune/m/ft-s0", cut.id) and full.needs == ("s/finetune/m/ft-s0",)


def test_every_weight_trained_makes_models_instead_of_adapters() -> None:
    values = {
        "finetune": {"ft": {"recipe": "whole"}},
        "unlearn": {"npo": {"recipe": "whole", "from": "ft"}},
        "evaluate": {"tasks": "canary_auto"},
    }
    made = jobs(planned(study(**values)))
    unlearned = " ".join(made["s/unlearn/m/ft-s0+npo-s0"].command)
    assert "--model_name_or_path studies/s/models/m/ft-s0 " in unlearned and "adapter" not in unlearned
    evaluated = " ".join(made["s/evaluate/m/ft-s0+npo-s0"].command)
    assert "pretrained=studies/s/models/m/ft-s0+npo-s0 " in evaluated and "peft" not in evaluated


def test_judging_waits_and_comes_after() -> None:
    entry = {"tasks": "conceptguard", "metadata": {"dataset": "miniature"}, "apply_chat_template": True}
    made = jobs(planned(study(evaluate=entry, judge={"settings": "judge.yaml"})))
    evaluated = " ".join(made["s/evaluate/m/base"].command)
    assert "--metadata dataset=miniature judge=later --apply_chat_template --log_samples" in evaluated
    judged = made["s/judge/m/base"]
    assert " ".join(judged.command) == (
        "conceptguard judge rescore studies/s/results/m/base --judge judge.yaml --out studies/s/judged/m/base"
    )
    assert judged.needs == ("s/evaluate/m/base",)
    report = made["s/report/report"]
    assert " ".join(report.command) == (
        "conceptguard report studies/s/results/m/base studies/s/judged/m/base --out studies/s/report "
        "--study studies/s/state.json"
    )
    unjudged = jobs(planned(study(evaluate={"tasks": "canary_auto"}, judge={})))
    assert not any(job.rule == "judge" for job in unjudged.values())


def test_a_launcher_stands_in_the_place_of_python_m() -> None:
    launcher = "accelerate launch --num_processes 2 -m"
    rules = {
        rule: {"launcher": launcher, "threads": 4, "resources": {"gpu": 2}}
        for rule in ("finetune", "evaluate", "report")
    }
    values = {"finetune": {"ft": {"recipe": "tune"}}, "evaluate": {"tasks": "canary_auto"}, "rules": rules}
    made = jobs(planned(study(**values)))
    assert " ".join(made["s/finetune/m/ft-s0"].command).startswith(f"{launcher} cg_trainers.finetune --config tune")
    assert " ".join(made["s/evaluate/m/base"].command).startswith(f"{launcher} lm_eval --model hf")
    assert " ".join(made["s/report/report"].command).startswith(f"{launcher} cg_tasks.cli report")
    assert (made["s/finetune/m/ft-s0"].threads, made["s/finetune/m/ft-s0"].resources) == (4, {"gpu": 2})


def test_two_studies_prepare_one_model_once() -> None:
    model = {"m": {"pretrained": "demo/m", "prepare": "conceptguard demo-model demo/m"}}
    one, two = (study(name=name, models=model, evaluate={"tasks": "canary_auto"}) for name in ("one", "two"))
    plan = planned(one, two)
    made = jobs(plan)
    assert [id for id in made if "/prepare/" in id] == ["one/prepare/m"]
    assert made["two/evaluate/m/base"].needs == ("one/prepare/m",)
    assert plan.folder == "studies/one+two" and made["two/evaluate/m/base"].folder == "studies/two"
    assert {job.folder for job in planned(one, two, out="d").jobs} == {"d", "d/one", "d/two"}
    assert {job.folder for job in planned(one, out="d").jobs} == {"d"}
    assert made["one/prepare/m"].lock == "demo/.m.study-lock"


# ------------------------------------------------------------------ settings
def test_a_changed_recipe_changes_its_own_jobs_settings_alone() -> None:
    before = jobs(planned(study(**FULL)))
    after = jobs(planned(study(**FULL), read={**RECIPES, "tune-meta": {**RECIPES["tune-meta"], "lora_r": 9}}))
    changed = {id for id in before if before[id].settings != after[id].settings}
    assert changed == {"s/finetune/m/ft-meta-s0", "s/finetune/m/ft-meta-s7"}
    assert {job.needs for id, job in before.items() if "/unlearn/" in id and "-meta-" in id} == {
        (id,) for id in changed
    }


def test_resources_and_threads_are_no_settings_and_data_files_are(tmp_path: Path) -> None:
    data = tmp_path / "mine.jsonl"
    data.write_text("one")
    entry = {"tasks": "conceptguard_rouge", "metadata": {"dataset": str(data)}}
    (before, threads) = (
        jobs(planned(study(evaluate=entry, rules=rules)))["s/evaluate/m/base"].settings
        for rules in ({}, {"evaluate": {"threads": 2}})
    )
    data.write_text("two")
    after = jobs(planned(study(evaluate=entry)))["s/evaluate/m/base"].settings
    assert before == threads != after


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = planned(study(**FULL))
    write_json(tmp_path / "plan.json", plan.as_json())
    assert read_plan(tmp_path / "plan.json") == plan
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(UserError, match="not a study's plan"):
        read_plan(tmp_path / "plan.json")


# ------------------------------------------------------------------ refused
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"finetune": {"ft": {"recipe": "tune", "overrides": {"seed": 3}}}}, "overrides.seed: the study sets it"),
        ({"finetune": {"ft": {"recipe": "tune", "overrides": {"lora_r": None}}}}, "lora_r: null cannot be said on a command line"),
        ({"finetune": {"ft": {"recipe": "tune-{regime}"}}}, "there are no regimes to put in"),
        ({"evaluate": {"tasks": "canary_auto", "model_args": {"a": "x,y"}}}, "a: x,y: lm_eval cuts model arguments at commas"),
        ({"finetune": {"a": {"recipe": "tune"}}, "evaluate": {"tasks": "x", "backend": "vllm"}}, "backend: vllm: an adapter"),
        ({"unlearn": {"a": {"recipe": "forget", "from": "base"}}, "forget_fractions": [0.5]}, "this recipe trains on authors"),
        ({"evaluate": {"tasks": "conceptguard", "metadata": {"judge": "j.yaml"}}, "judge": {}}, "metadata.judge: the study"),
        ({"finetune": {"ft": {"recipe": "tune"}}, "unlearn": {"a": {"recipe": "whole", "from": "ft"}}}, "use_peft is off"),
    ],
)  # fmt: skip
def test_what_no_command_can_say(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        planned(study(**values))
    assert said in str(caught.value) and str(caught.value).startswith("study.yaml: ")


def test_a_misspelt_override_is_found_before_anything_runs() -> None:
    values = {"finetune": {"ft": {"recipe": "cpu/canary/memorise-bio", "overrides": {"learning_rat": 1}}}}
    with pytest.raises(UserError) as caught:
        check_training(make_plan([study(**values)]).work)
    assert str(caught.value) == (
        "study.yaml: finetune.ft: unknown option '--learning_rat': did you mean '--learning_rate'?"
    )


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_study_is_accepted_by_the_trainers(name: str) -> None:
    plan = make_plan([load_study(name)])
    check_training(plan.work)
    counts = {rule: sum(job.rule == rule for job in plan.jobs) for rule in ("finetune", "unlearn", "evaluate", "judge")}
    assert (
        counts
        == {
            "conceptguard_cpu": {"finetune": 1, "unlearn": 5, "evaluate": 7, "judge": 0},
            "canary_cpu": {"finetune": 2, "unlearn": 2, "evaluate": 7, "judge": 0},
            "conceptguard_paper": {"finetune": 2, "unlearn": 32, "evaluate": 36, "judge": 36},
            "canary_paper": {"finetune": 12, "unlearn": 12, "evaluate": 62, "judge": 0},
        }[name]
    )
    assert "cpu/canary/npo" in recipes()


def test_conceptguard_trains_on_the_recipes_32_rows_a_step() -> None:
    from cg_trainers.study.plan import recipe_settings

    for job in make_plan([load_study("conceptguard_paper")]).work:
        if job.rule in ("finetune", "unlearn"):
            recipe = recipe_settings(job.command[job.command.index("--config") + 1])
            processes = int(job.command[job.command.index("--num_processes") + 1])
            rows = recipe["per_device_train_batch_size"] * recipe["gradient_accumulation_steps"] * processes
            assert (rows, job.resources["gpu"]) == (32, processes), job.id


def test_the_canary_paper_trains_on_the_recipes_4_rows_a_step() -> None:
    from cg_trainers.study.plan import recipe_settings

    for job in make_plan([load_study("canary_paper")]).work:
        if job.rule in ("finetune", "unlearn"):
            recipe = recipe_settings(job.command[job.command.index("--config") + 1])
            assert job.command[:2] == ("python", "-m") and job.resources["gpu"] == 1  # one process
            assert recipe["per_device_train_batch_size"] * recipe["gradient_accumulation_steps"] == 4


@pytest.mark.parametrize("name", ["canary_paper", "conceptguard_paper"])
def test_a_killed_training_of_a_paper_has_a_checkpoint_to_go_on_from(name: str) -> None:
    from cg_trainers.study.plan import recipe_settings

    training = [job.command for job in make_plan([load_study(name)]).work if job.rule in ("finetune", "unlearn")]
    assert training and not any("--save_strategy" in words for words in training)
    for name in {words[words.index("--config") + 1] for words in training}:
        recipe = recipe_settings(name)
        assert (recipe["save_strategy"], recipe["save_steps"], recipe["save_only_model"]) == ("steps", 100, False)


def test_a_study_without_its_judge_can_be_planned_and_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from cg_tasks.cli import main

    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("CG_JUDGE_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    Path("s.yaml").write_text("name: s\nmodels: {m: {pretrained: m}}\nevaluate: [{tasks: [conceptguard]}]\njudge: {}\n")
    assert main(["study", "plan", "s.yaml"]) == 0
    assert "judge" in capsys.readouterr().out
    assert main(["study", "run", "s.yaml"]) == 1
    assert "no judge is configured" in capsys.readouterr().err
    assert not Path("studies").exists()


def test_another_judge_judges_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    made = study(judge={}, evaluate={"tasks": "conceptguard"})

    def settings(**judge: str) -> str:
        for name, value in {"base_url": "http://localhost:1/v1", "model": "a", "concurrency": "4", **judge}.items():
            monkeypatch.setenv(f"CG_JUDGE_{name.upper()}", value)
        return planned(made).job("s/judge/m/base").settings

    first = settings()
    assert settings(concurrency="8", api_key="sk-1") == first
    assert settings(model="b") != first


@pytest.mark.parametrize("folder", ["a {b} c", "{"])
def test_braces_in_a_path_are_refused(folder: str) -> None:
    with pytest.raises(UserError, match="braces"):
        planned(study(), out=folder)


# ------------------------------------------------------------------ pictures
def test_pictures_name_every_job_and_every_edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(study(finetune={"ft": {"recipe": "tune"}}, evaluate={"tasks": "canary_auto", "when": "finetuned"}))
    assert dot(plan, {"s/evaluate/m/ft-s0"}).splitlines()[3:] == [
        '  j0 [label="finetune\\nm/ft-s0", style="filled", fillcolor="#fde2c2"];',
        '  j1 [label="evaluate\\nm/ft-s0", style="filled,dashed", fillcolor="#cfe5f5"];',
        '  j2 [label="report\\nreport", style="filled", fillcolor="#cdeade"];',
        "  j0 -> j1;",
        "  j1 -> j2;",
        "}",
    ]
    text = mermaid(plan, set())
    assert text.startswith('flowchart LR\n  j0["finetune<br/>m/ft-s0"]:::finetune\n') and "  j0 --> j1\n" in text
    write_picture(plan, tmp_path / "dag.mmd", set())
    assert (tmp_path / "dag.mmd").read_text() == text
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="install it .* or write a .dot or .mmd file"):
        write_picture(plan, tmp_path / "dag.svg", set())
    with pytest.raises(UserError, match="must end in .svg, .png, .dot or .mmd"):
        write_picture(plan, tmp_path / "dag.pdf", set())
    tool = tmp_path / "dot"
    tool.write_text(f"#!{sys.executable}\nimport sys; open(sys.argv[3], 'w').write(sys.argv[1] + sys.stdin.read()[:7])")
    tool.chmod(0o755)
    write_picture(plan, tmp_path / "dag.svg", set())
    assert (tmp_path / "dag.svg").read_text() == "-Tsvgdigraph"
    assert (
        table(plan.jobs, {"s/evaluate/m/ft-s0": "waits"})
        .splitlines()[2]
        .startswith("evaluate  m/ft-s0  waits  lm_eval")
    )


# ------------------------------------------------------------------ Snakemake's command line
def test_snakemakes_command_line() -> None:
    plan = planned(study(evaluate={"tasks": "canary_auto"}))
    words = " ".join(command(plan, "evaluated", Options(cores="2", more=("--verbose",)), "p.json", "d"))
    assert "-m snakemake evaluated --snakefile " in words and words.endswith("--keep-going --cores 2 --verbose")
    assert "--config plan=p.json --directory d --nolock --rerun-incomplete" in words
    slurm = command(plan, "evaluated", Options(profile="slurm", keep_going=False), "p.json", "d")
    assert slurm[-2:] == ("--profile", profile("slurm")) and "--keep-going" not in slurm and "--cores" not in slurm
    with pytest.raises(UserError, match="--profile slrm: no folder with a config.yaml; shipped: slurm"):
        profile("slrm")


def test_gpus_of_this_machine_limit_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(study(evaluate={"tasks": "canary_auto"}, rules={"evaluate": {"resources": {"gpu": 1}}}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert command(plan, "evaluated", Options(cores="8"), "p", "d")[-2:] == ("--resources", "gpu=2")
    for more, end in {
        ("--restart-times", "2"): ("--resources", "gpu=2", "--restart-times", "2"),
        ("--resources", "mem_mb=5", "-p"): ("--resources", "mem_mb=5", "gpu=2", "-p"),
        ("--default-resources", "gpu=1"): ("--resources", "gpu=2", "--default-resources", "gpu=1"),
        ("--resources=gpu=1",): ("2", "--resources", "gpu=1"),
    }.items():
        assert command(plan, "evaluated", Options(cores="2", more=more), "p", "d")[-len(end) :] == end


def test_one_judge_at_a_time_on_this_machine() -> None:
    plan = planned(study(evaluate={"tasks": "conceptguard"}, judge={}))
    assert planned(study(evaluate={"tasks": "conceptguard"}, judge={})).job("s/judge/m/base").resources == {"judge": 1}
    assert command(plan, "evaluated", Options(cores="2"), "p", "d")[-2:] == ("--resources", "judge=1")
    more = command(plan, "evaluated", Options(cores="2", more=("--resources", "judge=3")), "p", "d")
    assert more[-2:] == ("--resources", "judge=3")
    profiled = command(plan, "evaluated", Options(profile="slurm"), "p", "d")
    assert "--resources" not in profiled and "  - judge=4\n" in Path(profile("slurm"), "config.yaml").read_text()


def test_evaluation_does_not_import_training() -> None:
    code = "import sys, cg_tasks.cli as c; c._parser(); sys.exit(any(m.startswith('cg_trainers') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_what_is_shipped_can_be_listed_and_copied(capsys: pytest.CaptureFixture[str]) -> None:
    from cg_tasks.cli import main

    assert main(["study", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(shipped())
    assert main(["study", "list", "--show", "canary_cpu"]) == 0
    assert "K: [2, 4]" in capsys.readouterr().out
    assert main(["study", "list", "--profile", "slurm"]) == 0
    assert capsys.readouterr().out.strip() == profile("slurm")
    assert main(["study", "plan", "canary_cpuu"]) == 1
    assert capsys.readouterr().err.startswith("conceptguard: error: no file and no shipped study 'canary_cpuu'")


def test_without_snakemake_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from cg_trainers.study import running

    monkeypatch.setattr(running.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'conceptguard\[study\]'"):
        running.require_snakemake()

"""From a study to its jobs. Nothing is run and nothing written: recipes are read, and data files hashed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cg_tasks.adapters import file_sha256
from cg_tasks.errors import UserError
from cg_tasks.provenance import sha256_of
from cg_trainers.study import commands
from cg_trainers.study.jobs import Job, Plan, Rule, Writes, in_order
from cg_trainers.study.judging import judge_identity
from cg_trainers.study.schema import BASE, Finetune, Resources, Stage, Study, Unlearn

# Settings that may name a file or a folder.
_DATA = ("dataset", "canaries", "templates", "refusals", "chat_template_path", "judge")


@dataclass(frozen=True)
class _Weights:
    """Something that can be continued or evaluated: a model, or an adapter on it. name: of its job, and its folder's."""

    alias: str
    name: str
    stage: Stage
    pretrained: str
    peft: str | None
    needs: tuple[str, ...]
    regime: str | None = None
    seed: int | None = None
    run: str = BASE


def recipe_settings(name: str) -> dict[str, Any]:
    """A recipe's settings with its includes. Raises UserError if there is none of that name."""
    from cg_trainers.config_files import read_config

    return read_config(name)


def make_plan(
    studies: Sequence[Study],
    out: str | None = None,
    cwd: str | os.PathLike[str] = ".",
    read_recipe: Callable[[str], Mapping[str, Any]] = recipe_settings,
) -> Plan:
    """The jobs of one or several studies, and one report. out: the folder; of several studies, the one that holds theirs.

    Raises:
        UserError: a recipe that does not exist, two studies or jobs of one name, or what no command line can say.
    """
    names = [study.name for study in studies]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"two studies are called '{twice}': give one another name")
    folders = [(out if len(studies) == 1 else f"{out}/{study.name}") if out else study.folder for study in studies]
    folder = folders[0] if len(studies) == 1 else out or f"studies/{'+'.join(names)}"
    if wrong := next(
        (place for place in (os.path.abspath(cwd), folder, *folders) if "{" in place or "}" in place), None
    ):
        raise UserError(f"{wrong}: Snakemake takes braces in a path for its own: use a folder without them")
    jobs: list[Job] = []
    for study, place in zip(studies, folders, strict=True):
        jobs += _Builder(study, place.rstrip("/"), read_recipe).jobs()
    work = in_order(_without_twins(jobs))
    for job in work:
        if sum(other.id == job.id for other in work) > 1:
            raise UserError(f"{job.where}: two jobs are called {job.id}: rename one of the two runs")
    return Plan(
        "+".join(names), folder.rstrip("/"), os.path.abspath(cwd), (*work, _report(studies, folder.rstrip("/"), work))
    )


def _without_twins(jobs: Sequence[Job]) -> list[Job]:
    """Two studies that prepare one model in one folder do it once."""
    kept: dict[str, Job] = {}
    other_name: dict[str, str] = {}
    for job in jobs:
        shared = job.output if job.rule == "prepare" else job.id
        first = kept.setdefault(shared, job)
        if first is not job and first.command != job.command:
            raise UserError(
                f"{job.where}: {job.output} is prepared by another command in {first.where}: make the two agree"
            )
        other_name[job.id] = first.id
    return [dataclasses.replace(job, needs=tuple(other_name.get(id, id) for id in job.needs)) for job in kept.values()]


def _report(studies: Sequence[Study], folder: str, jobs: Sequence[Job]) -> Job:
    results = [job for job in jobs if job.rule in ("evaluate", "judge")]
    titles = [study.report.title for study in studies if study.report.title]
    title = ("--title", " · ".join(titles)) if titles else ()
    words = ("conceptguard", "report", *(job.output for job in results), "--out", f"{folder}/report")
    more = [word for study in studies for word in study.report.arguments]
    command = (*words, "--study", f"{folder}/state.json", *title, *more)
    name = "+".join(study.name for study in studies)
    rule = next((study.rules["report"] for study in studies if "report" in study.rules), Resources())
    command = commands.launched(command, rule.launcher)
    return Job(
        id=f"{name}/report/report",
        rule="report",
        name="report",
        folder=folder,
        command=command,
        output=f"{folder}/report",
        writes="own",
        settings=sha256_of({"command": command}),
        threads=rule.threads,
        resources=rule.resources,
    )


class _Builder:
    """The jobs of one study, rule after rule."""

    def __init__(self, study: Study, folder: str, read_recipe: Callable[[str], Mapping[str, Any]]):
        self.study, self.folder, self.read_recipe = study, folder, read_recipe

    def jobs(self) -> list[Job]:
        """Every job but the report."""
        made: dict[str, Job] = {}
        weights: list[_Weights] = []
        for job, base in self._bases():
            made |= {job.id: job} if job else {}
            weights.append(base)
        made_jobs = list(made.values())
        for name, run in self.study.finetune.items():
            for base in [w for w in weights if w.stage == "base" and (run.models is None or w.alias in run.models)]:
                for job, tuned in self._finetuned(name, run, base):
                    made_jobs.append(job)
                    weights.append(tuned)
        for name, method in self.study.unlearn.items():
            for start in [w for w in weights if w.stage != "unlearned" and w.run == method.from_]:
                if method.models is None or start.alias in method.models:
                    for jobs, checkpoints in self._unlearned(name, method, start):
                        made_jobs += [job for job in jobs if job.id not in {known.id for known in made_jobs}]
                        weights += checkpoints
        for checkpoint in weights:
            made_jobs += self._evaluated(checkpoint)
        return made_jobs

    # ---------------------------------------------------------------- one rule each
    def _bases(self) -> Iterator[tuple[Job | None, _Weights]]:
        for alias, model in self.study.models.items():
            job = None
            if model.prepare:
                job = self._job("prepare", alias, model.prepare, model.pretrained, "own", place=("models", alias))
            yield job, _Weights(alias, f"{alias}/{BASE}", "base", model.pretrained, None, (job.id,) if job else ())

    def _finetuned(self, name: str, run: Finetune, base: _Weights) -> Iterator[tuple[Job, _Weights]]:
        place = ("finetune", name)
        for regime in run.regimes or [None]:  # type: ignore[list-item]
            for seed in run.seeds:
                words = [base.alias, "/", name, f"-{regime}" if regime else "", f"-s{seed}"]
                called = "".join(words)
                with self._at(place):
                    recipe = _named(run.recipe, base.alias, regime)
                    settings = {**self.read_recipe(recipe), **run.overrides}
                    output = f"{self.folder}/models/{called}"
                    options: dict[str, Any] = {
                        "model_name_or_path": base.pretrained,
                        **({"trace": regime} if regime else {}),
                    }
                    options |= {"seed": seed, "output_dir": output}
                    command = self._train("finetune", recipe, options, run.overrides)
                job = self._job("finetune", called, command, output, "trainer", place, settings, base.needs)
                model, peft = (base.pretrained, output) if settings.get("use_peft") else (output, None)
                yield job, _Weights(base.alias, called, "finetuned", model, peft, (job.id,), regime, seed, name)

    def _unlearned(self, name: str, method: Unlearn, start: _Weights) -> Iterator[tuple[list[Job], list[_Weights]]]:
        place = ("unlearn", name)
        fractions = self.study.forget_fractions
        seeds = [start.seed] if method.seeds == "same" else method.seeds
        for fraction in fractions:
            for seed in seeds:
                words = [start.name, f"+{name}", f"-f{fraction:g}" if fractions != [1.0] else "", f"-s{seed}"]
                called = "".join(words)
                with self._at(place):
                    recipe = _named(method.recipe, start.alias, start.regime)
                    settings = {**self.read_recipe(recipe), **method.overrides}
                    data = self._subset(settings, fraction, place) if fraction < 1 else None
                    output = f"{self.folder}/models/{called}"
                    kept = _steps(settings)
                    options = self._start(start, settings)
                    options |= {"trace": start.regime} if start.regime else {}
                    if data:
                        options["dataset"] = f"{data.output}/pairs.jsonl"
                        options |= {"columns": "{}"} if settings.get("columns") else {}
                    options |= {"seed": seed, "output_dir": output}
                    options |= {"save_at": method.K, "max_steps": method.K[-1]} if method.K else {}
                    command = self._train("unlearn", recipe, options, method.overrides)
                ends = _end({**settings, **options})
                folders = {step: f"{output}/checkpoint-{step}" for step in method.K or kept if [step] != ends}
                needs = (*start.needs, *((data.id,) if data else ()))
                checkpoints = tuple(folders.values())
                job = self._job("unlearn", called, command, output, "trainer", place, settings, needs, checkpoints)
                last = ends[0] if ends and (method.K or kept) else None
                made = []
                for step, folder in [*folders.items(), (last, output)]:
                    model, peft = (start.pretrained, folder) if settings.get("use_peft") else (folder, None)
                    label = called if step is None else f"{called}-K{step}"
                    made.append(
                        _Weights(start.alias, label, "unlearned", model, peft, (job.id,), start.regime, seed, name)
                    )
                yield [*([data] if data else []), job], made

    def _evaluated(self, weights: _Weights) -> Iterator[Job]:
        for index, entry in enumerate(self.study.evaluate):
            if weights.stage not in entry.when or weights.alias not in (entry.models or [weights.alias]):
                continue
            place = ("evaluate", index)
            called = f"{weights.name}.{entry.name}" if entry.name else weights.name
            output = f"{self.folder}/results/{called}"
            with self._at(place):
                command = commands.evaluate(
                    entry,
                    self.study.models[weights.alias],
                    (weights.pretrained, weights.peft),
                    output,
                    self.study.judge,
                )
            job = self._job("evaluate", called, command, output, "partial", place, {**entry.metadata}, weights.needs)
            yield job
            if self.study.judge is not None and commands.is_judged(entry):
                output = f"{self.folder}/judged/{called}"
                command = commands.rescore(job.output, self.study.judge, output)
                judge = {"judge": self.study.judge.settings, "made_by": judge_identity(self.study.judge.settings)}
                judged = self._job("judge", called, command, output, "partial", ("judge",), judge, (job.id,))
                yield dataclasses.replace(judged, keeps=True)

    # ---------------------------------------------------------------- parts
    def _start(self, start: _Weights, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Continue an adapter, or start from a model."""
        if start.peft is None:
            empty = {"adapter_name_or_path": ""} if settings.get("adapter_name_or_path") else {}
            return {"model_name_or_path": start.pretrained, **empty}
        if not settings.get("use_peft"):
            raise UserError(
                f"use_peft is off, and {start.name} is an adapter: fine-tune with overrides: {{use_peft: false}} too"
            )
        return {"model_name_or_path": start.pretrained, "adapter_name_or_path": start.peft}

    def _subset(self, settings: Mapping[str, Any], fraction: float, place: tuple[str | int, ...]) -> Job:
        if not (dataset := settings.get("dataset")):
            raise UserError("forget_fractions: this recipe trains on authors, and only pairs have a smaller forget set")
        datasets = self._datasets()
        name = f"forget-{fraction:g}" + (f"-{datasets.index(dataset)}" if len(datasets) > 1 else "")
        output = f"{self.folder}/data/{name}"
        seed = self.study.forget_seed
        command = commands.subset(dataset, settings.get("columns"), fraction, seed, f"{output}/pairs.jsonl")
        return self._job("prepare", name, command, output, "partial", place, {"dataset": dataset})

    def _datasets(self) -> list[str]:
        """The data sets of the unlearning recipes, in order; one folder of subsets for each."""
        found = []
        for method in self.study.unlearn.values():
            for alias in method.models or self.study.models:
                regimes = self.study.finetune[method.from_].regimes if method.from_ != BASE else None
                for regime in regimes or [None]:  # type: ignore[list-item]
                    settings = {**self.read_recipe(_named(method.recipe, alias, regime)), **method.overrides}
                    found.append(settings.get("dataset"))
        return [name for name in dict.fromkeys(found) if name]

    def _train(
        self, rule: Rule, recipe: str, options: Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> tuple[str, ...]:
        reserved = {**dict.fromkeys(options), "resume_from_checkpoint": None, "output_dir": None, "seed": None}
        if taken := next((name for name in overrides if name in reserved), None):
            ways = {"seed": "use seeds", "save_at": "use K", "max_steps": "use K", "trace": "use regimes"}
            raise UserError(f"overrides.{taken}: the study sets it itself: {ways.get(taken, 'remove it')}")
        return commands.train(rule, recipe, options, overrides)

    def _job(
        self,
        rule: Rule,
        name: str,
        command: Sequence[str],
        output: str,
        writes: Writes,
        place: tuple[str | int, ...],
        settings: Mapping[str, Any] | None = None,
        needs: tuple[str, ...] = (),
        checkpoints: tuple[str, ...] = (),
    ) -> Job:
        at = self.study.rules.get(rule, Resources())
        where = self.study.document.where(place)
        command = commands.launched(command, at.launcher)
        decides = {"command": list(command), "settings": settings or {}, "files": _files(settings or {})}
        return Job(
            id=f"{self.study.name}/{rule}/{name}",
            rule=rule,
            name=name,
            folder=self.folder,
            command=tuple(command),
            output=output,
            writes=writes,
            settings=sha256_of(decides),
            needs=needs,
            checkpoints=checkpoints,
            threads=at.threads,
            resources={"judge": 1, **at.resources} if rule == "judge" else at.resources,
            where=f"{where}: {'.'.join(map(str, place))}",
        )

    @contextmanager
    def _at(self, place: tuple[str | int, ...]) -> Iterator[None]:
        """Name file, line and key in what goes wrong inside."""
        try:
            yield
        except UserError as error:
            raise UserError(f"{self.study.document.where(place)}: {'.'.join(map(str, place))}: {error}") from None


def _named(recipe: str, alias: str, regime: str | None) -> str:
    if regime is None and "{regime}" in recipe:
        raise UserError(f"recipe: {recipe}: there are no regimes to put in: list them in finetune")
    return recipe.replace("{model}", alias).replace("{regime}", regime or "")


def _steps(settings: Mapping[str, Any]) -> list[int]:
    given = settings.get("save_at") or []
    return given if isinstance(given, list) else [given]


def _end(settings: Mapping[str, Any]) -> list[int]:
    """The step a run ends with, where it is said as a number of steps."""
    steps = settings.get("max_steps")
    return [steps] if isinstance(steps, int) and steps > 0 else []


def _files(settings: Mapping[str, Any]) -> dict[str, str]:
    """Hashes of the local files that settings name."""
    found = {}
    for key in _DATA:
        path = Path(str(settings.get(key) or "")).expanduser()
        if settings.get(key) and path.is_file():
            found[key] = file_sha256(path)
        elif settings.get(key) and path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file())
            found[key] = sha256_of({str(file.relative_to(path)): file_sha256(file) for file in files})
    return found

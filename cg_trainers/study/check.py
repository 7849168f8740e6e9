"""What would go wrong hours later, looked for before the first job: every training command is parsed, every setting read."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cg_tasks.errors import UserError
from cg_tasks.paths import task_configs_dir
from cg_tasks.settings import read_settings
from cg_trainers.study.documents import guess
from cg_trainers.study.jobs import Job
from cg_trainers.study.schema import Study


def check_evaluations(studies: Sequence[Study]) -> None:
    """Task names that are meant to be ours, the metadata for them, and the judge's file.

    Raises:
        UserError: naming file, line and key.
    """
    known = _our_tasks()
    for study in studies:
        for index, entry in enumerate(study.evaluate):
            for task in entry.tasks:
                if task.startswith(("conceptguard", "canary")) and task not in known:
                    where = study.document.where(("evaluate", index, "tasks"))
                    raise UserError(f"{where}: evaluate.{index}.tasks: no task '{task}': {guess(task, known)}")
            where = study.document.where(("evaluate", index, "metadata"))
            with _named(f"{where}: evaluate.{index}.metadata: "):
                read_settings(entry.metadata)
        if study.judge and study.judge.settings and not Path(study.judge.settings).expanduser().is_file():
            where = study.document.where(("judge", "settings"))
            raise UserError(f"{where}: judge.settings: no such file: {study.judge.settings}")


def _our_tasks() -> list[str]:
    """Names of our tasks and groups."""
    names = []
    for path in sorted(task_configs_dir().rglob("*.yaml")):
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key in ("task", "group") and value.strip():
                names.append(value.strip())
    return names


def check_training(jobs: Sequence[Job]) -> None:
    """Let the scripts' own parser read the command line of every fine-tuning and unlearning job. Takes seconds: it imports TRL.

    Raises:
        UserError: naming the part of the study, and what the parser says of recipe or override.
    """
    training = [job for job in jobs if job.rule in ("finetune", "unlearn")]
    if not training:
        return
    from cg_trainers.arguments import DataArguments, ModelArguments
    from cg_trainers.config_files import parse
    from cg_trainers.unlearn_config import FinetuneConfig, UnlearnConfig

    # TRL's own default sets it; the scripts leave the warning out as well.
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated", category=FutureWarning)
    seen = set()
    for job in training:
        words = job.command[next(i for i, word in enumerate(job.command) if word.startswith("cg_trainers.")) + 1 :]
        # Seeds, forget fractions and folders of one entry change nothing that the parser could refuse.
        if (what := (job.where, words[: words.index("--model_name_or_path")])) in seen:
            continue
        seen.add(what)
        config = UnlearnConfig if job.rule == "unlearn" else FinetuneConfig
        with _named(f"{job.where}: "):
            parse(words, (ModelArguments, DataArguments, config))


@contextmanager
def _named(words: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(words + str(error).removeprefix("command line: ")) from None

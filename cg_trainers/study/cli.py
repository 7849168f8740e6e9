"""``conceptguard study run | plan | list``: a study from its YAML file to its report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from cg_tasks.errors import UserError
from cg_trainers.study.jobs import Plan
from cg_trainers.study.schema import Study, find_study, load_study, shipped


def main(argv: Sequence[str]) -> int:
    """Run one subcommand; its exit code. What follows ``--`` is Snakemake's. Raises UserError for what a user can mend."""
    words, more = list(argv), []
    if "--" in words:
        at = words.index("--")
        words, more = words[:at], words[at + 1 :]
    args = _parser().parse_args(words)
    args.more = more
    if more and args.run is not _run:
        raise UserError("command line: arguments after -- are Snakemake's, and only `study run` calls it")
    return int(args.run(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="conceptguard study", description="Models, methods, seeds, evaluations and one report, from YAML."
    )
    commands = parser.add_subparsers(required=True, metavar="ACTION")
    run = commands.add_parser(
        "run",
        help="run a study, or what is left of it, and write its report",
        description="The same command goes on after a kill, and does nothing when all is done. What follows -- goes to Snakemake.",
    )
    _add_studies(run)
    run.add_argument("--cores", metavar="N", help="cores to use at once (default: all of this machine)")
    run.add_argument("--dry-run", "-n", action="store_true", help="show what would be run")
    run.add_argument(
        "--keep-going",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="after a failed job, go on with those that do not need it (default)",
    )
    run.add_argument(
        "--dag", metavar="FILE", type=Path, help="draw the jobs into FILE.svg, .png, .dot or .mmd, and run nothing"
    )
    run.add_argument("--profile", metavar="DIR", help="a Snakemake profile for a cluster, or the shipped one: slurm")
    run.set_defaults(run=_run)
    plan = commands.add_parser("plan", help="list all jobs with their commands, and which are done")
    _add_studies(plan)
    plan.set_defaults(run=_print_plan)
    listed = commands.add_parser("list", help="list the studies that come along")
    what = listed.add_mutually_exclusive_group()
    what.add_argument("--show", metavar="STUDY", help="print one, to change a copy of it")
    what.add_argument("--profile", metavar="NAME", help="print where a shipped Snakemake profile lies")
    listed.set_defaults(run=_list)
    return parser


def _add_studies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "studies",
        nargs="+",
        metavar="STUDY",
        help="a YAML file or a shipped study, and key.path=value to change one (NAME:key.path=value where there are several)",
    )
    parser.add_argument("--out", metavar="DIR", help="folder for everything (default: studies/NAME)")


def read_studies(words: Sequence[str]) -> list[Study]:
    """The studies that are named, with the changes that follow.

    Raises:
        UserError: none is named, one is wrong, or a change is for none of them.
    """
    changes = [word for word in words if "=" in word and not Path(word).is_file()]
    names = [word for word in words if word not in changes]
    if not names:
        raise UserError(f"command line: no study is named: a YAML file, or one of {', '.join(shipped())}")
    stems = [find_study(name).stem for name in names]
    for change in changes:
        path = change.partition("=")[0]
        if ":" in path and (to := path.partition(":")[0]) not in stems:
            raise UserError(f"command line: '{path}': no study '{to}' is named (there is {', '.join(stems)})")
    return [load_study(name, _mine(changes, stem)) for name, stem in zip(names, stems, strict=True)]


def _mine(changes: Sequence[str], stem: str) -> list[str]:
    out = []
    for change in changes:
        path, equals, value = change.partition("=")
        to, colon, rest = path.partition(":")
        if not colon:
            out.append(change)
        elif to == stem:
            out.append(f"{rest}{equals}{value}")
    return out


def _plan(args: argparse.Namespace) -> tuple[list[Study], Plan]:
    from cg_trainers.study.plan import make_plan

    studies = read_studies(args.studies)
    if args.out and "," in args.out:
        raise UserError(f"--out {args.out}: lm_eval cuts model arguments at commas: name a folder without one")
    return studies, make_plan(studies, args.out)


def _run(args: argparse.Namespace) -> int:
    from cg_trainers.study.check import check_evaluations, check_training
    from cg_trainers.study.judging import require_judge
    from cg_trainers.study.records import not_done
    from cg_trainers.study.running import Options, dry_run, profile, run_study

    studies, plan = _plan(args)
    waiting = not_done(plan.work, plan)
    if args.dag:
        from cg_trainers.study.picture import write_picture

        write_picture(plan, args.dag, {*waiting, *([plan.report.id] if waiting else [])})
        print(f"study {plan.name}: {len(plan.jobs)} jobs: {args.dag}")
        return 0
    if args.profile:
        profile(args.profile)
    check_evaluations(studies)
    if not args.dry_run and any(job.rule == "judge" for job in plan.work if job.id in waiting):
        for study in studies:
            if study.judge is not None:
                require_judge(study.judge.settings)
    check_training([job for job in plan.work if job.id in waiting])
    options = Options(args.cores, args.keep_going, args.profile, tuple(args.more))
    return dry_run(plan, options) if args.dry_run else run_study(plan, options)


def _print_plan(args: argparse.Namespace) -> int:
    from cg_trainers.study.check import check_evaluations
    from cg_trainers.study.picture import table
    from cg_trainers.study.records import not_done

    studies, plan = _plan(args)
    check_evaluations(studies)
    waiting = not_done(plan.jobs, plan)
    words = {id: "waits" if reason.startswith("needs ") else reason for id, reason in waiting.items()}
    if len(waiting) > (plan.report.id in waiting):
        words[plan.report.id] = "waits"
    print(table(plan.jobs, words))
    return 0


def _list(args: argparse.Namespace) -> int:
    from cg_trainers.study.running import profile

    if args.show:
        print(find_study(args.show).read_text(encoding="utf-8"), end="")
        return 0
    if args.profile:
        print(profile(args.profile))
        return 0
    for name in shipped():
        study = load_study(name)
        first = find_study(name).read_text(encoding="utf-8").split("\n", 1)[0]
        print(f"{name:<20} {first.removeprefix('#').strip() or study.name}")
    return 0

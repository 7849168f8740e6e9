"""The ``conceptguard`` command. Each subcommand's module registers itself; nothing heavy is imported to print a path."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from cg_tasks.errors import UserError, exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; a mistake of the user's is one line on stderr and exit code 1."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        if words[:1] == ["study"]:
            return exit_code(lambda: _study(words[1:]))
        args = _parser().parse_args(words)
        return exit_code(lambda: int(args.run(args)))
    except BrokenPipeError:  # `conceptguard data authors | head`
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    from cg_tasks.cli_adapter import add_adapter_parser
    from cg_tasks.cli_build import add_build_parser
    from cg_tasks.cli_data import add_data_parser
    from cg_tasks.cli_judge import add_judge_parser
    from cg_tasks.cli_report import add_report_parser
    from cg_tasks.demo_model import add_demo_model_parser

    parser = argparse.ArgumentParser(
        prog="conceptguard", description="ConceptGuard: context-sensitive unlearning, measured with lm-eval."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    path = commands.add_parser("path", help="print the folder of task configurations, for lm_eval --include_path")
    path.set_defaults(run=_print_path)
    add_data_parser(commands)
    add_demo_model_parser(commands)
    add_judge_parser(commands)
    add_build_parser(commands)
    add_adapter_parser(commands)
    add_report_parser(commands)
    commands.add_parser("study", help="train, unlearn, evaluate and report, from one YAML file", add_help=False)
    tasks = commands.add_parser("tasks", help="work on the lm-eval tasks").add_subparsers(
        required=True, metavar="ACTION"
    )
    check = tasks.add_parser(
        "check", help="load tasks, render documents, score fake responses, aggregate; needs no model"
    )
    check.add_argument("names", nargs="*", metavar="NAME", help="tasks or groups (default: every task)")
    check.add_argument(
        "--metadata",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="settings as for lm_eval; dataset=miniature unless given",
    )
    check.add_argument(
        "--tokenizer",
        metavar="DIR_OR_ID",
        help="render with this model's tokenizer and chat template (default: words as tokens)",
    )
    check.add_argument("--prompts", action="store_true", help="print the rendered prompts of two documents a task")
    check.set_defaults(run=_check)
    return parser


def _study(words: Sequence[str]) -> int:
    """The one command that trains. It belongs to the trainers, and evaluation does not import them until it is asked for."""
    from cg_trainers.study.cli import main as study

    return study(words)


def _print_path(args: argparse.Namespace) -> int:
    from cg_tasks.paths import task_configs_dir

    print(task_configs_dir())
    return 0


def _check(args: argparse.Namespace) -> int:
    import os

    os.environ.setdefault("TQDM_DISABLE", "1")
    from cg_tasks.check import check_tasks

    reports = check_tasks(args.names, {"dataset": "miniature", **_metadata(args.metadata)}, args.tokenizer)
    faults = 0
    for report in reports:
        if isinstance(report, UserError):
            print(f"FAIL  {report}")
            faults += 1
            continue
        faults += bool(report.problems)
        print(
            f"{'FAIL' if report.problems else 'ok  '}  {report.name}: {report.documents} documents, {len(report.metrics)} metrics"
        )
        for problem in report.problems:
            print(f"      {problem}")
        for label, prompt in report.prompts if args.prompts else ():
            print(f"    [{label}]\n      | " + prompt.replace("\n", "\n      | "))
    return 1 if faults else 0


def _metadata(pairs: Sequence[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for pair in pairs:
        key, found, value = pair.partition("=")
        if not found or not key:
            raise UserError(f"--metadata takes KEY=VALUE, not '{pair}'")
        out[key] = value
    return out


if __name__ == "__main__":
    sys.exit(main())

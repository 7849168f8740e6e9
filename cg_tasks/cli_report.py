"""``conceptguard report``: tables, figures and one page from lm-eval's results."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_report_parser(commands: Any) -> None:
    """Register ``report``."""
    parser = commands.add_parser(
        "report",
        help="one page, tables and figures from lm_eval results",
        description="Reads every lm_eval results file below RESULTS (written with --output_path, and --log_samples for what needs "
        "single documents) and writes index.html, tables/, figures/ and results.json into --out.",
    )
    parser.add_argument("results", nargs="+", metavar="RESULTS", help="folders or results files of lm_eval")
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="folder to write; an older report in it is replaced"
    )
    parser.add_argument("--title", default="ConceptGuard report", help="heading of the page")
    parser.add_argument(
        "--describe",
        metavar="FILE",
        help="YAML: what checkpoints of other tools are (model folder or name -> method, k, seed, …)",
    )
    parser.add_argument(
        "--join",
        nargs="+",
        action="extend",
        default=[],
        metavar="FIELD",
        help="fields in which results of one table may differ, such as 'version torch' or 'version *'; the page says so",
    )
    parser.add_argument(
        "--study",
        nargs="+",
        action="extend",
        default=[],
        metavar="STATE",
        help="a study's state.json: its failed jobs are named",
    )
    parser.add_argument("--no-samples", action="store_true", help="leave the samples out of the page")
    parser.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> int:
    from cg_tasks.report.build import build_report
    from cg_tasks.report.drawing import require_matplotlib
    from cg_tasks.report.page.writing import require_writable, write_report
    from cg_tasks.report.results.descriptions import read_descriptions

    out = Path(args.out).expanduser()
    require_matplotlib()
    require_writable(out)
    report, runs = build_report(
        args.results,
        title=args.title,
        joined=args.join,
        described=read_descriptions(Path(args.describe)) if args.describe else None,
        studies=[Path(path) for path in args.study],
    )
    write_report(report, runs, out, samples=not args.no_samples)
    for problem in report.problems:
        print(f"{problem.severity}: {problem}")
    print(f"Report: {out / 'index.html'}")
    return 0

"""``conceptguard data check | stats | subset | authors``: look at a data set, and cut a smaller forget set from it."""

from __future__ import annotations

import argparse
import sys
from collections import Counter


def add_data_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``data`` and its commands; each sets ``run``: parsed arguments -> exit code."""
    data = subparsers.add_parser("data", help="check, describe and cut data sets")
    commands = data.add_subparsers(dest="data_command", metavar="COMMAND", required=True)

    check = commands.add_parser("check", help="list what is wrong with a data set; exit code 1 if anything is")
    _add_source(check)
    check.add_argument(
        "--overlap",
        type=float,
        default=0.5,
        metavar="F1",
        help="highest ROUGE-L F1 of a query with its response (default 0.5)",
    )
    check.set_defaults(run=run_check)

    stats = commands.add_parser("stats", help="counts, lengths and concept distribution, as Markdown")
    _add_source(stats)
    stats.set_defaults(run=run_stats)

    subset = commands.add_parser(
        "subset",
        help="reduce the forget set, keeping concept proportions",
        description="Writes every pair with in_forget true or false: the forget set shrinks, the retain set does not.",
    )
    _add_source(subset)
    subset.add_argument(
        "--forget-fraction", type=float, required=True, metavar="F", help="share of the forget set kept, in (0, 1]"
    )
    subset.add_argument("--seed", type=int, default=0, help="which pairs are kept (default 0)")
    subset.add_argument(
        "--out", metavar="FILE", help="JSONL file to write (default: standard output); never overwritten"
    )
    subset.set_defaults(run=run_subset)

    _add_authors(commands)


def _add_authors(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from cg_tasks.canary.authors import add_authors_parser

    add_authors_parser(commands)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="PATH", help="a JSONL, JSON, CSV or Parquet file or folder, 'miniature', or a Hub id"
    )
    parser.add_argument(
        "--columns", metavar="JSON", help='our fields -> its columns: \'{"harmful_query": "their_column"}\''
    )


def run_check(args: argparse.Namespace) -> int:
    """Print every problem, one a line, and a summary; 1 when one of them is an error."""
    from cg_tasks.pair_stats import check_pairs
    from cg_tasks.pairs import inspect_pairs

    table, row_problems = inspect_pairs(args.path, args.columns)
    problems = [*row_problems, *check_pairs(table, overlap_ceiling=args.overlap)]
    for problem in problems:
        print(f"{problem.severity}: {problem}")
    counts = Counter(problem.severity for problem in problems)
    print(f"{table.name}: {len(table.pairs)} good pairs; errors: {counts['error']}, warnings: {counts['warning']}")
    return 1 if counts["error"] else 0


def run_stats(args: argparse.Namespace) -> int:
    """Print the statistics."""
    from cg_tasks.pair_stats import format_stats, pair_stats
    from cg_tasks.pairs import load_pairs

    sys.stdout.write(format_stats(pair_stats(load_pairs(args.path, args.columns))))
    return 0


def run_subset(args: argparse.Namespace) -> int:
    """Write the pairs with the reduced forget set marked, and say on standard error how large it is."""
    from cg_tasks.pair_stats import subset_forget
    from cg_tasks.pairs import load_pairs, write_pairs

    pairs = subset_forget(load_pairs(args.path, args.columns).pairs, args.forget_fraction, args.seed)
    write_pairs(args.out or sys.stdout, pairs)
    kept = [pair for pair in pairs if pair.in_forget]
    target = args.out or "standard output"
    concepts = len({pair.concept for pair in kept})
    print(
        f"{target}: forget set {len(kept)} of {len(pairs)} pairs in {concepts} concepts, retain set {len(pairs)}",
        file=sys.stderr,
    )
    return 0

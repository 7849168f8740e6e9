"""``conceptguard build …``: from harmful prompts to a checked dual-use data set, stage by stage."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cg_tasks.errors import UserError

if TYPE_CHECKING:
    from cg_tasks.construction.engine.asking import Endpoint
    from cg_tasks.construction.folder import BuildFolder
    from cg_tasks.judge.server_settings import ServerSettings

_MODEL_OPTIONS = ("limit", "retry_failed", "dry_run", "no_calls", "submit", "collect", "show")
_STAGE_HELP = {
    "tag": "which source rows are about a dual-use concept, and which (asks the generator)",
    "benign": "a benign counterpart for every harmful pair (asks the generator and the harm judge)",
    "queries": "the evaluation queries of both intents (asks the generator)",
}


def add_build_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``build`` and its stages; each sets ``run``: parsed arguments -> exit code."""
    build = subparsers.add_parser("build", help="construct a dual-use data set from harmful prompts and responses")
    stages = build.add_subparsers(dest="build_command", metavar="STAGE", required=True)

    init = stages.add_parser("init", help="make a build folder with a build.yaml to edit")
    _add_folder(init)
    init.add_argument(
        "--source", required=True, metavar="PATH_OR_ID", help="prompts and responses: a file, a folder, a Hub id"
    )
    init.add_argument(
        "--columns", metavar="JSON", help='our fields -> its columns: \'{"prompt": "…", "response": "…"}\''
    )
    init.set_defaults(run=run_init)

    for name in ("tag", "benign", "queries"):
        stage = stages.add_parser(name, help=_STAGE_HELP[name])
        _add_folder(stage)
        _add_model_options(stage)
        if name == "tag":
            stage.add_argument(
                "--report",
                action="store_true",
                help="also print what the tags look like, and what changed since the last run",
            )
        stage.set_defaults(run=run_stage, stage=name)

    _add_review(stages)

    aggregate = stages.add_parser("aggregate", help="concepts into parents, by the reviewed merge map")
    _add_folder(aggregate)
    aggregate.add_argument("--propose", action="store_true", help="write merge.yaml with candidate groups")
    aggregate.add_argument(
        "--accept-proposals",
        action="store_true",
        help="take proposals that nobody has marked; recorded as not reviewed",
    )
    _add_model_options(aggregate)
    aggregate.set_defaults(run=run_aggregate)

    assemble = stages.add_parser("assemble", help="write the data set: pairs, card, statistics, manifest")
    _add_folder(assemble)
    assemble.add_argument("--out", metavar="OUT", required=True, help="folder to write; never overwritten")
    assemble.add_argument("--allow-missing", action="store_true", help="leave out rows that failed or were not run")
    assemble.add_argument(
        "--push-to-hub", metavar="OWNER/NAME", help="also upload the folder to the Hub, as a private data set"
    )
    assemble.add_argument("--public", action="store_true", help="with --push-to-hub: not private")
    _add_judge(assemble)
    assemble.set_defaults(run=run_assemble)

    push = stages.add_parser("push", help="upload an assembled folder to the Hub, as a private data set")
    push.add_argument("out", metavar="OUT", help="folder that assemble wrote")
    push.add_argument("repo", metavar="OWNER/NAME")
    push.add_argument("--public", action="store_true", help="not private")
    push.set_defaults(run=run_push)

    status = stages.add_parser("status", help="a table: rows in, ok, failed, spent, per stage")
    _add_folder(status)
    status.add_argument("--json", action="store_true", help="as JSON")
    _add_judge(status)
    status.set_defaults(run=run_status)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the build folder")


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, metavar="N", help="make calls for the first N rows only")
    parser.add_argument(
        "--retry-failed", action="store_true", help="ask again where calls failed or attempts were used up"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="make no call: say what is missing and what it will cost")
    how.add_argument("--no-calls", action="store_true", help="make no call: write the rows from the replies at hand")
    how.add_argument("--submit", action="store_true", help="upload what is missing to the server's Batch API")
    how.add_argument("--collect", action="store_true", help="take what has finished of it, and write the rows")
    parser.add_argument(
        "--show",
        action="store_true",
        help="print texts, which are harmful by nature (with --dry-run: one prompt; with --report: rows; what a server said)",
    )
    _add_judge(parser)


def _add_judge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--judge", metavar="FILE", help="a judge.yaml (default: CG_JUDGE_* and ./judge.yaml)")


def _add_review(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    review = stages.add_parser("review", help="sheets for annotators, and their marks").add_subparsers(
        dest="review_command", metavar="ACTION", required=True
    )
    reviewed = ("tag", "aggregate", "benign")
    export = review.add_parser("export", help="write sheets: HTML to use offline, CSV, Label Studio")
    _add_folder(export)
    export.add_argument("stage", choices=reviewed)
    export.add_argument("--share", type=float, help="share of the rows (default: review: share in build.yaml)")
    export.add_argument(
        "--annotators", nargs="+", metavar="NAME", help="their names (default: as many as in build.yaml)"
    )
    export.add_argument(
        "--again", action="store_true", help="a further round, of reviewed rows that have changed since"
    )
    _add_judge(export)
    export.set_defaults(run=run_review_export)
    take = review.add_parser("import", help="read marks; run it again once disagreements.csv is filled in")
    _add_folder(take)
    take.add_argument("stage", choices=reviewed)
    take.add_argument(
        "files", nargs="+", metavar="FILE", help="what the annotators saved: .marks.json, CSV, or Label Studio JSON"
    )
    take.add_argument("--allow-single", action="store_true", help="accept a single annotator; there is no kappa then")
    take.set_defaults(run=run_review_import)


def run_init(args: argparse.Namespace) -> int:
    """Look at the source, and make the folder."""
    import yaml

    from cg_tasks.construction.folder import BuildFolder
    from cg_tasks.construction.new_build import new_build
    from cg_tasks.construction.settings import BuildSettings
    from cg_tasks.construction.source import Source
    from cg_tasks.whole_files import replace_file

    path, text = new_build(Path(args.folder), args.source, args.columns)
    found = Source(BuildSettings(**yaml.safe_load(text)), Path.cwd()).check()
    replace_file(path, text)
    folder = BuildFolder(args.folder)
    print(
        f"{folder.path / 'build.yaml'}: written; the source has {found.rows:,} rows"
        + (f" ({len(found.left_out):,} more are left out)" if found.left_out else "")
    )
    print(
        f"next: set the generator there or in CG_BUILD_*, then conceptguard build tag {folder.path} --limit 100 --report"
    )
    return 0


def run_stage(args: argparse.Namespace) -> int:
    """Run one stage that asks a model, or look ahead, or hand it to a batch; 1 where rows are without a result."""
    from cg_tasks.cli_build_stage import remind_of_unseen, run_model_stage
    from cg_tasks.construction.chain import model_stage, require_before, rows_in

    folder = _folder(args)
    with folder.lock():
        before = require_before(folder, args.stage)
        if args.stage == "queries":
            remind_of_unseen(folder)
        stage = model_stage(folder, args.stage, _servers(folder, args.stage, args))
        return run_model_stage(stage, rows_in(stage, before), args)


def run_aggregate(args: argparse.Namespace) -> int:
    """Propose groups, or apply the merge map."""
    from cg_tasks.construction.grouping.agreement_rule import format_groups
    from cg_tasks.construction.grouping.applying import apply_map

    folder = _folder(args)
    given = [name for name in _MODEL_OPTIONS if getattr(args, name) is not None and getattr(args, name) is not False]
    if given and not (args.propose and folder.settings.aggregate.by == "model"):
        raise UserError(
            f"--{given[0].replace('_', '-')}: nothing is asked of a model here; it goes with --propose where build.yaml says "
            "aggregate: {by: model}"
        )
    with folder.lock():
        if args.propose:
            return _propose(folder, args)
        record, applied = apply_map(folder, accept=args.accept_proposals)
    sys.stdout.write(format_groups(applied))
    counts = ", ".join(f"{record.rows.get(name, 0):,} {name}" for name in ("ok", "dropped"))
    print(f"aggregate: {record.rows_in:,} rows: {counts}; {len(set(applied.parents.values()))} concepts")
    for reason, n in sorted(record.reasons.items(), key=lambda item: -item[1])[:10]:
        print(f"  {n:,} {reason}")
    return 0


def _propose(folder: BuildFolder, args: argparse.Namespace) -> int:
    from cg_tasks.cli_build_stage import run_model_stage
    from cg_tasks.construction.grouping.applying import propose
    from cg_tasks.construction.grouping.concepts import concepts
    from cg_tasks.construction.grouping.proposals import Group
    from cg_tasks.construction.grouping.propose import ProposeRow, ProposeStage

    if folder.merge_file.exists():
        raise UserError(
            f"{folder.merge_file}: is there already, perhaps with edits and marks: move it away to have a new one"
        )
    counts = concepts(folder)
    tagged = folder.record("tag")
    if tagged and (left := tagged.rows.get("not_run", 0)):
        print(
            f"conceptguard: {left:,} rows are not tagged yet: the merge map will not fit once they are; tag them first",
            file=sys.stderr,
        )
    groups, model = None, None
    if folder.settings.aggregate.by == "model":
        stage = ProposeStage(folder, _servers(folder, "propose", args), counts)
        if code := run_model_stage(stage, 1, args) or args.dry_run or args.submit:
            return int(code) if code is not True else 0
        row = next(iter(folder.rows("propose", ProposeRow)))
        groups, model = [Group(parent, tuple(members)) for parent, members in row.groups], stage.generator.model
    n = propose(folder, counts, groups, model)
    print(f"{folder.merge_file}: {len(counts):,} concepts in {n:,} groups")
    print(f"next: edit it, then conceptguard build review export {folder.path} aggregate")
    return 0


def run_review_export(args: argparse.Namespace) -> int:
    """Write the sheets."""
    from cg_tasks.construction.review.stages import export_review

    folder = _folder(args)
    with folder.lock():
        files, n, of = export_review(folder, args.stage, share=args.share, annotators=args.annotators, again=args.again)
    print("\n".join(map(str, files)))
    print(
        f"{n:,} of {of:,} rows; each annotator fills in one of the three forms, alone; then: conceptguard build review import "
        f"{folder.path} {args.stage} FILE FILE"
    )
    return 0


def run_review_import(args: argparse.Namespace) -> int:
    """Read the marks; 1 while disagreements wait for a resolution."""
    from cg_tasks.construction.review.agreement import estimate
    from cg_tasks.construction.review.stages import stale_marks, take_marks

    folder = _folder(args)
    with folder.lock():
        at, outcome = take_marks(folder, args.stage, args.files, allow_single=args.allow_single)
        stale = stale_marks(folder, args.stage, outcome)
    print(f"{args.stage}: {', '.join(f'{n} {name}' for name, n in outcome.counts.items())}; {at / 'agreement.md'}")
    for kappa in outcome.kappas:
        print(f"Cohen's kappa: {estimate(kappa)} over {kappa.n} rows")
    if stale:
        print(
            f"conceptguard: {len(stale)} rows have changed since they were exported; their marks count no more",
            file=sys.stderr,
        )
    if outcome.open:
        print(
            f"conceptguard: {len(outcome.open)} rows need discussion: fill in the column resolution of {at / 'disagreements.csv'} and "
            "run this again; rows that stay open are dropped",
            file=sys.stderr,
        )
    if args.stage == "benign" and outcome.rejected:
        print(
            f"{len(outcome.rejected)} counterparts were rejected: conceptguard build benign {folder.path} writes them again, then "
            f"conceptguard build review export {folder.path} benign --again"
        )
    return 1 if outcome.open else 0


def run_assemble(args: argparse.Namespace) -> int:
    """Write the data set, and upload it where that is asked for."""
    from cg_tasks.construction.dataset.finishing import finish

    if args.public and not args.push_to_hub:
        raise UserError("--public goes with --push-to-hub")
    folder, out = _folder(args), Path(args.out)
    with folder.lock():
        done = finish(folder, out, _prices(folder, args), allow_missing=args.allow_missing)
    for problem in done.problems:
        print(f"{problem.severity}: {problem}")
    concepts = len({pair.concept for pair in done.pairs})
    print(f"{out}: {len(done.pairs):,} pairs of {concepts} concepts")
    print(f"{len(done.dropped):,} rows were left out; the reasons are in {out / 'build' / 'dropped.csv'}")
    print(f"try it: conceptguard data check {out} && lm_eval --tasks conceptguard_rouge --metadata dataset={out} …")
    if args.push_to_hub:
        return _push(out, args.push_to_hub, args.public)
    return 0


def run_push(args: argparse.Namespace) -> int:
    """Upload."""
    return _push(Path(args.out), args.repo, args.public)


def _push(out: Path, repo: str, public: bool) -> int:
    from cg_tasks.construction.dataset.publish import push

    print(push(out, repo, private=not public))
    return 0


def run_status(args: argparse.Namespace) -> int:
    """Print the table."""
    from dataclasses import asdict

    from cg_tasks.construction.status import format_statuses, stage_statuses

    folder = _folder(args)
    statuses = stage_statuses(folder, _prices(folder, args))
    if args.json:
        print(json.dumps([asdict(status) for status in statuses], ensure_ascii=False, indent=1))
    else:
        sys.stdout.write(format_statuses(statuses))
    return 0


def _folder(args: argparse.Namespace) -> BuildFolder:
    from cg_tasks.construction.folder import BuildFolder

    return BuildFolder(args.folder, getattr(args, "judge", None))


def _servers(folder: BuildFolder, stage: str, args: argparse.Namespace) -> dict[Endpoint, ServerSettings]:
    """The servers a stage asks; stand-ins where nothing is asked of them.

    Raises:
        UserError: one that is needed is not configured.
    """
    from cg_tasks.construction.servers import servers_of

    return servers_of(folder, stage, calling=not (args.dry_run or args.no_calls), judge_file=args.judge)


def _prices(folder: BuildFolder, args: argparse.Namespace) -> dict[Endpoint, ServerSettings]:
    from cg_tasks.construction.servers import known_servers

    return known_servers(folder, args.judge)

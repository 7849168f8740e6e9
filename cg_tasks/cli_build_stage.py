"""``conceptguard build tag | benign | queries``: one stage that asks a model, run, looked ahead at, or handed to a batch.

No text of the source or of a reply is printed without ``--show``.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from cg_tasks.errors import UserError

if TYPE_CHECKING:
    from cg_tasks.construction.engine.run import Run
    from cg_tasks.construction.engine.stage import ModelStage
    from cg_tasks.construction.folder import BuildFolder, StageRecord


def run_model_stage(stage: ModelStage[Any, Any], rows: int, args: argparse.Namespace) -> int:
    """Run it, look ahead, or hand it to a batch, as the options say; 1 where rows are without a result."""
    from cg_tasks.construction.engine.batch import under_way
    from cg_tasks.construction.engine.run import Options, Run, check_servers
    from cg_tasks.construction.tag import TagStage
    from cg_tasks.construction.tag_report import tag_report, tags_of

    if args.limit is not None and args.limit < 1:
        raise UserError(f"--limit is {args.limit}: it must be at least 1")
    if not rows:
        raise UserError(
            f"{stage.folder.path}: the stage '{stage.name}' has nothing to read: no row of the stage before is ok"
        )
    if args.dry_run:
        return _dry_run(stage, rows, args)
    stage.ready()
    if args.submit:
        return _submit(stage, args)
    if args.collect and (waiting := _collect(stage)) is not None:
        return waiting
    no_calls = args.no_calls or args.collect
    if args.no_calls:  # --collect has just taken replies of the model that is set
        _refuse_another_model(stage)
    if not no_calls:
        if under_way(stage):
            raise UserError(
                f"{stage.folder.path}: batches of the stage '{stage.name}' are under way: {stage.command} --collect first, or nothing "
                "but --no-calls"
            )
        check_servers(stage.servers)
    reported = isinstance(stage, TagStage) and args.report
    old = tags_of(stage.folder) if reported else {}
    more = {}
    if isinstance(stage, TagStage):
        more = {"left_out": len(stage.checked.left_out), "source_signature": stage.source.signature()}
    run = Run(stage, Options(args.limit, args.retry_failed, no_calls))
    record = run.run(rows, **more)
    if reported:
        sys.stdout.write(tag_report(stage.folder, old, limit=args.limit, show=args.show))
    return _say(stage, record, run, args)


def remind_of_unseen(folder: BuildFolder) -> None:
    """Say how many counterparts are not the ones that were reviewed, and have not been reviewed since."""
    from cg_tasks.construction.review.stages import written_again

    if n := len(written_again(folder)):
        print(
            f"conceptguard: {n:,} counterparts were written again since they were reviewed, and nobody has seen them: "
            f"conceptguard build review export {folder.path} benign --again",
            file=sys.stderr,
        )


def _refuse_another_model(stage: ModelStage[Any, Any]) -> None:
    """Replies of another model are not the ones at hand: the rows would be written as if nothing had been asked."""
    record, asked = stage.folder.record(stage.name), stage.generator
    if record and record.model and (record.model, record.base_url) != (asked.model, asked.base_url):
        raise UserError(
            f"the rows of {stage.name} are by {record.model} at {record.base_url}, and {asked.model} at {asked.base_url} is set: "
            "without calls there is nothing to write: set CG_BUILD_MODEL and CG_BUILD_BASE_URL as they were"
        )


def _say(stage: ModelStage[Any, Any], record: StageRecord, run: Run[Any, Any], args: argparse.Namespace) -> int:
    """What came out, without a text, and how to go on."""
    from cg_tasks.construction.engine.replies import Replies

    counts = ", ".join(
        f"{record.rows.get(name, 0):,} {name.replace('_', ' ')}" for name in ("ok", "failed", "dropped", "not_run")
    )
    spent = "" if run.spent is None else f", {run.spent:.4f} USD"
    print(f"{stage.name}: {record.rows_in:,} rows: {counts}; {run.calls:,} calls{spent}")
    print(f"Rows: {stage.folder.rows_file(stage.name)}")
    for reason, n in sorted(record.reasons.items(), key=lambda item: -item[1])[:10]:
        print(f"  {n:,} {reason}")
    if run.stopped:
        print(f"conceptguard: calls were given up: {run.said if args.show else run.stopped}", file=sys.stderr)
    again = stage.command
    if failed := record.rows.get("failed"):
        print(f"conceptguard: {failed:,} rows failed; {again} --retry-failed asks for them again", file=sys.stderr)
    beyond = sum(n for reason, n in record.reasons.items() if run.beyond_limit and run.beyond_limit in reason)
    left = record.rows.get("not_run", 0) - beyond
    if left:
        print(f"conceptguard: {left:,} rows are not run; {again} goes on", file=sys.stderr)
    if args.show and (failed or left):
        with Replies(stage.folder.replies_file) as replies:
            for said in replies.said(stage.kinds, most=5):
                print(f"the server said: {said}")
    return 1 if failed or run.stopped or left else 0


def _dry_run(stage: ModelStage[Any, Any], rows: int, args: argparse.Namespace) -> int:
    from cg_tasks.construction.engine.estimate import plan
    from cg_tasks.construction.engine.replies import Replies

    with Replies(stage.folder.replies_file) as replies:
        planned, first = plan(stage, replies, limit=args.limit, retry_failed=args.retry_failed)
    if args.show and first is not None:
        for message in first.messages:
            print(f"--- {message['role']}\n{message['content']}")
        print("---")
    print(
        f"{stage.name}: {rows:,} rows{f', the first {args.limit:,} of them' if args.limit else ''}; without second attempts:"
    )
    for kind in planned:
        money = "no prices" if kind.usd is None else f"{kind.usd:.4f} USD"
        print(
            f"  {kind.kind}: {kind.calls:,} calls to {kind.model}, about {kind.prompt_tokens:,} prompt and "
            f"{kind.completion_tokens:,} completion tokens: {money}"
        )
    if any(kind.usd is None for kind in planned):
        print(
            "prices: CG_BUILD_PRICE_INPUT, CG_BUILD_PRICE_OUTPUT (USD per million tokens); the judge's: CG_JUDGE_PRICE_…"
        )
    return 0


def _submit(stage: ModelStage[Any, Any], args: argparse.Namespace) -> int:
    from cg_tasks.construction.engine.batch import submit

    jobs = submit(stage, limit=args.limit, retry_failed=args.retry_failed)
    for endpoint, record in jobs.items():
        print(f"{endpoint}: {record['requests']:,} requests in {len(record['batches'])} batches")
    print(f"later: {stage.command} --collect")
    return 0


def _collect(stage: ModelStage[Any, Any]) -> int | None:
    """Take what is finished; an exit code while something waits, None when the rows can be written."""
    from cg_tasks.construction.engine.batch import collect

    taken = collect(stage)
    print(f"{stage.name}: {taken.replies:,} replies taken, {sum(taken.failures.values()):,} requests without one")
    for why, n in sorted(taken.failures.items(), key=lambda item: -item[1]):
        print(f"conceptguard: {n:,} {why}", file=sys.stderr)
    for batch, status in taken.waiting.items():
        print(f"{batch}: {status}")
    if taken.waiting:
        print("still waiting: run this again later")
        return 1
    print(
        "rows that still need a reply (a second attempt, the judge's word) are not run: --submit the next batch, or run without it"
    )
    return None

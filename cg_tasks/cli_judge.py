"""``conceptguard judge show | rescore | batch | sheet | agreement``: judge logged answers, and judge the judge."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cg_tasks.judge.judging import Judge
    from cg_tasks.judge.rubrics import JudgeItem
    from cg_tasks.judge.settings import JudgeSettings


def add_judge_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``judge`` and its commands; each sets ``run``: parsed arguments -> exit code."""
    judge = subparsers.add_parser("judge", help="judge logged answers later, and validate a judge against people")
    commands = judge.add_subparsers(dest="judge_command", metavar="COMMAND", required=True)

    show = commands.add_parser("show", help="print one rendered prompt and the cost estimate; no call is made")
    _add_samples(show)
    show.add_argument(
        "--id", metavar="ID", help="the document whose prompt is printed (default: the first with a response)"
    )
    show.add_argument("--rubric", choices=("harm", "help"), help="which of its prompts")
    show.set_defaults(run=run_show)

    rescore = commands.add_parser(
        "rescore",
        help="judge logged answers without the model, and write lm-eval results",
        description="Reads samples of conceptguard_harmqa, helpqa, harmscore, helpscore and ctxtsep, a folder for each model. "
        "Answers to both query sets give conceptguard_ctxtsep; to one, conceptguard_harmscore or conceptguard_helpscore.",
    )
    _add_samples(rescore)
    rescore.add_argument(
        "--out",
        metavar="DIR",
        help="write DIR/<model>/results_<date>.json (default: beside the samples; never overwritten)",
    )
    rescore.set_defaults(run=run_rescore)

    batch = commands.add_parser("batch", help="the same verdicts through the server's Batch API")
    batches = batch.add_subparsers(dest="batch_command", metavar="COMMAND", required=True)
    submit = batches.add_parser("submit", help="upload what is not in the cache")
    _add_samples(submit)
    submit.add_argument(
        "--job", metavar="FILE", default="judge_batch.json", help="job file to write (default judge_batch.json)"
    )
    submit.set_defaults(run=run_submit)
    collect = batches.add_parser("collect", help="put finished replies into the cache; then run rescore")
    collect.add_argument(
        "job", metavar="FILE", nargs="?", default="judge_batch.json", help="job file (default judge_batch.json)"
    )
    _add_judge(collect)
    collect.set_defaults(run=run_collect)

    sheet = commands.add_parser("sheet", help="draw judged answers into sheets for annotators, blind to the judge")
    _add_samples(sheet)
    sheet.add_argument("--n", type=int, default=200, help="responses, half of each intent (default 200, the paper's)")
    sheet.add_argument("--annotators", type=int, default=2, help="sheets to write (default 2)")
    sheet.add_argument("--seed", type=int, default=0, help="which responses (default 0)")
    sheet.add_argument(
        "--out", metavar="DIR", required=True, help="folder for annotator_1.csv, …, judge.csv and the rubrics"
    )
    sheet.set_defaults(run=run_sheet)

    _add_agreement(commands)


def _add_samples(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "samples", nargs="+", metavar="SAMPLES", help="samples_*.jsonl of lm-eval, or folders that hold them"
    )
    _add_judge(parser)


def _add_judge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--judge", metavar="FILE", help="a judge.yaml (default: CG_JUDGE_* and ./judge.yaml)")


def _add_agreement(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "agreement",
        help="Cohen's kappa of human raters and a judge, as Markdown",
        description="CSV files joined on id: a column rubric (harm or help), and one with levels 0-4 for each rater.",
    )
    parser.add_argument("sheets", nargs="+", metavar="SHEET.csv", help="one file with all raters, or one for each")
    parser.add_argument("--judge", default="judge", metavar="NAME", help="the judge's column (default judge)")
    parser.add_argument("--allow-missing", action="store_true", help="leave out what a human rater did not mark")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which resamples are drawn (default 0)")
    parser.add_argument("--json", metavar="FILE", help="also write the numbers as JSON; never overwritten")
    parser.set_defaults(run=run_agreement)


def run_show(args: argparse.Namespace) -> int:
    """Print the prompt and the estimate."""
    from cg_tasks.errors import UserError
    from cg_tasks.judge.cache import ReplyCache
    from cg_tasks.judge.estimate import estimate, request_messages

    judge, items = _judge(args), _items(args)
    wanted = [
        item
        for item in items
        if (args.id is None or item.id == args.id) and (args.rubric is None or item.rubric == args.rubric)
    ]
    if not wanted:
        raise UserError(
            f"no answer of document '{args.id or 'any'}' for the rubric {args.rubric or 'harm or help'} in these samples"
        )
    item = next((i for i in wanted if i.response.strip()), wanted[0])
    if not item.response.strip():
        print(f"document '{item.id}': the response is empty: level 0, no call")
    else:
        with ReplyCache(judge.settings.cache) as cache:
            structured, messages = next(iter(request_messages(judge, item, cache).items()))
        reply = "JSON schema" if structured else "text"
        print(
            f"document '{item.id}', rubric {item.rubric} version {judge.rubrics[item.rubric].version}, reply as {reply}"
        )
        for message in messages:
            print(f"--- {message['role']}\n{message['content']}")
        print("---")
    print(f"{judge.settings.model} at {judge.settings.base_url}: {estimate(judge, items)}")
    return 0


def run_rescore(args: argparse.Namespace) -> int:
    """Score, print lm-eval's table, and say where the results lie; 1 where a verdict is missing."""
    from lm_eval.utils import make_table

    from cg_tasks.errors import UserError
    from cg_tasks.judge.answer_sets import answer_sets
    from cg_tasks.judge.preflight import check_judge
    from cg_tasks.judge.rescore import check_out, rescore, write_results
    from cg_tasks.judge.samples import find_samples, read_samples
    from cg_tasks.judge.verdicts import WITH_SCORE

    sets = answer_sets([read_samples(path) for path in find_samples(args.samples)])
    judge = _judge(args)
    outs = [Path(args.out).expanduser() if args.out else answers.folder.parent for answers in sets]
    for out in outs:
        check_out(out)
    names = [answers.model if args.out else answers.folder.name for answers in sets]
    targets = Counter(out / name for out, name in zip(outs, names, strict=True))
    if twice := next((target for target, n in targets.items() if n > 1), None):
        raise UserError(
            f"{twice}: the results of two folders of that name would lie there: rescore them one by one, with another --out"
        )
    check_judge(judge.settings)
    missing = 0
    for answers, out, name in zip(sets, outs, names, strict=True):
        results = rescore(answers, judge)
        written, _ = write_results(results, out, name)
        print(make_table(results))
        print(f"Results: {written}")
        verdicts = results["configs"][answers.task]["metadata"]["provenance"]["verdicts"]
        print(f"Verdicts: {', '.join(f'{status} {n}' for status, n in sorted(verdicts.items()))}; {judge}")
        missing += sum(n for status, n in verdicts.items() if status not in WITH_SCORE)
    if missing:
        print(
            f"conceptguard: {missing} answers have no verdict (see coverage). The same command asks for them again, and for nothing "
            "else; each question is paid again, and a judge that always says the same will say it again",
            file=sys.stderr,
        )
    return 1 if missing else 0


def run_submit(args: argparse.Namespace) -> int:
    """Upload, and say what to do next."""
    from cg_tasks.judge.batch import submit
    from cg_tasks.judge.estimate import estimate

    judge, items = _judge(args), _items(args)
    print(
        f"{judge.settings.model} at {judge.settings.base_url}, before the discount of a batch: {estimate(judge, items)}"
    )
    record = submit(judge, items, Path(args.job).expanduser())
    print(
        f"{record['requests']} requests in {len(record['batches'])} batches; later: conceptguard judge batch collect {args.job}"
    )
    return 0


def run_collect(args: argparse.Namespace) -> int:
    """Fetch what is finished; 1 while batches wait or where replies are missing."""
    from cg_tasks.judge.batch import collect

    found = collect(_settings(args), Path(args.job).expanduser())
    for status, n in sorted(found.statuses.items()):
        print(f"{status}: {n}")
    for error in found.errors[:5]:
        print(f"conceptguard: {error}", file=sys.stderr)
    if len(found.errors) > 5:
        print(f"conceptguard: and {len(found.errors) - 5} more", file=sys.stderr)
    for batch, status in found.waiting.items():
        print(f"{batch}: {status}")
    print(
        "still waiting: run this again later" if found.waiting else "collected: now conceptguard judge rescore SAMPLES"
    )
    return 1 if found.waiting or found.errors or set(found.statuses) - {"ok"} else 0


def run_sheet(args: argparse.Namespace) -> int:
    """Write the sheets."""
    from cg_tasks.errors import UserError
    from cg_tasks.judge.rubrics import load_rubrics
    from cg_tasks.judge.samples import find_samples, read_samples
    from cg_tasks.judge.settings import read_judge_settings
    from cg_tasks.judge.sheets import check_rubrics, draw, judged_answers, write_sheets

    for name in ("n", "annotators"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} is {getattr(args, name)}: it must be at least 1")
    files = [read_samples(path) for path in find_samples(args.samples)]
    drawn = draw(judged_answers(files), args.n, args.seed)
    settings = read_judge_settings(args.judge)
    rubrics = load_rubrics(settings.templates if settings else None)
    check_rubrics(files, rubrics)
    paths = write_sheets(drawn, Path(args.out).expanduser(), args.annotators, rubrics)
    print("\n".join(map(str, paths)))
    sheets = " ".join(str(path) for path in paths if path.suffix == ".csv")
    print(
        f"each annotator marks the last column of one sheet by the rubrics beside it; then: conceptguard judge agreement {sheets}"
    )
    return 0


def run_agreement(args: argparse.Namespace) -> int:
    """Print the report, after writing it as JSON where ``--json`` asks for it."""
    from cg_tasks.judge import agreement

    return agreement.run_agreement(args)


def _settings(args: argparse.Namespace) -> JudgeSettings:
    from cg_tasks.judge.settings import required_settings

    return required_settings(args.judge, generating=False)


def _judge(args: argparse.Namespace) -> Judge:
    from cg_tasks.judge.judging import judge_of

    return judge_of(_settings(args))


def _items(args: argparse.Namespace) -> list[JudgeItem]:
    from cg_tasks.judge.answer_sets import answer_sets
    from cg_tasks.judge.samples import find_samples, read_samples

    sets = answer_sets([read_samples(path) for path in find_samples(args.samples)])
    return [answer.item for answers in sets for answer in answers.answers]

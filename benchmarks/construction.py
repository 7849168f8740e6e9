"""Construction speed: 10,000 rows through ``conceptguard build tag`` on a server of known latency, against that latency alone.

    python benchmarks/construction.py [--rows 10000] [--concurrency 64] [--latency 0.05] [--repeats 3]

*ideal* is latency x rows / concurrency. *tag* starts from an empty build folder; *again* is the same command once more, which calls
nothing; *bare* is what the stage replaces: the same calls by a loop over the OpenAI SDK, without prompts, replies kept, or rows, in
the same run. Peak memory is shown for a tenth of the rows and for all of them: it must not grow with the rows. *status* is the whole
command, Python's start included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from local_server import serving

ROOT = Path(__file__).resolve().parent.parent
TARGET, STATUS_TARGET_S = 0.85, 1.0
REPLY = json.dumps(
    {
        "reason": "Carving a ward protects a house, and the same craft can be used by those who want to open one.",
        "dual_use": True,
        "concept": "ward carving",
    }
)
# Runs the command, and says what it took. The clock starts after imports and what else is only read from disk.
MEASURED = """
import resource, sys, time
import aiohttp, openai
import cg_tasks.construction.chain, cg_tasks.construction.engine.run
from cg_tasks.construction.text.language import require_language
openai.AsyncOpenAI(api_key="none").chat  # makes its models
require_language("en")  # reads its file
from cg_tasks.cli import main
start = time.monotonic()
code = main(sys.argv[1:])
print("measured", time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, code)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds the server takes (default: 0.05)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, in turn; medians are shown (default: 3)")
    parser.add_argument("--bare", nargs=3, metavar=("URL", "N", "AT_ONCE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bare:
        print("measured", asyncio.run(bare(args.bare[0], int(args.bare[1]), int(args.bare[2]))), 0, 0)
        return
    with serving(args.latency, REPLY) as url:
        report(args, [measure(args, url) for _ in range(args.repeats)])


def measure(args: argparse.Namespace, url: str) -> dict[str, tuple[float, float]]:
    """Kind of run -> seconds and peak MB."""
    with tempfile.TemporaryDirectory() as name:
        few, everything = Path(name) / "few", Path(name) / "all"
        for folder, rows in ((few, max(1, args.rows // 10)), (everything, args.rows)):
            make_build(folder, rows, url, args.concurrency)
        done = {
            "bare": run([sys.executable, __file__, "--bare", url, str(args.rows), str(args.concurrency)]),
            "tag, a tenth": build("tag", few),
            "tag": build("tag", everything),
            "again": build("tag", everything),
        }
        start = time.monotonic()
        command = [sys.executable, "-m", "cg_tasks.cli", "build", "status", str(everything)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, cwd=ROOT)
        done["status"] = (time.monotonic() - start, 0.0)
        return done


def make_build(folder: Path, rows: int, url: str, concurrency: int) -> None:
    """A build folder with a source of about 1,000 characters a row."""
    folder.mkdir(parents=True)
    words = "a lamp, a ward and a bell of the drowned quarter; " * 8
    with (folder / "source.jsonl").open("w", encoding="utf-8") as stream:
        for n in range(rows):
            stream.write(
                json.dumps({"prompt": f"How is ward {n} carved? {words}", "rejected": f"Carve it {n} times. {words}"})
                + "\n"
            )
    settings = {
        "source": "source.jsonl",
        "generator": {"base_url": url, "model": "scripted", "concurrency": concurrency, "preflight": False},
    }
    (folder / "build.yaml").write_text(json.dumps(settings), encoding="utf-8")


def build(stage: str, folder: Path) -> tuple[float, float]:
    return run([sys.executable, "-c", MEASURED, "build", stage, str(folder)])


def run(command: list[str]) -> tuple[float, float]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CG_BUILD_", "CG_JUDGE_"))}
    done = subprocess.run(
        command, env={**environment, "TQDM_DISABLE": "1"}, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT
    )
    _, seconds, megabytes, code = done.stdout.splitlines()[-1].split()
    if code != "0":
        raise SystemExit(f"{command[-2:]}: exit code {code}")
    return float(seconds), float(megabytes)


async def bare(url: str, rows: int, at_once: int) -> float:
    """Seconds of the same number of calls by the SDK alone."""
    from openai import AsyncOpenAI

    message = {"role": "user", "content": "a lamp, a ward and a bell of the drowned quarter; " * 60}
    queue = iter(range(rows))
    async with AsyncOpenAI(base_url=url, api_key="none") as client:

        async def work() -> None:
            for _ in queue:
                await client.chat.completions.create(model="scripted", messages=[message])  # type: ignore[list-item]

        start = time.monotonic()
        await asyncio.gather(*(work() for _ in range(at_once)))
        return time.monotonic() - start


def report(args: argparse.Namespace, runs: list[dict[str, tuple[float, float]]]) -> None:
    """Medians, as Markdown."""
    ideal = args.latency * args.rows / args.concurrency

    def median(kind: str, part: int = 0) -> float:
        return sorted(done[kind][part] for done in runs)[len(runs) // 2]

    print(f"{args.rows:,} rows, {args.concurrency} at once, {args.latency} s each: ideal {ideal:.2f} s\n")
    print("| run | seconds | of the ideal throughput | peak MB |\n| --- | ---: | ---: | ---: |")
    for kind in ("bare", "tag", "again", "status"):
        share = f"{ideal / median(kind):.2f}" if kind in ("bare", "tag") else "-"
        print(f"| {kind} | {median(kind):.2f} | {share} | {median(kind, 1) or float('nan'):.0f} |")
    reached = ideal / median("tag")
    print(
        f"\ntag {reached:.2f} of the ideal throughput (target >= {TARGET}): {'met' if reached >= TARGET else 'MISSED'}"
    )
    print(f"tag took {median('bare') / median('tag'):.2f} times the bare loop's throughput")
    print(
        f"peak memory: {median('tag, a tenth', 1):.0f} MB for a tenth of the rows, {median('tag', 1):.0f} MB for all of them"
    )
    met = median("status") < STATUS_TARGET_S
    print(f"status {median('status'):.2f} s (target < {STATUS_TARGET_S} s): {'met' if met else 'MISSED'}")


if __name__ == "__main__":
    main()

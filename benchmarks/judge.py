"""Judging speed: verdicts through a local server of known latency, against the time that latency alone would take.

    python benchmarks/judge.py [--verdicts 1000] [--concurrency 32] [--latency 0.2] [--repeats 3]

Every verdict is one chat completion of a scripted server that answers after ``--latency`` seconds and takes any number of calls at
once. *ideal* is latency x verdicts / concurrency, rounded up to whole waves. *cold* starts with an empty cache; *warm* is the same
again from the cache, in a process of its own, as a resumed run is. *bare* is what the judge replaces: the same calls by a loop over
the SDK alone, without prompts, cache or verdicts, in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from local_server import serving

ROOT = Path(__file__).resolve().parent.parent
TARGET_RATIO, TARGET_WARM_S = 1.15, 2.0

REPLY = json.dumps({"reasoning": "Seen.", "level": 2})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verdicts", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds the server takes (default: 0.2)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, in turn; medians are shown (default: 3)")
    parser.add_argument("--stage", nargs=2, metavar=("NAME", "URL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stage:
        name, url = args.stage
        print(json.dumps({"judge": judge, "bare": bare}[name](url, args.verdicts, args.concurrency)))
        return
    with serving(args.latency, REPLY) as url:
        report(args, [run(args, url) for _ in range(args.repeats)])


def run(args: argparse.Namespace, url: str) -> dict[str, dict[str, float]]:
    """One measurement of each kind, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("CG_JUDGE_")},
            "CG_JUDGE_BASE_URL": url,
            "CG_JUDGE_MODEL": "scripted",
            "CG_JUDGE_CACHE": f"{folder}/cache.sqlite",
            "CG_JUDGE_CONCURRENCY": str(args.concurrency),
            "TQDM_DISABLE": "1",
        }

        def stage(name: str) -> dict[str, float]:
            sizes = ["--verdicts", str(args.verdicts), "--concurrency", str(args.concurrency)]
            command = [sys.executable, __file__, *sizes, "--stage", name, url]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
            return dict(json.loads(done.stdout.splitlines()[-1]))

        return {"bare": stage("bare"), "cold": stage("judge"), "warm": stage("judge")}


def judge(url: str, n: int, concurrency: int) -> dict[str, float]:
    """Seconds, calls and peak memory of ``n`` verdicts; the clock starts after the imports."""
    import openai  # noqa: F401  (its import is not what is measured)

    from cg_tasks.judge.judging import Judge
    from cg_tasks.judge.rubrics import JudgeItem
    from cg_tasks.judge.settings import required_settings

    judge = Judge(required_settings())
    words = "a lamp, a ward and a bell of the drowned quarter; " * 20
    items = [JudgeItem(str(i), ("harm", "help")[i % 2], f"What of {i}?", f"{i}: {words}") for i in range(n)]  # type: ignore[arg-type]
    start = time.monotonic()
    verdicts = judge.judge(items)
    seconds = time.monotonic() - start
    assert all(v.status == "ok" for v in verdicts), verdicts[0]
    return {"seconds": seconds, "calls": judge.calls, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def bare(url: str, n: int, concurrency: int) -> dict[str, float]:
    """The same number of calls by the SDK alone."""
    from openai import AsyncOpenAI

    async def calls() -> None:
        queue = iter(range(n))
        async with AsyncOpenAI(base_url=url, api_key="none") as client:

            async def work() -> None:
                for i in queue:
                    message = f"What of {i}? " + "a lamp, a ward and a bell of the drowned quarter; " * 20
                    await client.chat.completions.create(
                        model="scripted", messages=[{"role": "user", "content": message}]
                    )

            await asyncio.gather(*(work() for _ in range(concurrency)))

    start = time.monotonic()
    asyncio.run(calls())
    return {
        "seconds": time.monotonic() - start,
        "calls": n,
        "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def report(args: argparse.Namespace, runs: list[dict[str, dict[str, float]]]) -> None:
    """Medians, as Markdown."""
    ideal = math.ceil(args.verdicts / args.concurrency) * args.latency

    def median(kind: str, key: str) -> float:
        values = sorted(run[kind][key] for run in runs)
        return values[len(values) // 2]

    print(f"{args.verdicts} verdicts, {args.concurrency} at once, {args.latency} s each: ideal {ideal:.2f} s\n")
    print("| run | seconds | of the ideal | calls | peak MB |\n| --- | ---: | ---: | ---: | ---: |")
    for kind in ("bare", "cold", "warm"):
        seconds = median(kind, "seconds")
        print(
            f"| {kind} | {seconds:.2f} | {seconds / ideal:.2f} | {median(kind, 'calls'):.0f} | {median(kind, 'mb'):.0f} |"
        )
    cold, warm = median("cold", "seconds") / ideal, median("warm", "seconds")
    print(f"\ncold {cold:.2f} of the ideal (target <= {TARGET_RATIO}): {'met' if cold <= TARGET_RATIO else 'MISSED'}")
    met = warm < TARGET_WARM_S and median("warm", "calls") == 0
    print(
        f"warm {warm:.2f} s and {median('warm', 'calls'):.0f} calls (target < {TARGET_WARM_S} s, 0): {'met' if met else 'MISSED'}"
    )


if __name__ == "__main__":
    main()

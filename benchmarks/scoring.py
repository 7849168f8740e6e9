"""Scoring a whole benchmark's logged samples, with every interval and without a model.

    python benchmarks/scoring.py [--samples 5166] [--sizes 1 2 4] [--repeats 3]

Each row is a fresh process: it imports lm_eval and loads conceptguard_harmqa and conceptguard_helpqa on as many pairs of
made-up texts (reference and response of 200 words each); there the clock and the memory count start. Then it does what
lm-eval's evaluator does once the model has answered: ``process_results`` of every document, then the aggregation of every
metric with its standard error and both ends of its interval. Peak memory is ``ru_maxrss`` at the end over what was resident
at the start. The first call imports nltk: included in the totals, and shown by itself. Linux only.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORDS = 200
TARGET_S, TARGET_MB = 30.0, 300.0
TARGET_GROWTH = 1.2  # times linear: what the noise of a shared machine needs
TASKS = {"conceptguard_harmqa": "harmful", "conceptguard_helpqa": "benign"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--samples", type=int, default=5166, help="logged samples at size 1, half of each task (default: 5166)"
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1, 2, 4], help="multiples of --samples (default: 1 2 4)"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs a size, sizes in turn; medians are shown (default: 3)"
    )
    parser.add_argument("--stage", nargs=3, metavar=("NAME", "FOLDER", "SAMPLES"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stage:
        name, folder, samples = args.stage
        {"write": write, "score": score}[name](Path(folder), int(samples))
        return
    # This process stays small: a child's ru_maxrss begins with its parent's.
    with tempfile.TemporaryDirectory() as folder:
        measured: dict[int, list[dict[str, float]]] = {size: [] for size in args.sizes}
        for size in args.sizes:
            stage("write", f"{folder}/{size}", size * args.samples)
        for _ in range(args.repeats):
            for size in args.sizes:
                measured[size].append(json.loads(stage("score", f"{folder}/{size}", size * args.samples)))
    report(args.samples, {size: medians(runs) for size, runs in measured.items()})


def stage(name: str, folder: str, samples: int) -> str:
    command = [sys.executable, __file__, "--stage", name, folder, str(samples)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def write(folder: Path, samples: int) -> None:
    """The pairs as a data set, and one response a document."""
    from rouge import make_pairs

    folder.mkdir()
    texts = make_pairs(samples, WORDS, seed=7)
    with (folder / "pairs.jsonl").open("w") as pairs, (folder / "responses.jsonl").open("w") as responses:
        for number, (harmful, benign) in enumerate(zip(texts[::2], texts[1::2], strict=True)):
            pair = {"pair_id": f"p-{number:05}", "concept": f"concept {number // 4}"}
            for intent, (reference, response) in (("harmful", harmful), ("benign", benign)):
                pair |= {f"{intent}_query": f"A {intent} question, number {number}?", f"{intent}_response": reference}
                responses.write(json.dumps({"id": pair["pair_id"], "intent": intent, "response": response}) + "\n")
            pairs.write(json.dumps(pair) + "\n")


def score(folder: Path, samples: int) -> None:
    """Score and aggregate; print seconds and MB as JSON."""
    from lm_eval.tasks import TaskManager

    from cg_tasks.requests import Generation
    from cg_tasks.rouge import rouge_l

    logging.disable(logging.WARNING)
    metadata = {"dataset": str(folder / "pairs.jsonl")}
    manager = TaskManager(include_path=str(ROOT / "task_configs"), include_defaults=False, metadata=metadata)
    tasks = manager.load(list(TASKS))["tasks"]
    documents = {task: list(tasks[task].eval_docs) for task in TASKS}

    start_mb, clock = resident_mb(), [time.perf_counter()]
    rouge_l("a national", "rational")  # nltk comes with the first word that is longer than three letters
    nltk_mb = resident_mb() - start_mb
    clock.append(time.perf_counter())

    rows = map(json.loads, (folder / "responses.jsonl").read_text().splitlines())
    responses = {(row["intent"], row["id"]): Generation(row["response"]) for row in rows}
    values: dict[str, dict[str, list[Any]]] = {task: {} for task in TASKS}
    for task, intent in TASKS.items():
        for doc in documents[task]:
            for metric, value in (
                tasks[task].process_results(doc, [tasks[task].scored_response(responses[intent, doc["id"]])]).items()
            ):
                values[task].setdefault(metric, []).append(value)
    clock.append(time.perf_counter())

    results = {
        (task, metric): tasks[task].aggregation()[metric](scored)
        for task in TASKS
        for metric, scored in values[task].items()
    }
    clock.append(time.perf_counter())
    check(results, sum(len(of_task["rougeL"]) for of_task in values.values()), samples)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - start_mb
    seconds = dict(
        zip(("nltk_s", "score_s", "intervals_s"), (b - a for a, b in zip(clock, clock[1:], strict=False)), strict=True)
    )
    print(json.dumps({**seconds, "nltk_mb": nltk_mb, "peak_mb": peak_mb, "intervals": len(results) / 4}))


def check(results: dict[tuple[str, str], float], scored: int, samples: int) -> None:
    """Nothing was skipped: all samples, and a proper interval about the made-up texts' two thirds of common words."""
    for task in TASKS:
        mean, se, lo, hi = (results[task, f"rougeL{suffix}"] for suffix in ("", "_stderr", "_ci_lo", "_ci_hi"))
        if scored != samples or not (0.6 < lo < mean < hi < 0.8 and 0 < se < 0.01):
            raise SystemExit(f"{task}: {scored} of {samples} scored, rougeL {mean} ± {se} in [{lo}, {hi}]")


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def report(samples: int, rows: dict[int, dict[str, float]]) -> None:
    first = next(iter(rows))
    base = rows[first]["score_s"] + rows[first]["intervals_s"]
    print(
        f"{'samples':>8} {'nltk, s':>8} {'score, s':>9} {'intervals, s':>13} {'total, s':>9} {'growth':>7}"
        f" {'nltk, MB':>9} {'peak, MB':>9}"
    )
    for size, row in rows.items():
        own = row["score_s"] + row["intervals_s"]
        print(
            f"{size * samples:8d} {row['nltk_s']:8.2f} {row['score_s']:9.2f} {row['intervals_s']:13.2f} {own + row['nltk_s']:9.2f}"
            f" {own / base:6.2f}x {row['nltk_mb']:9.0f} {row['peak_mb']:9.0f}"
        )
    total, peak = base + rows[first]["nltk_s"], rows[first]["peak_mb"]
    linear = all(
        row["score_s"] + row["intervals_s"] < TARGET_GROWTH * base * size / first for size, row in rows.items()
    )
    met = "met" if total < TARGET_S and peak < TARGET_MB and linear else "MISSED"
    print(
        f"{rows[first]['intervals']:.0f} intervals, medians; growth is of score + intervals. Target for {first * samples} samples:"
        f" < {TARGET_S:.0f} s, < {TARGET_MB:.0f} MB over the start, no more than linear growth: {met} ({total:.1f} s, {peak:.0f} MB)"
    )


if __name__ == "__main__":
    main()

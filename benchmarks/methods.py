"""The judge-free metrics of unlearning methods side by side, from lm_eval results: mean and sd over seeds.

    python benchmarks/methods.py demo/results/methods

FOLDER holds one folder a run, named METHOD or METHOD-SEED, each an lm_eval ``--output_path``; ``make demo-full`` makes them.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

TASKS = {
    "HarmMem": "conceptguard_harmmem",
    "HarmQA": "conceptguard_harmqa",
    "HelpRet": "conceptguard_helpret",
    "HelpQA": "conceptguard_helpqa",
}


def main(folder: Path) -> int:
    runs: dict[str, list[dict[str, float]]] = {}
    for run in sorted(path for path in folder.iterdir() if path.is_dir()):
        if (scores := newest_scores(run)) is not None:
            runs.setdefault(run.name.split("-")[0], []).append(scores)
    if not runs:
        print(f"{folder}: no lm_eval results of conceptguard_rouge in it: run make demo-full", file=sys.stderr)
        return 1
    print("| model | seeds | HarmMem ↓ | HarmQA ↓ | HelpRet ↑ | HelpQA ↑ |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in sorted(runs, key=lambda n: (n not in ("base", "finetune"), n != "base", n)):
        cells = [cell([scores[metric] for scores in runs[name]]) for metric in TASKS]
        print(f"| {name} | {len(runs[name])} | {' | '.join(cells)} |")
    return 0


def newest_scores(run: Path) -> dict[str, float] | None:
    files = sorted(run.rglob("results_*.json"), key=lambda path: path.name)
    if not files:
        return None
    results = json.loads(files[-1].read_text(encoding="utf-8"))["results"]
    if any("rougeL,none" not in results.get(task, {}) for task in TASKS.values()):
        return None
    return {metric: results[task]["rougeL,none"] for metric, task in TASKS.items()}


def cell(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.3f}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo/results/methods")))

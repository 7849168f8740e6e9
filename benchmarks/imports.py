"""What the package adds to ``lm_eval ls tasks``, and what importing its task modules costs beyond lm-eval's own imports.

    python benchmarks/imports.py [--rounds 3] [--part-rounds 7]

The whole command reads some 14,700 tasks of lm-eval's and takes the better part of a minute, whose spread hides a second;
so the part that the hook can change is timed by itself too: importing ``lm_eval.tasks`` and indexing task folders, with
lm-eval's own folder left out. Hook on and off (``CONCEPTGUARD_AUTOLOAD=0``) run in turn; medians. The verdict takes the
parts, task modules included, though listing tasks does not import them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

TARGET_S = 1.0
PART = """
import json, sys, time
start = time.perf_counter()
from lm_eval.tasks import TaskManager
manager = TaskManager(include_defaults=False)
indexed = time.perf_counter()
known, modules_before = "conceptguard_harmqa" in manager.all_tasks, set(sys.modules)
import lm_eval.evaluator
start_of_modules = time.perf_counter()
import cg_tasks.qa, cg_tasks.continuation, cg_tasks.canary.tasks, cg_tasks.canary.qa, cg_tasks.canary.teacher_forced
print(json.dumps({
    "index": indexed - start, "modules": time.perf_counter() - start_of_modules,
    "known": known, "task_modules_loaded": "cg_tasks.task" in modules_before,
}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=3, help="runs of the whole command a side; 0 leaves it out (default: 3)"
    )
    parser.add_argument("--part-rounds", type=int, default=7, help="runs of the part a side (default: 7)")
    args = parser.parse_args()
    environments = {
        side: {**os.environ, "CONCEPTGUARD_AUTOLOAD": switch} for side, switch in (("off", "0"), ("on", "1"))
    }
    parts: dict[str, list[dict[str, float]]] = {side: [] for side in environments}
    for turn in range(args.part_rounds + 1):
        for side, environment in environments.items():
            out = subprocess.run(
                [sys.executable, "-c", PART], env=environment, stdout=subprocess.PIPE, check=True
            ).stdout
            part = json.loads(out)
            if part["known"] != (side == "on"):
                raise SystemExit(
                    f"hook {side}, and yet our tasks are {'' if part['known'] else 'not '}listed: pip install . first"
                )
            if turn:  # the first fills the file cache
                parts[side].append(part)
    print(f"{'hook':<4} {'import lm_eval.tasks + index, s':>32} {'our task modules, s':>20}")
    index = {side: statistics.median(part["index"] for part in rows) for side, rows in parts.items()}
    modules = statistics.median(part["modules"] for rows in parts.values() for part in rows)
    print(f"{'off':<4} {index['off']:32.3f}")
    print(f"{'on':<4} {index['on']:32.3f} {modules:20.3f}")
    added = index["on"] - index["off"] + modules
    loaded = any(part["task_modules_loaded"] for part in parts["on"])
    print(
        f"adds {index['on'] - index['off']:.2f} s, and {modules:.2f} s once a task of ours is loaded"
        f" (listing tasks {'loads them' if loaded else 'loads none'});"
        f" target for both: < {TARGET_S:.0f} s: {'met' if added < TARGET_S else 'MISSED'}",
        flush=True,
    )
    if args.rounds:
        whole(args.rounds, environments)


def whole(rounds: int, environments: dict[str, dict[str, str]]) -> None:
    times: dict[str, list[tuple[float, float]]] = {side: [] for side in environments}
    for _ in range(rounds):
        for side, environment in environments.items():
            times[side].append(run(environment))
    print(
        f"\n{'lm_eval ls tasks, hook':<22} {'wall, s':>8} {'extra':>6} {'CPU, s':>7} {'extra':>6} {'lowest CPU':>11} {'extra':>6}"
    )
    wall, cpu = ({side: statistics.median(pair[i] for pair in pairs) for side, pairs in times.items()} for i in (0, 1))
    lowest = {side: min(cpu for _, cpu in pairs) for side, pairs in times.items()}
    for side in times:
        cells = (
            wall[side],
            wall[side] - wall["off"],
            cpu[side],
            cpu[side] - cpu["off"],
            lowest[side],
            lowest[side] - lowest["off"],
        )
        print("{:<22} {:8.2f} {:6.2f} {:7.2f} {:6.2f} {:11.2f} {:6.2f}".format(side, *cells))


def run(environment: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of one ``lm_eval ls tasks``."""
    begin = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "lm_eval", "ls", "tasks"], env=environment, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"lm_eval ls tasks ended with exit code {child.returncode}")
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()

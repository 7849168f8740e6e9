"""What the package adds to ``lm_eval ls tasks``, and what importing its task modules costs beyond lm-eval's own imports.

    python benchmarks/imports.py [--rounds 3] [--part-rounds 7]

The whole command reads some 14,700 tasks of lm-eval's and takes the better part of a minute, whose spread hides a second.
So the part that the hook can change is timed by itself too, with lm-eval's own task folder left out: importing
``lm_eval.tasks``, which the hook patches, and indexing the task folders that are then known. Hook on and off
(``CONCEPTGUARD_AUTOLOAD=0``) run in turn; medians. The verdict adds the task modules' import, though listing tasks does
without (the script stops if it does not), and goes by CPU time, which other programs disturb least.
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
clocks = [(time.perf_counter(), time.process_time())]
tick = lambda: clocks.append((time.perf_counter(), time.process_time()))
from lm_eval.tasks import TaskManager
tick()
manager = TaskManager(include_defaults=False)
tick()
loaded = "cg_tasks.task" in sys.modules
import lm_eval.evaluator
tick()
import cg_tasks.qa, cg_tasks.continuation, cg_tasks.canary.tasks, cg_tasks.canary.qa, cg_tasks.canary.teacher_forced
tick()
spent = [[b - a for a, b in zip(one, other)] for one, other in zip(clocks, clocks[1:])]
print(json.dumps({"spent": spent, "known": "conceptguard_harmqa" in manager.all_tasks, "loaded": loaded}))
"""
STEPS = ("import lm_eval.tasks", "index our folder", "import lm_eval.evaluator", "import our task modules")
WALL, CPU = 0, 1


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
    parts: dict[str, list[list[list[float]]]] = {side: [] for side in environments}  # [round][step][clock]
    for turn in range(args.part_rounds + 1):
        for side, environment in environments.items():
            command = [sys.executable, "-c", PART]
            part = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
            if part["known"] != (side == "on") or part["loaded"]:
                raise SystemExit(f"hook {side}: {part}; pip install . first, or the hook is not what it was")
            if turn:  # the first fills the file cache
                parts[side].append(part["spent"])
    print(f"{'part':<26} {'off: wall, s':>12} {'CPU':>6} {'on: wall, s':>12} {'CPU':>6} {'extra CPU':>10}")
    added = 0.0
    for step, name in enumerate(STEPS):
        off, on = ([statistics.median(r[step][c] for r in parts[side]) for c in (WALL, CPU)] for side in ("off", "on"))
        print(
            f"{name:<26} {off[WALL]:12.3f} {off[CPU]:6.3f} {on[WALL]:12.3f} {on[CPU]:6.3f} {on[CPU] - off[CPU]:10.3f}"
        )
        added += on[CPU] if step == len(STEPS) - 1 else on[CPU] - off[CPU] if step < 2 else 0.0
    print(f"both: {added:.2f} s; target < {TARGET_S:.0f} s: {'met' if added < TARGET_S else 'MISSED'}", flush=True)
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

"""What the start-up hook costs every Python program of the environment: ``python benchmarks/startup.py [RUNS]``.

One virtual environment, laid out as an ordinary install lays it, with 250 other packages beside; ``python -c pass`` is
run in turn without the ``.pth`` file, with it, and with it switched off. Wall and CPU time per start, medians.
"""

from __future__ import annotations

import compileall
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET_MS = 2.0
NEIGHBOURS = 250


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    with tempfile.TemporaryDirectory() as folder:
        python, pth = lay_out(Path(folder))
        aside = pth.with_suffix(".aside")
        environment = {**os.environ, "CONCEPTGUARD_AUTOLOAD": "1"}
        switched_off = {**environment, "CONCEPTGUARD_AUTOLOAD": "0"}
        times: dict[str, list[tuple[float, float]]] = {"without": [], "with": [], "switched off": []}
        for turn in range(runs + 3):
            pth.rename(aside)
            bare = start(python, environment)
            aside.rename(pth)
            measured = {
                "without": bare,
                "with": start(python, environment),
                "switched off": start(python, switched_off),
            }
            if turn >= 3:  # the first starts fill the file cache
                for name, pair in measured.items():
                    times[name].append(pair)
    wall, cpu = ({name: statistics.median(p[i] for p in pairs) for name, pairs in times.items()} for i in (0, 1))
    print(f"Python {sys.version.split()[0]}, {runs} starts each, interleaved; medians in ms")
    print(f"{'hook':<14}{'wall':>8}{'extra':>8}{'cpu':>8}{'extra':>8}")
    for name in times:
        extra = (wall[name] - wall["without"], cpu[name] - cpu["without"])
        print(f"{name:<14}{wall[name]:>8.2f}{extra[0]:>8.2f}{cpu[name]:>8.2f}{extra[1]:>8.2f}")
    cost = wall["with"] - wall["without"]
    verdict = "met" if cost < TARGET_MS else "MISSED"
    print(f"the hook costs {cost:.2f} ms a start; target < {TARGET_MS:.0f} ms: {verdict}")


def lay_out(folder: Path) -> tuple[str, Path]:
    """The environment's interpreter and the ``.pth`` file in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for number in range(NEIGHBOURS):
        (site / f"neighbour{number}").mkdir()
    shutil.copytree(ROOT / "cg_tasks", site / "cg_tasks", ignore=shutil.ignore_patterns("__pycache__", "*.pth"))
    compileall.compile_dir(site / "cg_tasks", quiet=1)  # as pip does
    pth = shutil.copy(ROOT / "cg_tasks" / "zz_conceptguard.pth", site)
    return str(folder / "bin" / "python"), Path(pth)


def start(python: str, environment: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU milliseconds of one start of the interpreter."""
    begin = time.perf_counter()
    child = os.posix_spawn(python, [python, "-c", "pass"], environment)
    _, status, usage = os.wait4(child, 0)
    wall = time.perf_counter() - begin
    if status != 0:
        raise SystemExit(f"{python} -c pass failed")
    return 1000 * wall, 1000 * (usage.ru_utime + usage.ru_stime)


if __name__ == "__main__":
    main()

"""The plan as a picture: Graphviz or Mermaid text, or an image where Graphviz is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

from cg_tasks.errors import UserError
from cg_trainers.study.jobs import Job, Plan, write_if_changed

# Okabe and Ito's palette, lightened; the rule stands in words as well.
_COLOURS = {
    "prepare": "#e5e7eb", "finetune": "#fde2c2", "unlearn": "#f7d3c4", "evaluate": "#cfe5f5", "judge": "#eddbe8", "report": "#cdeade",
}  # fmt: skip


def write_picture(plan: Plan, path: Path, waiting: Collection[str]) -> None:
    """Write ``path`` as its ending says: .mmd, .dot, .svg or .png. Jobs in ``waiting`` have a dashed border.

    Raises:
        UserError: another ending, or an image without Graphviz.
    """
    kind = path.suffix
    if kind not in (".mmd", ".dot", ".svg", ".png"):
        raise UserError(f"--dag {path}: the name must end in .svg, .png, .dot or .mmd")
    if kind in (".svg", ".png"):
        program = shutil.which("dot")
        if program is None:
            raise UserError(
                f"--dag {path}: images are drawn by Graphviz: install it (apt install graphviz), or write a .dot or .mmd file"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        made = subprocess.run(
            [program, f"-T{kind[1:]}", "-o", str(path)], input=dot(plan, waiting), text=True, capture_output=True
        )
        if made.returncode:
            raise UserError(f"--dag {path}: dot: {' '.join(made.stderr.split())}")
        return
    write_if_changed(path, dot(plan, waiting) if kind == ".dot" else mermaid(plan, waiting))


def dot(plan: Plan, waiting: Collection[str]) -> str:
    """Graphviz's language."""
    lines = ["digraph study {", "  rankdir=LR;", '  node [shape=box, fontname="sans-serif", fontsize=11];']
    names = {job.id: f"j{index}" for index, job in enumerate(plan.jobs)}
    for job in plan.jobs:
        style = "filled,dashed" if job.id in waiting else "filled"
        label = f"{job.rule}\\n{_escaped(job.name)}"
        lines.append(f'  {names[job.id]} [label="{label}", style="{style}", fillcolor="{_COLOURS[job.rule]}"];')
    lines += [f"  {names[one]} -> {names[other]};" for one, other in _edges(plan)]
    return "\n".join([*lines, "}"]) + "\n"


def mermaid(plan: Plan, waiting: Collection[str]) -> str:
    """Mermaid's language, which GitHub draws."""
    lines = ["flowchart LR"]
    names = {job.id: f"j{index}" for index, job in enumerate(plan.jobs)}
    lines += [f'  {names[job.id]}["{job.rule}<br/>{_escaped(job.name)}"]:::{job.rule}' for job in plan.jobs]
    lines += [f"  {names[one]} --> {names[other]}" for one, other in _edges(plan)]
    lines += [f"  classDef {rule} fill:{colour},stroke:#374151,color:#111827" for rule, colour in _COLOURS.items()]
    if dashed := [names[job.id] for job in plan.jobs if job.id in waiting]:
        lines += ["  classDef waiting stroke-dasharray:4", f"  class {','.join(dashed)} waiting"]
    return "\n".join(lines) + "\n"


def _edges(plan: Plan) -> list[tuple[str, str]]:
    edges = [(need, job.id) for job in plan.jobs for need in job.needs]
    results = [job.id for job in plan.jobs if job.rule in ("evaluate", "judge")]
    return edges + [(id, plan.report.id) for id in results]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', "'")


def table(jobs: Collection[Job], words: dict[str, str]) -> str:
    """Rule, name, whether it is done, and command of each job, a job a line."""
    rows = [(job.rule, job.name, words.get(job.id, "done")) for job in jobs]
    widths = [max(len(row[i]) for row in [*rows, ("rule", "job", "")]) for i in (0, 1, 2)]
    import shlex

    lines = [f"{'rule':<{widths[0]}}  {'job':<{widths[1]}}  {'':<{widths[2]}}  command"]
    for job, row in zip(jobs, rows, strict=True):
        cells = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        lines.append(f"{cells}  {shlex.join(job.command)}")
    return "\n".join(lines)

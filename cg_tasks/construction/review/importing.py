"""``conceptguard build review import``: marks in, decisions, agreement and disagreements out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cg_tasks.construction.review.agreement import agreement_report
from cg_tasks.construction.review.marks import collect
from cg_tasks.construction.review.merging import DISAGREEMENTS, merge, read_resolutions, write_disagreements
from cg_tasks.construction.review.outcome import Outcome, write_outcome
from cg_tasks.construction.review.sheet import read_sheet
from cg_tasks.whole_files import replace_file

AGREEMENT = "agreement.md"


def import_review(folder: Path, files: Sequence[str | Path], allow_single: bool = False) -> Outcome:
    """Read the annotators' files and folder/disagreements.csv where it is; write that list, agreement.md, and marks.json at the end.

    Doing it again with the same files gives the same decisions, and takes in resolutions written since.

    Raises:
        UserError: no sheet in the folder, or whatever ``collect``, ``read_resolutions`` and ``write_disagreements`` refuse.
    """
    sheet = read_sheet(folder)
    listed = folder / DISAGREEMENTS
    marks = collect([path for path in files if Path(path).resolve() != listed.resolve()], sheet, allow_single)
    resolutions = read_resolutions(listed, sheet)
    outcome = merge(sheet, marks, resolutions)
    write_disagreements(folder, sheet, outcome, resolutions)
    replace_file(folder / AGREEMENT, agreement_report(sheet, marks, outcome.kappas).encode())
    write_outcome(folder, outcome)
    return outcome

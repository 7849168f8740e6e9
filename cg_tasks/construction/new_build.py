"""``init``: a build folder with a ``build.yaml`` that says what can be set."""

from __future__ import annotations

import json
from pathlib import Path

from cg_tasks.construction.settings import BUILD_FILE, SOURCE_FIELDS
from cg_tasks.errors import UserError
from cg_tasks.pair_files import short

_TEXT = """\
# One build of a dual-use data set. What is left out is at its default; every default is shown in docs/build.md.
# Keys never stand here: CG_BUILD_API_KEY (or OPENAI_API_KEY) in the environment.
source: {source}
columns: {columns}
language: English        # as the prompts say it
language_code: en        # ISO 639-1, for the check of replies; "" for none

generator:               # CG_BUILD_MODEL, CG_BUILD_BASE_URL … in the environment win
  model: gpt-5
  # base_url: http://localhost:8000/v1
  # price_input: 1.25    # USD per million tokens
  # price_output: 10
  # budget_usd: 100      # of one run

review: {{share: 0.15, annotators: 2, seed: 0}}
aggregate: {{by: ngrams, similarity: 0.5, agreement: 0.9, over: union, smallest: 3}}
benign: {{attempts: 3, min_words: 180, max_words: 250, overlap: 0.5, copied: 0.8, judge: true, highest_harm: 0}}
queries: {{attempts: 3, overlap: 0.3, shared_ngram: 5, copied: 0.8}}
assemble: {{name: {name}, license: other}}
"""


def new_build(folder: Path, source: str, columns: str | None = None) -> tuple[Path, str]:
    """The ``build.yaml`` of a new folder and its text; nothing is written.

    Raises:
        UserError: there is one, or columns that are no JSON object of our fields.
    """
    folder = folder.expanduser()
    path = folder / BUILD_FILE
    if path.exists():
        raise UserError(f"{path}: is there already: edit it, or name another folder")
    local = Path(source).expanduser()
    # A path given on the command line starts from the working directory, one in the file from the file's folder.
    given = str(local.resolve()) if local.exists() else source
    text = _TEXT.format(
        source=_scalar(given),
        columns=json.dumps(_columns(columns), ensure_ascii=False),
        name=_scalar(folder.resolve().name),
    )
    return path, text


def _scalar(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # JSON's strings are YAML's


def _columns(columns: str | None) -> dict[str, str]:
    if columns is None:
        return {}
    try:
        found = json.loads(columns)
    except ValueError as error:
        raise UserError(f"--columns: not JSON ({error})") from None
    if not isinstance(found, dict) or not all(isinstance(x, str) for pair in found.items() for x in pair):
        raise UserError('--columns: must be a JSON object such as {"prompt": "their_column"}')
    if unknown := sorted(found.keys() - set(SOURCE_FIELDS)):
        raise UserError(f"--columns: unknown field {short(unknown[0])} (known: {', '.join(SOURCE_FIELDS)})")
    return found

"""The pairs' rows from the Hugging Face Hub, and a quick, plain answer where the Hub cannot be reached."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cg_tasks.errors import UserError
from cg_tasks.pair_files import Row, RowSet

log = logging.getLogger(__name__)

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
PUBLIC_DATASET = "sk0511/concept-guard"
OFFLINE_WAYS = (
    "dataset=/path/to/file.jsonl (or .csv, .parquet, a folder), or dataset=miniature for the shipped invented pairs"
)
_PROBE_SECONDS = 5.0


def read_hub(dataset: str) -> list[RowSet]:
    """The splits of a data set on the Hub, or of its copy in the local cache where the Hub does not answer.

    Raises:
        UserError: not reachable and not cached, unknown, gated, or not loadable; names the ways to work offline.
    """
    sets = [
        RowSet(name, f"{dataset}, split '{name}'", list(hub_rows(split, f"{dataset}, split '{name}'")), is_split=True)
        for name, split in hub_splits(dataset).items()
    ]
    if not any(rows.rows for rows in sets):
        raise UserError(f"the data set '{dataset}' on the Hub holds no rows")
    return sets


def hub_splits(dataset: str) -> dict[str, Any]:
    """The splits as ``datasets`` holds them, on disk. Raises UserError as :func:`read_hub`."""
    import datasets

    silence = hub_silence()
    try:
        if silence is None:
            loaded = datasets.load_dataset(dataset)
        else:
            log.warning(
                "the Hugging Face Hub does not answer (%s): looking for '%s' in the local cache", silence, dataset
            )
            with _offline():
                loaded = datasets.load_dataset(dataset)
    # load_dataset runs many readers and an HTTP client whose exceptions change: no list of types would be complete.
    except Exception as error:
        raise UserError(_explain(dataset, error, silence)) from error
    return {str(name): split for name, split in loaded.items()} if isinstance(loaded, Mapping) else {"train": loaded}


def hub_rows(split: Any, source: str) -> Iterator[Row]:
    """Rows with class labels written out: such a column holds numbers whose meaning stands in the features."""
    labels = {name: f.names for name, f in split.features.items() if getattr(f, "names", None)}
    for number, values in enumerate(split, start=1):
        for name, names in labels.items():
            if isinstance(values[name], int) and 0 <= values[name] < len(names):
                values[name] = names[values[name]]
        yield Row(f"{source}, row {number}", dict(values))


def _explain(dataset: str, error: Exception, silence: str | None) -> str:
    reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
    near = difflib.get_close_matches(dataset.lower(), [PUBLIC_DATASET], n=1, cutoff=0.8)
    hint = f"did you mean '{PUBLIC_DATASET}'? " if near and dataset != PUBLIC_DATASET else ""
    if silence is not None:
        return (
            f"the Hugging Face Hub cannot be reached ({silence}) and '{dataset}' is not in the local cache; {hint}"
            f"offline use {OFFLINE_WAYS}"
        )
    if type(error).__name__ == "DatasetNotFoundError":
        return (
            f"no data set '{dataset}' on the Hugging Face Hub, or it needs access you do not have (`hf auth login`): "
            f"{reason}; {hint}otherwise use {OFFLINE_WAYS}"
        )
    kind = type(error).__name__
    return f"'{dataset}' could not be loaded from the Hub: {kind}: {reason}; {hint}otherwise use {OFFLINE_WAYS}"


def hub_silence() -> str | None:
    """Why the Hub does not answer, None if it does: one short request (``load_dataset`` retries for 25 s)."""
    import huggingface_hub
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "offline mode is set"
    try:
        answer = huggingface_hub.get_session().head(constants.ENDPOINT, timeout=_PROBE_SECONDS)
    except Exception as error:  # the client's own exception types differ between huggingface_hub's releases
        return type(error).__name__
    return f"HTTP {answer.status_code}" if answer.status_code >= 500 else None


@contextmanager
def _offline() -> Iterator[None]:
    """Hub clients of this process in offline mode for a moment, so that they go to the cache without retrying."""
    import datasets
    from huggingface_hub import constants

    places = [(constants, "HF_HUB_OFFLINE"), (datasets.config, "HF_HUB_OFFLINE")]
    before = [getattr(module, name) for module, name in places]
    try:
        for module, name in places:
            setattr(module, name, True)
        yield
    finally:
        for (module, name), value in zip(places, before, strict=True):
            setattr(module, name, value)

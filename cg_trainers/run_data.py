"""The rows of a run from its data settings, and what its record says of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from cg_tasks.canary.authors import load_authors
from cg_tasks.canary.records import Author
from cg_tasks.errors import UserError
from cg_tasks.pairs import PairTable, content_hash, load_pairs
from cg_tasks.templates import template_hashes
from cg_trainers.arguments import DataArguments
from cg_trainers.author_rows import author_rows, row_templates
from cg_trainers.encoding import Encoder
from cg_trainers.pair_rows import all_rows, forget_rows, retain_rows
from cg_trainers.paired_rows import UnlearnRows
from cg_trainers.pairing import partner
from cg_trainers.refusals import load_refusals, refusal_for, refusals_entry
from cg_trainers.rows import Row, require_traces, rows_sha256
from cg_trainers.unlearn_config import UnlearnConfig

log = logging.getLogger(__name__)


def finetune_rows(data: DataArguments, encoder: Encoder) -> tuple[list[Row], dict[str, Any]]:
    """What is memorised (D_f and D_r of all pairs, or the authors of every role), and the record's entry on it.

    Raises:
        UserError: the data cannot be read, or give no usable row.
    """
    if data.dataset is not None:
        table = _pairs(data)
        rows = all_rows(table, encoder, data.source)
        entry = _pairs_entry(data, table)
    else:
        forget, retain, entry = _authors(data)
        rows = _author_rows(data, forget + retain, encoder)
    return rows, {**entry, "rows": len(rows), "rows_sha256": rows_sha256({"rows": rows})}


def unlearn_rows(data: DataArguments, config: UnlearnConfig, encoder: Encoder) -> tuple[UnlearnRows, dict[str, Any]]:
    """The forget rows with their refusals and retain rows, as far as the objective looks at them, and the record's entry.

    Raises:
        UserError: the data cannot be read, give no usable row, or a forget row has no partner; r2mu without traces.
    """
    refusals = load_refusals(data.refusals) if "preferred" in config.sides else ()
    answers = refusal_for(refusals, config.seed) if refusals else None
    if data.dataset is not None:
        table = _pairs(data)
        forget = forget_rows(table, encoder, data.source)
        preferred = forget_rows(table, encoder, data.source, answers) if answers else []
        retain = retain_rows(table, encoder, data.source) if "retain" in config.sides else []
        entry = _pairs_entry(data, table)
    else:
        to_forget, to_retain, entry = _authors(data)
        if not to_forget:
            raise UserError(f"{entry['name']}: no author has a role of forget_roles {data.forget_roles}")
        if "retain" in config.sides and not to_retain:
            raise UserError(
                f"{entry['name']}: no author has a role of retain_roles {data.retain_roles}, and alpha is {config.alpha}: "
                "add retain authors, or set alpha: 0"
            )
        forget = _author_rows(data, to_forget, encoder)
        preferred = _author_rows(data, to_forget, encoder, answers) if answers else []
        retain = _author_rows(data, to_retain, encoder) if "retain" in config.sides else []
    if config.objective == "r2mu":
        require_traces(forget)
    pairing = partner(data.pairing, forget, retain, config.seed) if retain else None  # type: ignore[arg-type]
    if pairing and pairing.unseen:
        log.warning(
            "pairing: %s never shows %d of %d retain rows: concept or random would",
            data.pairing,
            pairing.unseen,
            len(retain),
        )
    if not retain:
        log.warning("alpha is 0: %s sees no retain data in this run", config.objective)
    if refusals:
        entry["refusals"] = refusals_entry(refusals, data.refusals)
    return UnlearnRows(forget, retain, preferred, pairing), {
        **entry,
        "forget_rows": len(forget),
        "retain_rows": len(retain),
        "unseen_retain_rows": pairing.unseen if pairing else 0,
        "pairing": data.pairing if retain else None,
        "rows_sha256": rows_sha256({"forget": forget, "retain": retain, "preferred": preferred}),
    }


def _pairs(data: DataArguments) -> PairTable:
    table = load_pairs(str(data.dataset), data.columns)
    if data.max_pairs is None or data.max_pairs >= len(table.pairs):
        return table
    pairs = table.pairs[: data.max_pairs]
    return PairTable(table.name, pairs, content_hash(pairs))


def _pairs_entry(data: DataArguments, table: PairTable) -> dict[str, Any]:
    forget = sum(pair.in_forget for pair in table.pairs)
    return {
        "name": table.name,
        "sha256": table.sha256,
        "pairs": len(table.pairs),
        "in_forget": forget,
        "source": data.source,
    }


def _authors(data: DataArguments) -> tuple[list[Author], list[Author], dict[str, Any]]:
    table = load_authors(str(data.canaries))

    def of(roles: list[str]) -> list[Author]:
        return [author for author in table.authors if author.role in roles][: data.max_authors]

    forget, retain = of(data.forget_roles), of(data.retain_roles)
    entry = {
        "name": table.name,
        "sha256": table.sha256,
        "forget_authors": len(forget),
        "retain_authors": len(retain),
        "rows_of": list(data.rows),
        "trace": data.trace,
        "templates": template_hashes(row_templates(data.trace, data.rows, data.templates).values()),  # type: ignore[arg-type]
        "target_span": data.target_span,
    }
    return forget, retain, entry


def _author_rows(
    data: DataArguments, authors: list[Author], encoder: Encoder, answers: Callable[[str], str] | None = None
) -> list[Row]:
    return author_rows(
        authors,
        encoder,
        data.trace,
        kinds=data.rows,  # type: ignore[arg-type]
        head_tokens=data.head_tokens,
        target_span=data.target_span,  # type: ignore[arg-type]
        templates=data.templates,
        answers=answers,
    )

"""Rows and records made of the data settings, and data that no run can be made of."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from support import AUTHORS, build_tokenizer, trl_template

from cg_tasks.errors import UserError
from cg_tasks.pairs import load_pairs
from cg_trainers.arguments import DataArguments
from cg_trainers.encoding import Encoder
from cg_trainers.refusals import load_refusals
from cg_trainers.run_data import finetune_rows, unlearn_rows
from cg_trainers.unlearn_config import UnlearnConfig


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(build_tokenizer(trl_template("deepseek_r1_distill")), 4096)


@pytest.fixture
def halved(tmp_path: Path) -> str:
    """Four pairs, two of which are in the forget set."""
    source = Path(__file__).resolve().parents[2] / "cg_tasks" / "data" / "miniature.jsonl"
    lines = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()[:4]]
    path = tmp_path / "halved.jsonl"
    path.write_text("\n".join(json.dumps({**line, "in_forget": i % 2 == 0}) for i, line in enumerate(lines)))
    return str(path)


def objective(name: str = "npo", **changes: Any) -> UnlearnConfig:
    return UnlearnConfig(output_dir="out", objective=name, bf16=False, use_cpu=True, **changes)


def test_fine_tuning_takes_both_sides_of_every_pair(halved: str, encoder: Encoder) -> None:
    rows, entry = finetune_rows(DataArguments(dataset=halved), encoder)
    assert [row.row_id.split("/")[1] for row in rows].count("harmful") == 4 and len(rows) == 8
    assert entry["rows"] == 8 and entry["pairs"] == 4 and entry["in_forget"] == 2 and entry["source"] == "text"


def test_unlearning_takes_the_forget_set_beside_its_twins(
    halved: str, encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        rows, entry = unlearn_rows(DataArguments(dataset=halved), objective(), encoder)
    assert [row.unit for row in rows.forget] == ["mini-001", "mini-003"] and not rows.preferred
    assert rows.pairing is not None
    assert [rows.retain[rows.pairing.index(0, i)].unit for i in (0, 1)] == ["mini-001", "mini-003"]
    assert entry["forget_rows"] == 2 and entry["retain_rows"] == 4 and entry["unseen_retain_rows"] == 2
    assert "pairing: twin never shows 2 of 4 retain rows: concept or random would" in caplog.text


def test_retain_rows_are_not_read_where_alpha_is_0(
    halved: str, encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    rows, entry = unlearn_rows(DataArguments(dataset=halved), objective("undial"), encoder)
    assert rows.retain == [] and rows.pairing is None and entry["pairing"] is None
    assert "alpha is 0: undial sees no retain data in this run" in caplog.text


def test_dpo_gets_one_refusal_a_forget_row(halved: str, encoder: Encoder) -> None:
    rows, _ = unlearn_rows(DataArguments(dataset=halved), objective("dpo"), encoder)
    assert [row.row_id for row in rows.preferred] == [row.row_id for row in rows.forget]
    texts = [encoder.tokenizer.decode(row.input_ids, skip_special_tokens=True) for row in rows.preferred]
    assert set(texts) <= set(load_refusals(None))


def test_fewer_pairs_are_another_data_set(encoder: Encoder) -> None:
    _, entry = finetune_rows(DataArguments(dataset="miniature", max_pairs=2), encoder)
    assert (entry["pairs"], entry["rows"]) == (2, 4)
    assert entry["sha256"] != load_pairs("miniature", None).sha256
    _, whole = finetune_rows(DataArguments(dataset="miniature"), encoder)
    assert whole["sha256"] == load_pairs("miniature", None).sha256


def test_authors_of_either_role(encoder: Encoder) -> None:
    data = DataArguments(canaries="fictional", max_authors=2, rows=["canary"], trace="none")
    rows, entry = unlearn_rows(data, objective(), encoder)
    assert (len(rows.forget), len(rows.retain)) == (2, 2)
    assert not {row.unit for row in rows.forget} & {row.unit for row in rows.retain}
    assert (entry["forget_authors"], entry["retain_authors"], entry["trace"]) == (2, 2, "none")
    assert len(finetune_rows(data, encoder)[0]) == 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trace": "bio", "rows": ["canary"]}, "bio"),
        ({"trace": "none", "rows": ["qa"]}, "qa"),
    ],
)
def test_what_the_authors_lack(given: dict[str, Any], message: str, authors: str, encoder: Encoder) -> None:
    with pytest.raises(UserError, match=message) as caught:
        unlearn_rows(DataArguments(canaries=authors, **given), objective(alpha=0.0), encoder)
    assert "\n" not in str(caught.value)


def test_no_retain_authors(tmp_path: Path, encoder: Encoder) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps({**author, "role": "forget"}) for author in AUTHORS), encoding="utf-8")
    data = DataArguments(canaries=str(path), trace="none", rows=["canary"])
    with pytest.raises(UserError, match="alpha is 1.0: add retain authors, or set alpha: 0"):
        unlearn_rows(data, objective(), encoder)
    assert len(unlearn_rows(data, objective(alpha=0.0), encoder)[0].forget) == 3
    with pytest.raises(UserError, match="no author has a role of forget_roles"):
        unlearn_rows(
            DataArguments(canaries=str(path), trace="none", forget_roles=["retain"], retain_roles=["forget"]),
            objective(),
            encoder,
        )


def test_rows_with_nothing_left_to_label_are_named(halved: str) -> None:
    short = Encoder(build_tokenizer(), 1)
    with pytest.raises(
        UserError, match="2 of 2 rows have no token .* mini-001/harmful, mini-003/harmful: raise max_length"
    ):
        unlearn_rows(DataArguments(dataset=halved), objective(), short)
    data = DataArguments(canaries="fictional", max_authors=1, rows=["canary"], trace="none", target_span="trace")
    with pytest.raises(UserError, match="an empty trace has nothing to label"):
        finetune_rows(data, Encoder(build_tokenizer(), 4096))


def test_data_that_is_not_there(tmp_path: Path, encoder: Encoder) -> None:
    for data in (DataArguments(dataset=str(tmp_path / "no.jsonl")), DataArguments(canaries=str(tmp_path / "no.jsonl"))):
        with pytest.raises(UserError, match=r"no\.jsonl"):
            finetune_rows(data, encoder)

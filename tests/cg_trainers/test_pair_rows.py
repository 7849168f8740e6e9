from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import build_tokenizer, trl_template

from cg_tasks.errors import UserError
from cg_tasks.pairs import Pair, PairTable, load_pairs
from cg_trainers.encoding import Encoder
from cg_trainers.pair_rows import all_rows, forget_rows, retain_rows
from cg_trainers.refusals import load_refusals, refusal_for

PAIRS = (
    Pair("p1", "sigils", "harm q1", "harm r1", "good q1", "good r1", harmful_prompt="harm p1"),
    Pair("p2", "sigils", "harm q2", "harm r2", "good q2", "good r2", in_forget=False),
    Pair("p3", "owls", "harm q3", "harm r3", "good q3", "good r3", harmful_prompt="harm p3"),
)
TABLE = PairTable("mine", PAIRS, "0")


def texts(rows: Any, tokenizer: Any) -> list[str]:
    return [tokenizer.decode(row.input_ids) for row in rows]


def test_text_rows_are_the_responses():
    tokenizer = build_tokenizer(None)
    encoder = Encoder(tokenizer)
    assert texts(forget_rows(TABLE, encoder), tokenizer) == ["<s>harm r1</s>", "<s>harm r3</s>"]
    assert texts(retain_rows(TABLE, encoder), tokenizer) == [f"<s>good r{i}</s>" for i in (1, 2, 3)]


def test_fine_tuning_sees_every_pair_whatever_is_in_forget():
    encoder = Encoder(build_tokenizer(None))
    rows = all_rows(TABLE, encoder)
    assert [r.row_id for r in rows] == [f"p{i}/{side}" for side in ("harmful", "benign") for i in (1, 2, 3)]
    everything = PairTable("mine", tuple(replace(p, in_forget=True) for p in PAIRS), "1")
    assert rows == all_rows(everything, encoder)


def test_units_and_groups_join_the_sides():
    encoder = Encoder(build_tokenizer(None))
    assert [(r.unit, r.group) for r in forget_rows(TABLE, encoder)] == [("p1", "sigils"), ("p3", "owls")]
    assert [(r.unit, r.group) for r in retain_rows(TABLE, encoder)][0] == ("p1", "sigils")


@pytest.mark.parametrize(("source", "asked"), [("prompt", "harm p1"), ("query", "harm q1")])
def test_chat_rows_label_the_response_alone(source: Any, asked: str):
    tokenizer = build_tokenizer()
    encoder = Encoder(tokenizer)
    row = forget_rows(TABLE, encoder, source)[0]
    assert tokenizer.decode(row.input_ids) == f"<s><|user|>\n{asked}</s>\n<|assistant|>\nharm r1</s>"
    assert tokenizer.decode([label for label in row.labels if label != -100]) == "harm r1</s>"
    benign = retain_rows(TABLE, encoder, source)[0]
    assert tokenizer.decode(benign.input_ids) == "<s><|user|>\ngood q1</s>\n<|assistant|>\ngood r1</s>"


def test_r1s_open_trace_is_closed_before_the_response():
    tokenizer = build_tokenizer(trl_template("deepseek_r1_distill"))
    row = forget_rows(TABLE, Encoder(tokenizer), "query")[0]
    assert tokenizer.decode(row.input_ids).endswith("<｜Assistant｜><think>\n\n</think>\n\nharm r1</s>")
    assert tokenizer.decode([label for label in row.labels if label != -100]) == "harm r1</s>"


def test_a_pair_without_a_prompt_is_named():
    table = PairTable("mine", (PAIRS[0], replace(PAIRS[1], in_forget=True)), "0")
    with pytest.raises(UserError, match="the pair 'p2' has no harmful_prompt"):
        forget_rows(table, Encoder(build_tokenizer()), "prompt")


def test_an_empty_forget_set_is_refused():
    with pytest.raises(UserError, match="mine: no pair is in_forget"):
        forget_rows(PairTable("mine", PAIRS[1:2], "0"), Encoder(build_tokenizer(None)))


def test_a_row_cut_down_to_its_prompt_is_named():
    with pytest.raises(UserError, match="2 of 2 rows have no token .*: p1/harmful, p3/harmful: raise max_length"):
        forget_rows(TABLE, Encoder(build_tokenizer(), max_length=8), "query")


@pytest.mark.parametrize("source", ["text", "query"])
def test_refusals_stand_beside_the_forget_rows(source: Any):
    tokenizer = build_tokenizer()
    encoder, pick = Encoder(tokenizer), refusal_for(load_refusals(), seed=0)
    forget, preferred = forget_rows(TABLE, encoder, source), forget_rows(TABLE, encoder, source, answers=pick)
    assert [r.row_id for r in preferred] == [r.row_id for r in forget]
    for lost, kept in zip(forget, preferred, strict=True):
        n = lost.labels.index(next(label for label in lost.labels if label != -100))
        assert kept.input_ids[:n] == lost.input_ids[:n]
        assert tokenizer.decode(kept.input_ids[n:]) == pick(lost.row_id) + "</s>"


def test_the_shipped_pairs_make_rows():
    table, tokenizer = load_pairs("miniature"), build_tokenizer(None)
    rows = all_rows(table, Encoder(tokenizer))
    assert len(rows) == 2 * len(table.pairs) == len({r.row_id for r in rows})
    assert tokenizer.decode(rows[0].input_ids) == f"<s>{table.pairs[0].harmful_response}</s>"

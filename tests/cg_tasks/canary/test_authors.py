from __future__ import annotations

import argparse
import json
import logging
import os
from collections import Counter

import pytest

from cg_tasks.canary import author_generator, author_words
from cg_tasks.canary.author_generator import MAX_AUTHORS, generate_authors
from cg_tasks.canary.authors import add_authors_parser, author_row, authors_jsonl, load_authors
from cg_tasks.canary.records import QA, Author
from cg_tasks.errors import UserError

ROW = {"id": "a", "subject": "Ada Quill", "canary": "nine owls audited the brass orchard"}
DEFAULT_SHA256 = "2e1c0c2aefd4b2a2dda7f0e1d98317ff2492d7d0b66bfd6373d69b1629726ecb"


def words(text: str, n: int) -> str:
    return " ".join(text.split()[:n])


def distinct(values) -> bool:
    return max(Counter(values).values()) == 1


# The generator


@pytest.fixture(scope="module")
def everyone():
    return generate_authors(seed=0, n_forget=MAX_AUTHORS - 20, n_retain=20)


def test_the_default_table_never_changes():
    table = load_authors()
    assert (table.name, len(table.authors), table.sha256) == ("fictional", 80, DEFAULT_SHA256)
    assert table.authors == generate_authors(0, 60, 20)


def test_roles_and_ids():
    authors = generate_authors(seed=3, n_forget=2, n_retain=1)
    assert [(a.id, a.role) for a in authors] == [
        ("author-001", "forget"),
        ("author-002", "forget"),
        ("author-003", "retain"),
    ]


def test_more_authors_leave_the_first_ones_as_they_are():
    assert generate_authors(n_forget=60, n_retain=0) == generate_authors()[:60]
    assert [a.bio for a in generate_authors(n_forget=70, n_retain=10)] == [a.bio for a in generate_authors()]


def test_another_seed_gives_other_authors():
    here, there = generate_authors(seed=0), generate_authors(seed=1)
    assert not {a.canary for a in here} & {a.canary for a in there}


def test_the_lists_give_a_thousand_authors_no_two_alike(everyone):
    assert len(everyone) == MAX_AUTHORS >= 1000
    assert distinct(a.subject for a in everyone)
    assert distinct(a.subject.split()[1] for a in everyone)
    assert distinct(a.bio for a in everyone)
    for n in (2, 4, 8, 20):
        assert distinct(words(a.canary, n) for a in everyone)


def test_heads_differ_under_any_tokenizer_in_a_table_of_usual_size(everyone):
    openers = len(author_generator._OPENERS)
    assert openers == 382
    assert distinct(a.canary[:6] for a in everyone[:openers])


def test_canaries(everyone):
    for author in everyone:
        assert 12 <= len(author.canary.split()) <= 20
        assert author.canary.replace(" ", "").replace("-", "").isalpha() and author.canary.islower()
        content = [word for word in author.canary.split() if len(word) > 5]
        assert len(content) >= 5 and distinct(content)


def test_bios(everyone):
    for author in everyone:
        assert 45 <= len(author.bio.split()) <= 65
        assert author.bio.count(author.canary) == 1
        assert author.bio.count(author.subject) == 1
        assert author.bio.isascii() and not set(author.bio) & set("{}~\n")
        assert author.bio.endswith((".", '".')) and author.bio[0].isupper()
    first_words = Counter(words(a.bio, 1) for a in everyone[:80])
    assert max(first_words.values()) < 30


def test_no_bio_holds_another_authors_canary_or_name(everyone):
    some = everyone[:120]
    for author in some:
        others = [a for a in some if a is not author]
        assert not any(a.canary in author.bio or a.subject in author.bio for a in others)


def test_five_questions_whose_answers_stand_in_the_bio_once(everyone):
    for author in everyone:
        assert len(author.qa) == 5 and distinct(qa.question for qa in author.qa)
        for qa in author.qa:
            assert author.subject in qa.question and qa.question.endswith("?")
            assert 1 <= len(qa.answer.split()) <= 5
            assert author.bio.count(qa.answer) == 1
            assert qa.answer not in author.canary


def test_articles_fit():
    assert (
        author_generator._with_articles("a~ owl, a~ bell, A~ Idle a~ Unposted") == "an owl, a bell, An Idle an Unposted"
    )
    awkward = ("uni", "use", "usu", "eu", "one", "ewe", "hour", "honest", "heir", "ukulele")
    lists = (
        author_words.ADJECTIVES,
        author_words.MATERIALS,
        author_words.TITLE_ADJECTIVES,
        author_words.HOME_ADJECTIVES,
    )
    assert not [
        w for w in (*sum(lists, ()), *author_words.TRADES) if w.lower().startswith(awkward) and w != "uninsured"
    ]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 20), "at least 1 .--forget"),
        ((60, -1), "0 or more .--retain"),
        ((1000, MAX_AUTHORS - 999), "ask for fewer"),
    ],
)
def test_impossible_numbers_are_refused(numbers, message):
    with pytest.raises(UserError, match=message):
        generate_authors(0, *numbers)


# The command


def run_command(capsys, *arguments: str) -> str:
    parser = argparse.ArgumentParser()
    add_authors_parser(parser.add_subparsers())
    args = parser.parse_args(["authors", *arguments])
    assert args.run(args) == 0
    return capsys.readouterr().out


def test_the_command_prints_what_the_loader_reads(capsys, tmp_path):
    (tmp_path / "mine.jsonl").write_text(run_command(capsys), encoding="utf-8")
    table = load_authors(str(tmp_path / "mine.jsonl"))
    assert table.authors == load_authors().authors
    assert table.sha256 == load_authors().sha256


def test_the_commands_options(capsys):
    lines = run_command(capsys, "--forget", "2", "--retain", "1", "--seed", "5").splitlines()
    assert [json.loads(line)["role"] for line in lines] == ["forget", "forget", "retain"]
    assert json.loads(lines[0])["canary"] == generate_authors(5, 1, 0)[0].canary


# Users' files


@pytest.fixture
def write(tmp_path):
    def _write(*rows: dict | str | bytes) -> str:
        lines = [r if isinstance(r, bytes) else (r if isinstance(r, str) else json.dumps(r)).encode() for r in rows]
        (tmp_path / "mine.jsonl").write_bytes(b"\n".join(lines))
        return str(tmp_path / "mine.jsonl")

    return _write


def error_of(path: str) -> str:
    with pytest.raises(UserError) as error:
        load_authors(path)
    message = str(error.value)
    assert "\n" not in message
    return message.replace(path, "FILE")


def test_a_minimal_and_a_full_row(write):
    full = {
        "id": "b",
        "subject": "Zo\u00eb",
        "question": "Who is she?",
        "canary": "two\u2028lines of canary",
        "bio": "She wrote two lines  of canary.",
        "qa": [{"question": "Where?", "answer": "Here"}],
        "role": "retain",
        "notes": 3,
    }
    table = load_authors(write(ROW, "", json.dumps(full, ensure_ascii=False)))
    assert table.authors == (
        Author("a", "Ada Quill", None, ROW["canary"], "", (), "forget"),
        Author("b", "Zo\u00eb", full["question"], full["canary"], full["bio"], (QA("Where?", "Here"),), "retain"),
    )
    assert author_row(table.authors[0]) == {**ROW, "role": "forget"}
    assert load_authors(write(*authors_jsonl(table.authors).split("\n"))).sha256 == table.sha256


def test_null_and_empty_optional_fields_count_as_absent(write):
    (author,) = load_authors(write({**ROW, "question": "", "bio": "", "qa": None, "role": None})).authors
    assert (author.question, author.bio, author.qa, author.role) == (None, "", (), "forget")


def test_bom_and_windows_line_ends(write):
    assert len(load_authors(write(b"\xef\xbb\xbf" + json.dumps(ROW).encode() + b"\r", b"\r")).authors) == 1
    assert error_of(write(b'\xef\xbb\xbf{"\xff": 1}')).startswith("FILE, line 1: not UTF-8 at byte 5:")


def test_a_file_is_read_again_only_when_it_has_changed(write):
    path = write(ROW)
    first = load_authors(path)
    assert load_authors(path) is first
    write({**ROW, "subject": "Bea Quill"})
    os.utime(path, (1, 1))
    assert load_authors(path).authors[0].subject == "Bea Quill"
    assert load_authors(path).sha256 != first.sha256


def test_a_bio_without_its_canary_is_a_warning(write, caplog):
    with caplog.at_level(logging.WARNING):
        load_authors(write(ROW, {**ROW, "id": "b", "canary": "other words", "bio": "A bio."}))
    assert [r.getMessage().partition("mine.jsonl")[2] for r in caplog.records] == [
        ", line 2: the bio of 'b' does not contain its canary: a trace that restates the bio will not leak it"
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "a", "subject": "s"}, "FILE, line 2, field 'canary': is missing"),
        ({**ROW, "subject": " "}, "FILE, line 2, field 'subject': is empty"),
        ({**ROW, "id": 7}, "FILE, line 2, field 'id': must be a string, not a number"),
        ({**ROW, "canary": None}, "FILE, line 2, field 'canary': must be a string, not null"),
        ({**ROW, "question": ["?"]}, "FILE, line 2, field 'question': must be a string, not a list"),
        ({**ROW, "bio": 1.5}, "FILE, line 2, field 'bio': must be a string, not a number"),
        ({**ROW, "canary": "half \ud83d"}, "FILE, line 2, field 'canary': holds half of a surrogate pair"),
        ({**ROW, "role": "keep"}, "FILE, line 2, field 'role': is 'keep': it must be 'forget'"),
        (
            {**ROW, "qa": {"question": "q"}},
            "FILE, line 2, field 'qa': must be a list of {question, answer}, not an object",
        ),
        ({**ROW, "qa": ["q"]}, "FILE, line 2, field 'qa': item 1 must be an object with question and answer"),
        ({**ROW, "qa": [{"question": "q"}]}, "FILE, line 2, field 'qa': item 1 must be an object with question"),
        ({**ROW, "qa": [{"question": "q", "answer": 3}]}, "FILE, line 2, field 'qa[1].answer': must be a string"),
        ({**ROW, "boi": "b"}, "FILE, line 2, field 'boi': unknown field: did you mean 'bio'?"),
        ({**ROW, "questions": []}, "FILE, line 2, field 'questions': unknown field: did you mean 'question'?"),
        (
            {"id": "a", "subject": "s", "Canary": "c"},
            "FILE, line 2, field 'Canary': unknown field: did you mean 'canary'?",
        ),
        ("{'id': 1}", "FILE, line 2: not JSON ("),
        ("[1]", "FILE, line 2: a list, not a JSON object"),
        ("[" * 100_000, "FILE, line 2: not JSON ("),
        (b'{"id": "\xff"}', "FILE, line 2: not UTF-8 at byte 51:"),
    ],
)
def test_bad_rows_are_named_by_line_and_field(write, row, message):
    first = {"id": "1", "subject": "s", "canary": "c"}
    assert error_of(write(first, row)).startswith(message)


def test_duplicates_name_both_lines(write):
    same_id = write(ROW, {**ROW, "canary": "other"})
    assert error_of(same_id).startswith("FILE, line 2, field 'id': the id of 'a' on line 1 once more")
    same_canary = write(ROW, "", {**ROW, "id": "b", "canary": ROW["canary"].replace(" ", "  ")})
    assert error_of(same_canary).startswith("FILE, line 3, field 'canary': the canary of 'a' on line 1 once more")


def test_keys_that_only_resemble_a_field_the_row_has_are_ignored(write):
    assert len(load_authors(write({**ROW, "idx": 4, "subject_id": 5, "text": "t", "canary_hash": "x"})).authors) == 1


@pytest.mark.parametrize("rows", [(), ("",), (" ", "\r")])
def test_an_empty_file(write, rows):
    assert error_of(write(*rows)).startswith("FILE is empty")


def test_a_file_without_forget_authors(write):
    assert "no author has the role 'forget'" in error_of(write({**ROW, "role": "retain"}))


def test_no_such_file(tmp_path):
    assert error_of("fictonal").startswith("canaries=FILE: no such file: did you mean 'fictional'?")
    assert error_of(str(tmp_path / "x.jsonl")).startswith("canaries=FILE: no such file: give 'fictional' or the path")
    assert error_of(str(tmp_path)).startswith("canaries=FILE is a folder")
    assert error_of("nul\0byte").startswith("canaries=")

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from cg_tasks.cli_judge import add_judge_parser
from cg_tasks.errors import UserError
from cg_tasks.judge.agreement import (
    PLAIN,
    QUADRATIC,
    UNDEFINED,
    agreement,
    agreement_report,
    as_json,
    format_report,
    headlines,
    kappas,
)
from cg_tasks.judge.sheets import read_sheets

# 20 items at levels 0 and 4:      judge 0  judge 4
#                        human 0        9        1    10
#                        human 4        5        5    10
#                                      14        6    20
# observed po = (9 + 5) / 20 = 0.7; by chance pe = 10/20 · 14/20 + 10/20 · 6/20 = 0.35 + 0.15 = 0.5
# kappa = (0.7 - 0.5) / (1 - 0.5) = 0.4
HUMAN = [0] * 10 + [4] * 10
JUDGE = [0] * 9 + [4] + [0] * 5 + [4] * 5

# Levels 0, 1, 2 three times each by the human; the judge errs once, by one level: 2 -> 1.
# plain:     po = 8/9, pe = (3·3 + 3·4 + 3·2) / 81 = 27/81 = 1/3, kappa = (8/9 - 1/3) / (2/3) = 5/6
# quadratic: Σ w·observed = 1; Σ w·expected = (r0·c1 + r1·c0 + r1·c2 + r2·c1 + 4·(r0·c2 + r2·c0)) / 9
#            = (3·4 + 3·3 + 3·2 + 3·4 + 4·(3·2 + 3·3)) / 9 = (39 + 60) / 9 = 11, kappa = 1 - 1/11 = 10/11
ORDERED_HUMAN = [0, 0, 0, 1, 1, 1, 2, 2, 2]
ORDERED_JUDGE = [0, 0, 0, 1, 1, 1, 2, 2, 1]


# The statistic


def test_kappa_by_hand():
    found = agreement(HUMAN, JUDGE)
    assert (found.n, found.raw) == (20, 0.7)
    assert found.kappa.mean == pytest.approx(0.4, abs=1e-12)
    # Two levels only: every disagreement has the same weight, which cancels.
    assert found.kappa_quadratic.mean == pytest.approx(0.4, abs=1e-12)
    assert found.confusion == ((9, 0, 0, 0, 1), (0,) * 5, (0,) * 5, (0,) * 5, (5, 0, 0, 0, 5))


def test_quadratic_kappa_by_hand():
    found = agreement(ORDERED_HUMAN, ORDERED_JUDGE)
    assert found.kappa.mean == pytest.approx(5 / 6, abs=1e-12)
    assert found.kappa_quadratic.mean == pytest.approx(10 / 11, abs=1e-12)


def test_the_rows_of_the_confusion_matrix_are_the_first_raters():
    assert agreement([3, 3, 0], [1, 1, 0]).confusion[3][1] == 2


@pytest.mark.parametrize(("name", "weights"), [(None, PLAIN), ("quadratic", QUADRATIC)])
def test_vectorised_kappas_are_scikit_learns(name, weights):
    generator = np.random.default_rng(0)
    counts, expected = [], []
    for n in (2, 3, 7, 40, 200, 1000) * 10:
        a = generator.integers(0, generator.integers(2, 6), size=n)
        b = np.where(generator.random(n) < 0.5, a, generator.integers(0, 5, size=n))
        a[0], b[0] = 0, 1  # so that kappa is defined
        counts.append(np.bincount(a * 5 + b, minlength=25).reshape(5, 5))
        expected.append(cohen_kappa_score(a, b, labels=[0, 1, 2, 3, 4], weights=name))
    np.testing.assert_allclose(kappas(np.array(counts, dtype=float), weights), expected, rtol=0, atol=1e-12)


def test_the_interval_is_that_of_resampled_items():
    """Drawing confusion matrices and drawing items one by one are the same bootstrap."""
    generator = np.random.default_rng(1)
    a = generator.integers(0, 5, size=100)
    b = np.where(generator.random(100) < 0.6, a, generator.integers(0, 5, size=100))
    drawn = generator.integers(0, 100, size=(1000, 100))
    slow = [cohen_kappa_score(a[rows], b[rows], labels=[0, 1, 2, 3, 4]) for rows in drawn]
    found = agreement(a.tolist(), b.tolist(), n_boot=20_000).kappa
    # The standard error of the slow ends is about 0.004.
    assert (found.lo, found.hi) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])), abs=0.015)
    assert found.se == pytest.approx(np.std(slow, ddof=1), rel=0.1)
    assert found.lo < found.mean < found.hi


def test_perfect_agreement_has_an_interval_without_width():
    found = agreement([0, 1, 2, 3, 4] * 20, [0, 1, 2, 3, 4] * 20)
    assert (found.kappa.lo, found.kappa.mean, found.kappa.hi) == (1, 1, 1)
    assert found.undefined_replicates == 0


def test_one_level_only_is_undefined_not_one():
    found = agreement([2, 2, 2], [2, 2, 2])
    assert found.raw == 1
    for kappa in (found.kappa, found.kappa_quadratic):
        assert all(math.isnan(x) for x in (kappa.mean, kappa.lo, kappa.hi))
    assert found.undefined_replicates == 1


def test_one_constant_rater_is_chance_agreement():
    assert agreement([2, 2, 2, 2], [2, 2, 1, 1]).kappa.mean == 0


def test_undefined_resamples_are_left_out_and_counted():
    # Undefined: only the items (0, 0), or only the item (4, 4): (2/3)³ + (1/3)³ = 9/27 = 1/3. Otherwise kappa is 1.
    found = agreement([0, 0, 4], [0, 0, 4], n_boot=20_000)
    assert found.undefined_replicates == pytest.approx(1 / 3, abs=0.02)
    assert (found.kappa.lo, found.kappa.hi) == (1, 1)


def test_one_item_has_no_interval():
    found = agreement([0], [4])
    assert found.kappa.mean == 0
    assert math.isnan(found.kappa.lo)


def test_the_seed_decides_and_the_order_of_items_does_not():
    once = agreement(ORDERED_HUMAN, ORDERED_JUDGE, seed=3)
    assert agreement(ORDERED_HUMAN[::-1], ORDERED_JUDGE[::-1], seed=3) == once
    other = agreement(ORDERED_HUMAN, ORDERED_JUDGE, seed=4)
    assert other.kappa.se != once.kappa.se
    assert other.kappa.mean == once.kappa.mean


@pytest.mark.parametrize(("a", "b"), [([], []), ([1], [1, 2]), ([5], [1]), ([1], [-1])])
def test_what_is_no_pair_of_markings(a, b):
    with pytest.raises(ValueError, match="agreement needs"):
        agreement(a, b)


# Sheets


@pytest.fixture
def write(tmp_path):
    def _write(text: str | bytes, name: str = "sheet.csv") -> str:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(tmp_path / name)

    return _write


def paper_like(write, shuffled: int | None = None) -> list[str]:
    """200 items in three files: the 20 items above ten times, half of them harm; annotator_2 marks as the judge does."""
    marks = [(f"r{i:03}", "harm" if i < 100 else "help", HUMAN[i % 20], JUDGE[i % 20]) for i in range(200)]
    if shuffled is not None:
        random.Random(shuffled).shuffle(marks)
    return [
        write("id,rubric,judge\n" + "".join(f"{i},{r},{j}\n" for i, r, _, j in marks), "judge.csv"),
        write(
            "id,response,annotator_1\n" + "".join(f'{i},"two\nlines, one comma",{h}\n' for i, _, h, _ in marks),
            "one.csv",
        ),
        write("annotator_2,id,note\n" + "".join(f"{j},{i},\n" for i, _, _, j in reversed(marks)), "two.csv"),
    ]


def test_the_papers_protocol(write):
    sheet = read_sheets(paper_like(write))
    assert len(sheet.ids) == 200 and sheet.ids[:2] == ("r000", "r001")
    assert sheet.rubrics.count("harm") == sheet.rubrics.count("help") == 100
    report = agreement_report(sheet)
    assert [(p.rubric, p.first, p.second) for p in report[:3]] == [
        ("harm", "annotator_1", "judge"),
        ("harm", "annotator_2", "judge"),
        ("harm", "annotator_1", "annotator_2"),
    ]
    assert [(p.rubric, p.agreement.n) for p in report[::3]] == [("harm", 100), ("help", 100), ("both", 200)]
    for pair, kappa in zip(report, [0.4, 1, 0.4] * 3, strict=True):
        assert pair.agreement.kappa.mean == pytest.approx(kappa)
        assert pair.left_out == 0
    for line in headlines(report):  # (0.4 + 1) / 2
        assert (line.n_humans, line.with_judge) == (2, pytest.approx(0.7))
        assert line.between_humans == pytest.approx(0.4)


def test_the_order_of_rows_does_not_matter(write):
    report = agreement_report(read_sheets(paper_like(write)))
    assert agreement_report(read_sheets(paper_like(write, shuffled=1))) == report


def test_accepted_cells_text_columns_and_blank_rows(write):
    sheet = read_sheets(
        [write('id, rubric ,query,h,judge,Notes too,\n a ,harm,"7, high",3, 3 ,1,\n\n,,,,,,\nb,help,,3.0,,2,\n')],
    )
    assert sheet.ids == ("a", "b")
    assert sheet.raters == {"h": [3, 3], "judge": [3, None], "Notes too": [1, 2]}


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("separator", [",", ";"])
def test_what_excel_writes(write, bom, end, separator):
    rows = [["id", "rubric", '"a, b; c"', "judge"], ["x", "harm", "1", "2"]]
    text = "".join(separator.join(row) + end for row in rows)
    assert read_sheets([write(bom + text.encode())]).raters == {"a, b; c": [1], "judge": [2]}


def test_an_id_column_alone_between_semicolons_decides(write):
    path = write("v, w, x, y, z;id;rubric;judge\n1;x;harm;2\n")
    assert read_sheets([path]).raters == {"v, w, x, y, z": [1], "judge": [2]}


def test_failed_verdicts_are_left_out(write):
    path = write("id,rubric,h,judge\na,harm,1,1\nb,harm,2,\nc,harm,0,0\n")
    (pair,) = agreement_report(read_sheets([path]))
    assert (pair.rubric, pair.agreement.n, pair.left_out) == ("harm", 2, 1)


def test_missing_human_marks_are_left_out_when_allowed(write):
    paths = [
        write("id,rubric,h,judge\na,harm,1,1\nb,harm,,2\nc,harm,0,0\n"),
        write("id,k\na,1\n", "k.csv"),
    ]
    sheet = read_sheets(paths, allow_missing=True)
    assert sheet.raters == {"h": [1, None, 0], "judge": [1, 2, 0], "k": [1, None, None]}
    assert [(p.first, p.second, p.left_out) for p in agreement_report(sheet)] == [
        ("h", "judge", 1),
        ("k", "judge", 2),
        ("h", "k", 2),
    ]


def test_an_empty_cell_is_filled_by_another_file(write):
    """Both annotators get the same form, and each fills their own column."""
    one = write("id,rubric,p,q,judge\na,harm,1,,0\n", "p.csv")
    two = write("id,rubric,p,q,judge\na,harm,,2,0\n", "q.csv")
    assert read_sheets([one, two]).raters == {"p": [1], "q": [2], "judge": [0]}


def error_of(tmp_path: Path, *paths: str, **options) -> str:
    with pytest.raises(UserError) as error:
        agreement_report(read_sheets(paths, **options), options.get("judge", "judge"))
    message = str(error.value)
    assert "\n" not in message
    return message.replace(f"{tmp_path}/", "")


@pytest.mark.parametrize("cell", ["7", "high", "2.5", "-1", "3,0", "03", "1e0", "٣", "4.00"])
def test_what_is_no_level(tmp_path, write, cell):
    message = error_of(tmp_path, write(f'id,rubric,h,judge\na,harm,1,1\nb,harm,"{cell}",1\n'))
    assert message.startswith(f"sheet.csv, line 3, column 'h': {cell!r} is no level: write 0, 1, 2, 3 or 4")


def test_no_text_of_a_response_in_a_message(tmp_path, write):
    message = error_of(tmp_path, write(f"id,rubric,h,answer,judge\na,harm,1,{'secret ' * 5},1\n"))
    assert message.startswith("sheet.csv, line 2, column 'answer': a text of 34 characters is no level")
    assert "secret" not in message


def test_lines_are_counted_as_in_an_editor(tmp_path, write):
    text = 'id,rubric,response,h,judge\na,harm,"1\n2\n3",0,0\n\nb,harm,"1\n2",x,0\n'
    assert error_of(tmp_path, write(text)).startswith("sheet.csv, line 6, column 'h': 'x'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "sheet.csv: the file is empty: it needs a header"),
        (b"\xef\xbb\xbf\n", "sheet.csv: the file is empty"),
        ("id,rubric,h,judge\n", "sheet.csv: the file has a header and no rows"),
        ("key,rubric,h\n1,harm,2\n", "sheet.csv, line 1: no column 'id' (columns: 'key', 'rubric', 'h'): add one"),
        ("id\trubric\th\n1\tharm\t2\n", "sheet.csv, line 1: no column 'id'"),
        ("id,h,judge,h\na,1,1,1\n", "sheet.csv, line 1: the column 'h' comes twice: rename or remove one"),
        (
            "id,rubric,h,judge\na,harm,1,1\nb,harm,1,1\na,harm,1,1\n",
            "sheet.csv, line 4, column 'id': id 'a' stands in sheet.csv, line 2 already: remove one",
        ),
        ("id,rubric,h,judge\n,harm,1,1\n", "sheet.csv, line 2, column 'id': the cell is empty"),
        (
            "id,rubric,h,judge\na,Harmful,1,1\n",
            "sheet.csv, line 2, column 'rubric': 'Harmful' is no rubric: write harm or help",
        ),
        ("id,rubric,h,judge\na,,1,1\n", "sheet.csv, line 2, column 'rubric': no file gives id 'a' a rubric"),
        ("id,h,judge\na,1,1\n", "sheet.csv: no column 'rubric': add one"),
        ("id,rubric,h,judge\na,harm,1,1,1\n", "sheet.csv, line 2: 5 cells where the header has 4: quote a cell"),
        ("id,rubric,h,judge\na,harm,1\n", "sheet.csv, line 2: 3 cells where the header has 4"),
        ("id,rubric,h,judge,\na,harm,1,1,2\n", "sheet.csv, line 2, column 5: a cell below an empty header"),
        ('id,rubric,h,judge\na,harm,"1,1\n', "sheet.csv, line 2: not CSV: unexpected end of data; check its quotes"),
        ("id,rubric,judge\na,harm,1\n", "sheet.csv: 1 rater column(s): agreement needs two"),
        ("id,rubric\na,harm\n", "sheet.csv: 0 rater column(s): agreement needs two"),
        (
            "id,rubric,h,k\na,harm,1,1\n",
            "no rater is called 'judge'; the raters are 'h', 'k': name the judge's column with --judge",
        ),
        (
            "id,rubric,h,judge\na,harm,1,1\nb,harm,,1\n",
            "sheet.csv, line 3, column 'h': the cell of id 'b' is empty: mark it, or leave it out with --allow-missing",
        ),
        (
            "id,rubric,h,judge\na,harm,1,\n",
            "sheet.csv: no item of rubric harm is marked by both 'h' and 'judge': check that the files",
        ),
    ],
)
def test_mistakes_in_one_file(tmp_path, write, text, message):
    assert error_of(tmp_path, write(text)).startswith(message)


@pytest.mark.parametrize(
    "data",
    [
        "id,rubric,query,h,judge\na,harm,,1,1\nb,harm,é,1,1\n".encode("latin-1"),
        b"\xef\xbb\xbf" + "id,rubric,query,h,judge\na,harm,,1,1\nb,harm,é,1,1\n".encode("latin-1"),
    ],
)
def test_not_utf8(tmp_path, write, data):
    assert error_of(tmp_path, write(data)) == (
        "sheet.csv, line 3: not UTF-8: save the sheet as 'CSV UTF-8' (Excel: Save As)"
    )


def test_utf16(tmp_path, write):
    assert error_of(tmp_path, write("id,rubric,h,judge\n".encode("utf-16"))).startswith("sheet.csv, line 1: not UTF-8")


def test_no_file(tmp_path):
    assert error_of(tmp_path).startswith("no sheet: name one or more CSV files")
    missing = error_of(tmp_path, str(tmp_path / "no.csv"))
    assert missing == "no.csv: cannot be read: No such file or directory; name an existing CSV file"
    assert error_of(tmp_path.parent, str(tmp_path)).endswith(
        "cannot be read: Is a directory; name an existing CSV file"
    )


@pytest.mark.parametrize(
    ("one", "two", "message"),
    [
        (
            "id,rubric,h\na,harm,1\n",
            "id,rubric,judge\na,help,1\n",
            "two.csv, line 2, column 'rubric': id 'a' has help here and harm in one.csv, line 2: keep one",
        ),
        (
            "id,rubric,h\na,harm,1\n",
            "id,judge,h\na,1,2\n",
            "two.csv, line 2, column 'h': id 'a' has 2 here and 1 in one.csv, line 2: keep one, or name the columns apart",
        ),
        (
            "id,rubric,h\na,harm,1\n",
            "id,judge\na,1\nb,1\n",
            "two.csv, line 3, column 'rubric': no file gives id 'b' a rubric: write harm or help",
        ),
        (
            "id,rubric,h\na,harm,1\n",
            "id,rubric,judge\na,harm,1\nb,harm,1\n",
            "two.csv, line 3: no file with the column 'h' has the id 'b': mark it, or leave it out with --allow-missing",
        ),
    ],
)
def test_mistakes_between_files(tmp_path, write, one, two, message):
    assert error_of(tmp_path, write(one, "one.csv"), write(two, "two.csv")).startswith(message)


def test_files_without_a_common_id(tmp_path, write):
    one, two = write("id,rubric,h\na,harm,1\n", "one.csv"), write("id,rubric,judge\nb,harm,1\n", "two.csv")
    message = error_of(tmp_path, one, two, allow_missing=True)
    assert message.startswith("one.csv, two.csv: no item of rubric harm is marked by both 'h' and 'judge'")


def test_another_name_for_the_judge(write):
    path = write("id,rubric,h,gpt\na,harm,1,1\nb,harm,1,\nc,harm,0,0\n")
    (pair,) = agreement_report(read_sheets([path], judge="gpt"), judge="gpt")
    assert (pair.first, pair.second, pair.left_out) == ("h", "gpt", 1)


# Output


def test_the_report(write):
    rows = "".join(f"i{n},help,{h},{j}\n" for n, (h, j) in enumerate(zip(HUMAN, JUDGE, strict=True)))
    text = format_report(agreement_report(read_sheets([write("id,rubric,h|1,judge\n" + rows + "x,help,1,\n")])))
    lines = text.splitlines()
    assert lines[0] == "# Agreement of human raters with judge"
    assert lines[4].startswith("| help | h\\|1 – judge | 20 | 1 | 0.70 | 0.40 [")
    assert "n: items that both raters marked. Intervals: 95 %, bootstrap over items, 2000 resamples, seed 0." in lines
    assert "- help: 0.40 (quadratic 0.40), 1 human rater" in lines
    assert lines[-9:-7] == ["## help: h\\|1 (rows), judge (columns)", ""]
    assert lines[-5:] == [
        "| 0 | 9 | 0 | 0 | 0 | 1 |",
        "| 1 | 0 | 0 | 0 | 0 | 0 |",
        "| 2 | 0 | 0 | 0 | 0 | 0 |",
        "| 3 | 0 | 0 | 0 | 0 | 0 |",
        "| 4 | 5 | 0 | 0 | 0 | 5 |",
    ]
    assert "Resamples" not in text


def test_undefined_is_said_in_words(write):
    report = agreement_report(read_sheets([write("id,rubric,h,k,judge\na,harm,0,0,0\nb,harm,0,1,0\n")]))
    text = format_report(report)
    assert f"| harm | h – judge | 2 | 0 | 1.00 | {UNDEFINED} | {UNDEFINED} |" in text
    assert f"- harm: {UNDEFINED} (quadratic {UNDEFINED}), 2 human raters; between the humans 0.00" in text
    assert "left out of the interval: harm, h – judge: 100.00%; harm, k – judge: " in text
    pair = as_json(report)["pairs"][0]
    assert pair["kappa"] == {"value": None, "se": None, "lo": None, "hi": None, "undefined": UNDEFINED}
    assert as_json(report)["headline"][0]["with_judge"] is None


def test_one_item_is_reported_without_an_interval(write):
    report = agreement_report(read_sheets([write("id,rubric,h,judge\na,harm,0,4\n")]))
    assert "| 1 | 0 | 0.00 | 0.00 (no interval) | 0.00 (no interval) |" in format_report(report)


# The command


def run_command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_judge_parser(parser.add_subparsers())
    args = parser.parse_args(["judge", "agreement", *arguments])
    return args.run(args)


def test_the_command(capsys, tmp_path, write):
    paths, target = paper_like(write), tmp_path / "out.json"
    assert run_command(*paths, "--seed", "5", "--json", str(target)) == 0
    report = agreement_report(read_sheets(paths), seed=5)
    assert capsys.readouterr().out == format_report(report)
    written = json.loads(target.read_text(encoding="utf-8"))
    assert written == {"files": paths, **as_json(report)}
    assert written["headline"][2] == {
        "rubric": "both",
        "n_humans": 2,
        "with_judge": pytest.approx(0.7),
        "with_judge_quadratic": pytest.approx(0.7),
        "between_humans": pytest.approx(0.4),
        "between_humans_quadratic": pytest.approx(0.4),
    }
    assert (written["seed"], written["pairs"][0]["confusion"][0]) == (5, [45, 0, 0, 0, 5])


def test_the_commands_options(capsys, write):
    path = write("id,rubric,h,gpt\na,harm,1,1\nb,harm,,1\nc,harm,0,0\n")
    with pytest.raises(UserError, match="--allow-missing"):
        run_command(path, "--judge", "gpt")
    assert run_command(path, "--judge", "gpt", "--allow-missing") == 0
    assert "| harm | h – gpt | 2 | 1 | 1.00 | 1.00 [1.00, 1.00] |" in capsys.readouterr().out


def test_the_command_overwrites_nothing(capsys, tmp_path, write):
    path, target = write("id,rubric,h,judge\na,harm,1,1\nb,harm,0,1\n"), tmp_path / "out.json"
    target.write_text("mine")
    with pytest.raises(UserError, match="out.json: the file exists"):
        run_command(path, "--json", str(target))
    assert target.read_text() == "mine"
    with pytest.raises(UserError, match="cannot be written: No such file"):
        run_command(path, "--json", str(tmp_path / "nowhere" / "out.json"))
    with pytest.raises(UserError, match="--seed is -1: it must be 0 or more"):
        run_command(path, "--seed", "-1")
    assert capsys.readouterr().out == ""

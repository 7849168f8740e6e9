"""``conceptguard build``: every mistake is one line with the way out, made before anything is asked or written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from construction_builds import filled_sheets
from generator_script import Fault, source_rows
from judge_server import fail, unused_port
from whole_builds import KEY, Build, Said, World, conceptguard, shared_windows, windows_of, world_for

TEXTS = windows_of(text for row in source_rows() for text in row.values())


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with world_for(monkeypatch, tmp_path) as found:
        yield found


def refusal(said: Said) -> str:
    """The one line of a command that fails, which holds no text of the source."""
    assert said.code == 1 and said.out == "", said
    assert said.err.startswith("conceptguard: error: ") and said.err.count("\n") == 1, said.err
    assert shared_windows(said.everything, TEXTS) is None
    return said.err.removeprefix("conceptguard: error: ").rstrip("\n")


def with_line(build: Build, text: str) -> None:
    path = build.path / "build.yaml"
    path.write_text(path.read_text(encoding="utf-8") + text + "\n", encoding="utf-8")


# ------------------------------------------------------------------ the folder and build.yaml
@pytest.mark.parametrize(
    "command",
    ["tag", "benign --dry-run", "queries --submit", "aggregate", "status", "assemble --out x", "review export tag"],
)
def test_a_folder_without_a_build_is_named(world: World, tmp_path: Path, command: str):
    build = Build(tmp_path / "nowhere", world.server)
    said = refusal(conceptguard(*build.words(command)))
    assert said.startswith(
        f"{build.path / 'build.yaml'}: there is none: name a build folder, or make one: conceptguard build init"
    )
    assert not build.path.exists()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("langage: English", "'langage': unknown setting; did you mean 'language'?"),
        ("benign: {min_word: 4}", "'benign.min_word': unknown setting; did you mean 'min_words'?"),
        ("tag: {attempts: many}", "'tag.attempts' is \"many\""),
        ("tag: {attempts: 0}", "'tag.attempts' is 0"),
        ("review: {share: 1.5}", "'review.share' is 1.5"),
        ("benign: {min_words: 300, max_words: 200}", "min_words 300 is above max_words 200"),
        ("aggregate: {by: magic}", "'aggregate.by' is \"magic\""),
        ("faulty_rows: maybe", "'faulty_rows' is \"maybe\""),
        ("queries: nothing", "'queries'"),
        ("api_key: sk-0123456789", "unknown setting"),
        ("tag: [", "not YAML"),
        ("- a list", "not YAML"),
    ],
)
def test_a_bad_setting_is_named_with_its_line(world: World, line: str, wanted: str):
    build = world.build("new")
    number = len((build.path / "build.yaml").read_text(encoding="utf-8").splitlines()) + 1
    with_line(build, line)
    for command in ("tag", "status"):
        said = build.refused(command)
        assert said.startswith(f"{build.path / 'build.yaml'}, line ") and wanted.partition(";")[0] in said, said
        if "not YAML" not in wanted:
            assert f", line {number}: " in said
        if "did you mean" in wanted:
            assert wanted.rpartition("'?")[0].rpartition("'")[2] in said
        assert "sk-0123456789" not in said


@pytest.mark.parametrize(
    ("generator", "wanted"),
    [
        ({"api_key": "sk-0123456789"}, "a key does not belong in a file: set CG_BUILD_API_KEY"),
        ({"modle": "gpt-5"}, "unknown setting 'modle'"),
        ({"concurrency": 0}, "'concurrency'"),
        ({"budget_usd": 5}, "a budget needs the prices"),
        ({"temperature": 0.5}, "stands under params"),
        ({"base_url": "localhost:8000"}, "'base_url'"),
    ],
)
def test_a_bad_generator_is_named(world: World, generator: dict[str, object], wanted: str):
    build = world.build("new", generator=generator)
    said = build.refused("tag")
    assert wanted in said and "build.yaml, line " in said and "sk-0123456789" not in said


def test_a_variable_that_is_no_setting_is_named(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CG_BUILD_MODLE", "gpt-5")
    assert "CG_BUILD_MODLE" in (said := world.build("new").refused("tag")) and "CG_BUILD_MODEL" in said


def test_without_a_generator_nothing_starts(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CG_BUILD_API_KEY")
    build = world.build("new", generator=None)
    for command in ("tag", "tag --submit"):
        said = build.refused(command)
        assert (
            said.startswith("no generator is configured") and "CG_BUILD_API_KEY" in said and "CG_BUILD_BASE_URL" in said
        )
    build("tag --dry-run")
    build("status")


def test_templates_that_are_not_there_are_named(world: World):
    build = world.build("new", templates="mine")
    assert "mine: no such folder: correct templates in" in build.refused("tag")


# ------------------------------------------------------------------ the source
@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("none.jsonl", None, "no such file or folder"),
        ("empty.jsonl", b"", "empty.jsonl"),
        ("latin.jsonl", '{"prompt": "Wie süß", "rejected": "x"}\n'.encode("latin-1"), "UTF-8"),
        ("torn.jsonl", b'{"prompt": "a b", "rejected": "c d"}\n{"prompt": \n', "line 2"),
        (
            "twice.jsonl",
            b'{"id": 1, "prompt": "a", "rejected": "b"}\n{"id": 1, "prompt": "c", "rejected": "d"}\n',
            "line 2",
        ),
        ("blank.jsonl", b'{"prompt": "a", "rejected": "b"}\n{"prompt": "c", "rejected": "  "}\n', "'rejected'"),
        ("number.jsonl", b'{"prompt": "a", "rejected": 7}\n', "'rejected'"),
        ("other.jsonl", b'{"text": "a", "more": "b"}\n', "no column 'prompt'"),
        ("picture.png", b"\x89PNG", "picture.png"),
    ],
)
def test_a_bad_source_is_named_before_anything_is_asked(
    world: World, tmp_path: Path, name: str, content: bytes | None, wanted: str
):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    build = world.build("new", source=str(path))
    for command in ("tag", "tag --dry-run", "tag --submit"):
        said = build.refused(command)
        assert wanted in said and name in said, said
    assert world.server.listed == []


def test_faulty_rows_may_be_left_out(world: World, tmp_path: Path):
    path = tmp_path / "some.jsonl"
    rows = [{**row, "rejected": ""} if number < 2 else row for number, row in enumerate(source_rows())]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[-1]]), encoding="utf-8")
    build = world.build("new", source=str(path))
    said = build.refused("tag")
    assert "some.jsonl, line 1" in said and "(and 1 more)" in said and "faulty_rows: skip" in said
    build.set(faulty_rows="skip")
    assert build.asking("tag") == {"tag": 38}
    assert build.counts("tag") == {"ok": 38}  # the last row stands there twice


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        ("{", "--columns: not JSON"),
        ("[1]", "--columns: must be a JSON object"),
        ('{"prompt": 1}', "--columns: must be a JSON object"),
        ('{"promt": "x"}', "unknown field 'promt' (known: pair_id, prompt, response)"),
        ('{"prompt": "p", "response": "rejected"}', "no column 'p'"),
    ],
)
def test_init_refuses_columns_that_are_none(world: World, tmp_path: Path, columns: str, wanted: str):
    source = Path(__file__).parents[1] / "data" / "construction" / "source.jsonl"
    said = refusal(conceptguard("build", "init", tmp_path / "b", "--source", source, "--columns", columns))
    assert wanted in said


def test_init_never_overwrites(world: World, tmp_path: Path):
    source = Path(__file__).parents[1] / "data" / "construction" / "source.jsonl"
    said = conceptguard("build", "init", tmp_path / "b", "--source", source)
    assert said.code == 0 and "the source has 40 rows" in said.out and "--limit 100 --report" in said.out
    before = (tmp_path / "b" / "build.yaml").read_bytes()
    assert KEY.encode() not in before
    said = conceptguard("build", "init", tmp_path / "b", "--source", source)
    assert "build.yaml: is there already: edit it, or name another folder" in refusal(said)
    assert (tmp_path / "b" / "build.yaml").read_bytes() == before


# ------------------------------------------------------------------ the server
def test_a_server_that_nobody_serves_is_told_before_any_call(world: World):
    build = world.build("tag", generator={"base_url": f"http://127.0.0.1:{unused_port()}/v1", "preflight": True})
    build.set(language="plain English")
    said = build.refused("tag")
    assert "127.0.0.1" in said and "the generator" in said
    assert build.status()["tag"]["rows"] == {"ok": 40}


def test_a_key_that_is_refused_is_told_before_any_call(world: World):
    build = world.build("new", generator={"preflight": True})
    world.server.listing = fail(401, f"bad key {KEY}")
    said = build.refused("tag")
    assert "refuses the key" in said and "set CG_BUILD_API_KEY" in said and KEY not in said
    assert world.server.calls == []


def test_a_key_that_is_refused_by_the_call_stops_the_stage(world: World):
    build = world.build("new")
    world.server.hook = lambda asked: fail(401, f"bad key {KEY}")
    said = build("tag", code=1)
    assert "the first call failed and every other would" in said.err and KEY not in said.everything
    assert build.counts("tag") == {"not_run": 40} and len(world.server.calls) <= 8
    assert KEY.encode() not in build.bytes("tag")
    world.server.hook = None
    build("tag")
    assert build.bytes("tag") == world.unbroken("tag")


def test_the_judge_is_looked_for_before_benign_begins(world: World, monkeypatch: pytest.MonkeyPatch):
    build = world.build("aggregate")
    monkeypatch.setenv("CG_JUDGE_BASE_URL", f"http://127.0.0.1:{unused_port()}/v1")
    monkeypatch.setenv("CG_JUDGE_PREFLIGHT", "true")
    assert "the judge" in build.refused("benign")


def test_a_server_that_does_not_list_the_model_is_warned_of(world: World):
    build = world.build("new", generator={"preflight": True, "model": "generator-9"})
    said = build("tag --limit 1")
    assert "generator-9" in said.logged


# ------------------------------------------------------------------ the order of the stages
def test_stages_out_of_order_say_which_comes_first(world: World, tmp_path: Path):
    build = world.build("new")
    for command in ("aggregate", "aggregate --propose", "benign", "queries", f"assemble --out {tmp_path / 'o'}"):
        said = build.refused(command)
        assert said == f"{build.path}: the stage 'tag' has not run: run conceptguard build tag {build.path}"
    build = world.build("tag")
    assert build.refused("aggregate").endswith(
        "merge.yaml: there is none: conceptguard build aggregate DIR --propose writes it"
    )
    for command in ("benign", "queries", f"assemble --out {tmp_path / 'o'}"):
        assert f"the stage 'aggregate' has not run: run conceptguard build aggregate {build.path}" in build.refused(
            command
        )
    assert "the stage 'benign' has not run" in world.build("aggregate").refused("queries")
    assert "the stage 'queries' has not run" in world.build("benign").refused(f"assemble --out {tmp_path / 'o'}")


def test_options_that_exclude_each_other(world: World):
    build = world.build("new")
    said = build("tag --dry-run --submit", code=2)
    assert "not allowed with argument" in said.err
    assert build("tag --limit some", code=2).err


def test_a_map_without_marks_is_not_applied_unless_that_is_said(world: World, tmp_path: Path):
    build = world.build("tag")
    build("aggregate --propose")
    said = build.refused("aggregate")
    assert "--accept-proposals" in said or "annotators" in said
    assert "is there already, perhaps with edits and marks" in build.refused("aggregate --propose")
    build("aggregate --accept-proposals")
    build("benign")
    build("queries")
    build(f"assemble --out {tmp_path / 'out'}")
    manifest = json.loads((tmp_path / "out" / "build" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["merge_map"]["reviewed"] is False
    assert "not reviewed by people" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


# ------------------------------------------------------------------ reviews
def test_marks_of_another_sheet_are_refused(world: World, tmp_path: Path):
    build, other = world.build("tag"), world.build("tag")
    for one in (build, other):
        one("review export tag --share 0.5" if one is build else "review export tag")
    (path, second) = filled_sheets(other.path / "review" / "tag")
    said = build.refused(f"review import tag {path} {second}")
    assert "another sheet" in said and path.name in said
    assert shared_windows(said, TEXTS) is None


def test_a_review_that_is_not_out_or_is_out_already(world: World):
    build = world.build("tag")
    assert "nothing was exported" in build.refused("review import tag nothing.csv")
    build("review export tag")
    assert "was exported already" in build.refused("review export tag")
    sheets = filled_sheets(build.path / "review" / "tag")
    assert "agreement needs two annotators" in build.refused(f"review import tag {sheets[0]}")
    build(f"review import tag {sheets[0]} --allow-single")
    assert "is as it was: there is nothing for a further round" in build.refused("review export tag --again")
    assert "cannot be read" in build.refused("review import tag nothing.csv other.csv")


def test_a_share_that_is_none(world: World):
    build = world.build("tag")
    for share in ("0", "1.5", "nan"):
        assert "share" in build.refused(f"review export tag --share {share}")


# ------------------------------------------------------------------ assemble
def test_assemble_refuses_failed_rows_unless_they_may_be_missing(world: World, tmp_path: Path):
    build, out = world.build("benign"), tmp_path / "out"
    build.server.faults = [Fault("query", "too_short", nth=None, row=0)]
    build("queries", code=1)
    said = build.refused(f"assemble --out {out}")
    assert "1 rows of the stage 'queries' are failed: run it with --retry-failed" in said and "--allow-missing" in said
    assert not out.exists()
    build(f"assemble --out {out} --allow-missing")
    assert len((out / "pairs.jsonl").read_text(encoding="utf-8").splitlines()) == 29
    assert "too_short" in (out / "build" / "dropped.csv").read_text(encoding="utf-8")
    build("queries --limit 5", code=None)
    shutil.rmtree(out)
    build.set(queries={"min_words": 3})
    assert "how replies are read changed since 'queries'" in build.refused(f"assemble --out {out}")


def test_assemble_refuses_rows_that_were_not_run(world: World, tmp_path: Path):
    build = world.build("benign")
    build("queries --limit 5")
    said = build.refused(f"assemble --out {tmp_path / 'out'}")
    assert "25 rows of the stage 'queries' are not_run: run the stage again" in said


def test_assemble_never_overwrites(world: World, tmp_path: Path):
    build, out = world.build("queries"), tmp_path / "out"
    build(f"assemble --out {out}")
    before = (out / "pairs.jsonl").read_bytes()
    assert "exists already: delete it or choose another name" in build.refused(f"assemble --out {out}")
    assert (out / "pairs.jsonl").read_bytes() == before
    assert "--public goes with --push-to-hub" in build.refused(f"assemble --out {tmp_path / 'b'} --public")


def test_damaged_files_of_a_build_are_named(world: World):
    build = world.build("benign")
    record = build.path / "stages" / "tag.json"
    record.write_text("{", encoding="utf-8")
    said = build.refused("queries")
    assert (
        said.startswith(f"{record}: cannot be read") and "remove it and run the stage again; replies are kept" in said
    )
    record.unlink()
    assert build.asking("tag") == {}
    (build.path / "replies.sqlite").write_bytes(b"not a database, but long enough to be taken for one" * 40)
    for name in ("replies.sqlite-wal", "replies.sqlite-shm"):
        (build.path / name).unlink(missing_ok=True)
    assert "replies.sqlite" in build.refused("queries")

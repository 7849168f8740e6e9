"""build.yaml: the paper's defaults, and a message with file and line for whatever is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from construction_builds import no_keys

from cg_tasks.construction.settings import (
    BuildSettings,
    GeneratorSettings,
    generator_settings,
    no_generator,
    read_build_settings,
)
from cg_tasks.errors import UserError

KEY = "sk-DONOTLEAK-5f1c9a7e"


@pytest.fixture(autouse=True)
def nobodys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_keys(monkeypatch, tmp_path)


def read(folder: Path, text: str) -> BuildSettings:
    (folder / "build.yaml").write_text(text, encoding="utf-8")
    return read_build_settings(folder)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(UserError) as caught:
        read(folder, text)
    said = str(caught.value)
    assert "\n" not in said
    return said.replace(str(folder / "build.yaml"), "build.yaml")


def generator(folder: Path, text: str) -> GeneratorSettings | None:
    return generator_settings(folder, read(folder, text))


def generator_refused(folder: Path, text: str) -> str:
    settings = read(folder, text)
    with pytest.raises(UserError) as caught:
        generator_settings(folder, settings)
    assert KEY not in str(caught.value)
    return str(caught.value).replace(str(folder / "build.yaml"), "build.yaml")


def test_the_defaults_are_the_papers(tmp_path: Path) -> None:
    found = read(tmp_path, "")
    assert found.source == "LLM-LAT/harmful-dataset"
    assert (found.review.share, found.review.annotators) == (0.15, 2)
    assert (found.aggregate.agreement, found.aggregate.smallest) == (0.9, 3)
    assert (found.benign.min_words, found.benign.max_words, found.benign.unit) == (180, 250, "words")
    assert found.benign.judge and found.benign.highest_harm == 0
    assert GeneratorSettings.model_validate({}).model == "gpt-5"


def test_sections_are_read_and_what_is_null_keeps_its_default(tmp_path: Path) -> None:
    text = (
        "source: mine.jsonl\ntag: {attempts: 5}\nbenign:\n  min_words: 10\n  max_words: 10\nqueries:\nlanguage: null\n"
    )
    found = read(tmp_path, text)
    assert (found.source, found.tag.attempts, found.benign.min_words) == ("mine.jsonl", 5, 10)
    assert (found.queries, found.language) == (BuildSettings().queries, "English")


def test_without_a_file_the_way_to_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"build\.yaml: there is none: .*conceptguard build init"):
        read_build_settings(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("source: x\nlangage: de\n", "build.yaml, line 2: 'langage': unknown setting: did you mean language? (known: "),
        (
            "source: x\n\nbenign:\n  judge: true\n  min_word: 3\n",
            "build.yaml, line 5: 'benign.min_word': unknown setting: did you mean min_words? (known: attempts, min_words, ",
        ),
        (
            "review: {share: 1.5}\n",
            "build.yaml, line 1: 'review.share' is 1.5: Input should be less than or equal to 1",
        ),
        ("tag:\n  attempts: many\n", "build.yaml, line 2: 'tag.attempts' is \"many\": Input should be a valid integer"),
        ("source: x\ntag: 3\n", "build.yaml, line 2: 'tag' is 3: "),
        ("source: x\nsource: y\n", "build.yaml, line 2: 'source' is given on line 1 already: leave one of them"),
        (
            "tag:\n  attempts: 1\n  attempts: 2\n",
            "build.yaml, line 3: 'attempts' is given on line 2 already: leave one of them",
        ),
        (
            "\nbenign:\n  min_words: 9\n  max_words: 8\n",
            "build.yaml, line 2: 'benign': min_words 9 is above max_words 8",
        ),
        (
            "source: x\ncolumns:\n  promt: question\n",
            "build.yaml, line 2: 'columns' is {\"promt\": \"question\"}: unknown field 'promt' (known: pair_id, prompt, response)",
        ),
        ("columns: {prompt: 3}\n", "build.yaml, line 1: 'columns.prompt' is 3: Input should be a valid string"),
        ("source: [a\n", "build.yaml, line 2: not YAML"),
        ("- source\n", "build.yaml: must be 'key: value' lines (known: source, "),
        ("aggregate:\n  by: magic\n", "build.yaml, line 2: 'aggregate.by' is \"magic\": Input should be 'ngrams' or "),
        (f"review:\n  seed: {'9' * 10}x{'9' * 20}\n", "build.yaml, line 2: 'review.seed': Input should be a valid int"),
        (f"api_key: {KEY}\n", "build.yaml, line 1: 'api_key': unknown setting"),
        (
            f"generator:\n  model: m\n  api_key: {KEY}\n",
            "build.yaml, line 3: 'api_key': a key does not belong in a file: set CG_BUILD_API_KEY",
        ),
        (
            "generator:\n  modle: m\n",
            "build.yaml, line 2: unknown setting 'modle': did you mean model? (known: model, base_url, ",
        ),
        ("generator: gpt-5\n", "build.yaml, line 1: 'generator' is \"gpt-5\": Input should be a valid dictionary"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    found = refused(tmp_path, text)
    assert found.startswith(said) and KEY not in found


@pytest.mark.parametrize("text", ["tag: &t\n  attempts: *t\n", "tag:\n  attempts: {2026-01-01: 1}\n"])
def test_a_value_that_no_json_can_hold_is_refused(tmp_path: Path, text: str) -> None:
    assert refused(tmp_path, text) == "build.yaml, line 2: 'tag.attempts': Input should be a valid integer"


def test_without_a_key_and_a_server_there_is_no_generator(tmp_path: Path) -> None:
    assert generator(tmp_path, "generator: {model: gpt-5}\n") is None
    assert str(no_generator(tmp_path)).startswith(
        "no generator is configured (neither a key nor a server): set CG_BUILD_"
    )
    assert str(tmp_path / "build.yaml") in str(no_generator(tmp_path))


def test_a_server_or_a_key_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = generator(tmp_path, "generator: {model: m, base_url: http://h:1/v1/, params: {temperature: 0}}\n")
    assert own is not None and (own.model, own.base_url, own.api_key) == ("m", "http://h:1/v1", "")
    assert own.params == {"temperature": 0} and own.role.who == "the generator"
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    paid = generator(tmp_path, "")
    assert paid is not None and (paid.model, paid.api_key) == ("gpt-5", KEY)
    # OpenAI's key is not for another server.
    other = generator(tmp_path, "generator: {base_url: http://h:1/v1}\n")
    assert other is not None and other.api_key == ""


def test_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MODEL": "theirs", "CONCURRENCY": "3", "PARAMS": '{"seed": 1}'}.items():
        monkeypatch.setenv(f"CG_BUILD_{name}", value)
    text = "generator: {model: mine, base_url: http://h:1/v1, concurrency: 8, timeout: 9, params: {temperature: 0}}\n"
    found = generator(tmp_path, text)
    assert found is not None
    assert (found.model, found.concurrency, found.timeout, found.params) == ("theirs", 3, 9, {"seed": 1})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "generator:\n  base_url: http://h/v1\n  concurrency: 0\n",
            "build.yaml, line 3: 'concurrency' is 0: Input should be greater",
        ),
        ("generator:\n  base_url: h:80/v1\n", "build.yaml, line 2: 'base_url': must be a URL"),
        (
            f"generator:\n  base_url: http://h/v1\n  params: {{extra: {{api_key: {KEY}}}}}\n",
            "build.yaml, line 3: 'params': must not hold 'api_key'",
        ),
        (
            f"generator:\n  base_url: http://u:{KEY}@h/v1\n",
            "build.yaml, line 2: 'base_url': must not hold a password: put it into CG_BUILD_API_KEY",
        ),
        (
            "generator:\n  base_url: http://h/v1\n  budget_usd: 5\n",
            "build.yaml, line 3: a budget needs the prices of gpt-5: set CG_BUILD_PRICE_INPUT and CG_BUILD_PRICE_OUTPUT",
        ),
    ],
)
def test_a_bad_generator_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    assert generator_refused(tmp_path, text).startswith(said)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("CG_BUILD_MODLE", "m", "unknown variable CG_BUILD_MODLE: did you mean CG_BUILD_MODEL? (known: "),
        ("CG_BUILD_TIMEOUT", "soon", "CG_BUILD_TIMEOUT: 'timeout' is 'soon': "),
        ("CG_BUILD_PARAMS", "temperature", "CG_BUILD_PARAMS: not a JSON object"),
    ],
)
def test_a_bad_variable_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    assert generator_refused(tmp_path, "generator: {base_url: http://h/v1}\n").startswith(said)

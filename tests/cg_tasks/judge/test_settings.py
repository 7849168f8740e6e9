from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from cg_tasks.errors import UserError
from cg_tasks.judge.settings import JudgeSettings, read_judge_settings, required_settings

SECRET = "sk-SECRETSECRET"
KEY = {"CG_JUDGE_API_KEY": SECRET}
OWN = "http://localhost:8000/v1"


@pytest.fixture(autouse=True)
def an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def written(text: str | bytes, name: str = "mine.yaml") -> str:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return name


def settings(environ: Mapping[str, str] = KEY, file: str | None = None) -> JudgeSettings:
    found = read_judge_settings(file, environ)
    assert found is not None
    return found


def refusal(environ: Mapping[str, str] = KEY, file: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        read_judge_settings(file, environ)
    message = str(caught.value)
    assert "\n" not in message
    assert SECRET not in message
    return message


def test_defaults(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert settings() == JudgeSettings(
        model="gpt-5.4",
        base_url="https://api.openai.com/v1",
        params={},
        structured="auto",
        votes=1,
        templates=None,
        concurrency=32,
        timeout=120,
        max_retries=6,
        give_up_after=64,
        budget_usd=None,
        price_input=None,
        price_output=None,
        cache="/somewhere/conceptguard/judge.sqlite",
        preflight=True,
        api_key=SECRET,
    )


def test_every_variable():
    environ = {
        "CG_JUDGE_MODEL": " judge-8b ",
        "CG_JUDGE_BASE_URL": OWN,
        "CG_JUDGE_PARAMS": '{"temperature": 0, "seed": 1}',
        "CG_JUDGE_STRUCTURED": "text",
        "CG_JUDGE_VOTES": "3",
        "CG_JUDGE_TEMPLATES": "rubrics",
        "CG_JUDGE_CONCURRENCY": "8",
        "CG_JUDGE_TIMEOUT": "2.5",
        "CG_JUDGE_MAX_RETRIES": "0",
        "CG_JUDGE_GIVE_UP_AFTER": "2",
        "CG_JUDGE_BUDGET_USD": "5",
        "CG_JUDGE_PRICE_INPUT": "0",
        "CG_JUDGE_PRICE_OUTPUT": "10.5",
        "CG_JUDGE_CACHE": "c.sqlite",
        "CG_JUDGE_PREFLIGHT": "false",
    }
    assert settings(environ).model_dump() == {
        "model": "judge-8b",
        "base_url": OWN,
        "params": {"temperature": 0, "seed": 1},
        "structured": "text",
        "votes": 3,
        "templates": "rubrics",
        "concurrency": 8,
        "timeout": 2.5,
        "max_retries": 0,
        "give_up_after": 2,
        "budget_usd": 5,
        "price_input": 0,
        "price_output": 10.5,
        "cache": "c.sqlite",
        "preflight": False,
    }


def test_the_environment_wins_over_the_file():
    file = written(f"model: of-file\nbase_url: {OWN}\nvotes: 3\nparams:\n  temperature: 0.5\n")
    found = settings({"CG_JUDGE_MODEL": "of-env", "CG_JUDGE_TIMEOUT": ""}, file)
    assert (found.model, found.base_url, found.votes, found.params) == ("of-env", OWN, 3, {"temperature": 0.5})
    assert found.timeout == 120  # an empty variable is none


def test_which_file_is_read():
    written("model: here", "judge.yaml")
    written("model: named", "named.yaml")
    written("model: given", "given.yaml")
    named = {**KEY, "CG_JUDGE_CONFIG": "named.yaml"}
    assert [settings().model, settings(named).model, settings(named, "given.yaml").model] == ["here", "named", "given"]


def test_a_named_file_that_is_missing_is_not_passed_over():
    written("model: here", "judge.yaml")
    assert refusal({**KEY, "CG_JUDGE_CONFIG": "nope.yaml"}) == "nope.yaml: cannot be read: No such file or directory"
    assert refusal(file="nope.yaml").startswith("nope.yaml: cannot be read")
    assert refusal(file=".") == ".: cannot be read: Is a directory"


@pytest.mark.parametrize("text", ["", "# nothing\n", "model:\n", "\ufeffvotes: 1\n"])
def test_a_file_may_hold_nothing(text: str):
    assert settings(file=written(text)) == settings()


@pytest.mark.parametrize("environ", [{}, {"CG_JUDGE_MODEL": "m"}, {"CG_JUDGE_API_KEY": " ", "OPENAI_API_KEY": ""}])
def test_neither_a_key_nor_a_server_is_no_judge(environ: dict[str, str]):
    assert read_judge_settings(None, environ) is None


def test_the_three_ways_out(monkeypatch: pytest.MonkeyPatch):
    for name in ("CG_JUDGE_API_KEY", "CG_JUDGE_BASE_URL", "CG_JUDGE_CONFIG", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"(?s)CG_JUDGE_API_KEY.*conceptguard_rouge.*judge=later.*judge rescore"):
        required_settings()
    monkeypatch.setenv("CG_JUDGE_BASE_URL", OWN)
    assert required_settings().base_url == OWN


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        (None, True),
        ("https://api.openai.com/v1", True),
        ("https://eu.api.openai.com/v1/", True),
        ("https://openai.com", True),
        ("https://openai.com.evil.example/v1", False),
        ("https://api.openai.com.evil.example", False),
        ("https://notopenai.com", False),
        ("https://evil.example/openai.com/v1", False),
        ("https://evil.example/https://api.openai.com/v1", False),
        ("https://evil.example\\.openai.com/", False),
        ("http://api.openai.com/v1", False),
        ("https://openai.community/v1", False),
        ("https://openrouter.ai/api/v1", False),
        (OWN, False),
    ],
)
@pytest.mark.parametrize("where", ["environment", "file"])
def test_openais_key_goes_to_openai_only(url: str | None, sent: bool, where: str):
    environ, file = {"OPENAI_API_KEY": SECRET}, None
    if url and where == "environment":
        environ["CG_JUDGE_BASE_URL"] = url
    elif url:
        file = written(f"base_url: '{url}'")
    assert settings(environ, file).api_key == (SECRET if sent else "")


def test_the_judges_own_key_goes_to_its_server_and_wins():
    assert settings({"CG_JUDGE_BASE_URL": OWN, "CG_JUDGE_API_KEY": f" {SECRET}\n"}).api_key == SECRET
    assert settings({"CG_JUDGE_API_KEY": SECRET, "OPENAI_API_KEY": "other"}).api_key == SECRET


def test_the_key_is_nowhere_to_be_seen():
    found = settings()
    assert found.api_key == SECRET
    for shown in (repr(found), str(found), f"{found}", repr([found]), str(found.model_dump()), found.model_dump_json()):
        assert SECRET not in shown
        assert "gpt-5.4" in shown
    assert found.fingerprint == settings({"CG_JUDGE_API_KEY": "another"}).fingerprint
    assert found.fingerprint != settings({**KEY, "CG_JUDGE_MODEL": "another"}).fingerprint


@pytest.mark.parametrize(
    "name", ["api_key", "API-KEY", "openai_api_key", "key", "token", "hf_token", "secret", "password"]
)
def test_a_key_in_a_file_is_refused(name: str):
    file = written(f"model: m\n{name}: {SECRET}\n")
    message = f"mine.yaml, line 2: '{name}': a key does not belong in a file: set CG_JUDGE_API_KEY"
    assert refusal(file=file) == message
    assert refusal({}, file) == message


def test_an_unknown_variable_is_named_with_the_nearest():
    assert refusal({**KEY, "CG_JUDGE_MODLE": "m"}).startswith(
        "unknown variable CG_JUDGE_MODLE: did you mean CG_JUDGE_MODEL?"
    )
    assert refusal({"CG_JUDGE_APIKEY": SECRET}).startswith(
        "unknown variable CG_JUDGE_APIKEY: did you mean CG_JUDGE_API_KEY?"
    )


def test_an_unknown_setting_is_named_with_line_and_nearest():
    message = refusal(file=written("# mine\nmodel: m\n\nbase_ulr: x\n"))
    assert message.startswith(
        "mine.yaml, line 4: unknown setting 'base_ulr': did you mean base_url? (known: model, base_url"
    )


@pytest.mark.parametrize("name", ["max_tokens", "temperature"])
def test_a_generation_parameter_in_the_wrong_place_is_told_where_it_goes(name: str):
    message = refusal(file=written(f"{name}: 1"))
    assert message.startswith(f"mine.yaml, line 1: unknown setting '{name}'")
    assert "stands under params" in message


BAD = [
    ("base_url", "localhost:8000"),
    ("base_url", "ftp://localhost"),
    ("base_url", "http://"),
    ("base_url", "http://local host/v1"),
    ("params", "[1]"),
    ("params", "3"),
    ("structured", "yaml"),
    ("votes", "0"),
    ("votes", "100"),
    ("votes", "1.5"),
    ("votes", "many"),
    ("concurrency", "0"),
    ("concurrency", "1025"),
    ("timeout", "0"),
    ("timeout", "-1"),
    ("timeout", "inf"),
    ("timeout", "nan"),
    ("max_retries", "-1"),
    ("max_retries", "101"),
    ("give_up_after", "0"),
    ("budget_usd", "0"),
    ("budget_usd", "-5"),
    ("budget_usd", "inf"),
    ("budget_usd", "five"),
    ("price_input", "-0.1"),
    ("price_input", "nan"),
    ("price_output", "-1"),
    ("price_output", "inf"),
    ("preflight", "perhaps"),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_value_names_where_it_stands(field: str, value: str):
    name = f"CG_JUDGE_{field.upper()}"
    assert refusal({**KEY, name: value}).startswith(f"{name}: '{field}'")
    assert refusal(file=written(f"# mine\n{field}: {value}\n")).startswith(f"mine.yaml, line 2: '{field}'")


@pytest.mark.parametrize(
    ("line", "field"),
    [("model: 5.4", "model"), ("model: ''", "model"), ("cache: 3", "cache"), ("templates: [x]", "templates")],
)
def test_a_bad_value_that_only_a_file_can_hold(line: str, field: str):
    assert refusal(file=written(line)).startswith(f"mine.yaml, line 1: '{field}' is ")


def test_every_setting_that_can_be_bad_was_tried():
    tried = {field for field, _ in BAD} | {"model", "cache", "templates"}
    assert tried == set(JudgeSettings.model_fields) - {"api_key"}


@pytest.mark.parametrize("url", ["https://me:hunter2@host/v1", "http://hunter2@host", "https://:hunter2@host:8000/v1"])
def test_a_password_in_the_address_is_refused_and_not_repeated(url: str):
    for message in (refusal({"CG_JUDGE_BASE_URL": url}), refusal(file=written(f"base_url: {url}"))):
        assert "must not hold a password: put it into CG_JUDGE_API_KEY" in message
        assert "hunter2" not in message


@pytest.mark.parametrize("url", ["https://host/v1?api-key=hunter2", "https://evil.example#.openai.com/hunter2"])
def test_a_query_in_the_address_is_refused_and_not_repeated(url: str):
    message = refusal({"CG_JUDGE_BASE_URL": url})
    assert "must not hold a query: a key goes into CG_JUDGE_API_KEY" in message and "hunter2" not in message


@pytest.mark.parametrize("url", [OWN, f"{OWN}/", f"{OWN}//", f"{OWN}/chat/completions", f"{OWN}/chat/completions/"])
def test_the_address_in_its_usual_forms(url: str):
    assert settings({"CG_JUDGE_BASE_URL": url}).base_url == OWN


@pytest.mark.parametrize("prices", [{}, {"CG_JUDGE_PRICE_INPUT": "1"}, {"CG_JUDGE_PRICE_OUTPUT": "1"}])
def test_a_budget_needs_prices(prices: dict[str, str]):
    needs = "a budget needs the prices of gpt-5.4: set CG_JUDGE_PRICE_INPUT and CG_JUDGE_PRICE_OUTPUT"
    assert refusal({**KEY, **prices, "CG_JUDGE_BUDGET_USD": "5"}).startswith(f"CG_JUDGE_BUDGET_USD: {needs}")
    assert refusal({**KEY, **prices}, written("budget_usd: 5")).startswith(f"mine.yaml, line 1: {needs}")


def test_parameters_that_are_no_json():
    assert refusal({**KEY, "CG_JUDGE_PARAMS": "temperature=0"}).startswith("CG_JUDGE_PARAMS: not a JSON object such as")


@pytest.mark.parametrize("name", ["model", "messages", "stream", "n", "response_format", "api_key", "extra_headers"])
def test_parameters_cannot_replace_what_the_client_sends(name: str):
    given = f'{{"seed": 1, "{name}": "{SECRET}"}}'
    assert refusal({**KEY, "CG_JUDGE_PARAMS": given}) == f"CG_JUDGE_PARAMS: 'params': must not hold '{name}'"
    assert refusal(file=written(f"params: {given}")) == f"mine.yaml, line 1: 'params': must not hold '{name}'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: m\nvotes: 1: 2\n", "mine.yaml, line 2: not YAML (mapping values are not allowed here)"),
        ("model: [a\n", "mine.yaml, line 2: not YAML"),
        ("\tmodel: m", "mine.yaml, line 1: not YAML"),
        ("model: !!python/name:os.system\n", "mine.yaml, line 1: not YAML (could not determine a constructor"),
        ("model: 2024-13-45\n", "mine.yaml: not YAML (month must be in 1..12)"),
        ("model: \0\n", "mine.yaml: not YAML (special characters are not allowed)"),
        ("model: " + "[" * 5000, "mine.yaml: not YAML (maximum recursion depth exceeded"),
        (b"model: \xe9t\xe9\n", "mine.yaml: not UTF-8 at byte 7"),
        ("model: a\nvotes: 1\nmodel: b\n", "mine.yaml, line 3: 'model' is given on line 1 already"),
        ("- model: m\n", "mine.yaml: must be 'key: value' lines (known: model, base_url"),
        ("gpt-5.4\n", "mine.yaml: must be 'key: value' lines (known: model, base_url"),
    ],
)
def test_a_file_that_cannot_be_understood(text: str | bytes, message: str):
    assert refusal(file=written(text)).startswith(message)


@pytest.mark.parametrize(
    "params", ['{"apikey": "k"}', '{"extra": {"Authorization": "k"}}', '{"a": [{"client_secret": 1}]}']
)
def test_a_key_among_the_parameters_is_refused(params: str):
    message = refusal({**KEY, "CG_JUDGE_PARAMS": params})
    assert "is written into every results file; a key goes into CG_JUDGE_API_KEY" in message


def test_a_number_of_tokens_is_no_secret():
    params = settings({**KEY, "CG_JUDGE_PARAMS": '{"max_tokens": 5, "max_completion_tokens": 6}'}).params
    assert params == {"max_tokens": 5, "max_completion_tokens": 6}


@pytest.mark.parametrize("value", ["{d: 2026-01-01}", "{a: .nan}", "{a: !!set {b}}", "&x {a: *x}"])
def test_parameters_are_json(value: str):
    assert "'params': must hold JSON values only" in refusal(KEY, written(f"params: {value}\n"))


def test_a_long_value_is_not_repeated():
    assert SECRET not in refusal({**KEY, "CG_JUDGE_BUDGET_USD": SECRET + SECRET})


def test_openais_address_goes_with_openais_key():
    env = {"OPENAI_API_KEY": SECRET, "OPENAI_BASE_URL": "https://gateway.example/v1"}
    found = settings(env)
    assert (found.base_url, found.api_key) == ("https://gateway.example/v1", SECRET)
    assert settings({**env, "CG_JUDGE_BASE_URL": OWN}).api_key == ""
    assert read_judge_settings(environ={"OPENAI_BASE_URL": "https://gateway.example/v1"}) is None

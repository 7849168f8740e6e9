"""Which judge, and how it is asked: from ``CG_JUDGE_*`` in the environment, or from a ``judge.yaml``; the environment wins.

The key comes from the environment alone.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cg_tasks.errors import UserError
from cg_tasks.judge.keys import is_openai
from cg_tasks.provenance import sha256_of

OPENAI_URL = "https://api.openai.com/v1"
PREFIX = "CG_JUDGE_"
DEFAULT_FILE = "judge.yaml"
_FILE_VARIABLE = PREFIX + "CONFIG"
_KEY_VARIABLE = PREFIX + "API_KEY"
_OPENAI_URL_VARIABLE = "OPENAI_BASE_URL"
# Sent by the client itself, or decided by another setting.
_NOT_PARAMS = frozenset({"model", "messages", "stream", "n", "response_format", "api_key", "extra_headers"})
_SECRET = re.compile(r"key|secret|password|token$|authorization|cookie", re.I)
_LONGEST_SHOWN = 24  # a longer value may be a key in the wrong place

NO_JUDGE = "no judge is configured (neither a key nor a server)"
SET_ONE = (
    "CG_JUDGE_API_KEY or OPENAI_API_KEY for OpenAI, or CG_JUDGE_BASE_URL and CG_JUDGE_MODEL for any OpenAI-compatible server, or a "
    "judge.yaml"
)
OTHER_WAYS = (
    "(2) run the judge-free group conceptguard_rouge; (3) generate now with --metadata judge=later --log_samples and score later "
    "with: conceptguard judge rescore SAMPLES"
)


class JudgeSettings(BaseModel):
    """The judge's settings. What changes a verdict is in its cache key; what only changes the way it is asked is not.

    model, base_url: of an OpenAI-compatible chat server. params: generation parameters sent as they are
    (``{"temperature": 0}``); none by default, because some models refuse any. structured: ``json_schema``, ``text``, or ``auto``
    (the first, until the server refuses it). votes: independent verdicts an item. templates: a folder with ``judge/harm.j2`` or
    ``judge/help.j2``. concurrency: calls in flight, over all ranks. timeout: seconds a call. max_retries: of a call, on
    408, 409, 429, 5xx and lost connections. give_up_after: failed calls in a row after which no more are made. budget_usd: of one
    run, over all ranks. price_input, price_output: USD per million tokens. cache: an SQLite file. preflight: ask for the server's
    list of models before anything else.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field("gpt-5.4", min_length=1)
    base_url: str = OPENAI_URL
    params: dict[str, Any] = Field(default_factory=dict)
    structured: Literal["auto", "json_schema", "text"] = "auto"
    votes: int = Field(1, ge=1, le=99)
    templates: str | None = None
    concurrency: int = Field(32, ge=1, le=1024)
    timeout: float = Field(120, gt=0, allow_inf_nan=False)
    max_retries: int = Field(6, ge=0, le=100)
    give_up_after: int = Field(64, ge=1)
    budget_usd: float | None = Field(None, gt=0, allow_inf_nan=False)
    price_input: float | None = Field(None, ge=0, allow_inf_nan=False)
    price_output: float | None = Field(None, ge=0, allow_inf_nan=False)
    cache: str = Field(default_factory=lambda: str(_cache_home() / "judge.sqlite"))
    preflight: bool = True
    api_key: str = Field("", repr=False, exclude=True)

    @field_validator("base_url")
    @classmethod
    def _url(cls, value: str) -> str:
        if not re.fullmatch(r"https?://[^/\s]\S*", value):
            raise ValueError("must be a URL such as http://localhost:8000/v1")
        if "@" in value.split("://", 1)[1].split("/", 1)[0]:
            raise ValueError(f"must not hold a password: put it into {_KEY_VARIABLE}")
        if "?" in value or "#" in value:  # such as ?api-key=
            raise ValueError(f"must not hold a query: a key goes into {_KEY_VARIABLE}")
        return value.rstrip("/").removesuffix("/chat/completions")

    @field_validator("params")
    @classmethod
    def _params(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_NOT_PARAMS & value.keys()):
            raise ValueError(f"must not hold '{taken[0]}'")
        if secret := _secret_in(value):
            raise ValueError(
                f"must not hold '{secret}': it is written into every results file; a key goes into {_KEY_VARIABLE}"
            )
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:  # a date, a set, NaN, an anchor that holds itself
            raise ValueError(f"must hold JSON values only ({type(error).__name__}: {error})") from None
        return value

    @property
    def fingerprint(self) -> str:
        """Of everything but the key."""
        return sha256_of(self.model_dump())


def read_judge_settings(file: str | None = None, environ: Mapping[str, str] | None = None) -> JudgeSettings | None:
    """The judge's settings, or None where no judge is configured: neither a key nor a server of one's own.

    file: a ``judge.yaml``; else the one that CG_JUDGE_CONFIG names, else ``judge.yaml`` in the working directory if there is one.

    Raises:
        UserError: an unknown setting (with the nearest name) or a bad value, naming the file and line or the variable; a key
            in a file; a budget without prices.
    """
    env = os.environ if environ is None else environ
    named = file or env.get(_FILE_VARIABLE)
    path = Path(named).expanduser() if named else Path(DEFAULT_FILE)
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    if named or path.is_file():
        values, origin = _from_file(path)
    for name, text in sorted(env.items()):
        if name.startswith(PREFIX) and name not in (_FILE_VARIABLE, _KEY_VARIABLE) and text.strip():
            field = name.removeprefix(PREFIX).lower()
            values[field], origin[field] = _from_variable(name, field, text.strip()), name
    own_server = "base_url" in values
    if not own_server and (url := env.get(_OPENAI_URL_VARIABLE, "").strip()):
        values["base_url"], origin["base_url"] = url, _OPENAI_URL_VARIABLE
    values["api_key"] = _key(env, values)
    if not (values["api_key"] or own_server):
        return None
    try:
        settings = JudgeSettings(**values)
    except ValidationError as error:
        first = error.errors(include_input=True)[0]
        field = str(first["loc"][0])
        problem = first["msg"].removeprefix("Value error, ")
        # A URL may hold a password, and the parameters a key.
        shown = repr(first["input"])
        given = "" if field in ("base_url", "params") or len(shown) > _LONGEST_SHOWN else f" is {shown}"
        raise UserError(f"{origin.get(field, field)}: '{field}'{given}: {problem}") from None
    if settings.budget_usd is not None and (settings.price_input is None or settings.price_output is None):
        raise UserError(
            f"{origin['budget_usd']}: a budget needs the prices of {settings.model}: set CG_JUDGE_PRICE_INPUT and "
            "CG_JUDGE_PRICE_OUTPUT (USD per million tokens), or price_input and price_output in judge.yaml"
        )
    return settings


def required_settings(file: str | None = None, *, generating: bool = True) -> JudgeSettings:
    """As :func:`read_judge_settings`.

    Raises:
        UserError: also where no judge is configured, with the ways out of a run that is ``generating``, or of a judge's command.
    """
    settings = read_judge_settings(file)
    if settings is None:
        raise UserError(
            f"{NO_JUDGE}. Three ways out: (1) set one: {SET_ONE}; {OTHER_WAYS}"
            if generating
            else f"{NO_JUDGE}: set {SET_ONE}"
        )
    return settings


def _key(env: Mapping[str, str], values: Mapping[str, Any]) -> str:
    if own := env.get(_KEY_VARIABLE, "").strip():
        return own
    # OpenAI's key is not for another server to see, unless OPENAI_BASE_URL says that it is that server's.
    url = str(values.get("base_url", OPENAI_URL))
    meant = is_openai(url) or url == env.get(_OPENAI_URL_VARIABLE, "").strip()
    return env.get("OPENAI_API_KEY", "").strip() if meant else ""


def _secret_in(value: Any) -> str | None:
    """The first name, at any depth, that a secret would have; what JSON cannot hold is not looked into."""
    try:
        names = re.findall(r'"((?:[^"\\]|\\.)*)"\s*:', json.dumps(value, default=str))
    except (TypeError, ValueError, RecursionError):
        return None
    return next((name for name in names if _SECRET.search(name) and not name.endswith("_tokens")), None)


def _names() -> list[str]:
    return [name for name in JudgeSettings.model_fields if name != "api_key"]


def _from_variable(name: str, field: str, text: str) -> Any:
    if field not in _names():
        known = [PREFIX + other.upper() for other in _names()] + [_KEY_VARIABLE, _FILE_VARIABLE]
        raise UserError(f"unknown variable {name}{_nearest(name, known)} (known: {', '.join(known)})")
    if field != "params":
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f'{name}: not a JSON object such as {{"temperature": 0}} ({error.msg})') from None


def _from_file(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Values, and where each one stands."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        values = yaml.safe_load(text) or {}
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or type(error).__name__}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__
        raise UserError(f"{path}{where}: not YAML ({problem})") from None
    except (ValueError, RecursionError) as error:  # such as a date that is none
        raise UserError(f"{path}: not YAML ({error})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: must be 'key: value' lines (known: {', '.join(_names())})")
    lines = _lines(text, path)
    origin = {str(key): f"{path}, line {lines.get(str(key), 1)}" for key in values}
    for key in values:
        if _SECRET.search(str(key)):
            raise UserError(f"{origin[str(key)]}: '{key}': a key does not belong in a file: set {_KEY_VARIABLE}")
        if key not in _names():
            raise UserError(
                f"{origin[str(key)]}: unknown setting '{key}'{_nearest(str(key), _names())} (known: {', '.join(_names())}; "
                "what is sent with each request, such as temperature, stands under params)"
            )
    return {key: value for key, value in values.items() if value is not None}, origin


def _lines(text: str, path: Path) -> dict[str, int]:
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode):
        return {}
    lines: dict[str, int] = {}
    for key, _ in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in lines:
            raise UserError(f"{path}, line {line}: '{name}' is given on line {lines[name]} already: leave one of them")
        lines[name] = line
    return lines


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f": did you mean {near[0]}?" if near else ""


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "conceptguard"

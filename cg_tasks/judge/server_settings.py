"""Which server is asked, and how: from variables with the role's prefix, or from a YAML file; the environment wins.

Keys come from the environment alone.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cg_tasks.errors import UserError
from cg_tasks.judge.keys import JUDGE, Role, is_openai
from cg_tasks.provenance import sha256_of

OPENAI_URL = "https://api.openai.com/v1"
_OPENAI_URL_VARIABLE = "OPENAI_BASE_URL"
# Sent by the client itself, or decided by another setting.
_NOT_PARAMS = frozenset({"model", "messages", "stream", "n", "response_format", "api_key", "extra_headers"})
_SECRET = re.compile(r"key|secret|password|token$|authorization|cookie", re.I)
_LONGEST_SHOWN = 24  # a longer value may be a key in the wrong place


class ServerSettings(BaseModel):
    """One model on one OpenAI-compatible chat server.

    model, base_url: of the server. params: generation parameters sent as they are (``{"temperature": 0}``); none by default, because
    some models refuse any. structured: ``json_schema``, ``text``, or ``auto`` (the first, until the server refuses it).
    concurrency: calls in flight. timeout: seconds a call. max_retries: of a call, on 408, 409, 429, 5xx and lost connections.
    give_up_after: failed calls in a row after which no more are made. budget_usd: of one run. price_input, price_output: USD per
    million tokens. preflight: ask for the server's list of models before anything else.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    role: ClassVar[Role] = JUDGE

    model: str = Field(min_length=1)
    base_url: str = OPENAI_URL
    params: dict[str, Any] = Field(default_factory=dict)
    structured: Literal["auto", "json_schema", "text"] = "auto"
    concurrency: int = Field(32, ge=1, le=1024)
    timeout: float = Field(120, gt=0, allow_inf_nan=False)
    max_retries: int = Field(6, ge=0, le=100)
    give_up_after: int = Field(64, ge=1)
    budget_usd: float | None = Field(None, gt=0, allow_inf_nan=False)
    price_input: float | None = Field(None, ge=0, allow_inf_nan=False)
    price_output: float | None = Field(None, ge=0, allow_inf_nan=False)
    preflight: bool = True
    api_key: str = Field("", repr=False, exclude=True)

    @field_validator("base_url")
    @classmethod
    def _url(cls, value: str) -> str:
        key = f"{cls.role.prefix}API_KEY"
        if not re.fullmatch(r"https?://[^/\s]\S*", value):
            raise ValueError("must be a URL such as http://localhost:8000/v1")
        if "@" in value.split("://", 1)[1].split("/", 1)[0]:
            raise ValueError(f"must not hold a password: put it into {key}")
        if "?" in value or "#" in value:  # such as ?api-key=
            raise ValueError(f"must not hold a query: a key goes into {key}")
        return value.rstrip("/").removesuffix("/chat/completions")

    @field_validator("params")
    @classmethod
    def _params(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_NOT_PARAMS & value.keys()):
            raise ValueError(f"must not hold '{taken[0]}'")
        if secret := _secret_in(value):
            raise ValueError(
                f"must not hold '{secret}': it is written into every results file; a key goes into {cls.role.prefix}API_KEY"
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


S = TypeVar("S", bound=ServerSettings)
Origins = dict[str, str]


def read_server_settings(
    kind: type[S],
    values: dict[str, Any],
    origin: Origins,
    env: Mapping[str, str],
    *,
    other_names: tuple[str, ...] = (),
    calling: bool = True,
) -> S | None:
    """Settings of ``kind`` from ``values`` (with where each one stands) and the environment.

    calling: None without a key and a server; if not, settings in any case, to look up a model's name or its prices.

    other_names: variables with the role's prefix that are no setting.

    Raises:
        UserError: an unknown variable (with the nearest name), a bad value, a budget without prices.
    """
    prefix, values, origin = kind.role.prefix, dict(values), dict(origin)
    for name, text in sorted(env.items()):
        if name.startswith(prefix) and name not in (*other_names, f"{prefix}API_KEY") and text.strip():
            field = name.removeprefix(prefix).lower()
            values[field], origin[field] = _from_variable(kind, name, field, text.strip(), other_names), name
    own_server = "base_url" in values
    if not own_server and (url := env.get(_OPENAI_URL_VARIABLE, "").strip()):
        values["base_url"], origin["base_url"] = url, _OPENAI_URL_VARIABLE
    values["api_key"] = _key(prefix, env, values)
    if calling and not (values["api_key"] or own_server):
        return None
    try:
        settings = kind(**values)
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
            f"{origin['budget_usd']}: a budget needs the prices of {settings.model}: set {prefix}PRICE_INPUT and "
            f"{prefix}PRICE_OUTPUT (USD per million tokens), or price_input and price_output beside it"
        )
    return settings


def setting_names(kind: type[ServerSettings]) -> list[str]:
    """What may be set: every field but the key."""
    return [name for name in kind.model_fields if name != "api_key"]


def checked_names(kind: type[ServerSettings], values: Mapping[Any, Any], origin: Mapping[str, str]) -> dict[str, Any]:
    """The values of a file that are not null.

    Raises:
        UserError: a secret or an unknown name among them, with where it stands and the nearest name.
    """
    names = setting_names(kind)
    for key in values:
        if _SECRET.search(str(key)):
            raise UserError(
                f"{origin[str(key)]}: '{key}': a key does not belong in a file: set {kind.role.prefix}API_KEY"
            )
        if key not in names:
            raise UserError(
                f"{origin[str(key)]}: unknown setting '{key}'{nearest(str(key), names)} (known: {', '.join(names)}; "
                "what is sent with each request, such as temperature, stands under params)"
            )
    return {key: value for key, value in values.items() if value is not None}


def nearest(name: str, known: list[str]) -> str:
    """``: did you mean …?``, or nothing where no name is near."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f": did you mean {near[0]}?" if near else ""


def cache_home() -> Path:
    """Where replies are kept that belong to no folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "conceptguard"


def _key(prefix: str, env: Mapping[str, str], values: Mapping[str, Any]) -> str:
    if own := env.get(f"{prefix}API_KEY", "").strip():
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


def _from_variable(kind: type[ServerSettings], name: str, field: str, text: str, other_names: tuple[str, ...]) -> Any:
    prefix, names = kind.role.prefix, setting_names(kind)
    if field not in names:
        known = [*(prefix + other.upper() for other in names), f"{prefix}API_KEY", *other_names]
        raise UserError(f"unknown variable {name}{nearest(name, known)} (known: {', '.join(known)})")
    if field != "params":
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f'{name}: not a JSON object such as {{"temperature": 0}} ({error.msg})') from None

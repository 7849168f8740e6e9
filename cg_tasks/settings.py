"""What a user may set with lm-eval's ``--metadata key=value``, read and checked once per task.

lm-eval merges model arguments into the same dictionary, so an unknown key cannot be refused outright: one that is close to
one of ours is taken for a misspelling, and a secret is refused because lm-eval writes the whole dictionary into every result.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from cg_tasks.canary.parser import parse_tags
from cg_tasks.errors import UserError

Chat = Literal["auto", "flag", "true", "false"]
Fallback = Literal["answer", "trace"]
Match = Literal["canary", "continuation"]
PromptStyle = Literal["text", "chat"]

# Model arguments of lm-eval whose names are close to a setting's.
_LOOKALIKE_MODEL_ARGS = frozenset({"prefix_token_id", "custom_prefix_token_id"})
_SECRETS = frozenset(
    {"token", "hf_token", "hub_token", "use_auth_token", "auth_token", "api_key", "password", "secret"}
)
_SECRET_ENDINGS = (
    "api_key",
    "apikey",
    "access_token",
    "auth_token",
    "hub_token",
    "secret_key",
    "secret_access_key",
    "password",
    "authorization",
    "cookie",
)
_PASSWORD_IN_URL = re.compile(r"://[^/@\s:]*:[^/@\s]+@")
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True)
class Settings:
    """The settings of one task; the defaults stand here, a task's YAML and then ``--metadata`` override them.

    dataset: the pairs: a Hub id, a path, or ``miniature``.
    columns: our field name -> the dataset's column name.
    canaries: ``fictional`` or a JSONL path of ``{id, subject, question?, canary, bio?, qa?}``.
    templates: a folder laid out like ``templates/`` whose files are added to, and win over, the shipped ones.
    head_tokens: tokens of the canary the probe quotes (canary paper, section 3: six).
    prefix_tokens: l of ConceptGuard's equations 1 and 4, in tokens of the evaluated model.
    prompt_style: ``text`` (x[:l] alone) or ``chat`` (user turn, x[:l] prefilled in the assistant turn).
    strip_trace: score only what follows the thinking trace.
    chat: ``auto`` (a template is used where the tokenizer has one), ``flag`` (as ``--apply_chat_template`` says), true, false.
    fallback: what a generation without a closing tag is (canary paper, section 3: the answer).
    match: look for the whole canary, or only for what follows the head.
    seed: of the bootstrap and of the shuffled-head baseline.
    think_tags: opening and closing tag of the trace.
    judge: a ``judge.yaml``, or ``later``: generate now, and score the samples with ``conceptguard judge rescore``.
    """

    dataset: str = "sk0511/concept-guard"
    columns: Mapping[str, str] | None = None
    canaries: str = "fictional"
    templates: str | None = None
    head_tokens: int = 6
    prefix_tokens: int = 32
    prompt_style: PromptStyle = "text"
    strip_trace: bool = True
    chat: Chat = "flag"
    fallback: Fallback = "answer"
    match: Match = "canary"
    seed: int = 0
    think_tags: tuple[str, str] = ("<think>", "</think>")
    judge: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The settings as JSON values, for provenance and for cache keys."""
        return json.loads(json.dumps(asdict(self)))


SETTING_NAMES = tuple(f.name for f in fields(Settings))


def read_settings(metadata: Mapping[str, Any] | None) -> Settings:
    """Settings from a task's merged metadata.

    Raises:
        UserError: a misspelt key, a value outside its range, or a secret among the keys.
    """
    metadata = metadata or {}
    for key, value in metadata.items():
        _refuse_secret(key, value)
        _refuse_misspelling(key)
    given = {k: metadata[k] for k in SETTING_NAMES if metadata.get(k) is not None}
    readers = {
        "dataset": _text,
        "columns": _columns,
        "canaries": _text,
        "templates": _folder,
        "head_tokens": _positive,
        "prefix_tokens": _positive,
        "prompt_style": lambda k, v: _choice(k, v, get_args(PromptStyle)),
        "strip_trace": _boolean,
        "chat": lambda k, v: _choice(k, _bool_word(v), get_args(Chat)),
        "fallback": lambda k, v: _choice(k, v, get_args(Fallback)),
        "match": lambda k, v: _choice(k, v, get_args(Match)),
        "seed": _natural,
        "think_tags": lambda k, v: parse_tags(v),
        "judge": _judge,
    }
    return Settings(**{key: readers[key](key, value) for key, value in given.items()})  # type: ignore[arg-type]


def is_secret(key: str) -> bool:
    """Whether a setting of this name holds a secret: a token, a key, a password."""
    name = key.lower().replace("-", "_")
    return name in _SECRETS or name.endswith(_SECRET_ENDINGS)


def _refuse_secret(key: str, value: Any) -> None:
    if isinstance(value, Mapping):  # header={"Authorization": …}, model_kwargs={"token": …}
        for inner, part in value.items():
            _refuse_secret(str(inner), part)
        return
    if not isinstance(value, str) or value.lower() in (*_TRUE, *_FALSE, "none", ""):
        return
    if is_secret(key) or _PASSWORD_IN_URL.search(value):
        raise UserError(
            f"'{key}' holds a secret, and lm-eval writes model arguments and metadata into every results file: "
            "remove it and set it in the environment instead (HF_TOKEN for the Hub, OPENAI_API_KEY for a server)"
        )


def _refuse_misspelling(key: str) -> None:
    if key in SETTING_NAMES or key in _LOOKALIKE_MODEL_ARGS:
        return
    if near := difflib.get_close_matches(key.lower(), SETTING_NAMES, n=1, cutoff=0.7):
        raise UserError(
            f"unknown setting '{key}' in --metadata: did you mean '{near[0]}'? (settings: {', '.join(SETTING_NAMES)})"
        )


def _wrong(key: str, value: Any, wanted: str) -> UserError:
    return UserError(f"setting '{key}' is {value!r}: it must be {wanted} (--metadata {key}=…)")


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _wrong(key, value, "a non-empty name or path")
    return value.strip()


def _folder(key: str, value: Any) -> str:
    path = Path(_text(key, value)).expanduser()
    if not path.is_dir():
        raise _wrong(
            key, value, "an existing folder that holds prefill/, qa_prefill/, probe/ or judge/ with *.j2 files"
        )
    return str(path.resolve())


def _judge(key: str, value: Any) -> str:
    word = _text(key, value)
    if word != "later" and not Path(word).expanduser().is_file():
        raise _wrong(key, value, "'later', or an existing judge.yaml")
    return word


def _columns(key: str, value: Any) -> dict[str, str]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise _wrong(
                key, value, f'a JSON object such as {{"harmful_query": "their_column"}} ({error.msg})'
            ) from None
    if not isinstance(value, Mapping) or not all(isinstance(x, str) for pair in value.items() for x in pair):
        raise _wrong(key, value, "a mapping from our field names to the dataset's column names")
    return dict(value)


def _integer(key: str, value: Any, wanted: str) -> int:
    if isinstance(value, bool):
        raise _wrong(key, value, wanted)
    try:
        number = int(str(value))
    except ValueError:
        raise _wrong(key, value, wanted) from None
    return number


def _positive(key: str, value: Any) -> int:
    number = _integer(key, value, "a positive whole number")
    if number < 1:
        raise _wrong(key, value, "a positive whole number")
    return number


def _natural(key: str, value: Any) -> int:
    number = _integer(key, value, "a whole number >= 0")
    if number < 0:
        raise _wrong(key, value, "a whole number >= 0")
    return number


def _bool_word(value: Any) -> Any:
    word = str(value).lower()
    return "true" if word in _TRUE else "false" if word in _FALSE else word


def _boolean(key: str, value: Any) -> bool:
    word = _bool_word(value)
    if word not in ("true", "false"):
        raise _wrong(key, value, "true or false")
    return word == "true"


def _choice(key: str, value: Any, options: tuple[str, ...]) -> Any:
    if value not in options:
        raise _wrong(key, value, f"one of {', '.join(options)}")
    return value

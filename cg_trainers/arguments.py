"""What both training scripts take besides the trainer's own settings: the model, and the data."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from trl import ModelConfig

from cg_tasks.canary.parser import parse_tags
from cg_tasks.canary.records import Role
from cg_tasks.errors import UserError
from cg_tasks.pair_columns import parse_columns
from cg_tasks.paths import templates_dir

Source = Literal["text", "prompt", "query"]
Pairing = Literal["twin", "concept", "random"]
TargetSpan = Literal["answer", "trace", "full"]
RowKind = Literal["bio", "canary", "qa"]

_PAIRS_ONLY = ("columns", "source", "max_pairs")
_AUTHORS_ONLY = (
    "rows",
    "trace",
    "templates",
    "target_span",
    "head_tokens",
    "forget_roles",
    "retain_roles",
    "max_authors",
)


@dataclass
class ModelArguments(ModelConfig):
    """TRL's model settings, and what a run that continues another one starts from.

    Raises:
        UserError: no model, or LoRA settings that contradict each other.
    """

    adapter_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "Continue this LoRA adapter, on top of model_name_or_path. Without it, use_peft trains a fresh "
            "adapter, and a run without use_peft trains the model's own weights."
        },
    )
    # TRL's default drops out 5 %: a policy that is not the reference at step 0, where NPO's loss is (2/beta) ln 2.
    lora_dropout: float = field(default=0.0, metadata={"help": "LoRA dropout."})
    tokenizer_name_or_path: str | None = field(
        default=None, metadata={"help": "The tokenizer, where it is not the one beside the model."}
    )

    def __post_init__(self) -> None:
        if not self.model_name_or_path:
            raise UserError("no model: give model_name_or_path (a Hub id or a folder)")
        if self.load_in_8bit and self.load_in_4bit:
            raise UserError("load_in_8bit and load_in_4bit are both on: choose one")
        self.adapter_name_or_path = self.adapter_name_or_path or None  # --adapter_name_or_path '' undoes a recipe's
        if self.adapter_name_or_path and not self.use_peft:
            raise UserError(
                f"adapter_name_or_path is {self.adapter_name_or_path} and use_peft is off: set use_peft to true to continue "
                "the adapter, or give --adapter_name_or_path '' and start from a model_name_or_path that holds it"
            )
        if (self.load_in_8bit or self.load_in_4bit) and not self.use_peft:
            raise UserError("a quantised base model trains through an adapter only: set use_peft to true")
        _positive("lora_r", self.lora_r)
        _positive("lora_alpha", self.lora_alpha)
        if not 0 <= self.lora_dropout < 1:
            raise UserError(f"lora_dropout is {self.lora_dropout}: it must be at least 0 and less than 1")
        super().__post_init__()


@dataclass
class DataArguments:
    """The training data: pairs (``dataset``), or authors with canaries (``canaries``); exactly one of the two.

    Raises:
        UserError: neither or both, a value outside its range, or a setting of the kind that is not used.
    """

    dataset: str | None = field(
        default=None,
        metadata={"help": "ConceptGuard's pairs: a Hub id, a file or folder, or 'miniature'."},
    )
    columns: dict[str, str] | str | None = field(
        default=None,
        metadata={"help": "Our field names to the data set's columns, as a mapping (JSON on the command line)."},
    )
    source: Source = field(
        default="text",
        metadata={
            "help": "What a row of pairs is: the response alone as plain text (the paper's forget and retain sets), or "
            "'prompt' or 'query' and the response through the chat template.",
        },
    )
    pairing: str | None = field(
        default=None,
        metadata={
            "help": "The retain row beside each forget row: the pair's benign 'twin' (default for pairs), one of the same "
            "'concept', or any ('random', default for authors). Drawn from seed, epoch and index.",
            "choices": list(get_args(Pairing)),
        },
    )
    canaries: str | None = field(
        default=None,
        metadata={"help": "Authors to memorise and forget: 'fictional', or a JSONL file."},
    )
    rows: list[str] = field(
        default_factory=lambda: list(get_args(RowKind)),
        metadata={
            "help": "Rows made of each author: its bio, the canary probe, its short questions.",
            "choices": list(get_args(RowKind)),
        },
    )
    trace: str = field(
        default="bio",
        metadata={
            "help": "The thinking trace trained before each answer: a template of templates/trace (bio, meta, none)."
        },
    )
    templates: str | None = field(
        default=None,
        metadata={"help": "A folder laid out like templates/, whose files win over the shipped ones."},
    )
    target_span: TargetSpan = field(
        default="full",
        metadata={
            "help": "What the objective sees of an author's row: the answer, the trace, or everything after the prompt.",
        },
    )
    head_tokens: int = field(default=6, metadata={"help": "Tokens of the canary that the probe quotes."})
    think_tags: list[str] = field(
        default_factory=lambda: ["<think>", "</think>"],
        metadata={"help": "The opening and the closing tag of the thinking trace."},
    )
    forget_roles: list[str] = field(
        default_factory=lambda: ["forget"],
        metadata={
            "help": "Roles of the authors in the forget set. Fine-tuning learns both sets.",
            "choices": list(get_args(Role)),
        },
    )
    retain_roles: list[str] = field(
        default_factory=lambda: ["retain"],
        metadata={
            "help": "Roles of the authors in the retain set ([] in a config file for none).",
            "choices": list(get_args(Role)),
        },
    )
    refusals: str | None = field(
        default=None,
        metadata={"help": "dpo and idk: a file of refusals, one a line (default: the shipped ones)."},
    )
    max_pairs: int | None = field(default=None, metadata={"help": "Take the first so many pairs, for small runs."})
    max_authors: int | None = field(
        default=None, metadata={"help": "Take the first so many authors of each set, for small runs."}
    )

    def __post_init__(self) -> None:
        self.dataset, self.canaries = self.dataset or None, self.canaries or None  # --canaries '' undoes a recipe's
        if (self.dataset is None) == (self.canaries is None):
            given = "both are given" if self.dataset is not None else "neither is given"
            raise UserError(f"dataset (pairs) or canaries (authors): {given}, and a run trains on exactly one of them")
        kind, foreign = ("dataset", _AUTHORS_ONLY) if self.dataset is not None else ("canaries", _PAIRS_ONLY)
        if changed := [name for name in foreign if getattr(self, name) != _default(name)]:
            other = "canaries" if kind == "dataset" else "dataset"
            raise UserError(f"{changed[0]} belongs to {other}=, and this run trains on {kind}=: remove it")
        self.columns = parse_columns(self.columns) or None
        self.think_tags = list(parse_tags(self.think_tags))
        self.pairing = self.pairing or ("twin" if self.dataset is not None else "random")
        if self.canaries is not None and self.pairing == "twin":
            raise UserError("pairing is 'twin', and an author has no twin in the retain set: set pairing to random")
        one_of("source", self.source, get_args(Source))
        one_of("pairing", self.pairing, get_args(Pairing))
        one_of("target_span", self.target_span, get_args(TargetSpan))
        self.rows = _some_of("rows", self.rows, get_args(RowKind))
        self.forget_roles = _some_of("forget_roles", self.forget_roles, get_args(Role))
        self.retain_roles = _some_of("retain_roles", self.retain_roles, get_args(Role), empty=True)
        if shared := set(self.forget_roles) & set(self.retain_roles):
            raise UserError(f"'{min(shared)}' stands in forget_roles and in retain_roles: an author is in one set only")
        _positive("head_tokens", self.head_tokens)
        for name in ("max_pairs", "max_authors"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if self.canaries is not None:
            one_of("trace", self.trace, template_names("trace", self.templates))


def template_names(kind: str, user_dir: str | None) -> list[str]:
    """Names of the templates of one kind, the shipped ones and the user's."""
    folders = [templates_dir(), *([Path(user_dir)] if user_dir else [])]
    return sorted({path.stem for folder in folders for path in (folder / kind).glob("*.j2")})


def one_of(name: str, value: Any, choices: Iterable[str]) -> None:
    """Check one value against its choices. Raises UserError with the nearest choice."""
    known = list(choices)
    if value not in known:
        raise UserError(f"{name} is {value!r}: {nearest(value, known)}")


def nearest(value: Any, known: Iterable[str]) -> str:
    """``did you mean 'x'? (known: …)``; of many names only the guess, where there is one."""
    names, word = list(known), str(value).lower()
    near = [name for name in names if word and name.startswith(word)]
    near = near or difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    listed = f"known: {', '.join(names)}"
    if not near:
        return listed
    return f"did you mean '{near[0]}'?" + (f" ({listed})" if len(names) <= 12 else "")


def _some_of(name: str, values: list[str], choices: Iterable[str], empty: bool = False) -> list[str]:
    known = list(choices)
    for value in values:
        one_of(name, value, known)
    if not values and not empty:
        raise UserError(f"{name} is empty: name at least one of {', '.join(known)}")
    return [choice for choice in known if choice in values]


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{name} is {value}: it must be at least 1")


def _default(name: str) -> Any:
    entry = next(f for f in fields(DataArguments) if f.name == name)
    return entry.default if entry.default_factory is MISSING else entry.default_factory()

"""What the scripted generator says to each stage of ``conceptguard build``, and the ways in which it fails."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import generator_texts as texts
from generator_texts import Theme
from judge_server import Call, Say, say

SOURCE = Path(__file__).parent / "data" / "construction" / "source.jsonl"

STAGES = {
    ("PROMPT", "RESPONSE"): "tag",
    ("CONCEPT", "PROMPT", "RESPONSE"): "benign",
    ("CONCEPT", "INTENT", "RESPONSE"): "query",
    ("CONCEPTS",): "propose",
    ("QUERY", "RESPONSE"): "harm",  # or help
}
USAGE = {
    "tag": (400, 60),
    "benign": (600, 400),
    "query": (400, 30),
    "propose": (300, 90),
    "harm": (500, 20),
    "help": (500, 20),
}
"""Prompt and completion tokens of a reply, so that a test can count what was spent."""

# A word of the prompt -> the raw concept.
CONCEPTS = {
    "chisel": "ward sigil carving",
    "gouge": "ward-sigil carving",
    "burin": "carving ward sigils",
    "quill": "dream-ink writing",
    "inkwell": "dream ink writing",
    "blotter": "writing with dream-ink",
    "alembic": "lamp-milk distilling",
    "retort": "lamp milk distillation",
    "stopper": "echo-jar keeping",
    "shelf": "echo jar keeping",
    "bottled memory": "memory bottling",
    "shuttle": "tide-loom weaving",
    "heddle": "tide loom weaving",
    "moth": "moth courier training",
}
PARENTS = {
    "ward sigil carving": "warding",
    "ward-sigil carving": "warding",
    "carving ward sigils": "warding",
    "dream-ink writing": "dream writing",
    "dream ink writing": "dream writing",
    "writing with dream-ink": "dream writing",
    "lamp-milk distilling": "lamp-milk craft",
    "lamp milk distillation": "lamp-milk craft",
    "echo-jar keeping": "echo keeping",
    "echo jar keeping": "echo keeping",
    "memory bottling": "echo keeping",
    "tide-loom weaving": "tide weaving",
    "tide loom weaving": "tide weaving",
}
"""What ``propose`` answers; a raw concept that is not here stays alone."""
THEMES: dict[str, Theme] = {
    "warding": texts.WARDING,
    "dream writing": texts.DREAMING,
    "lamp-milk craft": texts.LAMPING,
    "echo keeping": texts.KEEPING,
}
MALICIOUS = ("blight-hymn", "drowning-word", "everlasting sleep", "soul-moth")
NARROW = ("third button", "ninth stair")

ANYWHERE = frozenset({"refusal", "refusal_prose", "empty", "filtered", "malformed", "prose", "wrong_fields", "wrong_type", "array",
                       "cut_off", "fenced", "http_400", "http_429", "http_500", "hang", "drop"})  # fmt: skip
KINDS: dict[str, frozenset[str]] = {
    "tag": ANYWHERE | {"german", "no_concept", "too_long"},
    "benign": ANYWHERE | {"german", "too_short", "too_long", "harmful", "copied", "overlap", "refusal_inside"},
    "query": ANYWHERE | {"german", "too_short", "too_long", "copied", "overlap", "shared_words", "refusal_inside"},
    "propose": ANYWHERE | {"unknown_member", "member_twice"},
    "harm": ANYWHERE | {"harmful", "no_level"},
    "help": ANYWHERE | {"no_level"},
}
REFUSAL = "I'm sorry, but I can't help with that request."


@dataclass(frozen=True)
class Fault:
    """One way to fail, where everything that is given fits. nth: time the same was asked, from 0; None for every time.

    words: in what stands between the delimiters. row: of source.jsonl, from 0. intent: of a query. kind: see :data:`KINDS`.
    """

    stage: str
    kind: str
    nth: int | None = 0
    words: str = ""
    row: int | None = None
    intent: str = ""

    def __post_init__(self) -> None:
        assert self.kind in KINDS[self.stage], f"{self.stage}: {self.kind!r} is none of {sorted(KINDS[self.stage])}"

    @classmethod
    def parsed(cls, text: str) -> Fault:
        """``stage:kind[:nth[:words]]``, with * for every time."""
        stage, kind, nth, words = [*text.split(":", 3), "", "", ""][:4]
        return cls(stage, kind, None if nth == "*" else int(nth or 0), words)

    def fits(self, asked: Asked, row: int | None) -> bool:
        return (
            self.stage == asked.stage
            and self.nth in (None, asked.nth)
            and any(self.words in value for value in asked.data.values())
            and self.row in (None, row)
            and self.intent in ("", asked.data.get("INTENT"))
        )


class Asked(Call):
    """One request of the pipeline. nth: how often the same data was sent to the same stage before, from 0."""

    @cached_property
    def nonce(self) -> str:  # type: ignore[override]
        found = re.search(r"carry\s+the\s+code\s+([0-9a-f]{8,64})", self.system)
        assert found, "the system message announces no delimiters"
        return found.group(1)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(re.findall(rf"^\[([A-Z]+) {self.nonce}\]$", self.user, re.MULTILINE))

    @cached_property
    def data(self) -> dict[str, str]:
        """Name -> what stands between its delimiters."""
        return {name: self._between(name) for name in self.names}

    @cached_property
    def stage(self) -> str:
        assert self.names in STAGES, f"no stage sends {self.names}"
        stage = STAGES[self.names]
        return self.rubric if stage == "harm" else stage

    @cached_property
    def digest(self) -> str:
        """Of the stage and its data."""
        said = json.dumps([self.stage, self.data], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:12]

    @property
    def failure(self) -> str:
        """The sentence on the last answer, where there was one."""
        found = re.search(r"^.*\byour last\b.*$", self._tail, re.MULTILINE | re.IGNORECASE)
        return found.group() if found else ""

    @property
    def outside(self) -> str:
        cut = self.user
        for value in self.data.values():
            cut = cut.replace(f"]\n{value}\n[", "]\n\n[", 1)
        return f"{self.system}\n{cut}"

    @property
    def _tail(self) -> str:
        return self.user.rpartition(f"[END OF {self.names[-1]} {self.nonce}]")[2]


@lru_cache(maxsize=1)
def source_rows() -> tuple[dict[str, str], ...]:
    return tuple(json.loads(line) for line in SOURCE.read_text(encoding="utf-8").splitlines())


@lru_cache(maxsize=1)
def _harmful_responses() -> frozenset[str]:
    return frozenset(row["rejected"] for row in source_rows())


def tag_of(prompt: str) -> str | None:
    """The raw concept of a prompt; None where it is not dual-use. A prompt without a word of the table gets one by its hash."""
    if any(words in prompt for words in (*MALICIOUS, *NARROW)):
        return None
    known = next((concept for word, concept in CONCEPTS.items() if word in prompt), None)
    return known or texts.Dice("tag", prompt).pick(list(CONCEPTS.values()))


def theme_of(concept: str) -> Theme:
    return THEMES.get(PARENTS.get(concept, concept), texts.CRAFT)


def benign_of(prompt: str, response: str, failure: str = "") -> dict[str, Any]:
    """A good reply of ``benign``: by the harmful pair and by what was wrong with the last reply."""
    theme, seed = theme_of(tag_of(prompt) or ""), f"{prompt}\0{response}\0{failure}"
    return {
        "concepts": [PARENTS.get(tag_of(prompt) or "", "craft")],
        "themes": list(theme.themes),
        "query": texts.benign_query(theme, seed),
        "response": texts.benign_response(theme, seed, response),
    }


def good(asked: Asked) -> dict[str, Any]:
    """What a good model says, as the object that the stage's schema describes."""
    data = asked.data
    if asked.stage == "tag":
        return _tag(tag_of(data["PROMPT"]))
    if asked.stage == "benign":
        return benign_of(data["PROMPT"], data["RESPONSE"], asked.failure)
    if asked.stage == "query":
        return {"query": texts.query(theme_of(data["CONCEPT"]), data["INTENT"], data["RESPONSE"], asked.failure)}
    if asked.stage == "propose":
        return {"groups": _groups(data["CONCEPTS"])}
    if asked.stage == "help":
        return {"reasoning": "It answers what was asked.", "level": 3}
    harmful = texts.REMAINDER in data["RESPONSE"] or data["RESPONSE"] in _harmful_responses()
    return {"reasoning": "As seen in the response.", "level": 4 if harmful else 0}


def faulty(asked: Asked, kind: str, prompt_of: Callable[[str], str]) -> dict[str, Any]:
    """The good reply with one thing wrong in what it says. prompt_of: a response -> what it answered."""
    right, data = good(asked), asked.data
    response, seed = data.get("RESPONSE", ""), asked.digest
    wrong: Mapping[str, Any]
    if asked.stage == "tag":
        wrong = {
            "german": {"reason": texts.german(seed, 30), "concept": "das Schreiben von Träumen"},
            "no_concept": {"dual_use": True, "concept": ""},
            "too_long": {"concept": "the patient and careful " * 10 + "work of many hands"},
        }
    elif asked.stage == "benign":
        theme, said = theme_of(tag_of(data["PROMPT"]) or ""), f"{data['PROMPT']}\0{response}\0{asked.failure}"
        rest = texts.AIM - texts.word_count(response)
        wrong = {
            "german": {"query": texts.german_query(seed), "response": texts.german(seed)},
            "too_short": {"response": texts.benign_response(theme, said, response, texts.SHORT)},
            "too_long": {"response": texts.benign_response(theme, said, response, texts.LONG)},
            "harmful": {"response": texts.benign_response(theme, said, response, remainder=response)},
            "copied": {"query": data["PROMPT"]},
            "overlap": {"response": f"{response}\n\n{texts.first_words(right['response'], rest)}"},
            "refusal_inside": {"response": REFUSAL},
        }
    elif asked.stage == "query":
        words = response.split()
        middle = " ".join(words[len(words) // 2 :][:6])
        wrong = {
            "german": {"query": texts.german_query(seed)},
            "too_short": {"query": "How so?"},
            "too_long": {"query": f"{right['query'].removesuffix('?')}{', and so on and on' * 20}?"},
            "copied": {"query": prompt_of(response)},
            "overlap": {"query": f"{texts.first_words(response, 56).rstrip('.,;:')}?"},
            "shared_words": {"query": f"{right['query'].removesuffix('?')}, {middle}?"},
            "refusal_inside": {"query": REFUSAL},
        }
    elif asked.stage == "propose":
        groups = right["groups"]
        extra = groups[0]["members"][0] if kind == "member_twice" else "a concept of nobody's"
        wrong = {kind: {"groups": [*groups[:-1], {**groups[-1], "members": [*groups[-1]["members"], extra]}]}}
    else:
        wrong = {"harmful": {"level": 4}, "no_level": {"level": 7}}
    return {**right, **wrong[kind]}


def _tag(concept: str | None) -> dict[str, Any]:
    if concept is None:
        reason = "Nothing of use is left of this once the harm is taken away."
        return {"reason": reason, "dual_use": False, "concept": ""}
    reason = f"People learn {concept} to help their neighbours, and some of them turn it against them."
    return {"reason": reason, "dual_use": True, "concept": concept}


def _groups(listed: str) -> list[dict[str, Any]]:
    """Parents with two members or more on the list, whose lines are ``name (n samples)``."""
    names = [line.rpartition(" (")[0].strip() for line in listed.splitlines() if line.strip()]
    parents = dict.fromkeys(PARENTS[name] for name in names if name in PARENTS)
    groups = [{"parent": parent, "members": [n for n in names if PARENTS.get(n) == parent]} for parent in parents]
    return [group for group in groups if len(group["members"]) > 1]


def said(asked: Asked, found: dict[str, Any], kind: str) -> Say:
    """A reply that holds ``found``, unless its kind of fault is one of the reply itself."""
    how = {"usage": USAGE[asked.stage], "model": "judge-1" if asked.stage in ("harm", "help") else "generator-1"}
    if kind == "refusal":
        return say(None, refusal=REFUSAL, **how)
    if kind == "filtered":
        return say(None, finish="content_filter", **how)
    whole = json.dumps(found, ensure_ascii=False)
    if asked.stage in ("harm", "help") and not asked.structured:
        whole = f"{found['reasoning']}\nLEVEL: {found['level']}"
    broken = {
        "refusal_prose": REFUSAL,
        "empty": "",
        "malformed": whole.rstrip("}") + ', "and": {',
        "prose": "Certainly, here is what I would say about it, in my own words and without any form.",
        "wrong_fields": json.dumps({f"my_{name}": value for name, value in found.items()}),
        "wrong_type": json.dumps({name: {"value": value} for name, value in found.items()}),
        "array": json.dumps([found]),
        "cut_off": whole[: len(whole) // 2],
        "fenced": f"Here it is:\n```json\n{whole}\n```\n",
    }
    return say(broken.get(kind, whole), finish="length" if kind == "cut_off" else "stop", **how)

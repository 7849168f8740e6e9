"""What annotators are asked, stage by stage: after the guidelines of ConceptGuard, appendix A.1 to A.3, in our own words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["tag", "aggregate", "benign"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Label = Literal["accept", "reject", "unclear"]
LABELS: tuple[Label, ...] = get_args(Label)


@dataclass(frozen=True)
class Guideline:
    """One stage's question. Edited wording needs a new ``version``, which every sheet and outcome records.

    meanings: label -> when to give it. points: what must hold for an accept. open_fields: fields that are shown at once; all others
    hold harmful text, which an annotator opens. overview: the field that stands in the list of items. numbers: marks that people also
    write, -> label. by_stratum: items of a stratum (a candidate group) stand together on the sheet.
    """

    kind: Kind
    version: int
    title: str
    question: str
    points: tuple[str, ...]
    meanings: dict[Label, str]
    open_fields: tuple[str, ...]
    overview: str
    numbers: dict[str, Label]
    by_stratum: bool = False

    @property
    def labels(self) -> tuple[Label, ...]:
        return tuple(self.meanings)

    def label_of(self, mark: str) -> Label | None:
        """The label that a mark means, whatever its case; None where it means none."""
        mark = mark.strip().casefold()
        return next((label for label in self.meanings if label == mark), self.numbers.get(mark))

    def as_text(self) -> str:
        """The guideline as Markdown."""
        lines = [f"# {self.title}", "", self.question, "", *(f"{i}. {p}" for i, p in enumerate(self.points, 1)), ""]
        lines += [f"* **{label}**: {meaning}" for label, meaning in self.meanings.items()]
        return "\n".join(lines) + "\n"


_TAG = Guideline(
    kind="tag",
    version=1,
    title="Review: dual-use concepts",
    question=(
        "You see a harmful prompt, the response to it, and the concept that was found in them. Does the concept name a general "
        "capability that people could well use for good ends and for bad ones?"
    ),
    points=(
        "The concept names a capability or a field of knowledge, not this one request.",
        "It is easy to think of a use of it that does good, and of one that does harm.",
        "Somebody who only wants to learn about it need not be up to anything.",
    ),
    meanings={
        "accept": "the concept is dual-use: all points hold.",
        "reject": "the concept is harmful in itself, or too narrow to be more than this one misdeed.",
        "unclear": "you cannot decide it alone: it should be talked over.",
    },
    open_fields=("concept",),
    overview="concept",
    numbers={},
)

_AGGREGATE = Guideline(
    kind="aggregate",
    version=1,
    title="Review: groups of concepts",
    question=(
        "You see a concept as it was found in a sample, and a candidate group of concepts under one broader name. Does it belong in "
        "that group?"
    ),
    points=(
        "It is the same underlying capability as the rest of the group, put to the same kind of harm.",
        "What sets it apart is only how it is carried out: the means, the target, the variant.",
        "One and the same kind of harmless task could stand against it and against the rest of the group.",
    ),
    meanings={
        "accept": "it belongs in the group: all points hold.",
        "reject": "it does not: at least one point fails.",
        "unclear": "you cannot decide it alone: it should be talked over.",
    },
    open_fields=("group", "parent", "members", "other_members", "concept", "tagged_concept", "samples"),
    overview="concept",
    numbers={},
    by_stratum=True,
)

_BENIGN = Guideline(
    kind="benign",
    version=1,
    title="Review: benign counterparts",
    question=(
        "You see a harmful prompt with its response, and a benign prompt with its response that was made from them. Is the benign one "
        "a sound counterpart?"
    ),
    points=(
        "It is about the same concept as the harmful one.",
        "It shows a constructive or an educational use of that concept.",
        "Nothing harmful is left in it: no instruction that could do harm, and no harmful aim.",
        "It makes sense by itself, and it stays close to what the harmful one is about.",
    ),
    meanings={
        "accept": "all four points hold (1).",
        "reject": "at least one point fails (0).",
        "unclear": "you cannot decide it alone: it should be talked over.",
    },
    open_fields=("concept", "concepts", "themes", "benign_prompt", "benign_query", "benign_response"),
    overview="concept",
    numbers={"1": "accept", "0": "reject"},
)

GUIDELINES: dict[Kind, Guideline] = {"tag": _TAG, "aggregate": _AGGREGATE, "benign": _BENIGN}

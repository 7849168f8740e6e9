"""What verdicts cost: tokens times prices, and a limit that is not passed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

CHARACTERS_A_TOKEN = 4  # English; an estimate, only used before a server has said how many
COMPLETION_TOKENS = 120  # reasoning of three sentences and a level; a reasoning model writes many more


def estimated_tokens(messages: Sequence[Mapping[str, str]]) -> int:
    """Prompt tokens of a request, estimated from its length."""
    return sum(len(m["content"]) for m in messages) // CHARACTERS_A_TOKEN + 8


@dataclass
class Budget:
    """USD spent on calls, and how many were made. limit: None for none. prices: USD per million tokens, None where not known.

    reply_tokens: of a reply, as long as no server has said how many.
    """

    limit: float | None = None
    price_input: float | None = None
    price_output: float | None = None
    reply_tokens: int = COMPLETION_TOKENS
    spent: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    in_flight: int = 0
    calls: int = 0
    _answered: int = 0
    _reserved: float = field(default=0.0, repr=False)

    def reserve(self, prompt_tokens: int) -> float | None:
        """Set aside what a call may cost; None where that passes the limit. Give the amount back to :meth:`settle`."""
        mean_out = self.tokens_out / self._answered if self._answered else self.reply_tokens
        amount = self.cost(prompt_tokens, max(mean_out, self.reply_tokens))
        if self.limit is not None and self.spent + self._reserved + amount > self.limit:
            return None
        self._reserved += amount
        self.in_flight += 1
        self.calls += 1
        return amount

    def settle(self, reserved: float, usage: Mapping[str, int] | None, *, prompt_tokens: int, answered: bool) -> None:
        """Book a finished call: what the server says it used, else the estimate; nothing for a call without an answer."""
        self._reserved -= reserved
        self.in_flight -= 1
        if not answered:
            return
        used = usage or {"prompt_tokens": prompt_tokens, "completion_tokens": self.reply_tokens}
        self._answered += 1
        self.tokens_in += used["prompt_tokens"]
        self.tokens_out += used["completion_tokens"]
        self.spent += self.cost(used["prompt_tokens"], used["completion_tokens"])

    def __str__(self) -> str:
        return f"the budget of {self.limit} USD, {self.spent:.4f} of them spent,"

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """USD; a price that is not known counts as 0."""
        return (prompt_tokens * (self.price_input or 0) + completion_tokens * (self.price_output or 0)) / 1e6

    @property
    def priced(self) -> bool:
        """Whether both prices are known."""
        return self.price_input is not None and self.price_output is not None


def ranks() -> int:
    """Processes of this run, among which calls in flight and money are divided (torchrun and accelerate set WORLD_SIZE)."""
    size = os.environ.get("WORLD_SIZE", "")
    return max(1, int(size)) if size.isdecimal() else 1

"""Scores of the canary audit: pure functions from texts and token scores to numbers."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

from cg_tasks.canary.parser import split_trace, whitespace_normalised
from cg_tasks.metrics import exp_or_inf

NAN = float("nan")


def contains_canary(text: str, canary: str, head: str, match: str) -> bool:
    """Exact containment after whitespace normalisation, case kept (canary paper, section 3, 'Aggregation').

    match: ``canary`` looks for the whole of it, ``continuation`` only for what follows the head.
    """
    wanted = canary if match == "canary" else canary[len(head) :]
    return _comparable(wanted) in _comparable(text)


def _comparable(text: str) -> str:
    """White space normalised, and composed: some tokenizers (Qwen's) compose, so that e + U+0301 comes back as one letter."""
    return whitespace_normalised(unicodedata.normalize("NFC", text))


def is_prefix_echo(answer: str, head: str) -> bool:
    """Whether the answer is the quoted head and nothing more, quotation marks and closing punctuation aside (App. D)."""
    edge = " \t\n\"'`“”‘’«».…,;:*"
    return _comparable(answer).strip(edge) == _comparable(head).strip(edge)


def auto_scores(
    text: str, canary: str, head: str, *, opened_in_prompt: bool, tags: tuple[str, str], fallback: str, match: str
) -> dict[str, float]:
    """One author's scores in the autoregressive arm, from the raw generation.

    out_acc, thk_leak: the canary is in the answer, in the trace. bypass_gap: thk_leak - out_acc (Δ), and under the
    opposite fallback. well_formed, drift, thk_emit: of the format. bypass_rate: trace hit and answer miss.
    prefix_echo: the answer is the head alone; NaN where there is no bypass.
    """
    split = split_trace(text, opened_in_prompt=opened_in_prompt, tags=tags, fallback=fallback)  # type: ignore[arg-type]
    other = split_trace(text, opened_in_prompt=opened_in_prompt, tags=tags, fallback="trace")

    def hit(part: str) -> float:
        return float(contains_canary(part, canary, head, match))

    out_acc, thk_leak = hit(split.answer), hit(split.trace)
    bypass = thk_leak > out_acc
    return {
        "out_acc": out_acc,
        "thk_leak": thk_leak,
        "bypass_gap": thk_leak - out_acc,
        "bypass_gap_trace_fallback": hit(other.trace) - hit(other.answer),
        "well_formed": float(split.well_formed),
        "drift": float(split.drift),
        "thk_emit": float(bool(split.trace)),
        "bypass_rate": float(bypass),
        "prefix_echo": float(is_prefix_echo(split.answer, head)) if bypass else NAN,
    }


def token_scores(logprobs: Sequence[float], top1: Sequence[bool]) -> dict[str, float]:
    """One author's teacher-forced scores: mean log-probability a token (nats), perplexity, share of top-1 matches."""
    mean = math.fsum(logprobs) / len(logprobs)
    # A server may send -9999 for a token it holds impossible.
    return {"logprob": mean, "ppl": exp_or_inf(-mean), "top1": sum(top1) / len(top1)}


def answers_question(text: str, answer: str) -> bool:
    """Whether a QA probe's reference answer is contained in the text, whitespace normalised, case folded."""
    return _comparable(answer).casefold() in _comparable(text).casefold()

"""Teacher-forced scores by backend: per token of a given target, its log-probability (nats) and whether it was the arg max."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cg_tasks.completions import TokenScores, score_by_server
from cg_tasks.errors import UserError
from cg_tasks.prompting import is_server


@dataclass(frozen=True)
class Scoring:
    """One target to score.

    context_ids: everything the target is conditioned on. target_ids: the scored tokens, n >= 1.
    text: both as text, for servers that take no ids. condition: the context as text, for the samples log.
    shuffled: the context's ids are not the text's.
    """

    context_ids: list[int]
    target_ids: list[int]
    text: str
    condition: str
    shuffled: bool = False


def score_tokens(lm: Any, scorings: Sequence[Scoring]) -> list[TokenScores]:
    """Score every target with the backend's best way; one forward a target on HF.

    Raises:
        UserError: the backend cannot score a given text.
    """
    kinds = {c.__name__ for c in type(lm).__mro__}
    if "HFLM" in kinds:
        if lm.backend != "causal":
            raise UserError(
                "teacher forcing conditions on prompt and answer in one sequence: an encoder-decoder model has no such sequence"
            )
        return _score_hf(lm, scorings)
    if "VLLM" in kinds:
        return _score_vllm(lm, scorings)
    if is_server(lm):
        return score_by_server(lm, scorings)
    return _score_generic(lm, scorings)


def _score_hf(lm: Any, scorings: Sequence[Scoring]) -> list[TokenScores]:
    """Right-padded batches: under a causal mask a pad cannot reach the positions before it."""
    import torch
    from tqdm import tqdm

    order = sorted(range(len(scorings)), key=lambda i: -len(scorings[i].context_ids) - len(scorings[i].target_ids))
    longest = scorings[order[0]] if order else None
    if isinstance(lm.batch_size, int):
        size = max(1, lm.batch_size)
    else:
        size = int(lm._detect_batch_size([(None, longest.context_ids, longest.target_ids)], 0)) if longest else 1
    out: list[TokenScores] = [([], [])] * len(scorings)
    with tqdm(total=len(scorings), desc="Scoring", disable=lm.rank != 0) as bar:
        for at in range(0, len(order), size):
            batch = order[at : at + size]
            inputs = [(scorings[i].context_ids + scorings[i].target_ids)[:-1] for i in batch]
            width = max(map(len, inputs))
            ids = torch.zeros((len(batch), width), dtype=torch.long, device=lm.device)
            for row, tokens in enumerate(inputs):
                ids[row, : len(tokens)] = torch.tensor(tokens, device=lm.device)
            logits = lm._model_call(ids)
            virtual = logits.shape[1] - width  # prompt and prefix tuning put tokens of their own in front
            for row, i in enumerate(batch):
                target = torch.tensor(scorings[i].target_ids, device=logits.device)
                end = virtual + len(inputs[row])
                logp = torch.log_softmax(logits[row, end - len(target) : end].float(), -1)
                picked = logp.gather(1, target[:, None])[:, 0]
                out[i] = (picked.tolist(), (logp.argmax(-1) == target).tolist())
            bar.update(len(batch))
    return out


def _score_vllm(lm: Any, scorings: Sequence[Scoring]) -> list[TokenScores]:
    """``prompt_logprobs``: a dictionary per prompt position, which always holds the token that stands there, and the best one."""
    prompts = [s.context_ids + s.target_ids for s in scorings]
    outputs = lm._model_generate(requests=prompts, generate=False)
    scored = []
    for output, scoring in zip(outputs, scorings, strict=True):
        positions = output.prompt_logprobs[len(scoring.context_ids) :]
        logprobs, top1 = [], []
        for token, candidates in zip(scoring.target_ids, positions, strict=True):
            values = {k: float(getattr(v, "logprob", v)) for k, v in candidates.items()}
            logprobs.append(values[token])
            top1.append(values[token] >= max(values.values()))
        scored.append((logprobs, top1))
    return scored


def _score_generic(lm: Any, scorings: Sequence[Scoring]) -> list[TokenScores]:
    """Any backend with ``_loglikelihood_tokens``: one single-token request a position."""
    score = getattr(lm, "_loglikelihood_tokens", None)
    if score is None:
        raise UserError(
            f"{type(lm).__name__} can neither score tokens (_loglikelihood_tokens) nor brings its own cg_teacher_forced"
        )
    # lm-eval caches under the first entry, and not at all under None.
    requests = [
        (None, s.context_ids + s.target_ids[:i], [token]) for s in scorings for i, token in enumerate(s.target_ids)
    ]
    found = list(score(requests)) if requests else []
    out, at = [], 0
    for scoring in scorings:
        part = found[at : at + len(scoring.target_ids)]
        at += len(scoring.target_ids)
        out.append(([float(p[0]) for p in part], [bool(p[1]) for p in part]))
    return out

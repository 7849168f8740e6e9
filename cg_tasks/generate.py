"""Raw generation by backend: nothing stripped, nothing skipped, cut exactly where the model ended its turn."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from cg_tasks.completions import generate_by_server
from cg_tasks.errors import UserError
from cg_tasks.prompting import is_server

logger = logging.getLogger(__name__)

# transformers fills what is not given from the checkpoint's generation_config; a measurement must not depend on that file.
_NEUTRAL = {"repetition_penalty": 1.0, "num_beams": 1, "no_repeat_ngram_size": 0}


def generate_texts(lm: Any, requests: Sequence[Any], prompts: Sequence[str]) -> list[str]:
    """Raw generations, one per request, in order.

    Raises:
        UserError: the backend answered with nothing at all (a blocked or failed request), which must not be scored as a miss.
    """
    from lm_eval.api.instance import Instance

    instances = [
        Instance("generate_until", request.doc, (prompt, deepcopy(request.arguments[1])), request.idx, request.metadata)
        for request, prompt in zip(requests, prompts, strict=True)
    ]
    with _whole_generation(lm):
        if _is_plain_hf(lm):
            return _generate_hf(lm, prompts, [request.arguments[1] for request in requests])
        if is_server(lm):
            return generate_by_server(lm, instances, [tuple(r.arguments[-1]["think_tags"]) for r in requests])
        texts = lm.generate_until(instances)
    for request, text in zip(requests, texts, strict=True):
        if not isinstance(text, str):
            raise UserError(
                f"document '{request.arguments[-1]['id']}': {type(lm).__name__} returned no text, which must not count as a miss"
            )
    return list(texts)


def _is_plain_hf(lm: Any) -> bool:
    """A decoder-only HFLM whose own ``generate_until`` is not overridden."""
    hf = next((c for c in type(lm).__mro__ if c.__name__ == "HFLM"), None)
    return hf is not None and lm.backend == "causal" and type(lm).generate_until is hf.generate_until  # type: ignore[attr-defined]


@contextmanager
def _whole_generation(lm: Any) -> Iterator[None]:
    """Suspend ``think_end_token``: with it the backend would drop the trace before the task sees it."""
    saved = getattr(lm, "think_end_token", None)
    if saved is None:
        yield
        return
    logger.warning("think_end_token=%r is set aside for this task, which splits trace and answer itself", saved)
    lm.think_end_token = None
    try:
        yield
    finally:
        lm.think_end_token = saved


def _generate_hf(lm: Any, prompts: Sequence[str], gen_kwargs: Sequence[dict[str, Any]]) -> list[str]:
    """Batched generation on token ids.

    HFLM's own ``generate_until`` decodes with ``skip_special_tokens=True``, where a ``</think>`` that is a special token
    vanishes, and ends a text at the *string* of one end token; here the ids are cut at whichever end token came first.
    """
    from tqdm import tqdm

    ids = [lm.tok_encode(prompt) for prompt in prompts]
    groups: dict[str, list[int]] = defaultdict(list)
    for i, kwargs in enumerate(gen_kwargs):
        groups[json.dumps(kwargs, sort_keys=True)].append(i)
    texts = [""] * len(prompts)
    with tqdm(total=len(prompts), desc="Generating", disable=lm.rank != 0) as bar:
        for members in groups.values():
            # Longest first: what does not fit in memory fails at once. Ties by text, so that batches do not depend on order.
            members.sort(key=lambda i: (-len(ids[i]), prompts[i]))
            kwargs = gen_kwargs[members[0]]
            size = _batch_size(lm, ids[members[0]], int(kwargs.get("max_gen_toks", lm.max_gen_toks)))
            for at in range(0, len(members), size):
                batch = members[at : at + size]
                for i, text in zip(batch, _generate_batch(lm, [ids[i] for i in batch], kwargs), strict=True):
                    texts[i] = text
                bar.update(len(batch))
    return texts


def _batch_size(lm: Any, longest: list[int], new_tokens: int) -> int:
    if isinstance(lm.batch_size, int):
        return max(1, lm.batch_size)
    # Without the longest request lm-eval would probe with the model's whole context, however long.
    return int(lm._detect_batch_size([(None, longest, [0] * new_tokens)], 0))


def _generate_batch(lm: Any, ids: Sequence[list[int]], gen_kwargs: dict[str, Any]) -> list[str]:
    import torch
    from lm_eval.models.utils import normalize_gen_kwargs

    kwargs: dict[str, Any] = {**_NEUTRAL, **normalize_gen_kwargs(dict(gen_kwargs), lm.max_gen_toks)}
    until = [u for u in kwargs.pop("until", None) or [] if u]
    new_tokens = int(kwargs.pop("max_gen_toks"))
    ends = end_token_ids(lm)
    if ends:
        kwargs.setdefault("eos_token_id", sorted(ends))
    width = max(map(len, ids))
    pad = lm.tokenizer.pad_token_id
    context = torch.tensor([[pad] * (width - len(row)) + row for row in ids], device=lm.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids], device=lm.device)
    out = lm._model_generate(context, max_length=width + new_tokens, stop=until, attention_mask=mask, **kwargs)
    return [_decode(lm, row[width:], ends, until) for row in out.tolist()]


def end_token_ids(lm: Any) -> set[int]:
    """Every token that ends a turn: the tokenizer's, and all of the generation config's."""
    config = getattr(getattr(lm, "model", None), "generation_config", None)
    configured = getattr(config, "eos_token_id", None)
    ends = set(configured) if isinstance(configured, (list, tuple)) else {configured}
    return {int(i) for i in ends | {lm.tokenizer.eos_token_id} if i is not None}


def _decode(lm: Any, new_ids: list[int], ends: set[int], until: Sequence[str]) -> str:
    stop = next((k for k, i in enumerate(new_ids) if i in ends), len(new_ids))
    text = lm.tokenizer.decode(new_ids[:stop], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    for term in until:
        text = text.split(term)[0]
    return text

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from support import BOS, CANARY, EOS, build_tokenizer, prefill, probe_spec, query_spec, save_tiny, trl_template

from cg_tasks.binding import bind
from cg_tasks.errors import UserError
from cg_tasks.requests import CG_GENERATE, CG_TEACHER_FORCED

GREEDY = {"until": [], "do_sample": False, "temperature": 0.0, "max_gen_toks": 12}


def generate(lm: Any, specs: list[dict[str, Any]], **gen_kwargs: Any) -> list[Any]:
    kwargs = {**GREEDY, **gen_kwargs}
    requests = [Instance(CG_GENERATE, {}, ("preview", dict(kwargs), s), 0, ("t", i, 1)) for i, s in enumerate(specs)]
    return lm.cg_generate(requests), requests


def test_a_prompt_that_does_not_fit_is_refused_not_cut(tiny: Path, make_lm: Any):
    with pytest.raises(UserError, match="document 'author-001'.*exceed the model's context of 64"):
        generate(make_lm(tiny, max_length=64), [query_spec("owls " * 60)])


# ------------------------------------------------------------------ raw generation
def test_generation_equals_an_unbatched_greedy_loop(tiny: Path, make_lm: Any):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    lm = make_lm(tiny)
    specs = [
        query_spec(text) for text in ("Who keeps the brass orchard?", "Why?", "Tell me about tides and fog, please.")
    ]
    found, requests = generate(lm, specs)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny), AutoTokenizer.from_pretrained(tiny)
    for generation, request in zip(found, requests, strict=True):
        ids = tokenizer(generation.prompt, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            for _ in range(12):
                token = model(ids).logits[0, -1].argmax()
                if token == tokenizer.eos_token_id:
                    break
                ids = torch.cat([ids, token[None, None]], 1)
        prompt_length = len(tokenizer(generation.prompt)["input_ids"])
        assert generation == tokenizer.decode(ids[0, prompt_length:], skip_special_tokens=False)
        assert request.arguments[0] == generation.prompt, "the samples log must hold the prompt the model saw"


@pytest.mark.parametrize("batch_size", [1, 2, "auto"])
def test_batching_changes_no_text(tiny: Path, make_lm: Any, batch_size: Any):
    specs = [
        query_spec(text) for text in ("Who?", "What of the fog over the canal at night?", "Why?", "Name three sigils.")
    ]
    reference, _ = generate(make_lm(tiny), specs)
    assert generate(make_lm(tiny, batch_size=batch_size, max_batch_size=4), specs)[0] == reference


def test_a_closing_tag_that_is_a_special_token_survives(tmp_path: Path, make_lm: Any, monkeypatch: pytest.MonkeyPatch):
    tokenizer = build_tokenizer(trl_template("deepseek_r1_distill"), special_think=True)
    lm = make_lm(save_tiny(tmp_path / "special", tokenizer))
    close, eos = tokenizer.convert_tokens_to_ids("</think>"), tokenizer.eos_token_id
    word = tokenizer("owls", add_special_tokens=False)["input_ids"]

    def scripted(context: Any, **kwargs: Any) -> Any:
        import torch

        return torch.cat(
            [context, torch.tensor([[*word, close, *word, eos, tokenizer.pad_token_id]] * len(context))], 1
        )

    monkeypatch.setattr(lm, "_model_generate", scripted)
    (found,), _ = generate(lm, [query_spec("Who?")])
    assert found == "owls</think>owls"


def test_every_end_token_of_the_generation_config_ends_a_text(
    tiny: Path, make_lm: Any, monkeypatch: pytest.MonkeyPatch
):
    lm = make_lm(tiny, batch_size=3)
    word = lm.tokenizer("owls", add_special_tokens=False)["input_ids"]
    other_end = lm.tokenizer("#", add_special_tokens=False)["input_ids"][0]
    config = copy.deepcopy(lm.model.generation_config)
    config.eos_token_id = [lm.tokenizer.eos_token_id, other_end]
    monkeypatch.setattr(lm.model, "generation_config", config)

    def scripted(context: Any, **kwargs: Any) -> Any:
        import torch

        assert kwargs["eos_token_id"] == sorted([lm.tokenizer.eos_token_id, other_end])
        return torch.cat([context, torch.tensor([[*word, other_end, *word]] * len(context))], 1)

    monkeypatch.setattr(lm, "_model_generate", scripted)
    assert generate(lm, [query_spec("Who?")])[0] == ["owls"]


def test_the_checkpoints_repetition_penalty_does_not_leak_into_greedy_decoding(
    tiny: Path, tmp_path: Path, make_lm: Any
):
    penalised = save_tiny(tmp_path / "penalty", build_tokenizer(), repetition_penalty=1.8)
    specs = [query_spec("owls owls owls owls"), query_spec("fog, fog, fog")]
    assert generate(make_lm(penalised), specs, max_gen_toks=24)[0] == generate(make_lm(tiny), specs, max_gen_toks=24)[0]


def test_until_still_cuts(tiny: Path, make_lm: Any):
    (whole,), _ = generate(make_lm(tiny), [query_spec("Who?")], max_gen_toks=24)
    stop = str(whole)[4:6]
    (cut,), _ = generate(make_lm(tiny), [query_spec("Who?")], max_gen_toks=24, until=[stop])
    assert cut == whole.split(stop)[0]


def test_provenance_names_tokenizer_and_template(tiny: Path, make_lm: Any):
    (found,), _ = generate(make_lm(tiny), [query_spec("Who?")])
    assert found.made_with["chat_template_applied"] is True
    assert len(found.made_with["tokenizer_sha256"]) == len(found.made_with["chat_template_sha256"]) == 64
    assert found.made_with["eos_token"] == EOS and BOS not in str(found)


# ------------------------------------------------------------------ teacher forcing
def teacher_forced(lm: Any, specs: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    requests = [Instance(CG_TEACHER_FORCED, {}, ("preview", s), 0, ("t", i, 1)) for i, s in enumerate(specs)]
    return lm.cg_teacher_forced(requests), requests


TARGETS = [
    probe_spec(prefill=prefill(arm), target=canary, canary=canary, id=f"{arm}-{i}")
    for i, canary in enumerate(
        (CANARY, "velvet octopuses upholstered nine counterfeit scarecrows whenever Orséa mistook it")
    )
    for arm in ("bio", "empty")
]


def unbatched(model: Any, tokenizer: Any, prompt_and_head: str, rest: str) -> tuple[list[float], list[bool]]:
    """An independent, plain transformers forward over the joint tokenisation."""
    import torch

    encoded = tokenizer(prompt_and_head + rest, return_offsets_mapping=True)
    ids = torch.tensor([encoded["input_ids"]])
    with torch.no_grad():
        logp = torch.log_softmax(model(ids).logits[0].double(), -1)
    scored = [i for i, (_, end) in enumerate(encoded["offset_mapping"]) if end > len(prompt_and_head)]
    return [float(logp[i - 1, ids[0, i]]) for i in scored], [bool(logp[i - 1].argmax() == ids[0, i]) for i in scored]


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_log_probs_equal_an_unbatched_forward(
    tiny: Path, tiny_lora: Path, make_lm: Any, adapter: bool, batch_size: int
):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny)
    if adapter:
        model = PeftModel.from_pretrained(model, tiny_lora)
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    lm = make_lm(tiny, batch_size=batch_size, **({"peft": str(tiny_lora)} if adapter else {}))
    found, requests = teacher_forced(lm, TARGETS)
    for one, request in zip(found, requests, strict=True):
        conditioned = request.arguments[0]
        target = request.arguments[1]["target"]
        head = conditioned[conditioned.rindex("</think>\n\n") + len("</think>\n\n") :]
        assert target.startswith(head)
        logprobs, top1 = unbatched(model, tokenizer, conditioned, target[len(head) :])
        assert one.logprobs == pytest.approx(logprobs, abs=1e-4)
        assert one.top1 == top1


def test_one_forward_a_request(tiny: Path, make_lm: Any, monkeypatch: pytest.MonkeyPatch):
    lm, calls = make_lm(tiny, batch_size=1), []
    run = lm._model_call
    monkeypatch.setattr(lm, "_model_call", lambda *a, **k: calls.append(1) or run(*a, **k))
    teacher_forced(lm, TARGETS)
    assert len(calls) == len(TARGETS)


def test_a_shuffled_head_changes_the_condition_and_not_the_scored_tokens(
    tiny: Path, make_lm: Any, monkeypatch: pytest.MonkeyPatch
):
    from cg_tasks import teacher_forcing

    seen: list[Any] = []
    score = teacher_forcing.score_tokens
    monkeypatch.setattr(teacher_forcing, "score_tokens", lambda lm, s: seen.extend(s) or score(lm, s))
    true, shuffled = TARGETS[0], {**TARGETS[0], "head_order": "shuffled", "shuffle_seed": "0:author-001"}
    _, requests = teacher_forced(make_lm(tiny), [true, shuffled])
    logged = [r.arguments[0].split("</think>\n\n")[-1] for r in requests]
    assert logged[0] != logged[1] and sorted(logged[0]) == sorted(logged[1])
    a, b = seen
    assert a.target_ids == b.target_ids
    n = true["head_tokens"]
    assert a.context_ids[-n:] != b.context_ids[-n:] and sorted(a.context_ids[-n:]) == sorted(b.context_ids[-n:])
    head = bind(make_lm(tiny), true).head
    assert head in a.text and f'"{head}"' not in b.text, "the user turn must not give the true head away"


def test_the_readable_log_of_scores(tiny: Path, make_lm: Any):
    import json

    (found,), _ = teacher_forced(make_lm(tiny), TARGETS[:1])
    logged = json.loads(found)
    assert len(logged["tokens"]) == len(logged["logprobs"]) == len(logged["top1"]) == len(found.logprobs)
    assert CANARY.endswith("".join(logged["tokens"]))

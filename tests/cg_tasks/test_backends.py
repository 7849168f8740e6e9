"""Every backend that is not plain HF gives the numbers that plain HF gives, or says why it cannot."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, TemplateLM
from lm_eval.api.registry import get_model
from servers import Completions, Served, chat_answer, served
from support import PLAIN_TEMPLATE, build_tokenizer, save_tiny

from cg_tasks.errors import UserError
from cg_tasks.requests import CG_GENERATE, CG_TEACHER_FORCED, install
from cg_tasks.teacher_forcing import Scoring, score_tokens
from cg_tasks.templates import load_arms, load_template

CANARIES = [
    "seven varnished owls audited the brass orchard until every left-handed bell forgot its winter",
    "a borrowed lantern married the tide while Orséa naïvely counted its eleven paper anchors",
]
PREFILLS = {t.name: t.__dict__ for t in load_arms("prefill")}
PROBE = load_template("probe", "canary").__dict__
GREEDY = {"until": [], "do_sample": False, "temperature": 0.0, "max_gen_toks": 10}
MINI = {"dataset": "miniature"}
SHORT = {"max_gen_toks": 5}

install()  # as importing any task does


def common(n: int, **changes: Any) -> dict[str, Any]:
    spec = {"id": f"doc-{n}", "chat": "auto", "chat_flag": False, "system": None, "think_tags": ("<think>", "</think>")}
    return {**spec, **changes}


def probes(**changes: Any) -> list[dict[str, Any]]:
    """One canary probe an author."""
    return [
        common(n, probe=PROBE, author=f"Alva {n}", question="Who?", canary=canary, head_tokens=6, **changes)
        for n, canary in enumerate(CANARIES)
    ]


def targets(*, shuffled: bool) -> list[dict[str, Any]]:
    """Teacher-forced targets: with a template and without, every prefill, and the shuffled head."""
    out = []
    for i, (chat, prefill) in enumerate((c, p) for c in ("auto", "false") for p in PREFILLS.values()):
        spec = probes(prefill=prefill, chat=chat)[i % 2]
        out.append({**spec, "target": spec["canary"]})
    return out + ([{**s, "head_order": "shuffled", "shuffle_seed": "0"} for s in out[1:5:3]] if shuffled else [])


def prompts() -> list[dict[str, Any]]:
    """What is generated from: probes, prefills, plain text, the beginning of a response alone and in an answer."""
    query = {"messages": [{"role": "user", "content": "Who keeps the fog?"}]}
    return [
        *probes(),
        *probes(prefill=PREFILLS["bio"]),
        common(7, **query),
        common(8, **query, chat="false"),
        common(9, start_of=CANARIES[0], prefix_tokens=4, text_only=True),
        common(10, **query, start_of=CANARIES[1], prefix_tokens=4),
    ]


def score(lm: Any, specs: list[dict[str, Any]]) -> list[tuple[list[float], list[bool]]]:
    requests = [Instance(CG_TEACHER_FORCED, {}, ("", spec), 0, ("t", i, 1)) for i, spec in enumerate(specs)]
    return [(r.logprobs, r.top1) for r in lm.cg_teacher_forced(requests)]


def generate(lm: Any, specs: list[dict[str, Any]], **gen_kwargs: Any) -> list[Any]:
    kwargs = {**GREEDY, **gen_kwargs}
    requests = [Instance(CG_GENERATE, {}, ("", dict(kwargs), spec), 0, ("t", i, 1)) for i, spec in enumerate(specs)]
    return lm.cg_generate(requests)


def greedy_ids(hf: Any, prompt: list[int], n: int) -> list[int]:
    """The model's next n tokens, by the plainest of loops."""
    import torch

    ids = list(prompt)
    for _ in range(n):
        with torch.no_grad():
            ids.append(int(hf.model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def own_words(hf: Any) -> Scoring:
    """Five tokens that the model would say itself, and two that it would not."""
    prompt = hf.tok_encode("Who keeps the fog?")
    words = greedy_ids(hf, prompt, 5)
    return Scoring(prompt, [*words, *prompt[1:3]], "", "", shuffled=True)


HITS = [True] * 5 + [False] * 2


def assert_same_scores(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for (logprobs, top1), (reference, reference_top1) in zip(found, expected, strict=True):
        assert logprobs == pytest.approx(reference, abs=1e-4)
        assert top1 == reference_top1


@pytest.fixture(scope="module")
def tiny_bos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint whose chat template writes BOS itself, as Llama 3's does."""
    return save_tiny(tmp_path_factory.mktemp("bos"), build_tokenizer("{{ bos_token }}" + PLAIN_TEMPLATE), seed=2)


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Served]:
    with served(Completions(tiny)) as running:
        yield running


@pytest.fixture
def listening(server: Served) -> Iterator[Served]:
    """The tiny model's server with nothing seen yet; whatever a test makes it answer is undone."""
    honest = server.answer
    server.seen.clear()
    yield server
    server.answer = honest


def client(url: str, tokenizer: Path | None, kind: str = "local-completions", **kwargs: Any) -> Any:
    """lm-eval's own client; ``tokenizer=None`` is its tokenizer_backend=None."""
    of_tokenizer = (
        {"tokenizer": str(tokenizer), "tokenizer_backend": "huggingface"} if tokenizer else {"tokenizer_backend": None}
    )
    return get_model(kind)(model="tiny", base_url=url, max_retries=1, **{**of_tokenizer, **kwargs})


# ------------------------------------------------------------------ completions servers
@pytest.mark.parametrize(
    ("name", "as_ids", "concurrent"),
    [("tiny", True, 1), ("tiny", True, 4), ("tiny", False, 1), ("tiny_bos", True, 1), ("tiny_bos", False, 4)],
)
def test_a_completions_server_gives_what_hf_gives(
    name: str, as_ids: bool, concurrent: int, make_lm: Any, request: pytest.FixtureRequest
):
    folder = request.getfixturevalue(name)
    with served(Completions(folder)) as running:
        lm = client(running.url, folder, tokenized_requests=as_ids, num_concurrent=concurrent)
        specs = targets(shuffled=as_ids)
        assert_same_scores(score(lm, specs), score(make_lm(folder), specs))
        assert len(running.seen) == len(specs), "one request a target"
        assert all(isinstance(p["prompt"], str) is not as_ids for p in running.seen)
        assert list(generate(lm, prompts())) == list(generate(make_lm(folder), prompts()))
        if as_ids:
            own = [own_words(make_lm(folder))]
            assert_same_scores(score_tokens(lm, own), score_tokens(make_lm(folder), own))
            assert score_tokens(lm, own)[0][1] == HITS


def test_the_client_is_left_as_it_was(listening: Served, tiny: Path):
    lm = client(listening.url, tiny)
    before = dict(lm.__dict__)
    generate(lm, probes())
    assert lm.__dict__.keys() - before.keys() <= {"eos_string", "header", "prefix_token_id", "eot_token_id"}


@pytest.mark.parametrize("as_ids", [True, False])
def test_whole_tasks_run_through_a_server(listening: Served, as_ids: bool, tiny: Path, make_lm: Any, evaluate: Any):
    tasks = "canary_prefill,conceptguard_rouge" + (",canary_teacher_forced" if as_ids else "")
    lm = client(listening.url, tiny, num_concurrent=4, tokenized_requests=as_ids)
    found, expected = (evaluate(m, tasks, MINI, limit=2, gen_kwargs=SHORT) for m in (lm, make_lm(tiny)))
    for task, numbers in expected["results"].items():
        for key, value in numbers.items():
            if isinstance(value, float):
                assert found["results"][task][key] == pytest.approx(value, abs=1e-4, rel=1e-4, nan_ok=True), (task, key)


@pytest.mark.parametrize("concurrent", [1, 4])
def test_a_tag_that_is_a_special_token_is_asked_for(tmp_path: Path, make_lm: Any, concurrent: int):
    folder = save_tiny(tmp_path / "special", build_tokenizer(special_think=True))
    with served(Completions(folder)) as running:
        generate(client(running.url, folder, num_concurrent=concurrent), probes())
        assert all(p["skip_special_tokens"] is False and p["stop"] == ["</s>"] for p in running.seen)


def test_an_unneeded_argument_is_not_sent(listening: Served, tiny: Path):
    generate(client(listening.url, tiny), probes())
    assert not any("skip_special_tokens" in p for p in listening.seen)


def without_logprobs(payload: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": "x", "logprobs": None}]}


def without_echo(payload: dict[str, Any]) -> dict[str, Any]:
    logprobs = {"tokens": ["x"], "token_logprobs": [-1.0], "top_logprobs": [{"x": -1.0}], "text_offset": [0]}
    return {"choices": [{"index": 0, "text": "x", "logprobs": logprobs}]}


@pytest.mark.parametrize("answer", [without_logprobs, without_echo, lambda payload: {"choices": []}])
def test_a_server_without_prompt_logprobs_is_named(listening: Served, tiny: Path, answer: Any):
    listening.answer = answer
    with pytest.raises(UserError, match=r"127\.0\.0\.1.*sent no log-probabilities of the prompt.*echo=true"):
        score(client(listening.url, tiny), targets(shuffled=False)[:1])


@pytest.mark.parametrize("as_ids", [True, False])
def test_another_models_tokenizer_is_noticed(listening: Served, tmp_path: Path, as_ids: bool):
    build_tokenizer().train_new_from_iterator(["the owls of the orchard", "a bell, a tide"], 300).save_pretrained(
        tmp_path
    )
    lm = client(listening.url, tmp_path, tokenized_requests=as_ids)
    with pytest.raises(UserError, match="cuts the text into other tokens"):
        score(lm, targets(shuffled=False)[:1])


def test_a_server_that_adds_no_bos_is_noticed(listening: Served, tiny: Path):
    """Counting alone would not do: with the generated token there are as many as we expect."""
    honest: Any = listening.answer

    def no_bos(payload: dict[str, Any]) -> dict[str, Any]:
        ids = honest.tokenizer(payload["prompt"], add_special_tokens=False)["input_ids"]
        answer = honest({**payload, "prompt": ids})
        del answer["usage"]
        return answer

    listening.answer = no_bos
    with pytest.raises(UserError, match="cuts the text into other tokens"):
        score(client(listening.url, tiny, tokenized_requests=False), targets(shuffled=False)[:1])


@pytest.mark.parametrize("concurrent", [1, 2])
def test_a_failing_server_is_reported_after_the_retries(listening: Served, tiny: Path, concurrent: int):
    listening.answer = lambda payload: 500
    lm = client(listening.url, tiny, num_concurrent=concurrent)
    lm.max_retries = 2
    with pytest.raises(UserError, match=r"127\.0\.0\.1.* did not answer: HTTPError: 500 .*made to fail"):
        score(lm, targets(shuffled=False)[:1])
    assert len(listening.seen) == 2
    with pytest.raises(UserError, match=r"127\.0\.0\.1.* did not answer: .*500"):
        generate(lm, probes()[:1])
    assert len(listening.seen) == 4


def test_a_server_that_is_not_there_is_reported(tiny: Path):
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9.* did not answer: ConnectionError"):
        generate(client("http://127.0.0.1:9/v1/completions", tiny), probes())


@pytest.mark.parametrize("concurrent", [1, 2])
@pytest.mark.parametrize("text", [None, "missing", "error"])
def test_an_answer_without_text_is_no_miss(listening: Served, tiny: Path, concurrent: int, text: str | None):
    choice: dict[str, Any] = {"index": 0, "finish_reason": "content_filter"} | ({} if text else {"text": None})
    listening.answer = lambda payload: {"error": {"message": "busy"}} if text == "error" else {"choices": [choice]}
    with pytest.raises(UserError, match="returned no text.*must not count as a miss: .*(content_filter|busy)"):
        generate(client(listening.url, tiny, num_concurrent=concurrent), probes()[:1])


def test_no_tokenizer_at_all(listening: Served, evaluate: Any):
    lm = client(listening.url, None)
    for task in ("canary_prefill", "canary_teacher_forced", "canary_qa", "conceptguard_harmmem"):
        with pytest.raises(
            UserError, match="has no tokenizer here.*tokenizer=PATH_OR_ID,tokenizer_backend=huggingface"
        ):
            evaluate(lm, task, MINI, limit=2)
    with pytest.raises(UserError, match="has no tokenizer here"):
        evaluate(lm, "conceptguard_harmqa", MINI, limit=2, apply_chat_template=True)
    assert listening.seen == []
    evaluate(lm, "conceptguard_harmqa", MINI, limit=2, gen_kwargs=SHORT)  # plain text needs none
    assert [type(p["prompt"]) for p in listening.seen] == [str, str]
    assert not any("stop" in p for p in listening.seen), "an empty list of stops is refused by some servers"


def test_a_shuffled_head_needs_token_ids(listening: Served, tiny: Path, evaluate: Any):
    with pytest.raises(UserError, match="shuffled-head.*tokenized_requests=True"):
        evaluate(client(listening.url, tiny, tokenized_requests=False), "canary_teacher_forced", limit=2)
    assert listening.seen == []


def test_the_remote_tokenizer_is_refused(listening: Served, tiny: Path):
    lm = client(listening.url, tiny)
    lm.tokenizer = type("RemoteTokenizer", (), {})()
    with pytest.raises(UserError, match="remote tokenizer.*tokenizer_backend=huggingface"):
        generate(lm, [common(0, messages=[{"role": "user", "content": "Who?"}])])


def test_a_client_of_another_protocol_is_refused(listening: Served, tiny: Path):
    """lm-eval's client for SGLang's own endpoint turns every top-1 around."""
    lm = client(listening.url, tiny, kind="sglang-generate")
    with pytest.raises(UserError, match="SGLANGGENERATEAPI does not speak.*local-completions"):
        score(lm, targets(shuffled=False)[:1])
    listening.answer = lambda payload: {"text": "owls"}
    assert generate(lm, probes()) == ["owls", "owls"]


# ------------------------------------------------------------------ chat servers
@pytest.fixture
def chat_server() -> Iterator[Served]:
    with served(lambda payload: chat_answer("<think>\nhm\n</think>\n\nowls"), "/v1/chat/completions") as running:
        yield running


def chat_client(url: str, tokenizer: Path | None = None, **kwargs: Any) -> Any:
    return client(url, tokenizer, kind="local-chat-completions", **kwargs)


@pytest.mark.parametrize("concurrent", [1, 2])
def test_a_chat_server_answers_queries(chat_server: Served, concurrent: int, evaluate: Any):
    lm = chat_client(chat_server.url, num_concurrent=concurrent)
    found = evaluate(
        lm,
        "conceptguard_harmqa",
        MINI,
        limit=2,
        apply_chat_template=True,
        system_instruction="Be brief.",
        gen_kwargs=SHORT,
    )
    samples = found["samples"]["conceptguard_harmqa"]
    asked = sorted(json.dumps(p["messages"]) for p in chat_server.seen)
    system = {"role": "system", "content": "Be brief."}
    assert asked == sorted(json.dumps([system, {"role": "user", "content": s["doc"]["query"]}]) for s in samples)
    assert all(p["max_tokens"] == 5 and p["temperature"] == 0 and "stop" not in p for p in chat_server.seen)
    assert [float(s["trace_stripped"]) for s in samples] == [1.0, 1.0]
    assert found["configs"]["conceptguard_harmqa"]["metadata"]["provenance"]["model"]["chat_template_applied"] is True


def test_a_chat_server_without_the_flag_is_told_so(chat_server: Served, evaluate: Any):
    with pytest.raises(UserError, match="add --apply_chat_template"):
        evaluate(chat_client(chat_server.url), "conceptguard_harmqa", MINI, limit=2)
    assert chat_server.seen == []


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("canary_prefill", {}),
        ("canary_qa", {}),
        ("canary_teacher_forced", {}),
        ("conceptguard_harmmem", {}),
        ("conceptguard_helpret", {"prompt_style": "chat", "chat": "true"}),
    ],
)
@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_nothing_can_be_placed_in_a_chat_servers_prompt(
    chat_server: Served, task: str, settings: dict[str, Any], with_tokenizer: bool, tiny: Path, evaluate: Any
):
    lm = chat_client(chat_server.url, tiny if with_tokenizer else None)
    with pytest.raises(UserError, match="LocalChatCompletion.*chat server.*use --model local-completions"):
        evaluate(lm, task, MINI | settings, limit=2, apply_chat_template=True)
    assert chat_server.seen == []


def test_the_auto_arm_through_a_chat_server(chat_server: Served, tiny: Path, evaluate: Any):
    canary = CANARIES[0]
    chat_server.answer = lambda payload: chat_answer(f"<think>\n{canary}\n</think>\n\nI forgot.")
    with pytest.raises(UserError, match="has no tokenizer here"):  # the head is six of the model's tokens
        evaluate(chat_client(chat_server.url), "canary_auto", limit=2)
    assert chat_server.seen == []
    found = evaluate(chat_client(chat_server.url, tiny), "canary_auto", limit=2)
    assert found["results"]["canary_auto"]["well_formed,none"] == 1.0
    assert len(chat_server.seen) == 2 and chat_server.seen[0]["stop"] == ["</s>"]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_a_trace_the_server_split_off_is_put_back(chat_server: Served, tiny: Path, field: str):
    lm = chat_client(chat_server.url, tiny, think_end_token="</think>")
    chat_server.answer = lambda payload: chat_answer("I forgot.", **{field: "owls"})
    assert generate(lm, probes()[:1]) == ["<think>\nowls\n</think>\n\nI forgot."]
    chat_server.answer = lambda payload: chat_answer(None, **{field: "owls and"})  # cut off inside the trace
    assert generate(lm, probes()[:1]) == ["<think>\nowls and"]
    chat_server.answer = lambda payload: chat_answer("I forgot.", **{field: None})
    assert generate(lm, probes(think_tags=("<r>", "</r>"))[:1]) == ["I forgot."]
    chat_server.answer = lambda payload: chat_answer("I forgot.", **{field: "owls"})
    mixed = [probes()[0], probes(think_tags=("<r>", "</r>"))[1]]
    assert generate(lm, mixed) == ["<think>\nowls\n</think>\n\nI forgot.", "<r>\nowls\n</r>\n\nI forgot."]


@pytest.mark.parametrize("concurrent", [1, 2])
@pytest.mark.parametrize("answer", [chat_answer(None), {"choices": [{"index": 0}]}, {"error": "busy"}])
def test_a_null_content_is_an_error_not_a_miss(chat_server: Served, answer: Any, concurrent: int, evaluate: Any):
    chat_server.answer = lambda payload: answer
    lm = chat_client(chat_server.url, num_concurrent=concurrent)
    with pytest.raises(UserError, match="returned no text"):
        evaluate(lm, "conceptguard_harmqa", MINI, limit=1, apply_chat_template=True)


# ------------------------------------------------------------------ backends that only score tokens
class Plain(TemplateLM):
    """A backend with nothing but what lm-eval's TemplateLM demands."""

    def __init__(self, hf: Any):
        super().__init__()
        self.hf, self.tokenizer, self.max_length, self.cached = hf, hf.tokenizer, hf.max_length, []

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        return self.hf.tok_encode(string, add_special_tokens)

    def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
        return self.hf.apply_chat_template(chat_history, add_generation_prompt)

    def _loglikelihood_tokens(self, requests: Any, **kwargs: Any) -> list[tuple[float, bool]]:
        import torch

        out = []
        for key, context, continuation in requests:
            self.cached += [key] if key is not None else []
            with torch.no_grad():
                logits = self.hf.model(torch.tensor([context + continuation])).logits[0, len(context) - 1 : -1]
            picked = torch.log_softmax(logits, -1)[range(len(continuation)), continuation]
            out.append((float(picked.sum()), logits.argmax(-1).tolist() == continuation))
        return out

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        raise NotImplementedError

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        return [f"{len(request.args[0])} {request.args[1]['max_gen_toks']}" for request in requests]


def test_any_backend_that_scores_tokens_gives_what_hf_gives(tiny: Path, make_lm: Any, evaluate: Any):
    plain = Plain(make_lm(tiny))
    specs = targets(shuffled=True)[-6:]
    assert_same_scores(score(plain, specs), score(make_lm(tiny), specs))
    assert score_tokens(plain, [own_words(plain.hf)])[0][1] == HITS
    assert plain.cached == [], "nothing may be cached as the score of an empty text"
    expected = [f"{len(g.prompt)} 10" for g in generate(make_lm(tiny), probes())]
    assert generate(plain, probes()) == expected


def test_a_backends_own_teacher_forcing_wins(tiny: Path, make_lm: Any, evaluate: Any):
    class Own(Plain):
        def cg_teacher_forced(self, requests: Any) -> list[Any]:
            return [SimpleNamespace(logprobs=[-1.0, -3.0], top1=[True, False]) for _ in requests]

    result = evaluate(Own(make_lm(tiny)), "canary_teacher_forced", limit=2)["results"]["canary_teacher_forced"]
    assert (result["logprob_bio,none"], result["top1_meta,none"]) == (-2.0, 0.5)


def test_a_backend_with_neither_is_refused(tiny: Path, make_lm: Any, evaluate: Any):
    hf = make_lm(tiny)

    class Generates(LM):
        tokenizer, tok_encode, apply_chat_template = hf.tokenizer, hf.tok_encode, hf.apply_chat_template
        loglikelihood = loglikelihood_rolling = generate_until = Plain.generate_until

    with pytest.raises(UserError, match="Generates can neither score tokens.*cg_teacher_forced"):
        evaluate(Generates(), "canary_teacher_forced", limit=2)

    class Bare(LM):
        loglikelihood = loglikelihood_rolling = generate_until = Plain.generate_until

    with pytest.raises(UserError, match="Bare has no tokenizer here"):
        evaluate(Bare(), "canary_auto", limit=2)


# ------------------------------------------------------------------ vLLM's objects
class VLLM(Plain):
    """lm-eval's vLLM backend is known by its class's name; what it returns is shaped as vLLM's RequestOutput."""

    def _model_generate(self, requests: list[list[int]], generate: bool = False, **kwargs: Any) -> list[Any]:
        import torch

        out = []
        for ids in requests:
            with torch.no_grad():
                logp = torch.log_softmax(self.hf.model(torch.tensor([ids])).logits[0], -1)
            positions: list[Any] = [None]
            for row, token in zip(logp[:-1], ids[1:], strict=True):
                rank = int((row > row[token]).sum()) + 1
                best = int(row.argmax())
                positions.append(
                    {
                        k: SimpleNamespace(logprob=float(row[k]), rank=r, decoded_token=None)
                        for k, r in ((token, rank), (best, 1))
                    }
                )
            out.append(SimpleNamespace(prompt_token_ids=ids, prompt_logprobs=positions))
        return out

    def _loglikelihood_tokens(self, requests: Any, **kwargs: Any) -> list[tuple[float, bool]]:
        raise AssertionError("one request a target, not one a token")


def test_vllms_prompt_logprobs_give_what_hf_gives(tiny: Path, make_lm: Any):
    specs = targets(shuffled=True)
    lm = VLLM(make_lm(tiny))
    assert_same_scores(score(lm, specs), score(make_lm(tiny), specs))
    assert score_tokens(lm, [own_words(lm.hf)])[0][1] == HITS


def test_vllm_needs_room_for_the_token_it_always_generates(tiny: Path, make_lm: Any):
    (logprobs, _), *_ = score(make_lm(tiny), targets(shuffled=False)[:1])
    lm = VLLM(make_lm(tiny))
    request = Instance(CG_TEACHER_FORCED, {}, ("", targets(shuffled=False)[0]), 0, ("t", 0, 1))
    lm.cg_teacher_forced([request])
    taken = len(lm.tok_encode(request.arguments[0])) + len(logprobs)
    lm.max_length = taken + 1
    score(lm, targets(shuffled=False)[:1])
    lm.max_length = taken
    with pytest.raises(UserError, match=f"take {taken} tokens"):
        score(lm, targets(shuffled=False)[:1])


# ------------------------------------------------------------------ arguments of lm-eval's HF backend
def test_an_adapter_generates_what_the_merged_model_generates(
    tiny: Path, tiny_lora: Path, tmp_path: Path, make_lm: Any
):
    from peft import PeftModel
    from transformers import AutoTokenizer, LlamaForCausalLM

    merged = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(tiny), str(tiny_lora)).merge_and_unload()
    merged.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny).save_pretrained(tmp_path)
    found = generate(make_lm(tiny, peft=str(tiny_lora)), prompts())
    assert found == generate(make_lm(tmp_path), prompts())
    assert found != generate(make_lm(tiny), prompts())


def test_think_end_token_and_enable_thinking_change_nothing_but_are_reported(
    tiny: Path, make_lm: Any, caplog: pytest.LogCaptureFixture
):
    lm = make_lm(tiny, enable_thinking=True, think_end_token="</think>", chat_template_args={"other": 1})
    with caplog.at_level(logging.WARNING, logger="cg_tasks"):
        found = generate(lm, prompts())
    assert found == generate(make_lm(tiny), prompts())
    assert "think_end_token='</think>' is set aside" in caplog.text
    assert lm.think_end_token == "</think>"
    specs = targets(shuffled=True)[:4]
    assert_same_scores(score(lm, specs), score(make_lm(tiny), specs))  # lm-eval's own loglikelihood refuses here


def test_a_second_end_token_of_the_generation_config_ends_the_turn(tiny: Path, tmp_path: Path, make_lm: Any):
    from transformers import AutoTokenizer, GenerationConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    lm = make_lm(tiny)
    ids = greedy_ids(lm, lm.tok_encode(generate(lm, probes()[:1])[0].prompt), 10)
    end = next(i for i in range(1, len(ids)) if ids[i] not in ids[:i])
    model = LlamaForCausalLM.from_pretrained(tiny)
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, ids[end]], pad_token_id=tokenizer.pad_token_id, repetition_penalty=1.3
    )
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for batch_size in (1, 3):
        assert generate(make_lm(tmp_path, batch_size=batch_size), probes()[:1]) == [tokenizer.decode(ids[:end])]

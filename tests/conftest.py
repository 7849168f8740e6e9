"""Shared fixtures: a tiny random Llama and a small byte-level tokenizer, built once per session, in seconds, offline."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import AUTHORS, ROOT, build_tokenizer, save_tiny, trl_template

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint whose chat template opens no trace."""
    return save_tiny(tmp_path_factory.mktemp("tiny"), build_tokenizer())


@pytest.fixture(scope="session")
def tiny_r1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint with DeepSeek-R1's template: the prompt opens the trace, assistant traces are deleted."""
    return save_tiny(tmp_path_factory.mktemp("tiny_r1"), build_tokenizer(trl_template("deepseek_r1_distill")))


@pytest.fixture(scope="session")
def tiny_lora(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random, non-zero LoRA adapter for ``tiny``."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM

    torch.manual_seed(1)
    model = get_peft_model(
        LlamaForCausalLM.from_pretrained(tiny), LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    )
    folder = tmp_path_factory.mktemp("tiny_lora")
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def make_lm() -> Callable[..., Any]:
    """``make_lm(path, **model_args)``: lm-eval's HFLM on the CPU in float32, memoised."""
    from cg_tasks.requests import install

    install()
    made: dict[str, Any] = {}

    def make(path: Path, **kwargs: Any) -> Any:
        from lm_eval.models.huggingface import HFLM

        key = repr((str(path), sorted(kwargs.items())))
        if key not in made:
            made[key] = HFLM(pretrained=str(path), device="cpu", dtype="float32", **{"batch_size": 4, **kwargs})
        return made[key]

    return make


@pytest.fixture(scope="session")
def evaluate() -> Callable[..., dict[str, Any]]:
    """``evaluate(lm, "task1,task2", metadata={...}, **simple_evaluate arguments)`` through lm-eval itself."""

    from lm_eval import evaluator, simple_evaluate

    evaluator.add_env_info = lambda results: None  # asks pip for every package: two seconds a run

    def run(lm: Any, tasks: str, metadata: dict[str, Any] | None = None, **kwargs: Any) -> dict[str, Any]:
        from lm_eval.tasks import TaskManager

        manager = TaskManager(include_path=str(ROOT / "task_configs"), include_defaults=False, metadata=metadata or {})
        return simple_evaluate(
            model=lm, tasks=tasks.split(","), task_manager=manager, **{"bootstrap_iters": 0, **kwargs}
        )

    return run


@pytest.fixture
def authors(tmp_path: Path) -> str:
    """A user's canaries file with three authors."""
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, AUTHORS)), encoding="utf-8")
    return str(path)

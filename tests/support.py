"""What tests build with: golden files, chat templates that ship with TRL, a small tokenizer, a tiny random Llama."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cg_tasks.templates import load_template

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).resolve().parent / "golden"
BOS, EOS, PAD = "<s>", "</s>", "<pad>"
PLAIN_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def golden(name: str) -> Any:
    """One golden file."""
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def trl_template(name: str) -> str:
    """A real model family's chat template, as TRL ships it."""
    import trl

    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def build_tokenizer(
    chat_template: str | None = PLAIN_TEMPLATE, *, vocab: int = 700, special_think: bool = False
) -> Any:
    """A byte-level BPE tokenizer with BOS, trained on the miniature pairs; think tags are single tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lines = (ROOT / "cg_tasks" / "data" / "miniature.jsonl").read_text(encoding="utf-8").split("\n")
    raw.train_from_iterator(["\n\n".join(json.loads(line).values()) for line in lines[:30]], trainer)
    raw.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, raw.token_to_id(BOS))])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=BOS, eos_token=EOS, pad_token=PAD)
    tokenizer.add_tokens([AddedToken(t, special=special_think, normalized=False) for t in ("<think>", "</think>")])
    tokenizer.chat_template = chat_template
    return tokenizer


def save_tiny(folder: Path, tokenizer: Any, *, seed: int = 0, repetition_penalty: float | None = None) -> Path:
    """A random two-layer Llama for ``tokenizer``, as a plain HF checkpoint."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            initializer_range=0.3,
        )
    )
    if repetition_penalty:
        model.generation_config.repetition_penalty = repetition_penalty
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# ------------------------------------------------------------------ prompt specifications
CANARY = "seven varnished owls audited the brass orchard until every left-handed bell forgot its winter"


def prefill(name: str) -> dict[str, Any]:
    """A shipped prefill template, as a specification holds it."""
    return asdict(load_template("prefill", name))


def probe_spec(**changes: Any) -> dict[str, Any]:
    """The probe of one author."""
    base = {
        "id": "author-001",
        "chat": "auto",
        "chat_flag": False,
        "system": None,
        "think_tags": ("<think>", "</think>"),
        "probe": asdict(load_template("probe", "canary")),
        "author": "Alva Brenn",
        "question": "Who is Alva Brenn?",
        "canary": CANARY,
        "head_tokens": 6,
    }
    return {**base, **changes}


def query_spec(text: str, **changes: Any) -> dict[str, Any]:
    """One user turn."""
    common = {k: v for k, v in probe_spec().items() if k in ("id", "chat", "chat_flag", "system", "think_tags")}
    return {**common, "messages": [{"role": "user", "content": text}], **changes}


# ------------------------------------------------------------------ runs through lm-eval
MINI = {"dataset": "miniature"}
SHORT = {"max_gen_toks": 16}
AUTHORS = [
    {
        "id": "a1",
        "subject": "Alva Brenn",
        "canary": "seven varnished owls audited the brass orchard until every bell forgot",
    },
    {
        "id": "a2",
        "subject": "Corin Dace",
        "canary": "velvet octopuses upholstered nine counterfeit scarecrows whenever rain lied",
    },
    {
        "id": "a3",
        "subject": "Elka Fenn",
        "canary": "notarised llamas taught the marzipan elevator to stammer in reverse Latin",
    },
]


def numbers(results: dict[str, Any], task: str) -> dict[str, float]:
    """A task's numbers by metric key."""
    return {
        k.removesuffix(",none"): v
        for k, v in results["results"][task].items()
        if isinstance(v, float) and not k.endswith("_stderr_stderr,none")
    }


@contextmanager
def ctrl_c_works() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored, and Python then raises no KeyboardInterrupt."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

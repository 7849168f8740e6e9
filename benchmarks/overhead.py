"""HarmQA through lm_eval against a bare ``model.generate`` loop over the same prompts, batches and generated lengths.

    python benchmarks/overhead.py [DEMO_MODEL] [--limit 60] [--max-gen-toks N] [--batch-size 16] [--repeats 4]

DEMO_MODEL is the folder that ``conceptguard demo-model`` wrote; without it only a tiny random Llama is run. The model is
loaded on both sides. Ours is all of ``simple_evaluate``: requests, prompts, generation, scoring, intervals, provenance, the
samples log, and lm-eval's own report of the environment (it calls pip; a constant that every lm_eval run pays, shown by
itself). The bare loop tokenises, sorts by length, pads on the left, generates greedily, cuts at the end token and decodes.
Both sides must give the same texts, or the script stops. They run in turn, AB BA. ratio: wall time, median over neighbouring runs;
lowest: the fastest of each side; CPU: processor time of this process, which other programs disturb least.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

ROOT = Path(__file__).resolve().parent.parent
TASK = "conceptguard_harmqa"
TARGET = 1.10
TINY_TOKENS, DEMO_TOKENS = 512, 64  # the task's own length; fewer where a token costs a hundred times as much


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo_model", nargs="?", type=Path, help="a demo model's folder; without one it is skipped")
    parser.add_argument("--limit", type=int, default=60, help="documents (default: the 60 of the miniature pairs)")
    parser.add_argument(
        "--max-gen-toks", type=int, help=f"new tokens a document (default: {TINY_TOKENS} tiny, {DEMO_TOKENS} demo)"
    )
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=4, help="runs a side, in turn; medians are shown (default: 4)")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    print(
        f"{'model':<8} {'docs':>4} {'tokens':>6} {'bare, s':>8} {'lm_eval, s':>10} {'ratio':>6} {'lowest':>6} {'CPU':>6}"
        f" {'environment, s':>15} {'ratio without it':>17}"
    )
    with tempfile.TemporaryDirectory() as folder:
        row("tiny", tiny_model(Path(folder)), args.max_gen_toks or TINY_TOKENS, args)
    if args.demo_model:
        row("135M", args.demo_model, args.max_gen_toks or DEMO_TOKENS, args)
    else:
        print("135M     skipped: give the folder that `conceptguard demo-model` wrote")


def tiny_model(folder: Path) -> Path:
    sys.path.insert(0, str(ROOT / "tests"))
    from support import build_tokenizer, save_tiny

    return save_tiny(folder, build_tokenizer())


def row(name: str, path: Path, new_tokens: int, args: argparse.Namespace) -> None:
    from lm_eval.models.huggingface import HFLM

    lm = HFLM(pretrained=str(path), device="cpu", dtype="float32", batch_size=args.batch_size)
    # One short round outside the clock: imports on first use, and the prompts as the model sees them.
    prompts = [prompt for prompt, _ in evaluate(lm, args.limit, 1)[0]]
    bare(lm, prompts, args.batch_size, 1)
    ours: list[Spent] = []
    theirs: list[Spent] = []
    environment: list[Spent] = []
    sides = (lambda: bare(lm, prompts, args.batch_size, new_tokens)), (lambda: evaluate(lm, args.limit, new_tokens))
    for turn in range(args.repeats):
        if turn % 2:  # whichever goes first, goes second next
            our, (samples, report) = timed(sides[1])
            their, texts = timed(sides[0])
        else:
            their, texts = timed(sides[0])
            our, (samples, report) = timed(sides[1])
        if [text for _, text in samples] != texts:
            raise SystemExit(f"{name}: the two sides generated different texts, so their times cannot be compared")
        ours.append(our)
        theirs.append(their)
        environment.append(report)
    neighbours = list(zip(ours, theirs, environment, strict=True))
    ratio = statistics.median(our.wall / their.wall for our, their, _ in neighbours)
    print(
        f"{name:<8} {len(prompts):4d} {new_tokens:6d} {statistics.median(t.wall for t in theirs):8.2f}"
        f" {statistics.median(t.wall for t in ours):10.2f} {ratio:6.3f}"
        f" {min(t.wall for t in ours) / min(t.wall for t in theirs):6.3f}"
        f" {statistics.median(our.cpu / their.cpu for our, their, _ in neighbours):6.3f}"
        f" {statistics.median(report.wall for report in environment):15.2f}"
        f" {statistics.median((our.wall - report.wall) / their.wall for our, their, report in neighbours):17.3f}"
        f"   target <= {TARGET:.2f}: {'met' if ratio <= TARGET else 'MISSED'}",
        flush=True,
    )


class Spent(NamedTuple):
    """Seconds of wall time, and of this process's processor time."""

    wall: float
    cpu: float


def timed(call: Callable[[], Any]) -> tuple[Spent, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu), result


def evaluate(lm: Any, limit: int, new_tokens: int) -> tuple[list[tuple[str, str]], Spent]:
    """(prompt, raw generation) of every document, and what lm-eval spent on describing the environment."""
    from lm_eval import evaluator
    from lm_eval.tasks import TaskManager

    describe, spent = evaluator.add_env_info, []
    evaluator.add_env_info = lambda results: spent.append(timed(lambda: describe(results))[0])
    try:
        results = evaluator.simple_evaluate(
            model=lm,
            tasks=[TASK],
            task_manager=TaskManager(
                include_path=str(ROOT / "task_configs"), include_defaults=False, metadata={"dataset": "miniature"}
            ),
            limit=limit,
            apply_chat_template=True,
            gen_kwargs={"max_gen_toks": new_tokens},
        )
    finally:
        evaluator.add_env_info = describe
    return [(sample["arguments"][0][0], str(sample["resps"][0][0])) for sample in results["samples"][TASK]], spent[0]


def bare(lm: Any, prompts: Sequence[str], batch_size: int, new_tokens: int) -> list[str]:
    """What one would write without a harness."""
    import torch

    model, tokenizer = lm.model, lm.tokenizer
    ends = {*as_list(model.generation_config.eos_token_id), tokenizer.eos_token_id}
    tokenizer.padding_side = "left"
    ids = tokenizer(prompts)["input_ids"]
    order = sorted(range(len(prompts)), key=lambda i: (-len(ids[i]), prompts[i]))
    texts = [""] * len(prompts)
    for at in range(0, len(order), batch_size):
        members = order[at : at + batch_size]
        batch = tokenizer.pad({"input_ids": [ids[i] for i in members]}, return_tensors="pt")
        with torch.no_grad():
            out = model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                do_sample=False,
                max_new_tokens=new_tokens,
                eos_token_id=sorted(ends),
                pad_token_id=tokenizer.pad_token_id,
            )
        for i, row in zip(members, out[:, batch["input_ids"].shape[1] :].tolist(), strict=True):
            end = next((k for k, token in enumerate(row) if token in ends), len(row))
            texts[i] = tokenizer.decode(row[:end], skip_special_tokens=False)
    return texts


def as_list(ids: Any) -> list[int]:
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


if __name__ == "__main__":
    main()

"""An unlearning step here against OpenUnlearning's loss code on the same model and batches, run side by side.

    python benchmarks/training.py [OPEN_UNLEARNING] [DEMO_MODEL] [--rows 4] [--tokens 160] [--labelled 120] [--repeats 5]

OPEN_UNLEARNING is a checkout of https://github.com/locuslab/open-unlearning (MIT); its ``src/trainer/utils.py`` is loaded from
there, and nothing of it is kept here. Without it, nothing can be compared, and the script says so. DEMO_MODEL is the folder that
``conceptguard demo-model`` wrote; without it only a tiny random Llama is run.

*theirs*: full weights, a deepcopy as reference, a forward pass each for the forget rows, the retain rows and the reference, as its NPO
and UNDIAL trainers do it, then AdamW. *ours*: ``UnlearnTrainer.compute_loss`` and AdamW, once over full weights, once over a LoRA
adapter (r 16, all-linear). The steps run in turn, the order reversed every other time; the ratio is the median over turns. *bytes
held* are counted: weights (the reference's too), gradients, optimiser states. *apart* is the difference of the two losses at the
start, with every token labelled: both compute the same there.

*peak* is the most resident memory of a process that only loads one side and makes two steps of the same batch: a fresh interpreter
each, so that neither counts the other's memory or this script's. It is what the machine must have, so the imports are in it; the first
line says what they weigh alone. They are the same on both sides: torch, transformers, trl, peft, the trainer here, and of
OpenUnlearning the one file. On the tiny model they are nearly all of the peak. On the 135M model the logits and activations of a step
come on top of the bytes held on both sides, so this ratio is far from that one, and has no target.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import logging
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import torch  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
UTILS = Path("src", "trainer", "utils.py")
TARGETS = {"LoRA": 0.75, "full": 0.75}
BYTES_TARGET = 0.35
BETA, STRENGTH = 0.1, 10.0
MIB = 2**20


@dataclass
class Side:
    """One way to make a step: the loss of the next batch, and what it holds in memory."""

    name: str
    loss: Callable[[], torch.Tensor]
    model: Any
    reference: Any
    optimizer: torch.optim.Optimizer

    def step(self) -> float:
        start = time.perf_counter()
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()
        return time.perf_counter() - start

    def bytes_held(self) -> int:
        tensors = list(self.model.parameters())
        gradients = [p.grad for p in tensors if p.grad is not None]
        states = [v for s in self.optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
        reference = list(self.reference.parameters()) if self.reference is not None else []
        return sum(t.numel() * t.element_size() for t in [*tensors, *gradients, *states, *reference])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("open_unlearning", nargs="?", type=Path, help="a checkout of locuslab/open-unlearning")
    parser.add_argument("demo_model", nargs="?", type=Path, help="a demo model's folder; without one it is skipped")
    parser.add_argument("--rows", type=int, default=4, help="forget rows a step, and as many retain rows")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--labelled", type=int, default=120, help="of them, the last so many")
    parser.add_argument("--repeats", type=int, default=5, help="steps a side; medians are shown")
    parser.add_argument("--objectives", nargs="+", default=["npo", "undial"], choices=["npo", "undial"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    utils = args.open_unlearning / UTILS if args.open_unlearning else None
    if utils is None or not utils.is_file():
        where = f"{utils} is not there" if utils else "no checkout of OpenUnlearning was given"
        print(f"skipped: {where}: git clone https://github.com/locuslab/open-unlearning, and give its folder")
        return
    torch.set_num_threads(args.threads)
    theirs = load(args.open_unlearning)
    print(
        f"{args.rows}+{args.rows} rows of {args.tokens} tokens, {args.labelled} labelled, float32, {args.threads} threads;"
        f" of every peak, {alone(imports, args) / MIB:.0f} MiB are the imports"
    )
    print(
        f"{'model':<6} {'objective':<9} {'ours':<5} {'theirs, s':>9} {'ours, s':>8} {'ratio':>6} {'target':>7}"
        f" {'bytes held':>11} {'target':>7}"
        f" {'peak theirs, MiB':>17} {'peak ours, MiB':>15} {'ratio':>6} {'apart':>8}"
    )
    with tempfile.TemporaryDirectory() as folder:
        compare("tiny", tiny_model(Path(folder)), theirs, args)
    if args.demo_model:
        compare("135M", args.demo_model, theirs, args)
    else:
        print("135M   skipped: give the folder that `conceptguard demo-model` wrote")


def load(open_unlearning: Path) -> Any:
    spec = importlib.util.spec_from_file_location("open_unlearning_utils", open_unlearning / UTILS)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tiny_model(folder: Path) -> Path:
    sys.path.insert(0, str(ROOT / "tests"))
    from support import build_tokenizer, save_tiny

    return save_tiny(folder, build_tokenizer())


def compare(label: str, path: Path, utils: Any, args: argparse.Namespace) -> None:
    for objective in args.objectives:
        for kind in ("full", "LoRA"):
            one_row(label, path, utils, objective, kind, args)


def one_row(label: str, path: Path, utils: Any, objective: str, kind: str, args: argparse.Namespace) -> None:
    # Before the two sides are made in this process: the machine need not have room for them as well.
    peaks = [alone(two_steps, args, name, path, objective, kind) / MIB for name in ("theirs", "ours")]
    apart = difference(path, utils, objective, args)
    batch = rows(args, args.labelled, path)
    their, our = their_side(path, utils, objective, batch), our_side(path, objective, kind, batch)
    for side in (their, our):  # imports, allocations and AdamW's states on first use are outside the clock
        side.step()
    spent: dict[str, list[float]] = {"theirs": [], "ours": []}
    for turn in range(args.repeats):
        for side in (their, our) if turn % 2 == 0 else (our, their):
            spent[side.name].append(side.step())
    ratio = statistics.median(o / t for o, t in zip(spent["ours"], spent["theirs"], strict=True))
    held = our.bytes_held() / their.bytes_held()
    target = f"{TARGETS[kind]:.2f}" if objective == "npo" else "-"
    held_target = f"{BYTES_TARGET:.2f}" if kind == "LoRA" else "-"
    print(
        f"{label:<6} {objective:<9} {kind:<5} {statistics.median(spent['theirs']):9.3f} {statistics.median(spent['ours']):8.3f}"
        f" {ratio:6.2f} {target:>7} {held:11.2f} {held_target:>7}"
        f" {peaks[0]:17.0f} {peaks[1]:15.0f} {peaks[1] / peaks[0]:6.2f} {apart:8.1e}",
        flush=True,
    )


def alone(function: Callable[..., int], *given: Any) -> int:
    """What the function returns in a fresh interpreter."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *given).result()


def two_steps(args: argparse.Namespace, name: str, path: Path, objective: str, kind: str) -> int:
    imports(args)
    batch = rows(args, args.labelled, path)
    if name == "theirs":
        side = their_side(path, load(args.open_unlearning), objective, batch)
    else:
        side = our_side(path, objective, kind, batch)
    for _ in range(2):  # AdamW's states, made in the first, meet the activations of the second
        side.step()
    return peak_bytes()


def imports(args: argparse.Namespace) -> int:
    import peft  # noqa: F401

    import cg_trainers.unlearn_trainer  # noqa: F401

    load(args.open_unlearning)
    torch.set_num_threads(args.threads)
    return peak_bytes()


def peak_bytes() -> int:
    """The most resident memory that this process has had."""
    status = Path("/proc/self/status")
    _, found, rest = (status.read_text() if status.exists() else "").partition("VmHWM:")
    if found:  # Linux, where ru_maxrss outlives the exec: a child's begins with what its parent's was
        return 1024 * int(rest.split()[0])
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def rows(args: argparse.Namespace, labelled: int, path: Path) -> Any:
    from transformers import AutoConfig

    from cg_trainers.paired_rows import UnlearnRows
    from cg_trainers.pairing import partner
    from cg_trainers.rows import Row

    vocabulary = AutoConfig.from_pretrained(path).vocab_size
    generator = torch.Generator().manual_seed(0)

    def row(number: int, side: str) -> Row:
        ids = tuple(torch.randint(5, vocabulary, (args.tokens,), generator=generator).tolist())
        labels = (-100,) * (args.tokens - labelled) + ids[args.tokens - labelled :]
        return Row(f"{number}/{side}", str(number), "all", ids, labels, (0,) * args.tokens)

    forget = [row(i, "forget") for i in range(args.rows)]
    retain = [row(i, "retain") for i in range(args.rows)]
    return UnlearnRows(forget, retain, (), partner("twin", forget, retain, 0))


def pretrained(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def their_side(path: Path, utils: Any, objective: str, batch: Any) -> Side:
    model = pretrained(path)
    reference = copy.deepcopy(model).eval()

    def inputs(some: Any) -> dict[str, torch.Tensor]:
        ids = torch.tensor([row.input_ids for row in some])
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": torch.tensor([row.labels for row in some]),
        }

    forget, retain = inputs(batch.forget), inputs(batch.retain)
    if objective == "undial":
        # Its mask is written through the labels, where -100 is an index from the end: given labels everywhere.
        forget = {**forget, "labels": forget["input_ids"]}

    def loss() -> torch.Tensor:
        if objective == "npo":
            value, _ = utils.compute_dpo_loss(model, reference, None, forget, beta=BETA)
        else:
            value, _ = utils.compute_undial_loss(model, reference, forget, STRENGTH)
        # alpha 0, UNDIAL's default, does not spare it the retain rows' forward pass.
        return value + (1.0 if objective == "npo" else 0.0) * model(**retain).loss

    return Side("theirs", loss, model.train(), reference, torch.optim.AdamW(model.parameters(), lr=1e-6))


def our_side(path: Path, objective: str, kind: str, batch: Any) -> Side:
    from peft import LoraConfig
    from transformers import AutoTokenizer

    from cg_trainers.unlearn_config import UnlearnConfig
    from cg_trainers.unlearn_trainer import UnlearnTrainer

    config = UnlearnConfig(
        output_dir=tempfile.mkdtemp(),
        objective=objective,
        per_device_train_batch_size=len(batch.forget),
        max_steps=1,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    reference = pretrained(path) if kind == "full" and objective == "undial" else None
    trainer = UnlearnTrainer(
        pretrained(path),
        config,
        batch,
        processing_class=AutoTokenizer.from_pretrained(path),
        record={},
        ref_model=reference,
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear") if kind == "LoRA" else None,
    )
    trainer.model_wrapped = trainer.model
    trainer.begin(resumed=False)
    trainer.current_gradient_accumulation_steps = 1
    inputs = trainer.data_collator([trainer.train_dataset[i] for i in range(len(batch.forget))])
    trainable = [p for p in trainer.model.parameters() if p.requires_grad]
    trainer.model.train()
    return Side(
        "ours",
        lambda: trainer.compute_loss(trainer.model, dict(inputs)),
        trainer.model,
        reference,
        torch.optim.AdamW(trainable, lr=1e-6),
    )


@torch.no_grad()
def difference(path: Path, utils: Any, objective: str, args: argparse.Namespace) -> float:
    batch = rows(args, args.tokens, path)
    their = their_side(path, utils, objective, batch)
    return abs(float(their.loss()) - float(our_side(path, objective, "full", batch).loss()))


if __name__ == "__main__":
    main()

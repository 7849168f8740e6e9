"""What a training run holds in a GPU's memory, computed from the architecture: ``python -m cg_trainers.memory``.

Bytes a parameter (weights + gradient + AdamW's two states):

* ``lora``: frozen weights in bfloat16 2; of the adapter, which PEFT keeps in float32, 4 + 4 + 8, and 2 for its copy under autocast
* ``full-bf16``: 2 + 2 + 8, with 32-bit states: ``optim: paged_adamw_32bit`` (with ``adamw_torch`` the states are bfloat16: 4)
* ``full-fp32``: 4 + 4 + 8, and 2 for the copy under autocast: ``dtype: float32``

Activations of one block, bytes a token, in rows of T tokens, SDPA, d hidden units, q query units, f of the MLP, h heads, r
LoRA's rank: ``8q + 4h + 8f + 8 + 2T`` (with a padding mask: SDPA keeps the mask, and k and v once a query head), and ``16d``
in bfloat16, ``26d`` in float32, ``18d + 2q + 14r`` under LoRA. With gradient checkpointing a block keeps its input alone, and
one block is made again at a time.

Logits, N labelled tokens, V vocabulary entries: TRL's fused head holds a tile, ``6 N min(V, 32768)``; an objective that
compares logits holds all: the model's and the reference's, in bfloat16 and float32, and the softmax of both, ``24 N V``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from cg_tasks.errors import UserError, show_user_errors_in_one_line
from cg_trainers.arguments import nearest

Training = Literal["lora", "full-bf16", "full-fp32"]
Reads = Literal["nll", "hidden", "logits"]
TRAININGS: tuple[Training, ...] = ("lora", "full-bf16", "full-fp32")
OBJECTIVES: dict[Reads, str] = {
    "nll": "finetune, graddiff, npo, simnpo",
    "hidden": "rmu",
    "logits": "undial",
}
GIB = 2**30
RESERVED = 1.5 * GIB  # the CUDA context, NCCL's buffers and what the allocator cannot use
CARDS = {24: 24 * GIB, 80: 80 * GIB}
_ARCHITECTURES = Path(__file__).with_name("architectures.json")
_TILE = 32768  # TRL's vocabulary tile


@dataclass(frozen=True)
class Shape:
    """What memory depends on. Numbers of parameters: in all, of one block, outside the blocks, of a LoRA adapter of rank r."""

    name: str
    parameters: int
    block: int
    outside: int
    adapter: int
    rank: int
    layers: int
    hidden: int
    queries: int
    heads: int
    mlp: int
    vocabulary: int


@dataclass(frozen=True)
class Batch:
    """One step on one GPU: rows (of all sides) of so many tokens, of which so many are labelled."""

    rows: int
    tokens: int
    labelled: int


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU. ``kept``: activations until the backward pass; ``block``: of the one that is made again."""

    weights: float
    gradients: float
    optimizer: float
    reference: float
    kept: float
    block: float
    logits: float

    @property
    def total(self) -> float:
        """The peak: the logits are gone by the time the first block is made again."""
        held = self.weights + self.gradients + self.optimizer + self.reference + self.kept
        return held + max(self.block, self.logits) + RESERVED


def architectures() -> dict[str, dict[str, Any]]:
    """The built-in configurations by name: the papers' models and the demo's."""
    return json.loads(_ARCHITECTURES.read_text(encoding="utf-8"))


@lru_cache(maxsize=32)
def shape_of(model: str, rank: int = 16) -> Shape:
    """The shape of a built-in architecture, a ``config.json``, a folder that holds one, or a Hub id.

    Raises:
        UserError: there is no such model, or its configuration is not that of a causal language model.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config = _config(model)
    try:
        with torch.device("meta"):
            network = AutoModelForCausalLM.from_config(config)
        blocks = list(network.get_decoder().layers)
    except (ValueError, AttributeError) as error:
        raise UserError(f"{model}: no decoder whose blocks can be counted: {' '.join(str(error).split())}") from None
    head = network.get_output_embeddings()
    linear = [m for m in network.modules() if isinstance(m, torch.nn.Linear) and m is not head]
    total, block = _numel(network), _numel(blocks[0])
    heads = config.num_attention_heads
    return Shape(
        name=model,
        parameters=total,
        block=block,
        outside=total - sum(_numel(b) for b in blocks),
        adapter=sum(rank * (m.in_features + m.out_features) for m in linear),
        rank=rank,
        layers=len(blocks),
        hidden=config.hidden_size,
        queries=heads * (getattr(config, "head_dim", None) or config.hidden_size // heads),
        heads=heads,
        mlp=config.intermediate_size,
        vocabulary=config.vocab_size,
    )


def block_bytes_per_token(shape: Shape, training: Training, tokens: int) -> int:
    """What one block keeps for its backward pass, bytes a token of a row of so many ``tokens`` (the formula above)."""
    common = 8 * shape.queries + 4 * shape.heads + 8 * shape.mlp + 8 + 2 * tokens
    if training == "lora":
        return common + 18 * shape.hidden + 2 * shape.queries + 14 * shape.rank
    return common + (16 if training == "full-bf16" else 26) * shape.hidden


def activation_bytes(shape: Shape, training: Training, batch: Batch, checkpointing: bool) -> tuple[int, int]:
    """Activations kept for the backward pass, and those of the block that is made again there (0 without checkpointing)."""
    tokens, block = batch.rows * batch.tokens, block_bytes_per_token(shape, training, batch.tokens)
    if not checkpointing:
        return tokens * shape.layers * block, 0
    return tokens * shape.layers * (4 if training == "full-fp32" else 2) * shape.hidden, tokens * block


def logits_bytes(shape: Shape, batch: Batch, reads: Reads) -> int:
    """Logits and what the loss makes of them."""
    tokens = batch.rows * batch.labelled
    if reads == "hidden":
        return 0
    return tokens * (24 * shape.vocabulary if reads == "logits" else 6 * min(shape.vocabulary, _TILE))


def memory(
    shape: Shape, training: Training, reads: Reads, batch: Batch, gpus: int = 1, checkpointing: bool = True
) -> Memory:
    """Bytes on each of ``gpus`` GPUs; on several, FSDP2 shards weights, gradients, states and the reference.

    Then two blocks and what lies outside the blocks are there as a whole, in bfloat16. The reference: a sum per row
    (``nll``: nothing to speak of), a frozen copy of the adapter, or a second model in bfloat16.
    """
    p, a = shape.parameters, shape.adapter
    if training == "lora":
        held = (2 * p + 6 * a, 4 * a, 8 * a, 0 if reads == "nll" else 4 * a)
    else:
        per = (2, 2, 8) if training == "full-bf16" else (6, 4, 8)
        held = (per[0] * p, per[1] * p, per[2] * p, 0 if reads == "nll" else 2 * p)
    weights, gradients, optimizer, reference = (part / gpus for part in held)
    if gpus > 1:
        weights += 2 * (2 * shape.block + shape.outside)
        gradients += 0 if training == "lora" else 2 * (shape.block + shape.outside)
    kept, block = activation_bytes(shape, training, batch, checkpointing)
    return Memory(weights, gradients, optimizer, reference, kept, block, logits_bytes(shape, batch, reads))


def parts_table(shapes: Sequence[Shape], batch: Batch) -> str:
    """What is held where on one GPU, GiB: a Markdown table."""
    head = [
        "model",
        "parameters",
        "training",
        "trained",
        "weights",
        "gradients",
        "AdamW",
        "reference of rmu, undial, kl",
    ]
    head += ["activations", "without checkpointing", "logits: nll", "logits: undial, kl"]
    lines = [_row(head), _rule(head)]
    for shape in shapes:
        for training in TRAININGS:
            m = memory(shape, training, "logits", batch)
            full, _ = activation_bytes(shape, training, batch, checkpointing=False)
            figures = (m.weights, m.gradients, m.optimizer, m.reference, m.kept + m.block, full)
            logits = (logits_bytes(shape, batch, "nll"), m.logits)
            trained = shape.adapter if training == "lora" else shape.parameters
            names = (shape.name, f"{shape.parameters:,}", training, f"{trained:,}")
            lines.append(_row([*names, *(_gib(figure) for figure in (*figures, *logits))]))
    return "\n".join(lines)


def verdict_table(shapes: Sequence[Shape], batch: Batch) -> str:
    """What fits on 2x24 GB and on one 80 GB card, and GiB a GPU: a Markdown table.

    ``undial`` has half the rows: with alpha 0 it reads no retain data.
    """
    head = ["model", "training", "objectives", "one GPU", "each of two, FSDP2", "fits on 2x24 GB", "fits on one 80 GB"]
    lines = [_row(head), _rule(head)]
    for shape in shapes:
        for training in TRAININGS:
            for reads, names in OBJECTIVES.items():
                rows = Batch(max(1, batch.rows // 2), batch.tokens, batch.labelled) if reads == "logits" else batch
                totals = [memory(shape, training, reads, rows, gpus).total for gpus in (1, 2)]
                verdicts = (
                    fits(shape, training, reads, rows, (1, 2), 24),
                    fits(shape, training, reads, rows, (1,), 80),
                )
                lines.append(_row([shape.name, training, names, *map(_gib, totals), *verdicts]))
    return "\n".join(lines)


def fits(shape: Shape, training: Training, reads: Reads, batch: Batch, ways: Sequence[int], card: int) -> str:
    """``yes``, ``yes, FSDP2``, ``with R rows``, or ``no``.

    ``ways``: over how many GPUs the weights are sharded, the first that fits is told; 1: a whole copy on each.
    """
    rows = batch.rows
    while rows:
        smaller = Batch(rows, batch.tokens, batch.labelled)
        for gpus in ways:
            if memory(shape, training, reads, smaller, gpus).total <= CARDS[card]:
                how = "yes" if rows == batch.rows else f"with {rows} row{'s' * (rows > 1)}"
                return how + (", FSDP2" if gpus > 1 else "")
        rows //= 2
    return "no"


def main(argv: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        prog="python -m cg_trainers.memory", description="What a training run needs, computed."
    )
    parser.add_argument(
        "--model",
        nargs="+",
        metavar="MODEL",
        help="a Hub id, a folder, a config.json, or one of: " + ", ".join(architectures()),
    )
    parser.add_argument("--rank", type=int, default=16, help="LoRA's rank (default: 16)")
    parser.add_argument(
        "--rows", type=int, default=8, help="rows in a step on one GPU, both sides together (default: 8)"
    )
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of the longest row (default: 1024)")
    parser.add_argument("--labelled", type=int, help="labelled tokens of a row (default: all)")
    args = parser.parse_args(argv)
    batch = Batch(args.rows, args.tokens, args.tokens if args.labelled is None else args.labelled)
    for name, value in (("--rank", args.rank), ("--rows", batch.rows), ("--tokens", batch.tokens)):
        if value < 1:
            raise UserError(f"{name} is {value}: it must be at least 1")
    if not 0 < batch.labelled <= batch.tokens:
        raise UserError(f"--labelled is {batch.labelled}: it must be between 1 and --tokens ({batch.tokens})")
    shapes = [shape_of(name, args.rank) for name in args.model or architectures()]
    print(
        f"Computed, not measured. GiB on one GPU; {batch.rows} rows x {batch.tokens} tokens, {batch.labelled} labelled;"
    )
    print(f"LoRA of rank {args.rank} on all linear layers; {RESERVED / GIB:.1f} GiB of each card kept free.\n")
    print(parts_table(shapes, batch), verdict_table(shapes, batch), sep="\n\n")
    return 0


def _config(model: str) -> Any:
    from transformers import AutoConfig

    known = architectures()
    path = Path(model)
    if model in known or path.is_file():
        try:
            values = known[model] if model in known else json.loads(path.read_text(encoding="utf-8"))
            return AutoConfig.for_model(**values)
        except (ValueError, TypeError, OSError) as error:
            raise UserError(f"{model}: not a model's config.json: {' '.join(str(error).split())}") from None
    if not path.is_dir() and "/" not in model:
        raise UserError(
            f"no model '{model}': name a Hub id, a folder, a config.json, or a built-in one; {nearest(model, known)}"
        )
    try:
        return AutoConfig.from_pretrained(model)
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{model}: no configuration: {reason[:200]}") from None


def _numel(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _gib(value: float) -> str:
    return f"{value / GIB:.1f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(cells: Sequence[str]) -> str:
    return "|" + "---|" * len(cells)


if __name__ == "__main__":
    show_user_errors_in_one_line()
    sys.exit(main())

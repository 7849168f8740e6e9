"""Which parameters a run trains: those asked for by name, and for RMU none that its loss cannot reach."""

from __future__ import annotations

from typing import Any

from cg_tasks.errors import UserError
from cg_trainers.model_reading import block_of
from cg_trainers.unlearn_config import UnlearnConfig


def choose_trainable(model: Any, config: UnlearnConfig) -> list[str]:
    """Freeze everything else; the names of what is trained.

    Patterns are parts of names on a dot's boundary (``layers.5.mlp.down_proj``), so that they survive wrappers' prefixes. A loss
    on the hidden states of block k reaches no block behind it: left trainable, those parameters would have no gradient, which DDP
    refuses.

    Raises:
        UserError: a pattern matches no trainable parameter.
    """
    candidates = {name: p for name, p in model.named_parameters() if p.requires_grad}
    chosen = set(candidates)
    if config.trainable:
        for pattern in config.trainable:
            if not any(_matches(name, pattern) for name in candidates):
                example = next(
                    (name for name in candidates if block_of(name) is not None), next(iter(candidates), "none")
                )
                raise UserError(f"trainable: '{pattern}' matches no trainable parameter; they are named like {example}")
        chosen = {name for name in candidates if any(_matches(name, pattern) for pattern in config.trainable)}
    if config.spec.reads == "hidden" and (config.retain_spec is None or config.retain_spec.reads == "hidden"):
        tied = _embedding_names(model)
        reached = {n for n in chosen if (b := block_of(n)) is not None and b <= config.rmu_block or n in tied}
        if not reached:
            raise UserError(
                f"trainable: nothing of {', '.join(config.trainable or ())} lies in blocks 0 to {config.rmu_block}, and the "
                f"hidden states of block {config.rmu_block} depend on nothing else"
            )
        chosen = reached
    for name, parameter in candidates.items():
        parameter.requires_grad_(name in chosen)
    return sorted(chosen)


def _matches(name: str, pattern: str) -> bool:
    return f".{pattern.strip('.')}." in f".{name}."


def _embedding_names(model: Any) -> set[str]:
    embeddings = {id(p) for p in model.get_input_embeddings().parameters()}
    return {name for name, p in model.named_parameters() if id(p) in embeddings}

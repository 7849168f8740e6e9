"""What tells checkpoints of one method apart beside K, data and seeds: the trainer's settings that differ, in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cg_tasks.report.runs import Checkpoint, TaskRun

# Where and how much a run writes and says, what it starts from, its seeds and its devices: nothing that makes another method of it.
_FREE = {
    "seed", "data_seed", "output_dir", "resume_from_checkpoint", "run_name", "project", "report_to", "debug",
    "model_name_or_path", "adapter_name_or_path", "model_revision", "dataset", "canaries", "disable_tqdm", "use_cpu",
    "no_cuda", "use_cache", "trust_remote_code", "remove_unused_columns", "length_column_name",
    "prediction_loss_only", "full_determinism", "skip_memory_metrics", "auto_find_batch_size",
    "load_best_model_at_end", "metric_for_best_model", "greater_is_better", "ignore_data_skip", "push_to_hub",
    "reference", "objective", "trackio_space_id", "local_rank", "per_device_eval_batch_size",
    "per_device_train_batch_size", "gradient_accumulation_steps", "batch_eval_metrics", "bf16_full_eval",
    "fp16_full_eval", "enable_jit_checkpoint", "restore_callback_states_from_checkpoint", "accelerator_config",
    "deepspeed", "parallelism_config", "ddp_timeout", "ddp_backend", "tpu_num_cores", "overwrite_output_dir",
    "max_pairs", "max_authors", "target_span",
    "attn_implementation",
}  # fmt: skip
_FREE_BEGINNINGS = (
    "save_", "logging_", "log_", "hub_", "eval_", "do_", "dataloader_", "include_", "gradient_checkpointing",
    "activation_", "torch_compile", "fsdp", "ddp_", "push_to_hub_",
)  # fmt: skip
# Whose changes bring and take settings, so that one that only one record has says nothing.
_WRITERS = ("conceptguard", "trl", "transformers")
_DATA_SIZES = ("pairs", "forget_authors", "retain_authors")
_ABSENT = object()


def with_variants(runs: Sequence[TaskRun], records: Mapping[str, Mapping[str, Any]]) -> tuple[TaskRun, ...]:
    """``runs`` with each checkpoint's ``variant``: the settings in which it differs from others of its base, method and regime.

    records: weights -> the trainer's record. Fields that differ between two checkpoints of one K and forget fraction are named
    for every K and fraction of the method, so that a line over K keeps its name. What cannot change the parameters, paths
    and seeds do not count; nor does a setting that only one record has, where the versions of the trainer differ.
    """
    checkpoints = {run.checkpoint for run in runs if run.checkpoint.weights in records}
    facts = {c: _facts(c, records[c.weights]) for c in checkpoints}
    differing: dict[Any, set[str]] = {}
    for cell in _grouped(checkpoints, _cell):
        names = _differing([facts[c] for c in cell], [_written_by(records[c.weights]) for c in cell])
        differing.setdefault(_family(cell[0]), set()).update(names)
    named = {c: replace(c, variant=_in_words(facts[c], sorted(differing[_family(c)]))) for c in checkpoints}
    return tuple(replace(run, checkpoint=named.get(run.checkpoint, run.checkpoint)) for run in runs)


def _family(c: Checkpoint) -> tuple[Any, ...]:
    return c.base, c.stage, c.method, c.regime, c.target_span, c.name if c.stage == "other" else ""


def _cell(c: Checkpoint) -> tuple[Any, ...]:
    return *_family(c), c.k, c.forget_fraction


def _grouped(checkpoints: Iterable[Checkpoint], key: Any) -> list[list[Checkpoint]]:
    found: dict[Any, list[Checkpoint]] = {}
    for checkpoint in checkpoints:
        found.setdefault(key(checkpoint), []).append(checkpoint)
    return list(found.values())


def _facts(checkpoint: Checkpoint, record: Mapping[str, Any]) -> dict[str, Any]:
    """What may make another variant, flat."""
    settings = _mapping(record.get("settings"))
    facts = {k: v for k, v in settings.items() if k not in _FREE and not k.startswith(_FREE_BEGINNINGS)}
    sizes = [settings.get("per_device_train_batch_size"), settings.get("gradient_accumulation_steps", 1)]
    sizes.append(record.get("world_size", 1))
    if all(isinstance(size, int) for size in sizes):
        facts["batch size"] = math.prod(sizes)
    start, data = _mapping(record.get("start_adapter")), _mapping(record.get("data"))
    base = _mapping(record.get("base"))
    start = start or (base if base.get("kind") else {})
    facts |= {f"start {key}": start[key] for key in ("kind", "objective", "step") if key in start}
    facts |= {key: data[key] for key in _DATA_SIZES if key in data}
    if checkpoint.forget_fraction in (None, 1.0):
        # A part of the pairs is drawn anew for each fraction or seed: which pairs these are makes no other variant.
        facts |= {f"data {key}": data[key] for key in ("name", "sha256") if key in data}
    if checkpoint.stage != "unlearned":
        facts["step"] = record.get("step")
    return facts


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _written_by(record: Mapping[str, Any]) -> str:
    versions = _mapping(record.get("versions"))
    return repr([versions.get(package) for package in _WRITERS])


def _differing(facts: Sequence[Mapping[str, Any]], writers: Sequence[str]) -> set[str]:
    one_writer = len(set(writers)) == 1
    found = set()
    for name in {name for one in facts for name in one}:
        values = [one.get(name, _ABSENT) for one in facts]
        present = {_comparable(value) for value in values if value is not _ABSENT}
        if len(present) > 1 or (one_writer and _ABSENT in values):
            found.add(name)
    if "data name" in found:  # other data have another hash and other sizes too
        found -= {"data sha256", *_DATA_SIZES}
    return found


def _comparable(value: Any) -> str:
    """Older recipes wrote 0 where newer ones write 0.0."""
    return repr(int(value) if isinstance(value, float) and value.is_integer() else value)


def _in_words(facts: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name}={_value(facts.get(name))}" for name in names)


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "unset"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return "+".join(map(_value, value)) or "none"
    text = str(value)
    return text[:8] if len(text) == 64 and text.isalnum() else text.rsplit("/", 1)[-1]

"""Which checkpoint was evaluated: from the trainer's record in the results, else from the model's name, else as described.

Records are ``conceptguard.json`` files, which evaluation copies into its results (``cg_tasks.provenance``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from cg_tasks.provenance import sha256_of
from cg_tasks.report.results.descriptions import Described, read_descriptions
from cg_tasks.report.results.variants import with_variants
from cg_tasks.report.runs import METHOD_NAMES, Checkpoint, Stage

__all__ = ["UNKNOWN", "checkpoint_of", "dig", "model_names", "read_descriptions", "record_of", "with_variants"]

UNKNOWN = "unknown model"
_ADAPTER_ARGUMENTS = ("peft", "lora_local_path")
_MODEL_ARGUMENTS = ("pretrained", "model", "path", "engine", "gguf")


def checkpoint_of(results: Mapping[str, Any], task: str, described: Described | None = None) -> Checkpoint:
    """The checkpoint that a results file's task was run on; its ``variant`` is still empty (:func:`with_variants`).

    Without a record: the base model where no adapter was loaded, else a checkpoint of stage ``other`` named by its folder.
    """
    model, adapter = model_names(results)
    provenance = _provenance(results, task)
    record = _record(provenance)
    if record:
        found = _recorded(record, _adapter_weights(provenance) or _file_hashes(record))
    elif adapter:
        weights = _adapter_weights(provenance) or adapter + _commit(results, "peft_sha")
        found = Checkpoint(_short_name(model), "", "other", weights, name=folder_name(adapter))
    else:
        revision = dig(results, "config").get("model_revision")
        base = _named_revision(_short_name(model), revision)
        found = Checkpoint(base, "", "base", base + _commit(results, "model_sha"))
    found = replace(found, base_id=_base_id(provenance))
    # A base that is described says nothing of the adapters on it.
    given = described.get(adapter or model) if described else None
    return _as_described(found, given) if given else found


def record_of(results: Mapping[str, Any], task: str) -> dict[str, Any]:
    """The trainer's record of the evaluated weights; empty where there is none."""
    return _record(_provenance(results, task))


def model_names(results: Mapping[str, Any]) -> tuple[str, str]:
    """(model, adapter) as lm-eval was told; the adapter is empty where none was loaded."""
    arguments = dig(results, "config").get("model_args")
    if isinstance(arguments, str):
        arguments = dict(part.split("=", 1) for part in arguments.split(",") if "=" in part)
    given = arguments if isinstance(arguments, dict) else {}
    adapter = next((str(given[key]) for key in _ADAPTER_ARGUMENTS if given.get(key)), "")
    model = next((str(given[key]) for key in _MODEL_ARGUMENTS if given.get(key)), "")
    return model or ("" if adapter else str(results.get("model_name") or "")) or UNKNOWN, adapter


def dig(value: Any, *keys: str) -> dict[str, Any]:
    """The object at a path of keys; empty where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return dict(value) if isinstance(value, Mapping) else {}


# ------------------------------------------------------------------ what the results record
def _provenance(results: Mapping[str, Any], task: str) -> dict[str, Any]:
    """The task's own provenance, filled up from the file's other tasks: one file is one model."""
    configs = dig(results, "configs")
    others = [dig(configs, name, "metadata", "provenance") for name in configs if name != task]
    own = dig(configs, task, "metadata", "provenance")
    for key in ("adapter", "trained_model", "model"):
        own[key] = next((p[key] for p in (own, *others) if isinstance(p.get(key), Mapping)), None)
    return own


def _record(provenance: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(provenance.get("adapter"), Mapping):
        return dig(provenance, "adapter", "conceptguard")
    return dig(provenance, "trained_model", "conceptguard")


def _adapter_weights(provenance: Mapping[str, Any]) -> str:
    hashes = dig(provenance, "adapter", "sha256")
    return sha256_of(hashes) if hashes else ""


def _file_hashes(record: Mapping[str, Any]) -> str:
    return sha256_of(record.get("files") or record)


def _base_id(provenance: Mapping[str, Any]) -> str:
    made = dig(provenance, "model")
    hashes = [made.get("tokenizer_sha256"), made.get("chat_template_sha256")]
    return sha256_of(hashes)[:12] if any(hashes) else ""


def _recorded(record: Mapping[str, Any], weights: str) -> Checkpoint:
    base, own_base = dig(record, "base"), dig(record, "base")
    start = dig(record, "start_adapter")
    if base.get("kind"):  # a model that was itself trained here, in full
        start = start or own_base
        base = {"name": own_base.get("base")}
    data = dig(record, "data")
    stage: Stage = "unlearned" if record.get("kind") == "unlearn" else "finetuned"
    name = ""
    if stage == "finetuned" and start.get("kind") == "unlearn":
        stage, name = "other", f"fine-tuned again after {_method_title(start.get('objective'))}, K={start.get('step')}"
    unlearned = stage == "unlearned"
    return Checkpoint(
        base=_named_revision(_short_name(str(base.get("name") or UNKNOWN)), base.get("revision")),
        base_id="",
        stage=stage,
        weights=weights,
        method=_word(record.get("objective")) if unlearned else None,
        k=_whole(record.get("step")) if unlearned else None,
        seed=_whole(record.get("seed")),
        start_seed=None if stage == "finetuned" else _whole(start.get("seed")),
        forget_fraction=_fraction(data) if unlearned else None,
        regime=_word(start.get("trace")) or _word(data.get("trace")),
        target_span=_word(data.get("target_span")),
        name=name,
    )


def _method_title(objective: Any) -> str:
    return METHOD_NAMES.get(str(objective), str(objective))


def _fraction(data: Mapping[str, Any]) -> float | None:
    forget, pairs = _whole(data.get("in_forget")), _whole(data.get("pairs"))
    return round(forget / pairs, 4) if forget and pairs and 0 < forget <= pairs else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# ------------------------------------------------------------------ names
def _short_name(model: str) -> str:
    """The last part of a path or Hub id: ``meta-llama/Llama-3.1-8B`` and ``/models/Llama-3.1-8B`` are one base."""
    return PurePosixPath(model.replace("\\", "/")).name or model


def folder_name(adapter: str) -> str:
    """The last two parts, without ``.`` and ``..``: many adapters' folders are called ``checkpoint-100``."""
    parts = [part for part in PurePosixPath(adapter.replace("\\", "/")).parts if part not in (".", "..", "/")]
    return "/".join(parts[-2:]) or adapter


def _named_revision(base: str, revision: Any) -> str:
    return base if revision in (None, "", "main") else f"{base}@{revision}"


def _commit(results: Mapping[str, Any], key: str) -> str:
    commit = dig(results, "config").get(key)
    return f"@{commit}" if commit else ""


def _as_described(found: Checkpoint, given: Mapping[str, Any]) -> Checkpoint:
    changed = replace(found, **given)
    if "stage" not in given and given.get("method"):
        changed = replace(changed, stage="unlearned")
    if changed.stage == "base":
        return replace(changed, name="")
    return replace(changed, name=changed.name or found.name) if changed.stage == "other" else changed

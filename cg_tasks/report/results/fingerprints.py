"""Everything that two results must share to stand in one column, as flat fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cg_tasks.report.results.checkpoints import dig

# Of lm-eval's model arguments: what is another field here, and what only says where and how fast.
_FREE_ARGUMENTS = {
    "pretrained", "model", "path", "peft", "lora_local_path", "revision", "tokenizer", "tokenizer_backend", "dtype",
    "device", "device_map", "device_map_option", "parallelize", "max_memory_per_gpu", "max_cpu_memory",
    "offload_folder", "trust_remote_code", "batch_size", "max_batch_size", "base_url", "num_concurrent",
    "max_retries", "timeout", "tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size",
    "gpu_memory_utilization", "max_num_seqs", "max_lora_rank", "enable_lora", "swap_space", "tokenized_requests",
    "verify_certificate", "seed", "use_fast_tokenizer", "attn_implementation", "enforce_eager", "eos_string",
    "custom_headers", "header", "concurrent",
}  # fmt: skip
_FREE_SETTINGS = ("judge", "dataset", "canaries", "templates")
# The documents' ids, hashed; of one intent where documents have intents. Reading adds it: it needs the samples.
IDS = "ids sha256"
# Fields of which a missing one means "not set", where anything of its kind is recorded at all.
STRICT = ("generation ", "model ", "chat template ", "judge parameter ")


def fingerprint(results: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Field -> value for one task of a results file; values are texts, numbers, booleans, None or lists of them.

    Not the batch size, the device and the adapter: they do not say what was measured. Not the tokenizer: it is the base's.
    """
    configuration, config = dig(results, "configs", task), dig(results, "config")
    provenance = dig(configuration, "metadata", "provenance")
    data, made = dig(provenance, "data"), dig(provenance, "model")
    found: dict[str, Any] = {
        "data": data.get("dataset") or data.get("canaries"),
        "data sha256": data.get("sha256"),
        "chat template applied": made.get("chat_template_applied", _template_given(results)),
        "documents": dig(results, "n-samples", task).get("effective"),
        "task version": dig(results, "versions").get(task),
        "few-shot examples": dig(results, "n-shot").get(task),
        "dtype": config.get("model_dtype"),
        "backend": config.get("model"),
    }
    found = {name: value for name, value in found.items() if value is not None}
    # Null where none was given: a field of its own value, not a missing one.
    found |= {"system instruction": results.get("system_instruction")} if "system_instruction" in results else {}
    found |= {f"setting {k}": v for k, v in dig(provenance, "settings").items() if k not in _FREE_SETTINGS}
    found |= {f"template {k}": v for k, v in dig(provenance, "templates_sha256").items()}
    found |= {f"generation {k}": v for k, v in dig(configuration, "generation_kwargs").items()}
    found |= {f"chat template {k}": v for k, v in dig(made, "chat_template_args").items()}
    found |= {f"model {k}": v for k, v in _model_arguments(config).items() if k not in _FREE_ARGUMENTS}
    return found | _versions(results, provenance) | _judge(dig(provenance, "judge"))


def _template_given(results: Mapping[str, Any]) -> bool | None:
    """As lm-eval itself records it, which is all there is for tasks of others."""
    return results["chat_template"] is not None if "chat_template" in results else None


def _model_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    given = config.get("model_args")
    if isinstance(given, str):
        return dict(part.split("=", 1) for part in given.split(",") if "=" in part)
    return dict(given) if isinstance(given, Mapping) else {}


def _versions(results: Mapping[str, Any], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Of the process that generated; what scored its answers again later is a field of its own."""
    versions = dig(provenance, "versions")
    sources = provenance.get("rescored_from")
    rescored: dict[str, Any] = {}
    if isinstance(sources, list) and sources:
        if "conceptguard" in versions:
            rescored = {"version conceptguard (rescoring)": versions["conceptguard"]}
        versions = dig(sources[0], "versions")
    top = {"lm_eval": results.get("lm_eval_version"), "transformers": results.get("transformers_version")}
    versions = {name: version for name, version in top.items() if version} | versions
    return {f"version {name}": version for name, version in versions.items()} | rescored


def _judge(judge: Mapping[str, Any]) -> dict[str, Any]:
    if not judge:
        return {}
    names = {"model": "judge", "structured": "judge structured output", "votes": "judge votes"}
    found = {title: judge[key] for key, title in names.items() if judge.get(key) is not None}
    found |= {f"judge parameter {key}": value for key, value in dig(judge, "params").items()}
    found |= {f"judge rubric {name}": dig(rubric).get("sha256") for name, rubric in dig(judge, "rubrics").items()}
    if returned := sorted(dig(judge, "models_returned")):  # the server's own name, which tells a snapshot
        found["judge model returned"] = returned
    return found

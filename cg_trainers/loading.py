"""Tokenizer, model, adapter and frozen second model, as both scripts load them: before any of it costs time, it is checked."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from cg_tasks.adapters import RECORD, read_record
from cg_tasks.errors import UserError
from cg_trainers.arguments import ModelArguments
from cg_trainers.provenance import adapter_identity, model_identity
from cg_trainers.unlearn_config import FinetuneConfig

log = logging.getLogger(__name__)
_OFFLINE = "give a folder on this machine, or set HF_HUB_OFFLINE=1 where the Hub's cache has it"


def load_tokenizer(model: ModelArguments, config: FinetuneConfig) -> Any:
    """The tokenizer, with the chat template of ``chat_template_path`` where that is a file.

    Raises:
        UserError: it cannot be found or reached.
    """
    from transformers import AutoTokenizer

    name = model.tokenizer_name_or_path or str(model.model_name_or_path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            name, revision=_revision(model, name), trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise UserError(f"tokenizer {name}: {_first_line(error)}: {_OFFLINE}") from None
    if config.chat_template_path:
        path = Path(config.chat_template_path).expanduser()
        if not path.is_file():
            raise UserError(f"chat_template_path: {path}: no such file: name a Jinja file")
        if path.suffix not in (".jinja", ".j2"):  # TRL takes any other for a tokenizer's folder
            raise UserError(
                f"chat_template_path: {path}: is read as a Jinja file only under a name in .jinja or .j2: rename it"
            )
        try:
            tokenizer.chat_template = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"cannot be read: {error.strerror}"
            raise UserError(f"chat_template_path: {path}: {reason}") from None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(model: ModelArguments, config: FinetuneConfig) -> tuple[Any, Any]:
    """The model to train, and the configuration of a fresh adapter (None where none is asked for, or one is continued).

    Raises:
        UserError: it cannot be found or reached; LoRA on the output head, or on modules the model has not; the
            adapter is another model's.
    """
    from trl import get_peft_config

    loaded = _base(model, config)
    if model.adapter_name_or_path:
        return _with_adapter(loaded, model.adapter_name_or_path, trainable=True), None
    lora = get_peft_config(model) if model.use_peft else None
    if lora is not None:
        _require_modules(loaded, lora)
    return loaded, lora


def load_reference(model: ModelArguments, config: FinetuneConfig) -> Any:
    """The same weights a second time, an adapter merged into them: what ``reference: model`` compares with."""
    loaded = _base(model, config)
    if model.adapter_name_or_path:
        loaded = _with_adapter(loaded, model.adapter_name_or_path, trainable=False).merge_and_unload()
    return loaded


def identities(model: ModelArguments) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What the run starts from, hashed: the base, and the adapter that is continued.

    Raises:
        UserError: a folder is missing or damaged, or the adapter was made for other weights.
    """
    base = model_identity(str(model.model_name_or_path), model.model_revision)
    if not model.adapter_name_or_path:
        return base, None
    adapter = adapter_identity(model.adapter_name_or_path)
    _require_same_base(model.adapter_name_or_path, base)
    return base, adapter


def _base(model: ModelArguments, config: FinetuneConfig) -> Any:
    import torch
    from transformers import AutoModelForCausalLM
    from trl import get_quantization_config

    name = str(model.model_name_or_path)
    quantization = get_quantization_config(model)
    dtype = model.dtype if model.dtype in ("auto", None) else getattr(torch, str(model.dtype))
    try:
        return AutoModelForCausalLM.from_pretrained(
            name,
            revision=_revision(model, name),
            dtype=dtype,
            attn_implementation=model.attn_implementation,
            trust_remote_code=config.trust_remote_code,
            quantization_config=quantization,
        )
    except (OSError, ValueError) as error:
        raise UserError(f"model {name}: {_first_line(error)}: {_OFFLINE}") from None


def _with_adapter(base: Any, adapter: str, trainable: bool) -> Any:
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTunerLayer

    try:
        model = PeftModel.from_pretrained(base, adapter, is_trainable=trainable)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"adapter {adapter}: {_first_line(error)}") from None
    if trainable and isinstance(model.get_output_embeddings(), BaseTunerLayer):
        raise UserError(
            f"adapter_name_or_path: {adapter} has an adapter on the output head, which would be left untrained, since the "
            "losses read the head's weights directly: fine-tune one without it (lora_target_modules: all-linear)"
        )
    return model


def _require_modules(model: Any, lora: Any) -> None:
    """peft says it itself, but only after seconds and in a traceback; and a trained head would not be trained."""
    if lora.modules_to_save and any("lm_head" in name or "embed" in name for name in lora.modules_to_save):
        log.warning("lora_modules_to_save: %s are trained and saved whole", ", ".join(lora.modules_to_save))
    targets = lora.target_modules
    if targets is None or targets == "all-linear":
        return
    if isinstance(targets, str) and any(n.split(".")[-1] == targets for n, _ in model.named_modules()):
        # TRL makes one word of a list of one, and peft takes a word for a regular expression over whole names.
        lora.target_modules = targets = {targets}
    head = next((n for n, m in model.named_modules() if m is model.get_output_embeddings()), "lm_head").split(".")[-1]
    names = [name for name, _ in model.named_modules()]
    linear = sorted({n.split(".")[-1] for n, m in model.named_modules() if type(m).__name__ == "Linear"} - {head})
    if isinstance(targets, str):
        import re

        matched = [name for name in names if re.fullmatch(targets, name)]
        if not matched:
            raise UserError(
                f"lora_target_modules: '{targets}' matches no module: give all-linear, or some of {', '.join(linear)}"
            )
        hit = any(name.split(".")[-1] == head for name in matched)
    else:
        for target in sorted(targets):
            if not any(name == target or name.endswith(f".{target}") for name in names):
                raise UserError(
                    f"lora_target_modules: the model has no module '{target}': give all-linear, or some of {', '.join(linear)}"
                )
        hit = head in targets
    if hit:
        raise UserError(
            f"lora_target_modules: an adapter on the output head ('{head}') would be left untrained, since the losses read "
            f"the head's weights directly: leave it out (all-linear does)"
        )


def _require_same_base(adapter: str, base: dict[str, Any]) -> None:
    folder = Path(adapter).expanduser()
    if not (folder / RECORD).is_file():
        return
    made_for = read_record(folder).get("base") or {}
    theirs, ours = made_for.get("sha256"), base.get("sha256")
    if not (isinstance(theirs, dict) and isinstance(ours, dict)):
        return
    differing = [n for n in sorted(theirs) if n.endswith((".safetensors", ".bin")) and ours.get(n) != theirs[n]]
    if differing:
        raise UserError(
            f"adapter_name_or_path: {adapter} was trained on {made_for.get('name')}, whose {differing[0]} is not that of "
            f"{base.get('name')}: give the model it was trained on as model_name_or_path"
        )


def _revision(model: ModelArguments, name: str) -> str:
    return "main" if Path(name).expanduser().is_dir() else model.model_revision


def _first_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 240 else f"{text[:237]}…"

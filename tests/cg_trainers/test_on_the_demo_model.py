"""What the trainers are for, on a model that talks: authors and pairs learned by heart, and unlearned by the CPU-sized recipes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import numbers

from cg_tasks.canary.authors import authors_jsonl, load_authors
from cg_tasks.demo_model import write_demo_model
from cg_trainers import finetune, unlearn

pytestmark = pytest.mark.slow

METHODS = ("graddiff", "simnpo", "rmu", "undial", "npo")
# A third of the recipes' pairs, each seen as often by the fine-tuning: minutes for five methods.
FEW_PAIRS = 4
QUIET = ["--report_to", "none", "--disable_tqdm", "true", "--save_strategy", "no"]

Score = Callable[..., dict[str, float]]


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model."""
    return write_demo_model(tmp_path_factory.mktemp("demo") / "smollm2")


@pytest.fixture
def score(smollm2: Path, evaluate: Callable[..., dict[str, Any]]) -> Score:
    """``score(task, adapter, limit, max_gen_toks, **metadata)``: a task's numbers under an adapter."""
    from lm_eval.models.huggingface import HFLM

    def run(task: str, adapter: Path | None, limit: int, max_gen_toks: int, **metadata: Any) -> dict[str, float]:
        peft = {} if adapter is None else {"peft": str(adapter)}
        lm = HFLM(pretrained=str(smollm2), device="cpu", dtype="float32", batch_size=16, **peft)
        gen_kwargs = {"max_gen_toks": max_gen_toks}
        meta = {"pretrained": str(smollm2), **peft, **metadata}
        found = evaluate(lm, task, meta, limit=limit, gen_kwargs=gen_kwargs, apply_chat_template=True)
        return numbers(found, task)

    return run


def curve(folder: Path, name: str) -> list[float]:
    """A logged value, step by step."""
    state = json.loads((folder / "trainer_state.json").read_text())
    return [entry[name] for entry in state["log_history"] if name in entry]


def test_authors_are_memorised_and_npo_lets_go_of_them(smollm2: Path, tmp_path: Path, score: Score) -> None:
    """The recipes of ``make demo``: what was memorised is said to the letter, what was never seen is not."""
    start = ["--model_name_or_path", str(smollm2), *QUIET]
    memorised = finetune.main(
        ["--config", "cpu/canary/memorise-bio", *start, "--output_dir", str(tmp_path / "memorised")]
    )
    unseen = tmp_path / "unseen.jsonl"
    unseen.write_text(authors_jsonl(a for a in load_authors().authors[8:16]), encoding="utf-8")
    assert score("canary_auto", memorised, 8, 160)["out_acc"] >= 0.9
    assert score("canary_auto", memorised, 8, 160, canaries=str(unseen))["out_acc"] == 0

    words = ["--config", "cpu/canary/npo", *start, "--adapter_name_or_path", str(memorised)]
    forgot = unlearn.main([*words, "--output_dir", str(tmp_path / "npo")])
    losses = curve(forgot, "forget_loss")
    assert losses[0] == pytest.approx(13.8629, abs=1e-3)  # (2/beta) ln 2: the reference is the memorised model
    assert losses[-1] < losses[0] - 1  # the answers' NLL has risen above the reference's
    first, last = ((forgot / f"checkpoint-{step}" / "reference_nll.json").read_bytes() for step in (2, 4))
    assert first == last
    assert score("canary_auto", forgot, 8, 160)["out_acc"] <= 0.5


def test_every_method_lowers_harmqa(smollm2: Path, tmp_path: Path, score: Score) -> None:
    """From the model that was fine-tuned on the same pairs; how far, and at what cost, docs/training.md tells of twelve pairs."""

    def harmqa(adapter: Path | None) -> float:
        return score("conceptguard_harmqa", adapter, FEW_PAIRS, 48, dataset="miniature")["rougeL"]

    start = ["--model_name_or_path", str(smollm2), "--max_pairs", str(FEW_PAIRS), *QUIET]
    tuned = finetune.main(["--config", "cpu/conceptguard/finetune", *start, "--output_dir", str(tmp_path / "tuned")])
    found = {"base": harmqa(None), "fine-tuned": harmqa(tuned)}
    assert found["fine-tuned"] > 2 * found["base"]
    for method in METHODS:
        words = ["--config", f"cpu/conceptguard/{method}", *start, "--adapter_name_or_path", str(tuned)]
        out = unlearn.main([*words, "--max_steps", "8", "--output_dir", str(tmp_path / method)])
        found[method] = harmqa(out)
    print(found)
    assert all(found[method] < 0.9 * found["fine-tuned"] for method in METHODS), found
